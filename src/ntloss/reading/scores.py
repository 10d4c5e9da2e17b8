"""Scores of a judge: the exact probability of each level that a model may answer with."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ntloss.callers import warn_caller
from ntloss.numbers.parsing import as_float
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.prompts import (
    Messages,
    Prompt,
    check_tokenizer,
    encode_before,
    encode_prompts,
    encode_whole,
    has_decoder,
    in_batches,
    write_prompts,
)
from ntloss.reading.quantiles import as_readable, as_vocabulary
from ntloss.reading.results import UnlikelyNumberWarning
from ntloss.reading.torch_model import Continuations

_MOST_NONE = 0.9
_LARGEST_SUM = 1.01  # of probabilities, which APIs round

Levels = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class ScoreReading:
    """The score that a model answers with; printed as its mean and the probability of each level.

    Args:
        probabilities: level to its probability, in the order of their values.
        mean: the mean of the levels' values, weighted by their probabilities; NaN if these are all 0.
        median: the lowest value at which the levels have half of their probability.
        none: the probability that the model answers with something else.
        left_out: the probability of what a list of log-probabilities does not say; 0 for a model.
    """

    probabilities: Mapping[Any, float]
    mean: float
    median: float
    none: float
    left_out: float = 0.0

    def __str__(self) -> str:
        shares = ", ".join(f"{level}: {share:.3g}" for level, share in self.probabilities.items())
        return f"{self.mean:.3g} ({shares})"


def read_scores(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[str] | None = None,
    levels: Levels = range(1, 6),
    prefill: str = "",
    *,
    system: str | None = None,
    messages: Messages | Sequence[Messages] | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> Any:
    """Read the exact probability of each level of a score, after a prompt or each of several.

    A level is written if the answer begins with its tokens, as the tokenizer writes them, and not with those
    of a longer level (`10` after the `1` of both). Levels of one token each take one pass of the model, and
    any further tokens one each.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode; or a server of
            `ntloss.reading.served`.
        tokenizer: its tokenizer.
        prompt: the question, or several; see `read_number` for how prompt and prefill are put together.
        levels: the scores, such as `range(1, 11)`; or words with their values, such as
            `{"calm": 0, "annoyed": 1, "angry": 2}`. Default: 1 to 5.
        prefill: the answer's text before the score, such as the judge's reasons and `"Score: "`. Default:
            none, the answer begins with the score.
        system, messages, template_options: see `read_number`.

    Returns:
        A `ScoreReading` for one prompt, a list of them for several.

    Raises:
        TypeError: not a model or a tokenizer of transformers, or a prompt that is not a text.
        ValueError: fewer than two levels, or two that are written alike; see `read_number`.

    Warns:
        UnlikelyNumberWarning: a level is written with a probability below 0.1.

    Example:
        >>> import torch
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789?")}, "?"))
        >>> characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)
        >>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> scores = read_scores(LlamaForCausalLM(config).eval(), tokenizer, "How good?", levels=range(1, 11))
        >>> round(sum(scores.probabilities.values()) + scores.none, 6)
        1.0
    """
    values = _values(levels)
    readable = as_readable(model)
    check_tokenizer(readable, tokenizer)
    if tokenizer is None:
        raise TypeError("tokenizer: expected the model's tokenizer, whose tokens write the levels")
    written, single = write_prompts(readable, tokenizer, prompt, prefill, system, messages, template_options)
    vocabulary = as_vocabulary(tokenizer, readable)
    readings: dict[int, ScoreReading] = {}
    for index in in_batches(written, readable):
        some = [written[i] for i in index]
        inputs, prefix_ids = encode_prompts(
            readable, tokenizer, some, [["", *map(_text, values)]] * len(some)
        )
        tokens = [_tokens(readable, tokenizer, each, [_text(level) for level in values]) for each in some]
        texts = {i: vocabulary.text_of(i) or "" for of_prompt in tokens for ids in of_prompt for i in ids}
        with torch.no_grad():
            root = readable.continuations(inputs, texts, prefix_ids)
            found = level_probabilities(root, tokens)
        read = [summarize(dict(zip(values, each, strict=True)), values) for each in found]
        _warn(root, read, vocabulary)
        readings |= dict(zip(index, read, strict=True))
    return readings[0] if single else [readings[i] for i in range(len(written))]


def scores_from_logprobs(top_logprobs: Any, levels: Levels = range(1, 6)) -> ScoreReading:
    """Make a score of the log-probabilities that an API in OpenAI's form has returned.

    Args:
        top_logprobs: the list `choices[0].logprobs.content[i].top_logprobs` of the position i at which the
            score is written, with `token` and `logprob` in each entry; a mapping of tokens to
            log-probabilities; or `content[i:]`, the positions from there on, for levels of several tokens.
            White space around tokens is left out.
        levels: see `read_scores`.

    Returns:
        The score. `left_out` is the probability that the list does not say anything about: that of all tokens
        beyond the likeliest ones, and of tokens that begin a level (the `1` of `10`) where what follows them
        is not known. `none` is that of other tokens in the list.

    Raises:
        ValueError: an empty list, fewer than two levels, or numbers that are no log-probabilities.
        TypeError: entries of another form.

    Example:
        >>> top = [{"token": "4", "logprob": -0.22}, {"token": "5", "logprob": -2.3},
        ...        {"token": "I", "logprob": -3.0}]
        >>> scores = scores_from_logprobs(top, levels=range(1, 6))
        >>> round(scores.mean, 2), round(scores.left_out, 2)
        (4.11, 0.05)
    """
    values = _values(levels)
    of_text = {_text(level): level for level in values}
    positions = _positions(top_logprobs)
    shares = dict.fromkeys(values, 0.0)
    other = left_out = 0.0

    def follow(position: int, before: str, mass: float) -> None:
        nonlocal other, left_out
        listed = 0.0
        for token, share in positions[position].shares:
            listed += share
            text = (before + token).strip()
            longer = [name for name in of_text if name.startswith(text) and name != text]
            # What follows is only known of the token that was written.
            is_known = token == positions[position].written and position + 1 < len(positions)
            if longer and is_known:
                follow(position + 1, before + token, mass * share)
            elif text in of_text:
                shares[of_text[text]] += mass * share
            elif longer and text:
                left_out += mass * share
            elif (earlier := before.strip()) in of_text:  # the level before has ended
                shares[of_text[earlier]] += mass * share
            else:
                other += mass * share
        rest = mass * max(1 - listed, 0.0)
        if (earlier := before.strip()) in of_text:
            shares[of_text[earlier]] += rest
        else:
            left_out += rest

    follow(0, "", 1.0)
    return summarize(shares, values, other, left_out)


def level_probabilities(
    root: Continuations, levels: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[float]]:
    """Return the probability of each level after each row of `root`, given the tokens of each."""
    asked = torch.tensor(sorted({i for each in levels for ids in each for i in ids}), device=root.device)
    column = {int(token): i for i, token in enumerate(asked)}
    masses: list[dict[tuple[int, ...], float]] = [{(): 1.0} for _ in levels]
    nodes: list[tuple[int, tuple[int, ...]]] = [(row, ()) for row in range(len(levels))]
    last, depth = root, 0
    while nodes:
        shares = last.next_tokens(asked).exp().tolist()
        depth += 1
        following: dict[tuple[int, tuple[int, ...]], int] = {}
        for i, (row, begun) in enumerate(nodes):
            for ids in levels[row]:
                if len(ids) >= depth and ids[: depth - 1] == begun:
                    masses[row][ids[:depth]] = masses[row][begun] * shares[i][column[ids[depth - 1]]]
                    if len(ids) > depth:
                        following[row, ids[:depth]] = i
        if following:
            parents = torch.tensor([*following.values()], device=root.device)
            tokens = torch.tensor([[begun[-1]] for _, begun in following], device=root.device)
            last = last.select(parents).extend(tokens)
        nodes = [*following]
    found = []
    for of_levels, mass in zip(levels, masses, strict=True):
        own = {ids: mass[ids] for ids in of_levels}
        for ids in sorted(of_levels, key=len, reverse=True):  # what a longer level has, a shorter one has not
            shorter = [other for other in of_levels if len(other) < len(ids) and ids[: len(other)] == other]
            if shorter:
                own[max(shorter, key=len)] -= mass[ids]
        found.append([max(own[ids], 0.0) for ids in of_levels])
    return found


def summarize(
    shares: Mapping[Any, float], values: Mapping[Any, float], none: float | None = None, left_out: float = 0.0
) -> ScoreReading:
    """Return the reading of the levels' probabilities."""
    order = sorted(values, key=lambda level: values[level])
    total = sum(shares.values())
    mean = sum(values[level] * shares[level] for level in order) / total if total else math.nan
    reached, median = 0.0, math.nan
    for level in order:
        reached += shares[level]
        if math.isnan(median) and total and reached >= total / 2 * (1 - 1e-12):
            median = values[level]
    none = max(1 - total, 0.0) if none is None else none
    return ScoreReading({level: shares[level] for level in order}, mean, median, none, left_out)


class _Position(NamedTuple):
    written: str | None  # the token that was written; None if unknown
    shares: list[tuple[str, float]]


def _positions(given: Any) -> list[_Position]:
    entries = [*given.items()] if isinstance(given, Mapping) else list(given)
    if not entries:
        raise ValueError("top_logprobs: expected the likeliest tokens of a position, given an empty list")
    if not isinstance(given, Mapping) and _get(entries[0], "top_logprobs") is not None:
        return [
            _Position(_get(entry, "token"), _shares(_get(entry, "top_logprobs") or [])) for entry in entries
        ]
    return [_Position(None, _shares(entries))]


def _shares(entries: Any) -> list[tuple[str, float]]:
    pairs = [
        entry if isinstance(entry, tuple) else (_get(entry, "token"), _get(entry, "logprob"))
        for entry in (entries.items() if isinstance(entries, Mapping) else entries)
    ]
    for token, log_prob in pairs:
        if not isinstance(token, str) or not isinstance(log_prob, int | float):
            raise TypeError(
                f"top_logprobs: expected entries with a token and a logprob, given {(token, log_prob)}"
            )
    shares = [(token, math.exp(log_prob)) for token, log_prob in pairs]
    if not sum(share for _, share in shares) <= _LARGEST_SUM:
        raise ValueError(
            f"top_logprobs: the probabilities add up to {sum(share for _, share in shares):.3g}: expected "
            "natural logarithms of probabilities of one position"
        )
    return shares


def _get(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _values(levels: Levels) -> dict[Any, float]:
    """Return the levels with their values."""
    pairs = levels.items() if isinstance(levels, Mapping) else [(level, level) for level in levels]
    values: dict[Hashable, float] = {level: as_float(value) for level, value in pairs}
    texts = {_text(level) for level in values}
    if (
        len(values) < 2
        or len(texts) < len(values)
        or "" in texts
        or not all(map(math.isfinite, values.values()))
    ):
        raise ValueError(f"levels={levels!r}: expected two or more different scores, such as range(1, 6)")
    return values


def _text(level: Any) -> str:
    """Return how a level is written."""
    return level.strip() if isinstance(level, str) else f"{level:.15g}"


def _tokens(model: Any, tokenizer: Any, prompt: Prompt, levels: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the tokens of each level after those that are kept of a prompt."""
    text, special = (prompt.answer, False) if has_decoder(model) else (prompt.text, prompt.special)
    kept = len(encode_before(tokenizer, text, ["", *levels], special))
    found = [tuple(encode_whole(tokenizer, text + level, special)[kept:]) for level in levels]
    if len({*found}) < len(found) or not all(found):
        raise ValueError(f"levels: the tokenizer writes two of {levels} with the same tokens")
    return found


def _warn(root: Continuations, readings: Sequence[ScoreReading], vocabulary: NumberVocabulary) -> None:
    rare = [i for i, reading in enumerate(readings) if reading.none > _MOST_NONE]
    if rare:
        token = root.likeliest(rare[0])
        text = vocabulary.text_of(token) if isinstance(token, int) else token
        warn_caller(
            f"after {len(rare)} of {len(readings)} prompts the model hardly answers with a level (with "
            f"probability {1 - readings[rare[0]].none:.2g} after one, where "
            f"{f'token {token}' if text is None else repr(text)} is likeliest): end the prompt or prefill "
            "where the score begins",
            UnlikelyNumberWarning,
        )
