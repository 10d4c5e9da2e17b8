"""A served model, as the readings know a model: log-probabilities of tokens after prefixes."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.numbers.grammar import DIGITS, POWERS, POWERS_OF_CJK, WORDS, characters, is_piece
from ntloss.numbers.texts import TokenTexts
from ntloss.numbers.vocabulary import NumberVocabulary, find_number_tokens, make_vocabulary
from ntloss.reading.served.forms import CHAT, FORMS, Prefix, Returned, chat_form, in_order
from ntloss.reading.served.transport import Connection, Request, ServerError

_MOST_PARTS = 32  # requests that a list of token ids may be split into
_LEAST_SUM, _LARGEST_SUM = 0.99, 1.01  # of a position's probabilities
# Stands between the texts whose tokens make a vocabulary. No currency and hardly a word has it, because a
# token that holds it could not be told from two.
_LETTER = "V"
_BEGINS_WITH_LETTER = re.compile("[A-Za-z]")
_NUMBERS = [f"{n:0{width}d}" for width in (1, 2, 3) for n in range(10**width)]
_JOINED = ".,-/:$"  # marks that tokenizers join with the digits after them
# Of the grammar: marks, digits of other kinds such as `\u00bd`, and words.
_MARKS = sorted({*characters()} - {*DIGITS})
_WORDS = [
    *(form for word in POWERS for w in (word, word + "s") for form in (w, w.title(), w.upper())),
    *["x", "X", "e", "E", r"\times", r"\cdot", r"\div", r"\pm"],
]
# Words of more languages and codes of currencies, which make the number a part of another.
_FURTHER_WORDS = sorted(
    form
    for form in {form for w in WORDS for form in (w, w.title(), w.upper() if len(w) <= 3 else w)}
    if _LETTER not in form
)
# What tokens of Chinese, Japanese and Korean may join with a magnitude, such as `万元`.
_COUNTED = "元円圆圓块塊人名次年日美件원명년"
# Texts that hold the tokens of numbers. Digits stand after marks and words, which may join the separator.
_WRITTEN = [
    [*_NUMBERS, *map(str, range(1900, 2100))],  # some tokenizers have tokens of years
    [mark + digit for mark in _MARKS for digit in DIGITS],
    [f"4{space}{word}{digit}" for word in _WORDS for space in ("", " ") for digit in DIGITS],
    [f"4{space}{word}0" for word in _FURTHER_WORDS for space in ("", " ")],
    [f"4{magnitude}{counted}" for magnitude in POWERS_OF_CJK for counted in _COUNTED],
    *([mark + number for number in _NUMBERS] for mark in _JOINED),
]


class ServedModel:
    """A model behind a server, which the readings take in place of a model in torch.

    vLLM and SGLang return the tokens that they are asked for, so the result is that of the model in torch.
    llama.cpp and other servers return their likeliest tokens. An answer whose tokens have less than 99 % of
    the probability is an error, because nothing is known of the other tokens. Prompts are texts, which the
    server tokenizes, lists of token ids, or what a tokenizer returns with `return_tensors="pt"`.

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
        in_flight: most requests at a time. Default: 4.
        key_variable: the environment variable that holds the server's key, if it needs one.
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
        in_flight: int = 4,
        key_variable: str = "NTLOSS_API_KEY",
        check_tokenizer: bool = True,
    ) -> None:
        if "@" in url or "?" in url:
            raise ValueError(
                f"the address holds a user name or a key: remove it, and set {key_variable} to the key"
            )
        if not url.startswith(("http://", "https://")) or form not in (None, *FORMS):
            raise ValueError(
                f"url={url!r}, form={form!r}: expected an address such as http://localhost:8000, and one of "
                f"{', '.join(FORMS)} or None"
            )
        if min(batch, in_flight, 1 if top is None else top) < 1 or retries < 0 or timeout <= 0:
            raise ValueError(
                f"top={top}, batch={batch}, in_flight={in_flight}, retries={retries}, timeout={timeout}: "
                "expected top, batch and in_flight of 1 or more, retries of 0 or more, and a timeout above 0"
            )
        self.url, self.requests = url.rstrip("/").removesuffix("/v1"), 0  # sent, without repetitions
        self._connection = Connection(self.url, key_variable, timeout, retries, in_flight)
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
        self._vocabulary: NumberVocabulary | None = None
        # Texts of a server that names its tokens by them, with ids of our own.
        self._named = {text: i for i, text in enumerate(_spaced([*DIGITS, *_MARKS]))}

        self.is_chat = False
        self._chats = list[list[dict[str, Any]]]()

    def __repr__(self) -> str:
        return f"{self.form.name} at {self.url}"

    def continuations(
        self, inputs: Any, texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Prefixes:
        """Return prompts to be continued with tokens of these ids and texts; see `number_quantiles`."""
        prompts = _as_prompts(inputs)
        by_text = isinstance(prompts[0], str)
        if by_text and self.form.tokenizer is not None:
            prompts = [*self._tokenize(prompts, special=True)]
        if self._checks and not (by_text and self.form.tokenizer is None):
            self._check_tokenizer(texts)
        rows = Prefixes(_Reading(self, texts), prompts)
        return rows.extend(torch.tensor([list(prefix_ids)] * len(prompts))) if len(prefix_ids) else rows

    def chats(self) -> ServedModel:
        """Return this server asked by `/v1/chat/completions`, which takes images.

        It names tokens by their text, and continues the beginning of an answer.
        """
        seeing = copy.copy(self)
        seeing.is_chat, seeing._chats, seeing.batch = True, [], 1
        seeing._named, seeing._vocabulary = dict(self._named), None
        seeing.form = chat_form(self.form, seeing._chats)
        seeing.top = self.top or seeing.form.top
        return seeing

    def add_chats(self, chats: Iterable[list[dict[str, Any]]], begun: str) -> list[str]:
        """Take conversations, with the beginning of the answer; return the prompts that stand for them."""
        first = len(self._chats)
        self._chats += chats
        return [f"{i}{CHAT}{begun}" for i in range(first, len(self._chats))]

    def vocabulary(self) -> NumberVocabulary:
        """Make a vocabulary of the server's own tokens: numbers of up to three digits, marks and magnitudes.

        A server that names tokens by their text has no list of them. There, it holds digits, marks, and what
        the answers so far have named, and grows while numbers are read with None in place of a vocabulary.

        Returns:
            The vocabulary, for readings of this server. If the server names tokens by their text, the ids
            have no meaning outside of it.

        Raises:
            ServerError: the server fails, or joins the texts of tokens in another way than one by one.
        """
        known = self._vocabulary
        if self.form.tokenizer is None:
            if known is None or len(known.texts) < len(self._named):
                known = _vocabulary_of({i: text for text, i in self._named.items()})
        elif known is None:
            written = [_LETTER.join([*_spaced(texts), ""]) for texts in _WRITTEN]
            after, *tokens = self._tokenize([f"4{_LETTER}", *written], False)
            separator = after[-1]
            ids = sorted({token for of_text in tokens for token in of_text} - {separator})
            joined = self._detokenize([separator, *(token for i in ids for token in (i, separator))])
            texts = joined.split(_LETTER)[1:-1]
            if len(texts) != len(ids):
                raise ServerError(
                    f"{self} joins the texts of tokens in another way than one by one. Make the vocabulary "
                    "of the served model's tokenizer: NumberVocabulary.from_tokenizer(tokenizer)"
                )
            known = _vocabulary_of({i: text for i, text in zip(ids, texts, strict=True) if is_piece(text)})
        self._vocabulary = known
        self._checked.add(_sample(known.pieces))
        return known

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
                if self.form.tokenizer is None:
                    self._name(map(str, log_probs))
                found.append(Returned(log_probs, of_parts[0].likeliest))
        return found

    def _name(self, texts: Iterable[str]) -> None:
        """Give ids to the texts that may stand in a number, or after it as a letter."""
        for text in texts:
            if is_piece(text) or _BEGINS_WITH_LETTER.match(text):
                self._named.setdefault(text, len(self._named))

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
                "tokenizer, or by ServedModel.vocabulary(). Tokens that only stand for digits need "
                "check_tokenizer=False."
            )
        self._checked.add(sample)

    def _tokenize(self, texts: Sequence[Any], special: bool) -> list[tuple[int, ...]]:
        text_field, special_field, _ = self.form.tokenizer or ("", "", "")
        answers = self._send([Request("/tokenize", {text_field: t, special_field: special}) for t in texts])
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


class _Reading:
    """What the continuations of prompts share: answers, and how often the server was asked."""

    def __init__(self, server: ServedModel, texts: Mapping[int, str]) -> None:
        self.server, self.passes, self.rows = server, 0, 0
        self.texts = texts  # no copy, because it may grow
        self._known = dict[Prefix, Returned]()

    def ask(self, prefixes: Sequence[Prefix], token_ids: Sequence[int]) -> list[Returned]:
        """Ask about tokens after prefixes; about a prefix once if all answers name the likeliest tokens."""
        new = [prefix for prefix in prefixes if prefix not in self._known]
        returned = dict(zip(new, self.server.ask(new, token_ids), strict=True)) if new else {}
        self.passes, self.rows = self.passes + bool(new), self.rows + len(new)
        found = [self._known[prefix] if prefix in self._known else returned[prefix] for prefix in prefixes]
        if self.server.form.tokenizer is None:
            self._known |= returned
        return found


class Prefixes:
    """Continuations of prompts that a server is asked about; see `Continuations`."""

    device = torch.device("cpu")

    def __init__(self, reading: _Reading, rows: list[Prefix]) -> None:
        self._reading, self._rows = reading, rows
        self._asked, self._returned, self._nodes = list[int](), list[Returned](), list[int]()

    @property
    def counts(self) -> tuple[int, int]:
        """How often the server was asked, and about how many prefixes."""
        return self._reading.passes, self._reading.rows

    def __len__(self) -> int:
        return len(self._rows)

    def next_tokens(self, token_ids: Tensor) -> Tensor:
        """Ask the server about these tokens after each row, and about equal rows once."""
        reading, ids = self._reading, token_ids.tolist()
        places = {row: i for i, row in enumerate(dict.fromkeys(self._rows))}
        # Tokens without a text are those of all letters, which are too many to ask about.
        asked = ids if all(i in reading.texts for i in ids) else []
        if not asked and reading.server.form.chosen:
            return torch.full((len(self._rows), len(ids)), -math.inf, dtype=torch.float64)
        if not self._returned or (asked and asked != self._asked):
            self._asked, self._returned = asked, reading.ask([*places], asked)
        keys: list[int | str] = ids
        if reading.server.form.tokenizer is None:
            # Of tokens with the same text, a server that names them by it knows one.
            named = {text: i for i, text in reversed([*reading.texts.items()])}
            texts = [reading.texts.get(i, "") for i in ids]
            keys = [text if named.get(text) == i else "" for i, text in zip(ids, texts, strict=True)]
        self._nodes = [places[row] for row in self._rows]
        found = [[each.log_probs.get(key, -math.inf) for key in keys] for each in self._returned]
        return torch.tensor(found, dtype=torch.float64)[self._nodes]

    def likeliest(self, row: int) -> int | str:
        """Return the likeliest token after a row, or its text."""
        return self._returned[self._nodes[row]].likeliest

    def select(self, rows: Tensor | slice) -> Prefixes:
        """Copy some rows, in any order and number."""
        chosen = self._rows[rows] if isinstance(rows, slice) else [self._rows[i] for i in rows.tolist()]
        return Prefixes(self._reading, chosen)

    def extend(self, tokens: Tensor, lengths: Tensor | None = None) -> Prefixes:
        """Write `[rows, n]` tokens, or the first `lengths` of each row."""
        counts = [tokens.shape[-1]] * len(tokens) if lengths is None else lengths.tolist()
        rows = zip(self._rows, tokens.tolist(), counts, strict=True)
        return Prefixes(self._reading, [self._longer(row, written[:n]) for row, written, n in rows])

    def _longer(self, row: Prefix, written: list[int]) -> Prefix:
        if isinstance(row, tuple):
            return (*row, *written)
        if unknown := {*written} - {*self._reading.texts}:
            raise ValueError(
                f"prefix_ids: {sorted(unknown)} are none of a number, so their text is unknown: end the "
                "prompts with that text"
            )
        return row + "".join(self._reading.texts[i] for i in written)


def _spaced(texts: Iterable[str]) -> list[str]:
    """Return each text once, without and with a space before it."""
    return [*dict.fromkeys(spaced for text in texts for spaced in (text, " " + text))]


def _vocabulary_of(texts: Mapping[int, str]) -> NumberVocabulary:
    letters = tuple(i for i, text in texts.items() if _BEGINS_WITH_LETTER.match(text))
    known = TokenTexts(texts, dict.fromkeys(texts, True), max(texts, default=0) + 1, letters)
    return make_vocabulary(known, find_number_tokens(known), known.vocab_size)


def _sample(texts: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """Return some tokens that a tokenizer is known by: the digits, or the first ones."""
    digits = [(i, text) for i, text in sorted(texts.items()) if text.strip() in tuple(DIGITS)]
    return tuple(digits or sorted(texts.items())[:10])


def _as_prompts(inputs: Any) -> list[Prefix]:
    """Return prompts as texts or as token ids."""
    if isinstance(inputs, Mapping) and isinstance(ids := inputs.get("input_ids"), Tensor):
        mask = inputs.get("attention_mask")
        masks = torch.ones_like(ids) if mask is None else mask
        inputs = [row[kept.bool()].tolist() for row, kept in zip(ids, masks, strict=True)]
    prompts = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else []
    texts = [isinstance(prompt, str) and bool(prompt) for prompt in prompts]
    tokens = [isinstance(p, Sequence) and bool(p) and all(isinstance(i, int) for i in p) for p in prompts]
    if not prompts or not (all(texts) or all(tokens)):
        raise TypeError(
            "inputs: expected prompts for a served model, none of them empty: a list of texts or of lists of "
            "token ids, or what a tokenizer returns with return_tensors='pt'"
        )
    return prompts if all(texts) else [tuple(prompt) for prompt in prompts]


def _texts(answer: Any) -> list[str]:
    return [str(choice["text"]) for choice in in_order(answer["choices"])]
