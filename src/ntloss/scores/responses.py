"""What APIs return: the tokens of an answer, the likeliest tokens at each place, and whether it has ended.

Read in the documentation or sources of OpenAI (chats, completions, responses), vLLM 0.33, SGLang 0.5, TGI 3,
llama.cpp's server, Ollama, Gemini and LangChain. Each is a few names of fields: a form of one position is a
form of a whole response.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import Any, NamedTuple

_LARGEST_SUM = 1.01  # of probabilities, which APIs round
_TOKENS = ("token", "text", "decoded_token", "tok_str", "content")
_LOG_PROBS = ("logprob", "log_probability", "logProbability")
_TOPS = ("top_logprobs", "top_tokens", "top_probs", "candidates", "probs")
# The tokens of an answer, the likeliest ones at each place, and the log-probabilities of the tokens.
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("content", "", ""),  # OpenAI's chats
    ("tokens", "top_tokens", ""),  # TGI
    ("tokens", "top_logprobs", "token_logprobs"),  # OpenAI's completions
    ("output_token_logprobs", "output_top_logprobs", ""),  # SGLang
    ("chosen_candidates", "top_candidates", ""),  # Gemini in Python, and as JSON
    ("chosenCandidates", "topCandidates", ""),
    ("token_ids", "logprobs", ""),  # vLLM offline
    ("completion_probabilities", "", ""),  # llama.cpp
)
# Where the answer stands in a response, from the outside to the inside; of several answers, the first.
_INNER = (
    *("body", "response", "choices", "outputs", "details", "meta_info", "response_metadata"),
    *("logprobs", "logprobs_result", "logprobsResult", "candidates"),
)
_FINISHES = ("finish_reason", "finishReason", "done_reason", "stop_type", "status")
_HAS_ENDED = {"stop", "eos", "eos_token", "stop_sequence", "word", "completed", "end_turn", "tool_calls"}
_MARKERS = {
    "Ġ": " ",
    "▁": " ",
    "Ċ": "\n",
    "\u2212": "-",
}  # of tokens that are not decoded; typography's minus
# Digits and punctuation of full width, one character for one, so that places in the text stay.
_PLAIN = str.maketrans({**_MARKERS, **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}})


class Position(NamedTuple):
    """A place in an answer: the token that was written, None if unknown, and the likeliest ones."""

    written: str | None
    log_prob: float | None
    top: Any

    def shares(self) -> dict[str, float]:
        """Return the probabilities of the tokens that are known; tokens of one text are added."""
        shares: dict[str, float] = {}
        for token, share in _shares(self.top):
            shares[token] = shares.get(token, 0.0) + share
        if self.written is not None and self.log_prob is not None:
            shares.setdefault(self.written, math.exp(self.log_prob))
        if not sum(shares.values()) <= _LARGEST_SUM:
            raise ValueError(
                f"top_logprobs: the probabilities add up to {sum(shares.values()):.3g}: expected natural "
                "logarithms of probabilities of one position"
            )
        return shares


class Answer(NamedTuple):
    """The positions of an answer, and whether nothing follows them; None if that is not known."""

    positions: Sequence[Position]
    has_ended: bool | None

    @property
    def text(self) -> str:
        """The tokens that were written, as one text."""
        return "".join(position.written or "" for position in self.positions)


def answer_of(response: Any) -> Answer:
    """Find the tokens in what an API has returned."""
    finish, inside = None, response
    while inside is not None:
        if positions := _positions_in(inside):
            if any(position.written is None for position in positions):
                raise ValueError("response: it does not say which tokens were written")
            finish = finish or _finish_of(inside)
            return Answer(positions, finish is None or finish in _HAS_ENDED)
        if isinstance(inside, list | tuple):
            inside = inside[0] if inside else None
            continue
        if error := _error_of(inside):
            raise ValueError(f"the API answered with an error: {error}")
        if _field(inside, ("delta",)) is not None:
            raise ValueError("response: a part of a streamed answer. Ask for it whole, with stream=False")
        finish = finish or _finish_of(inside)
        parts = [_field(inside, (name,)) for name in _INNER]
        inside = next((part for part in parts if part and not isinstance(part, str)), None)
    raise ValueError(
        "response: expected an answer with log-probabilities. Ask for them: of chats by logprobs=True, "
        "top_logprobs=20, of completions by logprobs=20, of TGI by details=true, top_n_tokens=5, of SGLang "
        "by return_logprob=true, top_logprobs_num=20, of Gemini by responseLogprobs=true, logprobs=20, of "
        "llama.cpp's /completion by n_probs=20. Models that reason, and some APIs, return none; "
        "scores_from_samples counts the scores of several answers in place of them"
    )


def answer_of_list(given: Any) -> Answer:
    """Read one position, or the positions from one on, in any of the forms of APIs."""
    if given is None:
        raise TypeError("top_logprobs=None: ask the API for them by logprobs=True, top_logprobs=20")
    if not isinstance(given, list | tuple):
        columns = None if _field(given, _TOPS) is not None and _is_entry(given) else _positions_in(given)
        if columns is None and _is_entry(given):
            columns = [_position(given, None, None)]
        return Answer(columns or [Position(None, None, given)], None)
    if not given:
        raise ValueError("top_logprobs: expected the likeliest tokens of a position, given an empty list")
    if all(_is_top(each) for each in given):
        return Answer([Position(None, None, each) for each in given], None)
    is_positions = any(_field(each, _TOPS) is not None or _is_written(each) for each in given)
    if is_positions:
        return Answer([_position(each, None, None) for each in given], None)
    return Answer([Position(None, None, given)], None)


def plain(text: str) -> str:
    """Return a text in plain spaces, digits and punctuation, of the same length."""
    return text.translate(_PLAIN)


def _error_of(inside: Any) -> Any:
    """Return what an API says is wrong, in place of an answer."""
    error = _field(inside, ("error", "detail"))
    if "error" in (_field(inside, ("object",)), _field(inside, ("type",))):
        error = error or inside
    return None if _field(inside, ("choices",)) else _field(error, ("message",)) or error


def _finish_of(inside: Any) -> str | None:
    reason = _field(inside, _FINISHES)
    reason = _field(reason, ("type",)) if isinstance(reason, Mapping) else reason
    reason = getattr(reason, "name", reason)  # of an enumeration
    return None if reason is None else str(reason).lower()


def _positions_in(inside: Any) -> list[Position] | None:
    """Return the positions of a part of a response; None if it does not hold them itself."""
    if isinstance(inside, Mapping | list) and not inside:
        return None
    if isinstance(inside, list):
        return [_position(each, None, None) for each in inside] if _is_entry(inside[0]) else None
    if output := _sequence(inside, "output"):  # of responses: reasoning, messages and their parts
        parts = [part for item in output for part in _field(item, ("content",)) or []]
        return [_position(each, None, None) for part in parts for each in _field(part, ("logprobs",)) or []]
    for names in _COLUMNS:
        written, tops, log_probs = (list(_sequence(inside, name)) for name in names)
        is_entries = bool(written) and (bool(tops) or _is_entry(written[0]) or bool(log_probs))
        if is_entries and (names[1] != "logprobs" or isinstance(tops[0], Mapping)):
            rows = zip_longest(written, tops[: len(written)], log_probs[: len(written)])
            return [_position(*row) for row in rows]
    tops = [*_sequence(inside, "top_candidates"), *_sequence(inside, "topCandidates")]
    return [Position(None, None, _field(each, _TOPS) or []) for each in tops] or None


def _sequence(inside: Any, name: str) -> Sequence[Any]:
    found = _field(inside, (name,)) if name else None
    return found if isinstance(found, Sequence) and not isinstance(found, str) else []


def _position(written: Any, top: Any, log_prob: Any) -> Position:
    if isinstance(written, int) and isinstance(top, Mapping):  # of vLLM, objects by token ids
        written = top.get(written, top.get(str(written)))
    token, own = (written, log_prob) if isinstance(written, str | int) else _pair_of(written)
    if not isinstance(token, str):
        raise TypeError(_EXPECTED.format(written))
    # The likeliest tokens stand beside the written one, or in its entry.
    top = _field(written, _TOPS) if top is None and not isinstance(written, str) else top
    top = _field(top, _TOPS) if _field(top, _TOPS) is not None else top
    return Position(_clean(token), own if isinstance(own, Real) else None, top or [])  # type: ignore[arg-type]


_EXPECTED = (
    "top_logprobs: expected entries with a token and a logprob, as OpenAI, vLLM, SGLang (with "
    "return_text_in_logprobs=True), TGI, llama.cpp, Ollama and Gemini return them; given {!r:.100}"
)


def _is_entry(each: Any) -> bool:
    """Whether this is a token with its log-probability: a mapping, an object, or SGLang's triple."""
    if isinstance(each, list | tuple):
        return len(each) == 3 and isinstance(each[0], Real)
    # A part of a message has a text, too.
    is_listed = _field(each, _LOG_PROBS) is not None or _field(each, ("prob", *_TOPS)) is not None
    return is_listed and isinstance(_field(each, _TOKENS), str | int)


def _is_written(each: Any) -> bool:
    """Whether an entry of a list without tops is a token of an answer: one of TGI, SGLang or Gemini is.

    OpenAI's list of one position has entries with `token` and `logprob`, and it is the documented argument.
    """
    if isinstance(each, list | tuple):
        return _is_entry(each)
    return _is_entry(each) and (
        _field(each, ("text",)) is not None or _field(each, _LOG_PROBS[1:]) is not None
    )


def _is_top(each: Any) -> bool:
    """Whether an entry of a list holds the likeliest tokens of a position."""
    if isinstance(each, list | tuple):
        return not _is_entry(each) and all(isinstance(one, Mapping | list | tuple) for one in each)
    return isinstance(each, Mapping) and bool(each) and not _is_entry(each) and _field(each, _TOPS) is None


def _shares(entries: Any) -> Iterator[tuple[str, float]]:
    pairs = entries if isinstance(entries, Iterable) else [entries]
    if isinstance(entries, Mapping):  # of tokens to log-probabilities, or of ids to vLLM's objects
        is_plain = all(each is None or isinstance(each, Real) for each in entries.values())
        pairs = entries.items() if is_plain else entries.values()
    for entry in pairs:
        token, log_prob = _pair_of(entry)
        if not isinstance(token, str) or not isinstance(log_prob, Real):
            raise TypeError(_EXPECTED.format(entry))
        yield _clean(token), math.exp(log_prob)


def _pair_of(entry: Any) -> tuple[Any, Any]:
    """Return the token and the log-probability of an entry, None where it has none."""
    if isinstance(entry, tuple | list):  # SGLang writes (log-probability, id, text)
        return (entry[-1], entry[0]) if len(entry) == 3 else (*entry, None, None)[:2]
    value, share = _field(entry, _LOG_PROBS), _field(entry, ("prob",))
    if value is None and isinstance(share, Real):  # of llama.cpp
        value = math.log(share) if share else -math.inf
    # JSON has no infinity, for which some servers write null.
    is_null = isinstance(entry, Mapping) and value is None and any(name in entry for name in _LOG_PROBS)
    return _field(entry, _TOKENS), -math.inf if is_null else value


def _clean(token: str) -> str:
    if re.fullmatch(r"token_id:\d+", token):
        raise ValueError(
            f"the tokens are ids, such as {token!r}, and not texts: ask vLLM without "
            "return_tokens_as_token_ids"
        )
    return plain(token)


def _field(entry: Any, names: Sequence[str]) -> Any:
    """Return the first field of these names that an object or a mapping has."""
    for name in names:
        value = entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
        if value is not None and not callable(value):
            return value
    return None
