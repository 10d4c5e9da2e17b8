"""Scores of a judge: the exact probability of each level that a model may answer with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ntloss.callers import warn_caller
from ntloss.numbers.grammar import GOES_ON, POINTS
from ntloss.numbers.levels import Levels, level_values, text_of_level
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.images import tokenizer_of
from ntloss.reading.prompts import (
    AUTO,
    Messages,
    Prompt,
    check_tokenizer,
    encode_before,
    encode_prompts,
    encode_whole,
    for_images,
    has_decoder,
    in_batches,
    write_prompts,
)
from ntloss.reading.quantiles import as_readable, as_vocabulary, likeliest_after
from ntloss.reading.results import UnlikelyNumberWarning
from ntloss.reading.torch_model import Continuations

MOST_NONE = 0.9
_MOST_ROWS = 1024  # of levels after all prompts that are run at once
_LEAST_FOLLOWED = (
    1e-9  # a level that is less likely is not followed further, to see whether it is another number
)


@dataclass(frozen=True)
class ScoreReading:
    """The score that a model answers with; printed as its mean and the probability of each level.

    Args:
        probabilities: level to its probability, in the order of their values.
        mean: the mean of the levels' values, weighted by their probabilities: that of the score, given that
            the model answers with a level. NaN if these probabilities are all 0.
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
    template: str | None = AUTO,
    images: Any = None,
) -> Any:
    """Read the exact probability of each level of a score, after a prompt or each of several.

    A level is written if the answer begins with its tokens, as the tokenizer writes them, and not with those
    of a longer level (`10` after the `1` of both), nor with another number: `10`, `4.5` and `2024` are none
    of the levels 1 to 5. `4.0` is 4, and so is `4.05` where each digit is a token, because what follows the
    zero is not asked. Levels of one token each take one pass of the model, numbers two more for what follows
    them, and any further tokens one each.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode; or a server of
            `ntloss.reading.served`.
        tokenizer: its tokenizer, or its processor for prompts with images.
        prompt: the question, or several; see `read_number` for how prompt and prefill are put together.
        levels: the scores, such as `range(1, 11)`; or words with their values, such as
            `{"calm": 0, "annoyed": 1, "angry": 2}`. Default: 1 to 5.
        prefill: the answer's text before the score, such as the judge's reasons and `"Score: "`. Default:
            none, the answer begins with the score.
        system, messages, template_options, template, images: see `read_number`.

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
    values = level_values(levels)
    processor, tokenizer = tokenizer, tokenizer_of(tokenizer)
    readable = for_images(as_readable(model), images, messages)
    check_tokenizer(readable, tokenizer)
    if tokenizer is None:
        raise TypeError("tokenizer: expected the model's tokenizer, whose tokens write the levels")
    written, single = write_prompts(
        readable, processor, prompt, prefill, system, messages, template_options, template, images
    )
    vocabulary = as_vocabulary(tokenizer, readable)
    marks = Marks.of(vocabulary)
    readings: dict[int, ScoreReading] = {}
    for index in in_batches(written, readable, _MOST_ROWS // len(values)):
        some = [written[i] for i in index]
        inputs, prefix_ids = encode_prompts(
            readable, processor, some, [["", *map(text_of_level, values)]] * len(some)
        )
        own = [
            _levels_after(readable, tokenizer, each, [text_of_level(level) for level in values])
            for each in some
        ]
        ids = {i for of_prompt in own for level in of_prompt for i in level.token_ids}.union(*marks)
        texts = {i: vocabulary.text_of(i) or "" for i in ids}
        with torch.no_grad():
            root = readable.continuations(inputs, texts, prefix_ids)
            found = level_probabilities(root, own, marks)
        read = [summarize(dict(zip(values, each, strict=True)), values) for each in found]
        _warn(root, read, own, vocabulary)
        readings |= dict(zip(index, read, strict=True))
    return readings[0] if single else [readings[i] for i in range(len(written))]


class Marks(NamedTuple):
    """Tokens that make another number of a level before them: `4` and `0`, `4` and `.5`, `4`, `.` and `5`."""

    digits: list[int]  # that begin with a digit
    points: list[int]  # a decimal point or comma alone
    decimals: list[int]  # a point or comma and digits, but not zeros alone
    zeros: list[int]  # of the digits, those that are zeros alone, which change nothing after a point

    @classmethod
    def of(cls, vocabulary: NumberVocabulary) -> Marks:
        """Find the marks of a vocabulary."""
        texts = vocabulary.texts.items()
        return cls(
            [i for i, text in texts if GOES_ON.match(text) and text[0] not in POINTS],
            [i for i, text in texts if text in tuple(POINTS)],
            [i for i, text in texts if GOES_ON.match(text) and text[0] in POINTS and text[1:].strip("0")],
            [i for i, text in texts if text and not text.strip("0")],
        )


class Level(NamedTuple):
    """A level after one prompt: its tokens, its text, and whether digits after it make it another answer."""

    token_ids: tuple[int, ...]
    text: str
    is_number: bool


def level_probabilities(
    root: Continuations, levels: Sequence[Sequence[Level]], marks: Marks
) -> list[list[float]]:
    """Return the probability of each level after each row of `root`, given the levels of each."""
    return [
        _without_longer(of_levels, *found)
        for of_levels, found in zip(levels, _walk(root, levels, marks), strict=True)
    ]


_Masses = dict[tuple[int, ...], float]  # the probability of tokens


def _walk(
    root: Continuations, levels: Sequence[Sequence[Level]], marks: Marks
) -> Iterator[tuple[_Masses, _Masses]]:
    """Follow the levels after each row of `root`, all at once.

    Return the probability that a row begins with the tokens of a level, or with some of them, and by level
    the probability that another number follows from there.
    """
    own_ids = {i for each in levels for level in each for i in level.token_ids}
    asked = torch.tensor(sorted(own_ids.union(*marks)), device=root.device)
    column = {int(token): i for i, token in enumerate(asked)}
    goes_on = [column[i] for i in (*marks.digits, *marks.decimals)]
    decimals = [column[i] for i in marks.digits if i not in marks.zeros]
    points = {i: column[i] for i in marks.points}
    numbers = [{level.token_ids for level in each if level.is_number} for each in levels]
    masses: list[_Masses] = [{(): 1.0} for _ in levels]
    others: list[_Masses] = [{} for _ in levels]
    nodes: list[tuple[int, tuple[int, ...]]] = [(row, ()) for row in range(len(levels))]
    last, depth = root, 0
    while nodes:
        shares = last.next_tokens(asked).exp()
        of_decimals, of_more = shares[:, decimals].sum(-1), shares[:, goes_on].sum(-1)
        listed = shares.tolist()
        depth += 1
        following: dict[tuple[int, tuple[int, ...]], int] = {}
        for i, (row, begun) in enumerate(nodes):
            mass = masses[row][begun]
            if begun in numbers[row]:
                others[row][begun] = others[row].get(begun, 0.0) + mass * float(of_more[i])
                for point, at in points.items():
                    path = (*begun, point)
                    masses[row][path] = mass * listed[i][at]
                    if masses[row][path] > _LEAST_FOLLOWED:
                        following[row, path] = i
            if begun[-1:] and begun[-1] in points and begun[:-1] in numbers[row]:
                others[row][begun[:-1]] += mass * float(of_decimals[i])
            for ids in (level.token_ids for level in levels[row]):
                if len(ids) >= depth and ids[: depth - 1] == begun:
                    path = ids[:depth]
                    masses[row][path] = mass * listed[i][column[ids[depth - 1]]]
                    is_followed = path in numbers[row] and masses[row][path] > _LEAST_FOLLOWED
                    if len(ids) > depth or is_followed:
                        following[row, path] = i
        if following:
            parents = torch.tensor([*following.values()], device=root.device)
            tokens = torch.tensor([[begun[-1]] for _, begun in following], device=root.device)
            last = last.select(parents).extend(tokens)
        nodes = [*following]
    return zip(masses, others, strict=True)


def _without_longer(levels: Sequence[Level], masses: _Masses, others: _Masses) -> list[float]:
    """Return the probability of each level after a prompt without that of what goes on from there."""
    own = {ids: masses[ids] - others.get(ids, 0.0) for ids, *_ in levels}
    # What a longer level has, a shorter one has not, unless it was left out as another number.
    for ids, text, _ in sorted(levels, key=lambda level: len(level.token_ids), reverse=True):
        begun_by = [
            each
            for each in levels
            if len(each.token_ids) < len(ids) and ids[: len(each.token_ids)] == each.token_ids
        ]
        if begun_by:
            longest = max(begun_by, key=lambda each: len(each.token_ids))
            if not (longest.is_number and GOES_ON.match(text.removeprefix(longest.text))):
                own[longest.token_ids] -= masses[ids]
    return [max(own[ids], 0.0) for ids, *_ in levels]


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


def _levels_after(model: Any, tokenizer: Any, prompt: Prompt, levels: Sequence[str]) -> list[Level]:
    """Return the levels with their tokens after those that are kept of a prompt."""
    text, special = (prompt.answer, False) if has_decoder(model) else (prompt.text, prompt.special)
    kept = len(encode_before(tokenizer, text, ["", *levels], special))
    found = [tuple(encode_whole(tokenizer, text + level, special)[kept:]) for level in levels]
    if len({*found}) < len(found) or not all(found):
        raise ValueError(f"levels: the tokenizer writes two of {levels} with the same tokens")
    return [Level(ids, each, each[-1].isdigit()) for ids, each in zip(found, levels, strict=True)]


def _warn(
    root: Continuations,
    readings: Sequence[ScoreReading],
    levels: Sequence[Sequence[Level]],
    vocabulary: NumberVocabulary,
) -> None:
    rare = [i for i, reading in enumerate(readings) if reading.none > MOST_NONE]
    if rare:
        text, shown = likeliest_after(root, rare[0], vocabulary)
        if any(level.is_number and level.text == (text or "").strip() for level in levels[rare[0]]):
            advice = (
                "digits or a point follow the level. If you have trained the model, end its labels with the "
                "end token"
            )
        else:
            advice = "end the prompt or prefill where the score begins"
        warn_caller(
            f"after {len(rare)} of {len(readings)} prompts the model hardly answers with a level (with "
            f"probability {1 - readings[rare[0]].none:.2g} after one, where {shown} is likeliest): {advice}",
            UnlikelyNumberWarning,
        )
