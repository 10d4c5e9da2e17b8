"""Metrics of the distributions that numbers are read from: proper scores, and the coverage of intervals.

Greedy decoding takes the most likely digit at each step. For errors that measure distance, the median and the
mean of the model's distribution are better. The same quantiles give an interval; its coverage shows how well
the model knows its own error.

Source: Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007,
equation 43 (interval score); Laio and Tamea, HESS 2007 (CRPS as an integral of pinball losses).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ntl.data import PAPERS_CLIP, format_number
from ntl.metrics.answers import last_numbers, mean_of, number_scores
from ntl.metrics.registry import reading_metric

SPACED = 20
"""Number of equally spaced quantiles.

Their average estimates the mean, and the coverage of the intervals between them is reported.
"""
SPACED_LEVELS = tuple((k + 0.5) / SPACED for k in range(SPACED))


class Distributions(NamedTuple):
    """What is read from a model's distributions, a row for each question; NaN where it writes no number.

    Args:
        spaced: `[questions, SPACED]`, the quantiles of `SPACED_LEVELS`, ascending.
        lower, median, upper: `[questions]`, the median, between the ends of the interval.
        mean: `[questions]`, the mean.
        mass: `[questions]`, the probability that the model writes a number, as `NumberQuantiles.starts`.
    """

    spaced: np.ndarray
    lower: np.ndarray
    median: np.ndarray
    upper: np.ndarray
    mean: np.ndarray
    mass: np.ndarray


def reading_scores(
    read: Distributions,
    answers: Sequence[str],
    readings: Sequence[str],
    interval: float,
    clip: float | None = PAPERS_CLIP,
) -> dict[str, float]:
    """Score each reading and the distributions behind them. All answers must be single numbers.

    Args:
        read: The distribution of each question.
        answers: The true answers.
        readings: The readings besides `greedy`, of `median` and `mean`.
        interval: The share of the distribution between `lower` and `upper`.
        clip: See `TaskData.clip`.

    Returns:
        `crps`; `coverage_95`, `coverage_85`, ... of the central intervals between the spaced quantiles;
        `interval_coverage`, `interval_width` and `interval_score` of the intervals, see `interval_metrics`;
        the mean of `mass` as `number_mass`; and the metrics of `number_scores` for each reading, prefixed
        with its name (`median_mae`).
    """
    true = last_numbers(answers)
    scores = {"crps": crps(read.spaced, true, SPACED_LEVELS)}
    for low in range(SPACED // 2):
        share = 1 - 2 * SPACED_LEVELS[low]
        ends = read.spaced[:, low], read.spaced[:, -1 - low]
        scores[f"coverage_{100 * share:.0f}"] = interval_metrics(*ends, true, share)[0]
    names = ("interval_coverage", "interval_width", "interval_score")
    scores |= zip(names, interval_metrics(read.lower, read.upper, true, interval), strict=True)
    scores["number_mass"] = float(sum(read.mass) / len(read.mass))
    for reading in readings:
        numbers = getattr(read, reading).tolist()
        texts = [format_number(number) if math.isfinite(number) else "" for number in numbers]
        scored = number_scores(texts, answers, clip)
        scores |= {reading_metric(reading, name): scored[name] for name in scored if name != "count"}
    return scores


def rater_crps(spaced: np.ndarray, ratings: Sequence[Sequence[float]]) -> float:
    """Average the CRPS of each distribution over the answers of several people.

    Args:
        spaced: `[questions, SPACED]`, the quantiles of each question; one without a number is left out.
        ratings: Each person's answer to each question.

    Returns:
        The mean over the questions; NaN if no distribution has a number.
    """
    scores = [
        crps([quantiles] * len(given), given, SPACED_LEVELS)
        for quantiles, given in zip(spaced, ratings, strict=True)
    ]
    known = [score for score in scores if math.isfinite(score)]
    return sum(known) / len(known) if known else math.nan


def crps(quantiles: ArrayLike, true: ArrayLike, levels: ArrayLike) -> float:
    r"""Compute the continuous ranked probability score of the distributions with the given quantiles.

    It is $2 \sum_\tau w_\tau \max(\tau (x - \hat x_\tau), (\tau - 1)(x - \hat x_\tau))$, where $w_\tau$ is
    the length of the part of $[0, 1]$ that is nearest to $\tau$: exact for n equally likely values at the
    levels $(i - 1/2)/n$, and with few levels an approximation.

    Args:
        quantiles: `[rows, levels]`, ascending in each row.
        true: `[rows]`, the true numbers.
        levels: `[levels]`, ascending between 0 and 1.

    Returns:
        The mean over the rows whose numbers are all finite, in the numbers' unit; NaN if there is none.

    Example:
        >>> crps([[1.0, 3.0]], [2.0], [0.25, 0.75])
        0.5
    """
    predicted, at, tau = (np.asarray(x, dtype=float) for x in (quantiles, true, levels))
    known = np.isfinite(at) & np.isfinite(predicted).all(axis=-1)
    error = at[known, None] - predicted[known]
    pinball = np.maximum(tau * error, (tau - 1) * error)
    weights = np.diff([0.0, *(tau[1:] + tau[:-1]) / 2, 1.0])
    return mean_of(2 * (pinball * weights).sum(axis=-1))


def interval_metrics(
    lower: ArrayLike, upper: ArrayLike, true: ArrayLike, share: float
) -> tuple[float, float, float]:
    r"""Compute the coverage, the mean width and the interval score of central intervals.

    Args:
        lower, upper: `[rows]`, the ends $l$ and $u$ of each interval.
        true: `[rows]`, the true numbers $x$.
        share: Nominal coverage, $1 - \alpha$.

    Returns:
        The share of true numbers within their interval, ends included; the mean width; and the mean of
        $(u - l) + \frac{2}{\alpha}(l - x)^+ + \frac{2}{\alpha}(x - u)^+$. The means are over the rows whose
        numbers are all finite; NaN if there is none.

    Example:
        >>> interval_metrics([1.0, 2.0], [6.0, 5.0], [4.0, 7.0], 0.5)
        (0.5, 4.0, 8.0)
    """
    low, high, at = (np.asarray(x, dtype=float) for x in (lower, upper, true))
    known = np.isfinite(low) & np.isfinite(high) & np.isfinite(at)
    low, high, at = low[known], high[known], at[known]
    outside = np.maximum(low - at, 0) + np.maximum(at - high, 0)
    score = high - low + 2 / (1 - share) * outside
    return mean_of(outside == 0), mean_of(high - low), mean_of(score)
