"""Scores of a judge beside those of people: how good its probabilities are, and a temperature for them.

The Brier score and log loss are scikit-learn's, which is imported when they are asked for.
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
_STEPS = 100  # of the bisection, more than float64 has digits

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
            probability and the share of ratings that agree, over bins of equal width, weighted by the rows in
            each. It is 0 for a judge that says the same shares for all rows, so read it beside the others.
    """

    ranked_probability: float
    brier: float
    log_loss: float
    calibration_error: float


def compare_with_ratings(scores: Sequence[ScoreReading], ratings: Ratings, *, bins: int = 10) -> RatedScores:
    """Compare a judge's probabilities of levels with the ratings of people; needs scikit-learn 1.7.

    Args:
        scores: the reading of each row, with the same levels.
        ratings: the level that each row was given, or the levels that several raters gave it, such as
            `[4, [4, 5, 5], 2]`, or how many gave each, `{4: 1, 5: 2}`, a dict. A table of pandas has a row
            for each.
        bins: number of bins of the calibration error. Default: 10.

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
    from sklearn.metrics import brier_score_loss, log_loss

    probs, shares = _tables(scores, ratings)
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins={bins!r}: expected 1 or more")
    # Each level of a row is a sample, weighted by its share of the ratings.
    count = len(probs[0])
    levels, rows = [*range(count)] * len(probs), [row for row in probs for _ in row]
    options = {"sample_weight": [share for row in shares for share in row], "labels": range(count)}
    at = [scores[0].value_of(level) for level in scores[0].probabilities]
    apart, agree = 0.0, [0.0] * bins
    for row, given in zip(probs, shares, strict=True):
        below = reached = 0.0
        for j in range(count - 1):  # of one rating, (F - 1)^2 from it on, otherwise F^2; the mean over raters
            below, reached = below + row[j], reached + given[j]
            apart += (below * below - 2 * below * reached + reached) * (at[j + 1] - at[j])
        likeliest = max(range(count), key=row.__getitem__)
        agree[min(int(row[likeliest] * bins), bins - 1)] += row[likeliest] - given[likeliest]
    return RatedScores(
        apart / len(probs),
        float(brier_score_loss(levels, rows, scale_by_half=False, **options)),
        float(log_loss(levels, rows, **options)),
        sum(map(abs, agree)) / len(probs),
    )


def fit_temperature(scores: Sequence[ScoreReading], ratings: Ratings) -> float:
    """Fit the temperature at which a judge's probabilities have the smallest log loss on rated rows.

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
    probs, shares = _tables(scores, ratings)
    logs = [[math.log(max(p, _SMALLEST)) for p in row] for row in probs]
    of_ratings = sum(
        q * log for row, given in zip(logs, shares, strict=True) for log, q in zip(row, given, strict=True)
    )

    def slope(power: float) -> float:  # of the log loss, which is convex in 1 / temperature
        expected = 0.0
        for row in logs:
            expected += sum(
                p * log for p, log in zip(_softmax([power * log for log in row]), row, strict=True)
            )
        return expected - of_ratings

    low, high = 1 / _LARGEST_TEMPERATURE, _LARGEST_TEMPERATURE
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / low


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
        probs = [*score.probabilities.values()]
        changed = _softmax([math.log(max(p, _SMALLEST)) / temperature for p in probs])
        shares = dict(zip(score.probabilities, (p * sum(probs) for p in changed), strict=True))
        found.append(replace(score, probabilities=shares))
    return found


def _softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    return [power / sum(powers) for power in powers]


def _tables(scores: Sequence[ScoreReading], ratings: Ratings) -> tuple[list[list[float]], list[list[float]]]:
    """Return, by rows, the probabilities of the levels and the shares of their ratings."""
    scores, ratings = list(scores), rows_of(ratings)
    if not scores or len(scores) != len(ratings):
        raise ValueError(f"{len(scores)} scores and {len(ratings)} ratings: expected as many, one or more")
    levels = [*scores[0].probabilities]
    probs, shares = [], []
    for row, (score, given) in enumerate(zip(scores, ratings, strict=True)):
        if [*score.probabilities] != levels:
            raise ValueError(
                f"row {row} has the levels {[*score.probabilities]}: expected those of all, {levels}"
            )
        of_raters = counted([given] if is_one_rating(given) else given, f"ratings of row {row}")
        if unknown := [rating for rating, _ in of_raters if rating not in levels]:
            raise ValueError(f"ratings of row {row}: {given!r} with {unknown}: expected some of {levels}")
        total, mass = sum(count for _, count in of_raters), sum(score.probabilities.values())
        if not mass > 0:
            raise ValueError(f"scores: row {row} has no probability on its levels")
        probs.append([p / mass for p in score.probabilities.values()])
        shares.append(
            [float(sum(n for rating, n in of_raters if rating == level) / total) for level in levels]
        )
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
