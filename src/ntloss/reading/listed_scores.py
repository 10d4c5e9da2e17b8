"""Scores of a judge from the likeliest tokens that an API has returned."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ntloss.callers import warn_caller
from ntloss.numbers.grammar import GOES_ON, POINTS
from ntloss.numbers.levels import Levels, level_values, text_of_level
from ntloss.reading.results import UnlikelyNumberWarning
from ntloss.reading.score_places import level_of, place_of_score
from ntloss.reading.scores import MOST_NONE, ScoreReading, summarize

_LARGEST_SUM = 1.01  # of probabilities, which APIs round
_LEAST_CASE = 0.01  # the probability of levels in other letters from which on a warning names them
# Marks of tokens that a server has not decoded; and the minus of typography.
_MARKERS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "\u2212": "-"})
_LETTER = re.compile(r"[^\W\d_]")
# Thai, Chinese, Japanese and Korean, where words follow each other without a space, or with a particle.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Names of the fields of OpenAI, TGI and Gemini (in Python and as JSON).
_TOKENS = ("token", "text", "decoded_token")
_LOG_PROBS = ("logprob", "log_probability", "logProbability")
_TOPS = ("top_logprobs", "top_tokens", "candidates")


def scores_from_logprobs(top_logprobs: Any, levels: Levels = range(1, 6)) -> ScoreReading:
    """Make a score of the log-probabilities that an API has returned.

    Args:
        top_logprobs: in OpenAI's form, the list `choices[0].logprobs.content[i].top_logprobs` of the position
            i at which the score is written, with `token` and `logprob` in each entry; or `content[i:]`, the
            positions from there on, for levels of several tokens. Also a mapping of tokens to
            log-probabilities, TGI's `details.tokens[i:]` or `top_tokens[i]`, Gemini's `logprobs_result`,
            SGLang's `output_top_logprobs[i:]` with texts, or a position of vLLM's offline
            `outputs[0].logprobs`. White space around tokens is left out, as are tokenizers' marks for it
            (`Ġ8`, `▁8`).
        levels: see `read_scores`.

    Returns:
        The score. `left_out` is the probability that the list does not say anything about: that of all tokens
        beyond the likeliest ones, and of tokens that begin a level (the `1` of `10`) where what follows them
        is not known. `none` is that of other tokens in the list, and of levels that go on as another number
        or word.

    Raises:
        ValueError: an empty list, fewer than two levels, or numbers that are no log-probabilities.
        TypeError: entries of another form.

    Warns:
        UnlikelyNumberWarning: the listed tokens hardly hold a level, or hold levels in other letters (`Yes`
            for `yes`).

    Example:
        >>> top = [{"token": "4", "logprob": -0.22}, {"token": "5", "logprob": -2.3},
        ...        {"token": "I", "logprob": -3.0}]
        >>> scores = scores_from_logprobs(top, levels=range(1, 6))
        >>> round(scores.mean, 2), round(scores.left_out, 2)
        (4.11, 0.05)
    """
    values = level_values(levels)
    if top_logprobs is None:
        raise TypeError("top_logprobs=None: ask the API for them by logprobs=True, top_logprobs=20")
    return _scores(_positions(top_logprobs), values)


def scores_from_response(
    response: Any, levels: Levels = range(1, 6), after: str | None = None
) -> ScoreReading:
    """Find the score in the answer of an API, and make a score of the log-probabilities at its place.

    The score is the last level of the answer after a word such as `score` or `rating`, otherwise the last
    level of all. The end of a scale is none: the 10 of `8/10`, `7 out of 10` and `from 1 to 10`. What the
    model has thought before its answer (`<think>...</think>`) is no part of it.

    Args:
        response: what an API in OpenAI's form has returned, as an object or a mapping: of chat completions
            (asked for with `logprobs=True, top_logprobs=20`), completions (`logprobs=20`) or responses
            (`include=["message.output_text.logprobs"], top_logprobs=20`); or the first choice.
        levels: see `read_scores`.
        after: the text that stands before the score, such as `'"score":'`. Default: the answer decides, as
            above.

    Returns:
        The score, see `scores_from_logprobs`. Without a level in the answer, the mean is NaN and `none` 1.

    Raises:
        ValueError: the response has no log-probabilities; see `scores_from_logprobs`.
        TypeError: it is of another form.

    Warns:
        UnlikelyNumberWarning: there is no level in the answer; see `scores_from_logprobs`.

    Example:
        >>> def position(token, **others):
        ...     top = [{"token": t, "logprob": math.log(p)} for t, p in others.items()]
        ...     return {"token": token, "logprob": 0.0, "top_logprobs": top}
        >>> content = [position('{"score":'), position(" 7", **{" 7": 0.75, " 8": 0.25}), position("}")]
        >>> response = {"choices": [{"logprobs": {"content": content}}]}
        >>> scores_from_response(response, levels=range(1, 11)).mean
        7.25
    """
    values = level_values(levels)
    content = _content_of(response)
    if not content:
        raise ValueError(
            "response: expected an answer with log-probabilities. Ask for them by logprobs=True, "
            "top_logprobs=20; or of completions, logprobs=20"
        )
    tokens = [_clean(str(_get(entry, _TOKENS))) for entry in content]
    text = "".join(tokens)
    start = place_of_score(text, _levels_by_text(values), after)
    if start is None:
        warn_caller(
            f"the answer {text[-80:]!r} holds none of the levels: its score is NaN", UnlikelyNumberWarning
        )
        return summarize(dict.fromkeys(values, 0.0), values, 1.0)
    index, begun = 0, 0
    while begun + len(tokens[index]) <= start:
        begun, index = begun + len(tokens[index]), index + 1
    positions = _positions(content[index:])
    # Of a token such as `"7`, what stands before the score is no part of it.
    lead = text[begun:start].lstrip()
    shares = [
        (token.lstrip().removeprefix(lead) if lead else token, share) for token, share in positions[0].shares
    ]
    written = tokens[index].lstrip().removeprefix(lead) if lead else tokens[index]
    return _scores([_Position(written, shares), *positions[1:]], values)


def _content_of(response: Any) -> list[Any]:
    """Return the tokens of an answer, each with the likeliest tokens at its place; none if it has none."""
    if output := _get(response, ("output",)):  # of responses: reasoning, messages and their parts
        parts = [part for item in output for part in _get(item, ("content",)) or []]
        return [token for part in parts for token in _get(part, ("logprobs",)) or []]
    choices = _get(response, ("choices",))
    log_probs = _get(choices[0] if choices else response, ("logprobs",))
    if content := _get(log_probs, ("content",)):
        return list(content)
    columns = [_get(log_probs, (name,)) or [] for name in ("tokens", "top_logprobs")]  # of completions
    return [{"token": token, "top_logprobs": top or {}} for token, top in zip(*columns, strict=False)]


class _Position(NamedTuple):
    written: str | None  # the token that was written; None if unknown
    shares: list[tuple[str, float]]


class _Fate(Enum):
    """What the probability of a listed token counts for, if it is no level's."""

    OTHER = "another answer"
    LEFT_OUT = "unknown"
    FOLLOW = "what follows the token decides"


def _scores(positions: list[_Position], values: Mapping[Any, float]) -> ScoreReading:
    of_text = _levels_by_text(values)
    shares: dict[Any, float] = dict.fromkeys([*values, _Fate.OTHER, _Fate.LEFT_OUT], 0.0)
    for fate, share in _fates(positions, of_text):
        shares[fate] += share
    other, left_out = shares.pop(_Fate.OTHER), shares.pop(_Fate.LEFT_OUT)
    found = summarize(shares, values, other, left_out)
    _warn(positions[0], found, of_text)
    return found


def _fates(
    positions: list[_Position], of_text: Mapping[str, Any], before: str = "", mass: float = 1.0
) -> Iterator[tuple[Any, float]]:
    """Yield what each listed token counts for, a level or a fate, and its probability.

    `before` is what stands before the first position since the score's place, and `mass` its probability.
    """
    (written, shares), *following = positions
    listed = 0.0
    for token, share in shares:
        listed += share
        fate = _fate_of(token, before, of_text, token == written, bool(following))
        if fate is _Fate.FOLLOW:
            yield from _fates(following, of_text, before + token, mass * share)
        else:
            yield fate, mass * share
    ended = _level_in(before.strip(), of_text)
    is_end = ended is not None and not _begins_level(before.strip(), of_text)
    yield ended if is_end else _Fate.LEFT_OUT, mass * max(1 - listed, 0.0)


def _fate_of(token: str, before: str, of_text: Mapping[str, Any], is_written: bool, has_next: bool) -> Any:
    """Return what a listed token counts for: a level, or a fate.

    What follows is only known of the token that was written, and if its position `has_next`.
    """
    # A level may have ended before the token, or another number may go on.
    earlier, text = before.strip(), (before + token).strip()
    ended, level = _level_in(earlier, of_text), _level_in(text, of_text)
    behind = "" if ended is None or before[-1:].isspace() else token
    if behind.isspace() and not any(name.startswith(before.lstrip() + token) for name in of_text):
        return ended  # no digit or letter follows the level directly
    begins = _begins_level(text, of_text)
    is_number = ended is not None and earlier[-1].isdigit()
    is_point = is_number and behind in tuple(POINTS)  # that of `4.5`, or of a sentence
    if is_written and has_next and (begins or level is not None or is_point):
        return _Fate.FOLLOW
    if text and (begins or (is_point and not is_written)):
        return _Fate.LEFT_OUT
    if level is not None:
        return level
    if (GOES_ON.match(behind) is not None) if is_number else _goes_on(earlier, behind):
        return _Fate.OTHER
    if (
        earlier[-1:] in tuple(POINTS)
        and GOES_ON.match(token)
        and _level_in(earlier[:-1], of_text) is not None
    ):
        return _Fate.OTHER
    ended = _level_in(earlier.rstrip(POINTS), of_text) if ended is None else ended
    return _Fate.OTHER if ended is None else ended


def _level_in(text: str, of_text: Mapping[str, Any]) -> Any:
    name = level_of(text, of_text)
    return None if name is None else of_text[name]


def _begins_level(text: str, of_text: Mapping[str, Any]) -> bool:
    return any(name.startswith(text) and name != text for name in of_text)


def _levels_by_text(values: Mapping[Any, float]) -> dict[str, Any]:
    """Return levels by their texts; beside negative ones, positive ones may have a sign, too; `.5` is 0.5."""
    of_text = {text_of_level(level): level for level in values}
    of_text |= {text[1:]: level for text, level in of_text.items() if text.startswith("0.")}
    if any(text.startswith("-") for text in of_text):
        of_text |= {f"+{text}": level for text, level in of_text.items() if text[0].isdigit()}
    return of_text


def _goes_on(word: str, behind: str) -> bool:
    """Return whether what stands directly behind a word makes another word of it: `nothing` of `no`."""
    return _LETTER.match(behind) is not None and not _WITHOUT_SPACES.match(word[-1:])


def _warn(first: _Position, found: ScoreReading, of_text: Mapping[str, Any]) -> None:
    folded = {text.casefold() for text in of_text}
    texts = [(token.strip(), share) for token, share in first.shares]
    differ = [(text, share) for text, share in texts if text not in of_text and text.casefold() in folded]
    if sum(share for _, share in differ) > _LEAST_CASE:
        listed = ", ".join(f"{text!r} ({share:.2g})" for text, share in differ)
        warn_caller(
            f"top_logprobs: {listed} differ from the levels only in their case, and count as none: add them "
            "to the levels with their values",
            UnlikelyNumberWarning,
        )
    elif found.none > MOST_NONE or math.isnan(found.mean):
        likeliest = max(first.shares, key=lambda pair: pair[1], default=("", 0.0))[0]
        warn_caller(
            f"top_logprobs: the listed tokens hardly hold a level (with probability "
            f"{sum(found.probabilities.values()):.2g}; {likeliest!r} is likeliest): pass those of the "
            "position at which the score is written, or the response to scores_from_response",
            UnlikelyNumberWarning,
        )


def _clean(token: str) -> str:
    return token.translate(_MARKERS)


def _positions(given: Any) -> list[_Position]:
    candidates, chosen = (_get(given, names) for names in _GEMINI)
    if candidates is not None:  # Gemini's logprobs_result
        written = [_get(entry, _TOKENS) for entry in chosen or []] or [None] * len(candidates)
        tops = [_get(entry, _TOPS) or [] for entry in candidates]
        return [
            _Position(None if token is None else _clean(token), _shares(top))
            for token, top in zip(written, tops, strict=True)
        ]
    if _get(given, _TOPS) is not None:  # one element of `content`
        given = [given]
    entries = [*given.items()] if isinstance(given, Mapping) else list(given)
    if not entries:
        raise ValueError("top_logprobs: expected the likeliest tokens of a position, given an empty list")
    if not isinstance(given, Mapping) and _get(entries[0], _TOPS) is not None:
        return [
            _Position(_clean(str(_get(entry, _TOKENS))), _shares(_get(entry, _TOPS) or []))
            for entry in entries
        ]
    if not isinstance(given, Mapping) and all(_is_position(entry) for entry in entries):
        return [_Position(None, _shares(entry)) for entry in entries]
    return [_Position(None, _shares(given))]


_GEMINI = (("top_candidates", "topCandidates"), ("chosen_candidates", "chosenCandidates"))


def _is_vllm(entry: Any) -> bool:
    """Whether an entry is a position of vLLM's, which has objects by token ids."""
    return (
        isinstance(entry, Mapping)
        and bool(entry)
        and all(isinstance(token, int) and not isinstance(each, float) for token, each in entry.items())
    )


def _is_position(entry: Any) -> bool:
    """Whether an entry of a list is a position: a list of tokens, or a mapping of them."""
    if isinstance(entry, Mapping):
        return _is_vllm(entry) or all(isinstance(value, numbers.Real) for value in entry.values())
    return isinstance(entry, list) and all(isinstance(each, Mapping | list | tuple) for each in entry)


def _shares(entries: Any) -> list[tuple[str, float]]:
    if _is_vllm(entries):
        entries = list(entries.values())
    pairs = []
    for entry in entries.items() if isinstance(entries, Mapping) else entries:
        token, log_prob = _pair_of(entry)
        if not isinstance(token, str) or not isinstance(log_prob, numbers.Real):
            raise TypeError(
                "top_logprobs: expected entries with a token and a logprob, as OpenAI, vLLM, SGLang, TGI and "
                f"Gemini return them; given {entry!r:.100}"
            )
        pairs.append((token, float(log_prob)))
    shares = [(_clean(token), math.exp(value)) for token, value in pairs]
    if not sum(share for _, share in shares) <= _LARGEST_SUM:
        raise ValueError(
            f"top_logprobs: the probabilities add up to {sum(share for _, share in shares):.3g}: expected "
            "natural logarithms of probabilities of one position"
        )
    return shares


def _pair_of(entry: Any) -> tuple[Any, Any]:
    """Return the token and the log-probability of an entry, None where it has none."""
    if not isinstance(entry, tuple | list):
        return _get(entry, _TOKENS), _log_prob(entry)
    # SGLang writes (log-probability, id, text).
    return (entry[-1], entry[0]) if len(entry) == 3 else (*entry, None, None)[:2]


def _log_prob(entry: Any) -> Any:
    """Return the log-probability of an entry; JSON has no infinity, for which some servers write null."""
    value = _get(entry, _LOG_PROBS)
    is_null = isinstance(entry, Mapping) and value is None and any(name in entry for name in _LOG_PROBS)
    return -math.inf if is_null else value


def _get(entry: Any, names: Sequence[str]) -> Any:
    """Return the first field of these names that an object or a mapping has."""
    for name in names:
        value = entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
        if value is not None:
            return value
    return None
