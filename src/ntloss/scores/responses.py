"""What APIs return: the tokens of an answer, the likeliest tokens at each place, and whether it has ended.

Read in the documentation or sources of OpenAI (chats, completions, responses), vLLM 0.33, SGLang 0.5, TGI 3,
llama.cpp's server, Ollama, Gemini and LangChain. They differ in the names of fields, which stand here in
tables; a form of one position is a form of a whole response.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from numbers import Real
from typing import Any, NamedTuple

# Where the answer stands in a response, from the outside to the inside; of several answers, the first.
_INNER = (
    *("body", "response", "choices", "outputs", "details", "meta_info", "response_metadata"),
    *("logprobs", "logprobs_result", "logprobsResult", "candidates"),
)
# There: the tokens that were written, the likeliest ones at each place, and the log-probabilities of the
# written ones, if these are not in the entries of the tokens.
_COLUMNS = (
    ("content", "", ""),  # OpenAI's chats
    ("tokens", "top_tokens", ""),  # TGI
    ("tokens", "top_logprobs", "token_logprobs"),  # OpenAI's completions
    ("output_token_logprobs", "output_top_logprobs", ""),  # SGLang
    ("chosen_candidates", "top_candidates", ""),  # Gemini in Python, and as JSON
    ("chosenCandidates", "topCandidates", ""),
    ("token_ids", "logprobs", ""),  # vLLM offline
    ("completion_probabilities", "", ""),  # llama.cpp
)
# The entry of a token.
_TOKENS = ("token", "text", "decoded_token", "tok_str", "content")
_LOG_PROBS = ("logprob", "log_probability", "logProbability")
_TOPS = ("top_logprobs", "top_tokens", "top_probs", "candidates", "probs")

_FINISHES = ("finish_reason", "finishReason", "done_reason", "stop_type", "status")
_HAS_ENDED = {"stop", "eos", "eos_token", "stop_sequence", "word", "completed", "end_turn", "tool_calls"}
_LARGEST_SUM = 1.01  # of probabilities, which APIs round
# Marks of tokens that are not decoded, typography's minus and dashes, and digits and punctuation of full
# width: one character for one, so that places in the text stay.
_WIDE = "".join(map(chr, range(0xFF01, 0xFF5F)))
_PLAIN = str.maketrans(
    "Ġ▁Ċ\u2212\u2013\u2014" + _WIDE, "  \n---" + "".join(chr(ord(sign) - 0xFEE0) for sign in _WIDE)
)


class Position(NamedTuple):
    """A place in an answer: the token that was written, None if unknown, and the likeliest ones."""

    written: str | None
    log_prob: float | None
    top: Any

    def shares(self) -> dict[str, float]:
        """Return the probabilities of the tokens that are known; tokens of one text are added."""
        entries = self.top
        if isinstance(entries, Mapping):  # of tokens to log-probabilities, or of ids to vLLM's objects
            is_plain = all(each is None or isinstance(each, Real) for each in entries.values())
            entries = entries.items() if is_plain else entries.values()
        shares: dict[str, float] = {}
        for each in entries:
            token, log_prob, _ = _entry(each) or (None, None, None)
            if not isinstance(token, str) or not isinstance(log_prob, Real):
                raise TypeError(
                    "top_logprobs: expected entries with a token and a logprob, as APIs return them (SGLang "
                    f"with return_text_in_logprobs=True), given {each!r:.100}"
                )
            shares[_clean(token)] = shares.get(_clean(token), 0.0) + math.exp(log_prob)
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

    def positions_from(self, start: int) -> list[Position]:
        """Return the positions from a character of the text on; what its token has before it is cut off."""
        ends = [*accumulate(len(position.written or "") for position in self.positions)]
        index = bisect_right(ends, start)
        first, *others = self.positions[index:]
        lead = self.text[ends[index - 1] if index else 0 : start].lstrip()
        if not lead:
            return [first, *others]
        rest = {token: token.lstrip().removeprefix(lead) for token in [first.written or "", *first.shares()]}
        top = [(rest[token], math.log(share)) for token, share in first.shares().items() if share]
        return [Position(rest[first.written or ""], None, top), *others]


def answer_of(response: Any) -> Answer:
    """Find the tokens in what an API has returned."""
    finish, inside = None, response
    while inside is not None:
        positions = _positions_in(inside)
        finish = finish or _finish_of(inside)
        if positions:
            if any(position.written is None for position in positions):
                raise ValueError(
                    "response: it does not say which tokens were written: ask SGLang for their texts by "
                    "return_text_in_logprobs=True, and vLLM with detokenize=True"
                )
            return Answer(positions, finish is None or finish in _HAS_ENDED)
        if error := _error_of(inside):
            raise ValueError(f"the API answered with an error: {error}")
        if _field(inside, "delta") is not None:
            raise ValueError("response: a part of a streamed answer. Ask for it whole, with stream=False")
        parts = inside[:1] if isinstance(inside, list | tuple) else (_field(inside, name) for name in _INNER)
        inside = next((part for part in parts if part and not isinstance(part, str)), None)
    raise ValueError(
        "response: expected an answer with log-probabilities. Ask for them, of chats by logprobs=True, "
        "top_logprobs=20; the page on scores has the options of other APIs. Models that reason, and some "
        "APIs, return none; scores_from_samples counts the scores of several answers in place of them"
    )


def answer_of_list(given: Any) -> Answer:
    """Read one position, or the positions from one on, in any of the forms of APIs."""
    if given is None:
        raise TypeError("top_logprobs=None: ask the API for them by logprobs=True, top_logprobs=20")
    if not isinstance(given, list | tuple):
        return Answer(_positions_in(given) or [_position(given)], None)
    if not given:
        raise ValueError("top_logprobs: expected the likeliest tokens of a position, given an empty list")
    # The likeliest tokens of one position are pairs, or have `token` and `logprob` alone; others are written.
    names = ("text", *_LOG_PROBS[1:], *_TOPS)
    is_one = all(_entry(each) and _field(each, *names) is None and not _is_of_sglang(each) for each in given)
    return Answer([Position(None, None, given)] if is_one else [_position(each) for each in given], None)


def plain(text: str) -> str:
    """Return a text in plain spaces, digits and punctuation, of the same length."""
    return text.translate(_PLAIN)


def _positions_in(inside: Any) -> list[Position]:
    """Return the positions of a part of a response; none if it does not hold them itself."""
    if isinstance(inside, list | tuple):
        return [_position(each) for each in inside] if all(map(_entry, inside)) else []
    # OpenAI's responses have reasoning, messages and their parts.
    parts = [part for item in _sequence(inside, "output") for part in _sequence(item, "content")]
    if entries := [each for part in parts for each in _sequence(part, "logprobs")]:
        return [_position(each) for each in entries]
    for names in _COLUMNS:
        written, tops, log_probs = (_sequence(inside, name) for name in names)
        if written and (tops or log_probs or all(map(_entry, written))):
            rows = zip_longest(written, tops[: len(written)], log_probs[: len(written)])
            return [
                Position(_clean(token), log_prob, top or [])
                if isinstance(token, str)
                else _position(token, top)
                for token, top, log_prob in rows
            ]
    return []


def _position(each: Any, top: Any = None) -> Position:
    if isinstance(each, int) and isinstance(top, Mapping):  # of vLLM, objects by token ids
        each = top.get(each, top.get(str(each)))
    token, log_prob, inner = _entry(each) or (None, None, _field(each, *_TOPS) or each)
    top = inner if top is None else top
    top = top if (inner := _field(top, *_TOPS)) is None else inner
    return Position(_clean(token) if token is not None else None, log_prob, top or [])


def _entry(each: Any) -> tuple[str, float | None, Any] | None:
    """Return the token, log-probability and likeliest tokens that an entry names; None if it is none."""
    if _is_of_sglang(each):
        return each[2], float(each[0]), None
    if isinstance(each, list | tuple):
        is_pair = len(each) == 2 and isinstance(each[0], str)
        return (each[0], -math.inf if each[1] is None else each[1], None) if is_pair else None
    token, top = _field(each, *_TOKENS), _field(each, *_TOPS)
    log_prob, share = _field(each, *_LOG_PROBS), _field(each, "prob")
    if log_prob is None and isinstance(share, Real):  # of llama.cpp
        log_prob = math.log(share) if share else -math.inf
    # JSON has no infinity, for which some servers write null.
    elif log_prob is None and isinstance(each, Mapping) and any(name in each for name in _LOG_PROBS):
        log_prob = -math.inf
    return (token, log_prob, top) if isinstance(token, str) and (log_prob, top) != (None, None) else None


def _is_of_sglang(each: Any) -> bool:
    """Whether this is (log-probability, id, text)."""
    return isinstance(each, list | tuple) and len(each) == 3 and isinstance(each[0], Real)


def _error_of(inside: Any) -> Any:
    """Return what an API says is wrong, in place of an answer."""
    error = _field(inside, "error", "detail")
    if "error" in (_field(inside, "object"), _field(inside, "type")):
        error = error or inside
    return None if _field(inside, "choices") else _field(error, "message") or error


def _finish_of(inside: Any) -> str | None:
    reason = _field(inside, *_FINISHES)
    reason = _field(reason, "type") if isinstance(reason, Mapping) else reason
    reason = getattr(reason, "name", reason)  # of an enumeration
    return None if reason is None else str(reason).lower()


def _clean(token: str) -> str:
    if re.fullmatch(r"token_id:\d+", token):
        raise ValueError(
            f"the tokens are ids, such as {token!r}, and not texts: ask vLLM without "
            "return_tokens_as_token_ids"
        )
    return plain(token)


def _sequence(inside: Any, name: str) -> Sequence[Any]:
    found = _field(inside, name) if name else None
    return found if isinstance(found, Sequence) and not isinstance(found, str) else []


def _field(entry: Any, *names: str) -> Any:
    """Return the first field of these names that an object or a mapping has."""
    for name in names:
        value = entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
        if value is not None and not callable(value):
            return value
    return None
