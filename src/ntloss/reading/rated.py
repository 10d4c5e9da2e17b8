"""Scores of a judge beside those of people: how good its probabilities are, and a temperature for them.

scikit-learn has the Brier score and log loss of one true class, but not the ranked probability score, the
calibration error, labels of several raters, or a temperature for given probabilities, and `ntloss` needs
torch alone. So all of them are here, in a few lines each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.criteria.soft import counted, is_one_rating, rows_of
from ntloss.numbers.parsing import as_float
from ntloss.reading.scores import ScoreReading, summarize

# A level of probability 0 that a rater gave counts as this unlikely, so that log loss stays finite.
_SMALLEST = 1e-12
_LARGEST_TEMPERATURE = 100.0
_STEPS = 100  # of the bisection, more than float64 has digits


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


Ratings = Sequence[Any] | Sequence[Iterable[Any]]


def compare_with_ratings(
    scores: Sequence[ScoreReading],
    ratings: Ratings,
    values: Mapping[Any, float] | None = None,
    *,
    bins: int = 10,
) -> RatedScores:
    """Compare a judge's probabilities of levels with the ratings of people.

    Args:
        scores: what `read_scores` or `scores_from_logprobs` returned for each row, with the same levels.
        ratings: the level that each row was given, or the levels that several raters gave it, such as
            `[4, [4, 5, 5], 2]`, or how many gave each, `{4: 1, 5: 2}`, a dict. A table of pandas has a row
            for each.
        values: level to its value, for levels that are words. Default: the levels are numbers.
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
        >>> from ntloss.reading import scores_from_logprobs
        >>> sure = scores_from_logprobs({"4": -0.105, "5": -2.303}, levels=range(1, 6))
        >>> measures = compare_with_ratings([sure, sure], [4, [4, 5, 5]])
        >>> round(measures.ranked_probability, 2), round(measures.calibration_error, 2)
        (0.28, 0.23)
    """
    levels, probs, shares = _tables(scores, ratings)
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins={bins!r}: expected 1 or more")
    at = torch.tensor(_values_of(levels, values), dtype=torch.float64)
    # Of one rating k: |p - e_k|² = |p|² - 2 p_k + 1; over the raters' shares q: |p|² - 2 p q + 1.
    cumulated, reached = probs.cumsum(-1)[:, :-1], shares.cumsum(-1)[:, :-1]
    apart = cumulated.square() - 2 * cumulated * reached + reached
    confidence, likeliest = probs.max(-1)
    agree = shares.gather(-1, likeliest.unsqueeze(-1)).squeeze(-1)
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    differences = torch.zeros(bins, dtype=torch.float64).index_add(0, bin_of, confidence - agree)
    return RatedScores(
        (apart * at.diff()).sum(-1).mean().item(),
        (probs.square().sum(-1) - 2 * (probs * shares).sum(-1) + 1).mean().item(),
        -(shares * probs.clamp(min=_SMALLEST).log()).sum(-1).mean().item(),
        differences.abs().sum().item() / len(probs),
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
        >>> from ntloss.reading import scores_from_logprobs
        >>> sure = scores_from_logprobs({"4": -0.105, "5": -2.303}, levels=range(4, 6))
        >>> temperature = fit_temperature([sure] * 4, [4, 4, 4, 5])  # three of four, not nine of ten
        >>> round(temperature, 1)
        2.0
        >>> print(with_temperature([sure], temperature)[0])
        4.25 (4: 0.75, 5: 0.25)
    """
    _, probs, shares = _tables(scores, ratings)
    log_probs = probs.clamp(min=_SMALLEST).log()
    of_ratings = (shares * log_probs).sum()

    def slope(power: float) -> float:  # of the log loss, which is convex in 1 / temperature
        return float((torch.softmax(power * log_probs, -1) * log_probs).sum() - of_ratings)

    low, high = 1 / _LARGEST_TEMPERATURE, _LARGEST_TEMPERATURE
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / low


def with_temperature(
    scores: Sequence[ScoreReading], temperature: float, values: Mapping[Any, float] | None = None
) -> list[ScoreReading]:
    """Change a judge's probabilities by a temperature that `fit_temperature` has found.

    Args:
        scores: readings.
        temperature: above 0; 1 changes nothing.
        values: see `compare_with_ratings`.

    Returns:
        A reading for each, whose levels together, `none` and `left_out` have the same probability as before.

    Raises:
        ValueError: the temperature is not a finite number above 0, or levels are words without values.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature={temperature!r}: expected a finite number above 0")
    found = []
    for score in scores:
        levels = [*score.probabilities]
        probs = torch.tensor([*score.probabilities.values()], dtype=torch.float64)
        changed = torch.softmax(probs.clamp(min=_SMALLEST).log() / temperature, -1) * probs.sum()
        shares = dict(zip(levels, changed.tolist(), strict=True))
        known = dict(zip(levels, _values_of(levels, values), strict=True))
        found.append(summarize(shares, known, score.none, score.left_out))
    return found


def _tables(scores: Sequence[ScoreReading], ratings: Ratings) -> tuple[list[Any], Tensor, Tensor]:
    """Return the levels, and `[rows, levels]` of their probabilities and of the shares of ratings."""
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
        probs.append([*score.probabilities.values()])
        total = sum(count for _, count in of_raters)
        shares.append([sum(n for rating, n in of_raters if rating == level) / total for level in levels])
    table = torch.tensor(probs, dtype=torch.float64)
    mass = table.sum(-1, keepdim=True)
    if not (mass > 0).all():
        row = int((~(mass > 0)).nonzero()[0, 0])
        raise ValueError(f"scores: row {row} has no probability on its levels")
    return levels, table / mass, torch.tensor(shares, dtype=torch.float64)


def _values_of(levels: Sequence[Any], values: Mapping[Any, float] | None) -> list[float]:
    found = [level if values is None else values.get(level) for level in levels]
    if without := [
        level for level, value in zip(levels, found, strict=True) if isinstance(value, str | None)
    ]:
        raise ValueError(f"the levels {without} have no values: pass values={{level: value}}")
    return [as_float(value) for value in found]
