"""A local HTTP server that speaks the documented form of each kind over a tiny model in torch."""

import base64
import json
import math
import re
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from reading_cases import next_token

# Tokens 0 and 1 are PAD and END of the tiny models.
TEXTS = ["<pad>", "<end>", *"0123456789", ".", ",", "-", " ", "V", "e", "7 ", "12", " 4", " word"]
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp", "openai": "someone"}


class FormServer(ThreadingHTTPServer):
    """It answers like a server of `kind`; `faults` are what it does in place of the next answers.

    A fault is a status code, "cut" (the connection), "hang", or "garbage".
    """

    daemon_threads = True

    def __init__(self, kind, model, texts=TEXTS, most=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kind, self.model, self.texts, self.most = kind, model, list(texts), most
        self.faults: list[Any] = []
        self.requests: list[tuple[str, Any]] = []
        self.keys: list[str | None] = []
        self.without_logprobs = False
        self.echoes = True  # of "openai": whether it returns the prompt
        self.as_list = False  # of "openai": the likeliest tokens, as in chat completions
        self.lost: set[int] = set()
        self.open = self.most_open = 0
        self.counting = threading.Lock()
        self.slow = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def encode(self, text):
        longest = sorted(self.texts, key=len, reverse=True)
        return [self.texts.index(piece) for piece in re.findall("|".join(map(re.escape, longest)), text)]

    def log_probs(self, prefix):
        tokens = self.encode(prefix) if isinstance(prefix, str) else prefix
        return next_token(self.model, torch.tensor(tokens))([])

    def likeliest(self, log_probs, count):
        return sorted(range(len(log_probs)), key=lambda i: -log_probs[i])[: min(count, self.most or count)]

    def write(self, prompt, count):
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        written: list[int] = []
        for _ in range(count):
            written += self.likeliest(self.log_probs(tokens + written), 1)
        return "".join(self.texts[i] for i in written)

    def answer(self, path, body):
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "owned_by": OWNERS[self.kind]}]}
        if path == "/v1/chat/completions":
            return self.chat(body)
        if path == "/tokenize" and self.kind != "openai":
            return {"tokens": self.encode(body["content" if self.kind == "llama.cpp" else "prompt"])}
        if path == "/detokenize" and self.kind != "openai":
            field = {"vllm": "prompt", "sglang": "text", "llama.cpp": "content"}[self.kind]
            return {field: "".join(self.texts[i] for i in body["tokens"])}
        if path == "/v1/completions" and body.get("logprobs") is None:
            texts = [self.write(prompt, body["max_tokens"]) for prompt in body["prompt"]]
            if body.get("echo") and self.echoes:
                prompts = [
                    p if isinstance(p, str) else "".join(self.texts[i] for i in p) for p in body["prompt"]
                ]
                texts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
            choices = [{"index": i, "text": text} for i, text in enumerate(texts)]
            return {"choices": choices[::-1]}
        return self.next_tokens(path, body)

    def chat(self, body):
        """A turn of images and text is read as the images' data and the text; the answer's turn goes on."""
        *turns, last = body["messages"]
        begun = last["content"] if last["role"] == "assistant" else ""
        turns += [] if begun else [last]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (bool(begun), not begun)
        assert (body["max_tokens"], body["logprobs"]) == (1, True)
        parts = [part for turn in turns for part in turn["content"]]
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        seen = "".join(base64.b64decode(url.partition("base64,")[2]).decode() for url in urls)
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        row = self.log_probs(seen + text + begun)
        likeliest = [(self.texts[t], row[t]) for t in self.likeliest(row, body["top_logprobs"])]
        content = [{"top_logprobs": [{"token": t, "logprob": p} for t, p in likeliest]}]
        return {"choices": [{"index": 0, "logprobs": {"content": content}}]}

    def next_tokens(self, path, body):
        kind, prompts = self.kind, body["input_ids" if self.kind == "sglang" else "prompt"]
        rows = [self.log_probs(prompt) for prompt in prompts]
        best = [self.likeliest(row, 1)[0] for row in rows]
        if (kind, path) == ("sglang", "/generate"):
            assert (body["return_logprob"], body["sampling_params"]["max_new_tokens"]) == (True, 1)
            return [self.of_sglang(row, body["token_ids_logprob"]) for row in rows]
        if (kind, path) == ("llama.cpp", "/completion"):
            found = []
            for i, row in enumerate(rows):
                top = [{"id": t, "logprob": row[t]} for t in self.likeliest(row, body["n_probs"])]
                found.append({"index": i, "completion_probabilities": [{"id": best[i], "top_logprobs": top}]})
            return found if len(found) > 1 else found[0]
        assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "tiny", 1)
        if kind == "vllm":
            assert len(body["logprob_token_ids"]) <= 128
            assert body["return_tokens_as_token_ids"]
        choices = []
        for i, row in enumerate(rows):
            if kind == "vllm":
                asked = {best[i], *body["logprob_token_ids"]} - self.lost
                top = {f"token_id:{t}": max(row[t], -9999.0) for t in asked}
                found = {"tokens": [f"token_id:{best[i]}"], "top_logprobs": [top]}
            else:
                likeliest = [(self.texts[t], row[t]) for t in self.likeliest(row, body["logprobs"])]
                found = {"top_logprobs": [dict(likeliest)]}
                if self.as_list:
                    found = {
                        "content": [{"top_logprobs": [{"token": t, "logprob": p} for t, p in likeliest]}]
                    }
            choices.append({"index": i, "logprobs": None if self.without_logprobs else found})
        return {"choices": choices[::-1]}

    def of_sglang(self, row, asked):
        (first,) = self.likeliest(row, 1)
        logs = [[None if math.isinf(row[t]) else row[t], t, None] for t in asked if t not in self.lost]
        own = {"output_token_logprobs": [[row[first], first, None]], "output_token_ids_logprobs": [logs]}
        return {"meta_info": own}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FormServer

    def do_GET(self):
        self.respond(None)

    def do_POST(self):
        self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def respond(self, body):
        server = self.server
        with server.counting:
            server.open += 1
            server.most_open = max(server.most_open, server.open)
            server.requests.append((self.path, body))
            server.keys.append(self.headers.get("Authorization"))
            fault = server.faults.pop(0) if server.faults and body is not None else None
        time.sleep(server.slow)
        try:
            if fault == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif fault == "hang":
                self.rfile.read(1)  # until the other side gives up
                self.close_connection = True
            elif isinstance(fault, int):
                self.send(fault, {"error": f"fault {fault} with {self.headers.get('Authorization')}"})
            else:
                self.send(200, {"no": "such form"} if fault == "garbage" else server.answer(self.path, body))
        finally:
            with server.counting:
                server.open -= 1

    def send(self, status, answer):
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        """Print nothing."""


@contextmanager
def serving(kind, model, **options):
    with FormServer(kind, model, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
