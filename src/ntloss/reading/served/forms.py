"""How each kind of server is asked for the next token, and how its answer is read.

Read in the sources of vLLM 0.33.0 and SGLang 0.5.23, and tried with llama.cpp's server of October 2026. The
log-probabilities are those of the model, before masks, penalties and temperature.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ntloss.reading.served.transport import Request
from ntloss.reading.source import Prefix

CHAT = "\0"  # between the index of a conversation and the beginning of its answer
_IMPOSSIBLE = -9998.0  # JSON has no infinity: vLLM writes -9999, others null
_LARGEST = 700.0  # whose exponential is finite; no log-probability is above 0, which is checked of their sum


class Returned(NamedTuple):
    """What a server returned about the token after a prefix."""

    log_probs: Mapping[int | str, float]  # by token id, or by the token's text
    likeliest: int | str


class Form(NamedTuple):
    """A kind of server."""

    name: str
    owner: str  # `owned_by` in its /v1/models
    ask: Callable[[str, Sequence[Prefix], Sequence[int], int], Request]  # (model, prefixes, token ids, top)
    read: Callable[[Any], list[Returned]]  # its answer, a Returned for each prefix
    chosen: int  # how many chosen tokens it returns a request; 0 if it returns its likeliest tokens
    top: int  # how many of these it is asked for
    option: str  # how it is made to return more of them
    # Fields of /tokenize (a text, whether to add special tokens) and of the answer of /detokenize. None if it
    # has neither, and names tokens by their text.
    tokenizer: tuple[str, str, str] | None


def _ask_vllm(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Request:
    options = {"max_tokens": 1, "temperature": 0.0, "logprobs": 1, "return_tokens_as_token_ids": True}
    body = {"model": model, "prompt": prefixes, "logprob_token_ids": token_ids, **options}
    return Request("/v1/completions", body)


def _read_vllm(answer: Any) -> list[Returned]:
    found = []
    for choice in in_order(answer["choices"]):  # tokens are named "token_id:42"
        top, written = choice["logprobs"]["top_logprobs"][0], choice["logprobs"]["tokens"][0]
        pairs = [(int(name.removeprefix("token_id:")), value) for name, value in top.items()]
        found.append(Returned(_log_probs(pairs), int(written.removeprefix("token_id:"))))
    return found


def _ask_sglang(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Request:
    sampling = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    options = {"return_logprob": True, "token_ids_logprob": token_ids, "sampling_params": sampling}
    return Request("/generate", {"input_ids": prefixes, **options})


def _read_sglang(answer: Any) -> list[Returned]:
    found = []
    for info in (each["meta_info"] for each in answer):  # tokens are (log-probability, id, text)
        pairs = [(token, value) for value, token, _ in info["output_token_ids_logprobs"][0]]
        found.append(Returned(_log_probs(pairs), info["output_token_logprobs"][0][1]))
    return found


def _ask_llama_cpp(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Request:
    options = {"n_predict": 1, "temperature": 0.0, "ignore_eos": True, "cache_prompt": True}
    fields = ["index", "completion_probabilities"]
    return Request("/completion", {"prompt": prefixes, "n_probs": top, "response_fields": fields, **options})


def _read_llama_cpp(answer: Any) -> list[Returned]:
    found = []
    for each in in_order(answer if isinstance(answer, list) else [answer]):  # one prefix: no list
        token = each["completion_probabilities"][0]
        pairs = [(likely["id"], likely["logprob"]) for likely in token["top_logprobs"]]
        found.append(Returned(_log_probs(pairs), token["id"]))
    return found


def _ask_openai(model: str, prefixes: Sequence[Prefix], token_ids: Sequence[int], top: int) -> Request:
    # With a temperature of 1, servers that apply it to log-probabilities leave these as they are.
    options = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": top}
    return Request("/v1/completions", {"model": model, "prompt": prefixes, **options})


def _read_openai(answer: Any) -> list[Returned]:
    found = []
    for logprobs in (choice["logprobs"] for choice in in_order(answer["choices"])):
        content = logprobs.get("content")
        if content:  # the form of chat completions, which some use here too
            pairs = [(each["token"], each["logprob"]) for each in content[0]["top_logprobs"]]
        else:
            pairs = list(logprobs["top_logprobs"][0].items())
        log_probs = _log_probs(pairs)
        found.append(Returned(log_probs, max(log_probs, key=log_probs.__getitem__)))
    return found


_MORE = "ServedModel(url, top=...), and in vLLM the server's own --max-logprobs"
FORMS = {
    "vllm": Form(
        "vLLM", "vllm", _ask_vllm, _read_vllm, 128, 0, "", ("prompt", "add_special_tokens", "prompt")
    ),
    "sglang": Form(
        "SGLang", "sglang", _ask_sglang, _read_sglang, 10**6, 0, "", ("prompt", "add_special_tokens", "text")
    ),
    "llama.cpp": Form(
        "llama.cpp",
        "llamacpp",
        _ask_llama_cpp,
        _read_llama_cpp,
        0,
        10_000,
        "ServedModel(url, top=...)",
        ("content", "add_special", "content"),
    ),
    "openai": Form("the OpenAI-compatible server", "", _ask_openai, _read_openai, 0, 20, _MORE, None),
}


def chat_form(form: Form, chats: Sequence[list[dict[str, Any]]]) -> Form:
    """Return the form of a server's route for chats; prompts are an index of `chats` and a beginning."""
    return Form(
        f"{form.name}'s chats",
        form.owner,
        functools.partial(_ask_chat, chats),
        _read_openai,
        0,
        form.top or 20,
        form.option or _MORE,
        None,
    )


def _ask_chat(
    chats: Sequence[list[dict[str, Any]]],
    model: str,
    prefixes: Sequence[Prefix],
    token_ids: Sequence[int],
    top: int,
) -> Request:
    (prefix,) = prefixes
    index, _, begun = str(prefix).partition(CHAT)
    messages = chats[int(index)]
    # llama.cpp continues the assistant's turn by itself, vLLM and SGLang are asked to.
    options: dict[str, Any] = {"add_generation_prompt": not begun, "continue_final_message": bool(begun)}
    options |= {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": top}
    turn = [{"role": "assistant", "content": begun}] if begun else []
    return Request("/v1/chat/completions", {"model": model, "messages": [*messages, *turn], **options})


def in_order(answers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to several prompts in the prompts' order."""
    return sorted(answers, key=lambda answer: int(answer.get("index", 0)))


def _log_probs(pairs: Iterable[tuple[Any, Any]]) -> dict[int | str, float]:
    shares: dict[int | str, float] = {}
    for token, log_prob in pairs:  # two tokens may have one text, and their probabilities are added
        share = 0.0 if log_prob is None or log_prob < _IMPOSSIBLE else math.exp(min(log_prob, _LARGEST))
        shares[token] = shares.get(token, 0.0) + share
    if not shares:
        raise ValueError("no tokens")
    return {token: math.log(share) if share else -math.inf for token, share in shares.items()}
