"""A served model, as the readings know a model: log-probabilities of tokens after prefixes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.numbers.grammar import DIGITS
from ntloss.reading.served.forms import CHAT, FORMS, Returned, chat_form, in_order
from ntloss.reading.served.transport import Connection, Request, ServerError
from ntloss.reading.source import Prefix, Prefixes, Source, as_prefixes

_MOST_PARTS = 32  # requests that a list of token ids may be split into
_LEAST_SUM, _LARGEST_SUM = 0.99, 1.01  # of a position's probabilities


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
        ValueError: an unknown form, an option out of range, or a key in the address.

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
        if min(batch, 1 if top is None else top) < 1 or retries < 0 or timeout <= 0:
            raise ValueError(
                f"top={top}, batch={batch}, retries={retries}, timeout={timeout}: expected top and batch of "
                "1 or more, retries of 0 or more, and a timeout above 0"
            )
        self.url, self.requests = url.rstrip("/").removesuffix("/v1"), 0  # sent, without repetitions
        self._connection = Connection(self.url, timeout, retries)
        if form is None or model is None:
            try:
                listed = self._send([Request("/v1/models")])[0]["data"]
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
            prompts = [*self._tokenize(prompts)]
        if self._checks and not (by_text and self.form.tokenizer is None):
            self._check_tokenizer(texts)
        return _Reading(self, texts, prompts, prefix_ids)

    def for_images(self) -> ServedModel:
        """Return this server asked by `/v1/chat/completions`, which takes images.

        That route names tokens by their text, and continues the beginning of an answer.
        """
        seeing = copy.copy(self)
        seeing.is_chat, seeing._chats, seeing.batch = True, [], 1
        seeing.form = chat_form(self.form, seeing._chats)
        seeing.top = self.top or seeing.form.top
        return seeing

    def add_chat(self, chat: list[dict[str, Any]]) -> str:
        """Take a conversation; return its name, with which prompts begin that continue its answer."""
        self._chats.append(chat)
        return f"{len(self._chats) - 1}{CHAT}"

    def ask(self, prefixes: Sequence[Prefix], token_ids: Sequence[int]) -> list[Returned]:
        """Return what the server says about tokens after prefixes, by one request for each batch."""
        most = self.form.chosen or max(len(token_ids), 1)
        if len(token_ids) > most * _MOST_PARTS:
            raise ValueError(
                f"{len(token_ids):,} tokens: expected at most {most * _MOST_PARTS:,} for {self.form.name}, "
                f"which returns {most} a request. Pass a vocabulary of fewer tokens (tokens='digits'), or "
                "serve the model with SGLang, which has no such limit."
            )
        batches = self._batches(prefixes)
        parts = [token_ids[i : i + most] for i in range(0, len(token_ids), most)] or [[]]
        answers = self._send(
            [self.form.ask(self.model, batch, part, self.top) for batch in batches for part in parts]
        )
        found, rest = list[Returned](), iter(answers)
        for batch in batches:
            read = [self._understand(self.form.read, next(rest)) for _ in parts]
            if any(len(part) != len(batch) for part in read):
                raise ServerError(
                    f"{self} answered {len(read[0])} of {len(batch)} prompts of a request: pass "
                    "ServedModel(url, batch=1) if it takes one at a time"
                )
            for of_parts in zip(*read, strict=True):
                log_probs = {key: value for part in of_parts for key, value in part.log_probs.items()}
                self._check_returned(log_probs, token_ids)
                found.append(Returned(log_probs, of_parts[0].likeliest))
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
                f"the probability: expected 0.01 at most. Ask for more by {self.form.option}, end the prompt "
                "where the number begins, or use a server that returns the tokens that it is asked for, such "
                "as vLLM or SGLang."
            )
        if self.form.chosen and (lost := {*token_ids} - {*log_probs}):
            raise ServerError(
                f"{self} did not return tokens {sorted(lost)[:5]}, which it was asked for. Use a release "
                "that does (vLLM 0.33, SGLang 0.5.23), or form='openai'."
            )

    def _check_tokenizer(self, texts: Mapping[int, str]) -> None:
        """Compare the texts of some tokens with those of the server, once."""
        if (sample := _sample(texts)) in self._checked:
            return
        ids, expected = [i for i, _ in sample], "".join(text for _, text in sample)
        found = self._detokenize(ids)
        if not "".join(found.split()).startswith("".join(expected.split())):
            if self.form.tokenizer is None and not self._returned(expected).startswith(expected):
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

    def _tokenize(self, texts: Sequence[Any]) -> list[tuple[int, ...]]:
        text_field, special_field, _ = self.form.tokenizer or ("", "", "")
        answers = self._send([Request("/tokenize", {text_field: t, special_field: True}) for t in texts])
        return [self._understand(lambda found: tuple(map(int, found["tokens"])), each) for each in answers]

    def _detokenize(self, token_ids: Sequence[int]) -> str:
        if self.form.tokenizer is None:
            return self._returned(token_ids)
        answer = self._send([Request("/detokenize", {"tokens": token_ids})])[0]
        return str(self._understand(lambda found: found[(self.form.tokenizer or ("",))[-1]], answer))

    def _returned(self, prompt: Sequence[int] | str) -> str:
        """Return a prompt as a server echoes it that names tokens by their text, with one token more."""
        body = {"model": self.model, "prompt": [prompt], "max_tokens": 1, "echo": True}
        return str(self._understand(_texts, self._send([Request("/v1/completions", body)])[0])[0])

    def _batches(self, prompts: Sequence[Prefix]) -> list[Sequence[Prefix]]:
        return [prompts[i : i + self.batch] for i in range(0, len(prompts), self.batch)]

    def _send(self, requests: Sequence[Request]) -> list[Any]:
        self.requests += len(requests)
        return self._connection.send(requests)

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
        super().__init__(prompts)
        self.server, self.texts = server, texts
        self.prompts = [self.longer(prompt, prefix_ids) for prompt in prompts]
        # Of tokens with the same text, a server that names them by it knows one.
        self._named = {text: i for i, text in reversed([*texts.items()])}
        self._first, self._known = {*self.prompts}, dict[Prefix, Returned]()

    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int]) -> Tensor:
        """Ask the server about tokens with a text, and once if all its answers name the likeliest tokens.

        Tokens without a text are those of all letters, which are too many to ask about.
        """
        chosen = [i for i in token_ids if i in self.texts] if self.server.form.chosen else []
        # Long lists of the likeliest tokens are kept of the prompts and of this call alone.
        for past in {*self._known} - self._first - {*prefixes}:
            del self._known[past]
        if chosen or (not self.server.form.chosen and prefixes[0] not in self._known):
            self._known.update(zip(prefixes, self.server.ask(prefixes, chosen), strict=True))
            self.count(prefixes)
        keys: list[int | str] = [*token_ids]
        if self.server.form.tokenizer is None:
            texts = [self.texts.get(i, "") for i in token_ids]
            keys = [
                text if self._named.get(text) == i else "" for i, text in zip(token_ids, texts, strict=True)
            ]
        nothing = Returned({}, "")
        found = [self._known.get(prefix, nothing).log_probs for prefix in prefixes]
        return torch.tensor(
            [[each.get(key, -math.inf) for key in keys] for each in found], dtype=torch.float64
        )

    def likeliest(self, row: int) -> int | str | None:
        """Return what the server said."""
        return self._known[self.prompts[row]].likeliest

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


def _sample(texts: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """Return some tokens that a tokenizer is known by: the digits, or the first ones."""
    digits = [(i, text) for i, text in sorted(texts.items()) if text.strip() in tuple(DIGITS)]
    return tuple(digits or sorted(texts.items())[:10])


def _texts(answer: Any) -> list[str]:
    return [str(choice["text"]) for choice in in_order(answer["choices"])]
