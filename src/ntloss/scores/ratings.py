"""Scores of a judge beside those of people: how good its probabilities are, and a temperature for them.

scikit-learn, and what it brings, is imported when a function needs it: `pip install "ntloss[scores]"`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ntloss.scores.readings import ScoreReading

# A level of probability 0 that a rater gave counts as this unlikely, so that log loss stays finite.
_SMALLEST = 1e-12
_LARGEST_TEMPERATURE = 100.0
_BINS = 10  # of the calibration error

Ratings = Sequence[Any] | Sequence[Iterable[Any]]


class RatedScores(NamedTuple):
    r"""How well a judge's probabilities of levels fit the ratings of people; smaller is better for each.

    A row is a text that was judged; rows with several ratings count as rows with one. The probabilities are
    those among the levels.

    Args:
        ranked_probability: mean ranked probability score $\sum_j (F_j - 1[v_j \ge v])^2 (v_{j+1} - v_j)$, F
            the cumulative probability, in the unit of the levels: the only one of these that knows the
            order of the levels. It equals the absolute error of a judge that is certain.
        brier: mean Brier score, $\sum_j (p_j - 1[j = k])^2$, from 0 to 2.
        log_loss: mean negative log-probability of the ratings, in nats.
        calibration_error: expected calibration error of the likeliest level: the mean difference between its
            probability and the share of ratings that agree, over ten bins of equal width, weighted by rows
            in each. It is 0 for a judge that says the same shares for all rows, so read it beside the others.
    """

    ranked_probability: float
    brier: float
    log_loss: float
    calibration_error: float


def compare_with_ratings(scores: Sequence[ScoreReading], ratings: Ratings) -> RatedScores:
    """Compare a judge's probabilities of levels with the ratings of people; needs scikit-learn 1.7.

    Args:
        scores: the reading of each row, with the same levels.
        ratings: the level that each row was given, or the levels that several raters gave it, such as
            `[4, [4, 5, 5], 2]`, or how many gave each, `{4: 1, 5: 2}`, a dict. A table of pandas has a row
            for each.

    Returns:
        The measures, means over rows.

    Raises:
        ValueError: no rows, as many ratings as rows are expected, a rating that is none of the levels, or a
            row without probability on its levels.

    Source: Epstein, Journal of Applied Meteorology 1969 (ranked probability score); Brier, Monthly Weather
    Review 1950; Guo et al., "On Calibration of Modern Neural Networks", ICML 2017 (calibration error,
    temperature).

    Example:
        >>> from ntloss.scores import ScoreReading
        >>> sure = ScoreReading({4: 0.9, 5: 0.1})
        >>> measures = compare_with_ratings([sure, sure], [4, [4, 5, 5]])
        >>> round(measures.ranked_probability, 2), round(measures.calibration_error, 2)
        (0.28, 0.23)
    """
    import numpy as np
    from sklearn.metrics import brier_score_loss, log_loss

    probs, shares = map(np.array, _tables(scores, ratings))
    rows, count = probs.shape
    # Each level of a row is a sample, weighted by its share of the ratings.
    levels, repeated = np.tile(range(count), rows), probs.repeat(count, 0)
    options = {"sample_weight": shares.ravel(), "labels": range(count)}
    # Of one rating, (F - 1)^2 from it on, otherwise F^2; the mean over raters.
    below, reached = probs.cumsum(1)[:, :-1], shares.cumsum(1)[:, :-1]
    gaps = np.diff([scores[0].value_of(level) for level in scores[0].probabilities])
    likeliest = (range(rows), probs.argmax(1))
    bin_of = np.minimum((probs[likeliest] * _BINS).astype(int), _BINS - 1)
    return RatedScores(
        float(((below**2 - 2 * below * reached + reached) @ gaps).mean()),
        float(brier_score_loss(levels, repeated, scale_by_half=False, **options)),
        float(log_loss(levels, repeated, **options)),
        float(np.abs(np.bincount(bin_of, probs[likeliest] - shares[likeliest])).sum() / rows),
    )


def fit_temperature(scores: Sequence[ScoreReading], ratings: Ratings) -> float:
    """Fit the temperature of the smallest log loss on rated rows; needs scikit-learn 1.7.

    The new probabilities are proportional to the old ones to the power 1 / temperature: a temperature above 1
    makes the judge less sure, one below 1 more. It does not change which levels are likelier than others. Fit
    it on rows that the judge was not trained on, a hundred or more, and measure on others.

    Args:
        scores, ratings: see `compare_with_ratings`.

    Returns:
        The temperature, between 0.01 and 100. It is close to one of these if no temperature is the best one:
        if the ratings are the likeliest level in all rows, smaller ones are always better.

    Raises:
        ValueError: see `compare_with_ratings`.

    Source: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> from ntloss.scores import ScoreReading
        >>> sure = ScoreReading({4: 0.9, 5: 0.1})
        >>> temperature = fit_temperature([sure] * 4, [4, 4, 4, 5])  # three of four, not nine of ten
        >>> round(temperature, 1)
        2.0
        >>> print(with_temperature([sure], temperature)[0])
        4.25 (4: 0.75, 5: 0.25)
    """
    import numpy as np
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    probs, shares = map(np.array, _tables(scores, ratings))
    logs = np.log(probs.clip(_SMALLEST))

    def loss(log_temperature: float) -> float:
        return -float((shares * log_softmax(logs / math.exp(log_temperature), axis=1)).sum())

    bound = math.log(_LARGEST_TEMPERATURE)
    return math.exp(minimize_scalar(loss, bounds=(-bound, bound), options={"xatol": 1e-9}).x)


def with_temperature(scores: Sequence[ScoreReading], temperature: float) -> list[ScoreReading]:
    """Change a judge's probabilities by a temperature that `fit_temperature` has found.

    Args:
        scores: readings.
        temperature: above 0; 1 changes nothing.

    Returns:
        A reading for each, whose levels together, `none` and `left_out` have the same probability as before.

    Raises:
        ValueError: the temperature is not a finite number above 0.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature!r}: expected a finite number above 0")
    found = []
    for score in scores:
        probs = [max(p, _SMALLEST) for p in score.probabilities.values()]
        powers = [(p / max(probs)) ** (1 / temperature) for p in probs]
        mass = sum(score.probabilities.values())
        shares = {level: mass * p / sum(powers) for level, p in zip(score.probabilities, powers, strict=True)}
        found.append(replace(score, probabilities=shares))
    return found


def _tables(scores: Sequence[ScoreReading], ratings: Ratings) -> tuple[list[list[float]], list[list[float]]]:
    """Return, by rows, the probabilities of the levels and the shares of their ratings."""
    scores, ratings = list(scores), rows_of(ratings)
    if not scores or len(scores) != len(ratings):
        raise ValueError(f"{len(scores)} scores and {len(ratings)} ratings: expected as many, one or more")
    levels = [*scores[0].probabilities]
    probs, shares = [], []
    for row, (score, given) in enumerate(zip(scores, ratings, strict=True)):
        mass = sum(score.probabilities.values())
        if [*score.probabilities] != levels or not mass > 0:
            raise ValueError(f"scores: row {row} is {score}, expected probabilities of {levels}")
        of_raters = counted([given] if is_one_rating(given) else given, f"ratings of row {row}")
        if unknown := [rating for rating, _ in of_raters if rating not in levels]:
            raise ValueError(f"ratings of row {row}: {given!r} with {unknown}: expected some of {levels}")
        counts = [float(sum(n for rating, n in of_raters if rating == level)) for level in levels]
        probs.append([p / mass for p in score.probabilities.values()])
        shares.append([count / sum(counts) for count in counts])
    return probs, shares


def rows_of(ratings: Any) -> list[Any]:
    """Return the ratings of each item; of a table, its rows."""
    return list(ratings.to_numpy() if hasattr(ratings, "to_numpy") else ratings)


def is_one_rating(ratings: Any) -> bool:
    """Whether this is a rating, maybe a tensor of one, and not those of several raters."""
    is_text = isinstance(ratings, str | bytes)
    return is_text or not isinstance(ratings, Iterable) or getattr(ratings, "ndim", 1) == 0


def counted(ratings: Any, name: str) -> list[tuple[Any, float]]:
    """Return ratings with how many raters gave each, of a list 1 each; a TypeError or ValueError for none."""
    if is_one_rating(ratings):
        raise TypeError(
            f"{name}: expected the ratings of each item, such as [[4, 4, 5], [1, 2]], given {ratings!r}"
        )
    pairs = [*ratings.items()] if isinstance(ratings, Mapping) else [(rating, 1) for rating in ratings]
    if not all(count >= 0 for _, count in pairs) or not 0 < sum(count for _, count in pairs) < math.inf:
        raise ValueError(f"{name}: given {ratings!r}, expected one or more raters, such as [4, 4, 5]")
    return [(rating, count) for rating, count in pairs if count]
