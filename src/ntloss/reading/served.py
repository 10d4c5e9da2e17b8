"""Numbers of a model behind a server: vLLM, SGLang, llama.cpp, or any with OpenAI's `/v1/completions`.

    server = ServedModel("http://localhost:8000")
    reading = read_number(server, tokenizer, "How many legs does a spider have?")

It needs an HTTP client, `pip install 'ntloss[serve]'`, and no model in torch. How a server is asked, and how
its answer is read, stands in the sources of vLLM 0.33.0 and SGLang 0.5.23, and was tried with llama.cpp's
server of October 2026. The log-probabilities are those of the model, before masks, penalties and temperature.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.grammar import DIGITS
from ntloss.reading.source import Prefix, Prefixes, Source, as_prefixes

__all__ = ["ServedModel", "ServerError"]

_LEAST_SUM, _LARGEST_SUM = 0.99, 1.01  # of a position's probabilities
_CHAT = "\0"  # between the index of a conversation and the beginning of its answer
_IMPOSSIBLE = -9998.0  # JSON has no infinity: vLLM writes -9999, others null
_LARGEST = 700.0  # whose exponential is finite; no log-probability is above 0, which is checked of their sum
_FIRST_WAIT = 0.5  # seconds before the second attempt; doubled before each further one, ...
_LONGEST_WAIT = 30.0  # ... up to this, which also limits what a server asks for
_CONNECT_TIMEOUT = 10.0
_IN_FLIGHT = 4  # requests at a time
_KEY = "NTLOSS_API_KEY"  # the environment variable of a server's key
_LONGEST_REASON = 300  # characters of a server's own message
Body = dict[str, Any]  # of a request


class ServerError(RuntimeError):
    """A server did not answer, refused a request, or returned something else than it documents."""


# Log-probabilities of tokens, the likeliest among them, by token id or by the token's text.
LogProbs = dict[int | str, float]


class Form(NamedTuple):
    """A kind of server."""

    name: str
    owner: str  # `owned_by` in its /v1/models
    path: str
    ask: Callable[[str, Sequence[Prefix], Sequence[int], int], Body]  # (model, prefixes, token ids, top)
    read: Callable[[Any], list[LogProbs]]  # its answer, log-probabilities for each prefix
    chosen: int  # how many chosen tokens it returns a request; 0 if it returns its likeliest tokens
    top: int  # how many of these it is asked for
    # Fields of /tokenize (a text, whether to add special tokens) and of the answer of /detokenize. None if it
    # has neither, and names tokens by their text.
    tokenizer: tuple[str, str, str] | None


def _ask_vllm(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Body:
    options = {"max_tokens": 1, "temperature": 0.0, "logprobs": 1, "return_tokens_as_token_ids": True}
    return {"model": model, "prompt": prefixes, "logprob_token_ids": token_ids, **options}


def _read_vllm(answer: Any) -> list[LogProbs]:
    # Tokens are named "token_id:42".
    tops = [choice["logprobs"]["top_logprobs"][0] for choice in _in_order(answer["choices"])]
    return [_log_probs((int(name.removeprefix("token_id:")), top[name]) for name in top) for top in tops]


def _ask_sglang(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Body:
    sampling = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    options = {"return_logprob": True, "token_ids_logprob": token_ids, "sampling_params": sampling}
    return {"input_ids": prefixes, **options}


def _read_sglang(answer: Any) -> list[LogProbs]:
    found = []
    for info in (each["meta_info"] for each in answer):  # tokens are (log-probability, id, text)
        likeliest, asked = info["output_token_logprobs"][:1], info["output_token_ids_logprobs"][0]
        found.append(_log_probs({token: value for value, token, _ in [*likeliest, *asked]}.items()))
    return found


def _ask_llama_cpp(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Body:
    options = {"n_predict": 1, "temperature": 0.0, "ignore_eos": True, "cache_prompt": True}
    fields = ["index", "completion_probabilities"]
    return {"prompt": prefixes, "n_probs": top, "response_fields": fields, **options}


def _read_llama_cpp(answer: Any) -> list[LogProbs]:
    answers = _in_order(answer if isinstance(answer, list) else [answer])  # one prefix: no list
    tops = [each["completion_probabilities"][0]["top_logprobs"] for each in answers]
    return [_log_probs((likely["id"], likely["logprob"]) for likely in top) for top in tops]


def _ask_openai(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Body:
    # With a temperature of 1, servers that apply it to log-probabilities leave these as they are.
    options = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": top}
    return {"model": model, "prompt": prefixes, **options}


def _read_openai(answer: Any) -> list[LogProbs]:
    found = []
    for logprobs in (choice["logprobs"] for choice in _in_order(answer["choices"])):
        content = logprobs.get("content")  # the form of chat completions, which some use here too
        pairs = [(each["token"], each["logprob"]) for each in content[0]["top_logprobs"]] if content else ()
        found.append(_log_probs(pairs or logprobs["top_logprobs"][0].items()))
    return found


_COMPLETIONS = "/v1/completions"
_OF_VLLM, _OF_SGLANG = ("prompt", "add_special_tokens", "prompt"), ("prompt", "add_special_tokens", "text")
_OF_LLAMA_CPP = ("content", "add_special", "content")
FORMS = {
    "vllm": Form("vLLM", "vllm", _COMPLETIONS, _ask_vllm, _read_vllm, 128, 0, _OF_VLLM),
    "sglang": Form("SGLang", "sglang", "/generate", _ask_sglang, _read_sglang, 10**6, 0, _OF_SGLANG),
    "llama.cpp": Form(
        "llama.cpp", "llamacpp", "/completion", _ask_llama_cpp, _read_llama_cpp, 0, 10_000, _OF_LLAMA_CPP
    ),
    "openai": Form("the OpenAI-compatible server", "", _COMPLETIONS, _ask_openai, _read_openai, 0, 20, None),
}


def _in_order(answers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to several prompts in the prompts' order."""
    return sorted(answers, key=lambda answer: int(answer.get("index", 0)))


def _log_probs(pairs: Iterable[tuple[Any, Any]]) -> LogProbs:
    shares: LogProbs = {}
    for token, log_prob in pairs:  # two tokens may have one text, and their probabilities are added
        share = 0.0 if log_prob is None or log_prob < _IMPOSSIBLE else math.exp(min(log_prob, _LARGEST))
        shares[token] = shares.get(token, 0.0) + share
    if not shares:
        raise ValueError("no tokens")
    return {token: math.log(share) if share else -math.inf for token, share in shares.items()}


class ServedModel(Source):
    """A model behind a server, which the readings take in place of a model in torch.

    vLLM and SGLang return the tokens that they are asked for, so the result is that of the model in torch.
    llama.cpp and other servers return their likeliest tokens. An answer whose tokens have less than 99 % of
    the probability is an error, because nothing is known of the other tokens. Prompts are texts, which the
    server tokenizes, lists of token ids, or what a tokenizer returns with `return_tensors="pt"`.

    A key is read from the environment variable `NTLOSS_API_KEY`. At most four requests wait at a time.

    Args:
        url: the server's address, such as `http://localhost:8000`, with or without `/v1`.
        form: "vllm", "sglang", "llama.cpp", or "openai" for any other with `/v1/completions`. Default: what
            `/v1/models` of the server says.
        model: the model's name on the server; if `form` is None, one of `/v1/models`. Default: its first.
        top: how many of the likeliest tokens to ask for. Default: 10,000 for llama.cpp, 20 for "openai".
        batch: most prefixes in a request. Default: 256.
        timeout: seconds without an answer, after which a request is repeated. Default: 600.
        retries: how often a request is repeated, with growing pauses, after a time-out, a lost connection or
            the status 429 or 5xx. Default: 4.
        check_tokenizer: whether the tokens of the digits are compared with those of a vocabulary, by one
            request, before it is used. Default: True.

    Raises:
        ServerError: the server cannot be reached, or lists no model, or others than `model`.
        ValueError: an unknown form, or a key in the address.

    Example:
        >>> ServedModel("http://user:secret@localhost:8000")
        Traceback (most recent call last):
        ValueError: the address holds a user name or a key: remove it, and set NTLOSS_API_KEY to the key
    """

    def __init__(
        self,
        url: str,
        form: str | None = None,
        model: str | None = None,
        *,
        top: int | None = None,
        batch: int = 256,
        timeout: float = 600.0,
        retries: int = 4,
        check_tokenizer: bool = True,
    ) -> None:
        if "@" in url or "?" in url:
            raise ValueError(
                "the address holds a user name or a key: remove it, and set NTLOSS_API_KEY to the key"
            )
        if not url.startswith(("http://", "https://")) or form not in (None, *FORMS):
            raise ValueError(
                f"url={url!r}, form={form!r}: expected an address such as http://localhost:8000, and one of "
                f"{', '.join(FORMS)} or None"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout, self._retries = timeout, retries
        if form is None or model is None:
            try:
                listed = self._send("/v1/models", [None])[0]["data"]
                names, owner = [str(each["id"]) for each in listed], listed[0].get("owned_by")
            except (KeyError, IndexError, TypeError):
                raise ServerError(
                    f"{self.url}/v1/models lists no model: expected the address of an inference server. "
                    "Correct it, or pass form= and model="
                ) from None
            if model is not None and model not in names:
                raise ServerError(
                    f"{self.url} has no model {model!r}: expected one of {', '.join(names)}, or no model= "
                    "for the first"
                )
            model = model or names[0]
            form = form or next((key for key, kind in FORMS.items() if kind.owner == owner), "openai")
        self.form, self.model, self.batch = FORMS[form], model, batch
        self.top, self._checks = top or self.form.top, check_tokenizer
        self._checked = set[tuple[tuple[int, str], ...]]()
        self._chats = list[list[dict[str, Any]]]()

    def __repr__(self) -> str:
        return f"{self.form.name} at {self.url}"

    def continuations(
        self, inputs: Any, texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Prefixes:
        """Return prompts to be continued with tokens of these ids and texts; see `number_quantiles`."""
        prompts = as_prefixes(inputs)
        by_text = isinstance(prompts[0], str)
        if by_text and self.form.tokenizer is not None:
            text, special, _ = self.form.tokenizer
            answers = self._send("/tokenize", [{text: prompt, special: True} for prompt in prompts])
            prompts = [self._understand(lambda found: tuple(found["tokens"]), each) for each in answers]
        if self._checks and not (by_text and self.form.tokenizer is None):
            self._check_tokenizer(texts)
        return _Reading(self, texts, prompts, prefix_ids)

    def for_images(self) -> ServedModel:
        """Return this server asked by `/v1/chat/completions`, which takes images.

        That route names tokens by their text, and continues the beginning of an answer.
        """
        seeing = copy.copy(self)
        seeing.is_chat, seeing._chats, seeing.batch = True, [], 1
        seeing.form = FORMS["openai"]._replace(
            name=f"{self.form.name}'s chats", path="/v1/chat/completions", ask=seeing._ask_chat
        )
        seeing.top = self.top or seeing.form.top
        return seeing

    def _ask_chat(self, model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Body:
        (prefix,) = prefixes
        index, _, begun = str(prefix).partition(_CHAT)
        # llama.cpp continues the assistant's turn by itself, vLLM and SGLang are asked to.
        options: Body = {"add_generation_prompt": not begun, "continue_final_message": bool(begun)}
        options |= {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": top}
        turn = [{"role": "assistant", "content": begun}] if begun else []
        return {"model": model, "messages": [*self._chats[int(index)], *turn], **options}

    def add_chat(self, chat: list[dict[str, Any]]) -> str:
        """Take a conversation; return its name, with which prompts begin that continue its answer."""
        self._chats.append(chat)
        return f"{len(self._chats) - 1}{_CHAT}"

    def ask(self, prefixes: Sequence[Prefix], token_ids: Sequence[int]) -> list[LogProbs]:
        """Return what the server says about tokens after prefixes, by one request for each batch."""
        most = self.form.chosen or max(len(token_ids), 1)
        batches = [prefixes[i : i + self.batch] for i in range(0, len(prefixes), self.batch)]
        parts = [token_ids[i : i + most] for i in range(0, len(token_ids), most)] or [[]]
        bodies = [self.form.ask(self.model, batch, part, self.top) for batch in batches for part in parts]
        found, rest = list[LogProbs](), iter(self._send(self.form.path, bodies))
        for batch in batches:
            read = [self._understand(self.form.read, next(rest)) for _ in parts]
            if any(len(part) != len(batch) for part in read):
                raise ServerError(
                    f"{self} answered {len(read[0])} of {len(batch)} prompts of a request: pass "
                    "ServedModel(url, batch=1) if it takes one at a time"
                )
            for of_parts in zip(*read, strict=True):
                found.append({key: value for part in of_parts for key, value in part.items()})
                self._check_returned(found[-1], token_ids)
        return found

    def _check_returned(self, log_probs: Mapping[int | str, float], token_ids: Sequence[int]) -> None:
        if not (total := sum(map(math.exp, log_probs.values()))) <= _LARGEST_SUM:
            raise ServerError(
                f"{self} returned probabilities that add up to {total:.3g}: expected those of the model, "
                "before masks and temperature. Start it with its default log-probabilities."
            )
        if not self.form.chosen and total < _LEAST_SUM:
            raise ServerError(
                f"{self} returned its {len(log_probs)} likeliest tokens, which leave out {1 - total:.2g} of "
                "the probability: expected 0.01 at most. Ask for more by ServedModel(url, top=...), and in "
                "vLLM by the server's own --max-logprobs, end the prompt where the number begins, or use a "
                "server that returns the tokens that it is asked for, such as vLLM or SGLang."
            )
        if self.form.chosen and (lost := {*token_ids} - {*log_probs}):
            raise ServerError(
                f"{self} did not return tokens {sorted(lost)[:5]}, which it was asked for. Use a release "
                "that does (vLLM 0.33, SGLang 0.5.23), or form='openai'."
            )

    def _check_tokenizer(self, texts: Mapping[int, str]) -> None:
        """Compare the texts of some tokens, the digits or the first ones, with those of the server, once."""
        digits = [(i, text) for i, text in sorted(texts.items()) if text.strip() in tuple(DIGITS)]
        sample = tuple(digits or sorted(texts.items())[:10])
        if sample in self._checked:
            return
        ids, expected = [i for i, _ in sample], "".join(text for _, text in sample)
        found = self._text_of(ids)
        if not "".join(found.split()).startswith("".join(expected.split())):
            if self.form.tokenizer is None and not self._text_of(expected).startswith(expected):
                raise ServerError(
                    f"{self} does not return the prompt (echo), by which its tokens could be compared with "
                    "the vocabulary's. Pass prompts as texts, or check_tokenizer=False if they are the same"
                )
            raise ValueError(
                f"the server's tokenizer is another one than the vocabulary's: tokens {ids[:3]} ... are "
                f"{found[:40]!r} there and {expected[:40]!r} here. Make the vocabulary of the served model's "
                "tokenizer. Tokens that only stand for digits need check_tokenizer=False."
            )
        self._checked.add(sample)

    def _text_of(self, prompt: Sequence[int] | str) -> str:
        """Return the text of tokens; a server without a tokenizer's route echoes it, and one token more."""
        if self.form.tokenizer is not None:
            (answer,), field = self._send("/detokenize", [{"tokens": prompt}]), self.form.tokenizer[-1]
            return str(self._understand(lambda answered: answered[field], answer))
        body = {"model": self.model, "prompt": [prompt], "max_tokens": 1, "echo": True}
        (answer,) = self._send(_COMPLETIONS, [body])
        return str(self._understand(lambda answered: answered["choices"][0]["text"], answer))

    def _send(self, path: str, bodies: Sequence[Body | None]) -> list[Any]:
        """Return the JSON answers to requests, in their order; a ServerError if one fails.

        Bodies go by POST, None is a GET. Some are sent at a time, repeated while the server is busy, and
        cancelled by an interrupt. No socket stays open between two calls.
        """
        try:
            http, threads = import_module("httpx2"), import_module("anyio.from_thread")
        except ImportError as error:
            raise ServerError("servers need an HTTP client: pip install 'ntloss[serve]'") from error
        with threads.start_blocking_portal() as portal:  # the loop of a notebook runs in this thread
            answers: list[Any] = portal.call(self._send_all, http, path, bodies)
        return answers

    async def _send_all(self, http: Any, path: str, bodies: Sequence[Body | None]) -> list[Any]:
        places = asyncio.Semaphore(_IN_FLIGHT)
        timeout = http.Timeout(self._timeout, connect=min(_CONNECT_TIMEOUT, self._timeout))
        headers = {"Authorization": f"Bearer {key}"} if (key := _key()) else {}
        async with http.AsyncClient(timeout=timeout, headers=headers) as client:
            tasks = [
                asyncio.create_task(self._send_one(client, http, places, self.url + path, body))
                for body in bodies
            ]
            try:
                return await asyncio.gather(*tasks)
            finally:  # one has failed, or the program is interrupted
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_one(
        self, client: Any, http: Any, places: asyncio.Semaphore, route: str, body: Body | None
    ) -> Any:
        method, problem = "GET" if body is None else "POST", ""
        for attempt in range(self._retries + 1):
            wait = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT) * random.uniform(0.5, 1.0)
            try:
                async with places:
                    answer = await client.request(method, route, json=body)
            except http.TransportError as error:
                problem = f"{type(error).__name__} {error}".strip()
            else:
                if answer.status_code == 200:
                    try:
                        return answer.json()
                    except ValueError:
                        raise ServerError(f"{route} returned no JSON: is it an inference server?") from None
                text = " ".join(answer.text.split())[:_LONGEST_REASON]
                problem = f"{answer.status_code} {text}".replace(_key() or "\n", "***")
                if answer.status_code in (401, 403):
                    problem += f". Set the environment variable {_KEY} to a key of this server"
                if answer.status_code != 429 and answer.status_code < 500:
                    raise ServerError(f"{route} refused the request: {problem}")
                with contextlib.suppress(ValueError):
                    wait = max(wait, min(float(answer.headers.get("retry-after", 0)), _LONGEST_WAIT))
            if attempt < self._retries:
                await asyncio.sleep(wait)
        raise ServerError(
            f"{route} failed {self._retries + 1} times, the last time with: {problem}. Check that the server "
            "runs, or pass a larger timeout or more retries if it is busy."
        )

    def _understand(self, read: Callable[[Any], Any], answer: Any) -> Any:
        try:
            return read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(
                f"{self} returned no log-probabilities, or not as documented ({type(error).__name__}: "
                f"{error}). Check form=, and whether server and model return them: some that reason do not."
            ) from None


class _Reading(Prefixes):
    """Prompts whose continuations a server is asked about."""

    def __init__(
        self,
        server: ServedModel,
        texts: Mapping[int, str],
        prompts: Sequence[Prefix],
        prefix_ids: Sequence[int],
    ) -> None:
        self.texts = texts
        super().__init__(server, [self.longer(prompt, prefix_ids) for prompt in prompts])
        # Of tokens with the same text, a server that names them by it knows one.
        self._named = {text: i for i, text in reversed([*texts.items()])}
        self._first, self._known = {*self.prompts}, dict[Prefix, LogProbs]()

    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int]) -> Tensor:
        """Ask the server about tokens with a text, and once if all its answers name the likeliest tokens.

        Tokens without a text are those of all letters, which are too many to ask about.
        """
        form = self.source.form
        chosen = [i for i in token_ids if i in self.texts] if form.chosen else []
        # Long lists of the likeliest tokens are kept of the prompts and of this call alone.
        for past in {*self._known} - self._first - {*prefixes}:
            del self._known[past]
        if chosen or (not form.chosen and prefixes[0] not in self._known):
            self._known.update(zip(prefixes, self.source.ask(prefixes, chosen), strict=True))
            self.counts[0] += 1
            self.counts[1] += len(prefixes)
        keys: list[int | str] = [*token_ids]
        if form.tokenizer is None:
            texts = [self.texts.get(i, "") for i in token_ids]
            keys = [
                text if self._named.get(text) == i else "" for i, text in zip(token_ids, texts, strict=True)
            ]
        found = [self._known.get(prefix, {}) for prefix in prefixes]
        return torch.tensor(
            [[each.get(key, -math.inf) for key in keys] for each in found], dtype=torch.float64
        )

    def likeliest(self, row: int) -> int | str | None:
        known = self._known[self.prompts[row]]
        return max(known, key=known.__getitem__)

    def longer(self, prefix: Prefix, token_ids: Sequence[int]) -> Prefix:
        """Return a prefix with further tokens, or their texts."""
        if isinstance(prefix, tuple):
            return (*prefix, *token_ids)
        if unknown := {*token_ids} - {*self.texts}:
            raise ValueError(
                f"prefix_ids: {sorted(unknown)} are none of a number, so their text is unknown: end the "
                "prompts with that text"
            )
        return prefix + "".join(self.texts[i] for i in token_ids)


def _key() -> str:
    key = os.environ.get(_KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ServerError(f"{_KEY} holds characters that no key has: correct it")
    return key
