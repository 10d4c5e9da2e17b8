"""Readings of a number other than the decoded one: the median and the mean of the model's distribution.

A greedily decoded number is made digit by digit, and errors are judged by distance, for which the median and
the mean are better. The same quantiles give an interval, whose coverage says how well the model knows its own
error. They are read by `ntloss.decoding.number_quantiles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import nn

from ntl.approaches import Approach
from ntl.approaches.answer_format import PLAIN_PRECISION
from ntl.config.settings import GenerationSettings
from ntl.data import Example, TaskData
from ntl.encodings.xval import format_number
from ntl.errors import UserError
from ntl.scores import finite_or_none, number_scores, reading_metric
from ntl.training.run_folder import Metrics
from ntloss import QuantileMetrics
from ntloss.parsing import parse_number

SPACED = 20
"""Number of equally spaced quantiles whose mean is the mean, and whose coverage is measured."""
SPACED_LEVELS = tuple((k + 0.5) / SPACED for k in range(SPACED))


@dataclass(frozen=True)
class Distribution:
    """What was read out of the model's distribution for one question; NaN where it writes no number.

    Args:
        spaced: The quantiles of `SPACED_LEVELS`, ascending.
        lower: Lower end of the interval.
        median: The median.
        upper: Upper end of the interval.
        mean: The mean.
        mass: Probability that the model writes a number, as `NumberQuantiles.mass`.
        unresolved: Share of the quantiles that the search did not find within its rows.
    """

    spaced: Sequence[float]
    lower: float
    median: float
    upper: float
    mean: float
    mass: float
    unresolved: float

    def fields(self, generation: GenerationSettings) -> dict[str, float | None]:
        """Return the fields of a `Prediction` that hold quantiles."""
        names = ("lower", "median", "upper", *(("mean",) if "mean" in generation.read else ()))
        return {name: finite_or_none(getattr(self, name)) for name in names}


def check_readings(approach: Approach, data: TaskData, generation: GenerationSettings) -> None:
    """Try out, before training, whether the readings fit the model and the data.

    Args:
        approach: A fitted approach, whose model need not be trained.
        data: Task whose questions will be answered.
        generation: Decoding settings.

    Raises:
        UserError: A reading needs quantiles, but an answer is not a single number, or the model has none.
    """
    if not generation.quantile_readings:
        return
    example: Example | None = None
    for example in chain(data.validation, *data.tests.values()):
        if parse_number(example.answer, "whole") is None:
            raise UserError(
                f"the answer {example.answer[:80]!r} is not a single number, and "
                f"evaluation.read=[{','.join(generation.quantile_readings)}] reads nothing else; expected "
                "numbers such as -12.5. Choose another dataset, or pass evaluation.read=[greedy]."
            )
    if example is not None:
        approach.quantiles(approach.model, [example.question], SPACED_LEVELS)


def read_distributions(
    approach: Approach, model: nn.Module, questions: Sequence[str], generation: GenerationSettings
) -> list[Distribution]:
    """Read the distribution of the number that answers each question.

    Args:
        approach: Approach that encodes the questions.
        model: The model, possibly wrapped.
        questions: A batch of questions.
        generation: Decoding settings.

    Returns:
        One distribution per question.

    Raises:
        UserError: The approach has no quantiles.
    """
    levels = (*SPACED_LEVELS, *_interval_levels(generation.interval), 0.5)
    read = approach.quantiles(model, questions, levels)
    wide = read.upper - read.lower > PLAIN_PRECISION * read.values.abs()
    mean, _ = read.mean(SPACED)
    # Sorted, because rounding may cross two quantiles.
    spaced = read.values[:, :SPACED].sort(-1).values
    ends, median = read.values[:, SPACED:-1].sort(-1).values, read.values[:, -1]
    columns = (spaced, ends[:, 0], median, ends[:, 1], mean, read.mass, wide.double().mean(-1))
    return [Distribution(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def reading_scores(
    read: Sequence[Distribution], answers: Sequence[str], generation: GenerationSettings
) -> Metrics:
    """Score each reading, and the distributions that they come from.

    Args:
        read: The distribution of each answer.
        answers: The correct answers, single numbers.
        generation: Decoding settings.

    Returns:
        The metrics of `number_scores` for each reading, with its name in front (`median_mae`); `crps`;
        `interval_coverage`, `interval_width` and `interval_score` of the intervals; `coverage_95`,
        `coverage_85`, ... of the central intervals between the spaced quantiles, see
        `ntloss.QuantileMetrics`; and the means of `mass` and `unresolved` as `number_mass` and
        `unresolved_rate`.
    """
    true = [math.nan if number is None else number for number in map(parse_number, answers)]
    found = QuantileMetrics(SPACED_LEVELS).update([d.spaced for d in read], true).compute()
    scores = {name: value for name, value in found.items() if name.startswith(("crps", "coverage_"))}
    ends = [(d.lower, d.upper) for d in read]
    of_interval = QuantileMetrics(_interval_levels(generation.interval)).update(ends, true).compute()
    names = ("interval_coverage", "interval_width", "interval_score")
    scores |= zip(names, list(of_interval.values())[-len(names) :], strict=True)
    metrics: Metrics = {name: finite_or_none(value) for name, value in scores.items()}
    metrics["number_mass"] = sum(d.mass for d in read) / len(read)
    metrics["unresolved_rate"] = sum(d.unresolved for d in read) / len(read)
    for reading in generation.quantile_readings:
        numbers = [getattr(d, reading) for d in read]
        texts = [format_number(number) if math.isfinite(number) else "" for number in numbers]
        scored = number_scores(texts, answers)
        metrics |= {reading_metric(reading, name): scored[name] for name in scored if name != "count"}
    return metrics


def _interval_levels(interval: float) -> tuple[float, float]:
    return (1 - interval) / 2, (1 + interval) / 2
