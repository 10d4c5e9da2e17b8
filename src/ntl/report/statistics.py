"""Means over seeds with their confidence intervals, and corrections for the number of tests."""

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd
from scipy.stats import t


def mean_and_interval(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Compute the mean over seeds and the half-width of its 95 % confidence interval (Student's t).

    Args:
        values: One value per seed.

    Returns:
        The mean, None if any value is None or NaN, and the half-width, None for fewer than two seeds.
    """
    known = pd.Series(list(values), dtype=float)
    if known.empty or known.isna().any():
        return None, None
    return float(known.mean()), half_width(known) if len(known) > 1 else None


class Difference(NamedTuple):
    """A difference of two rows of a report, paired by seed.

    Args:
        pairs: Seeds that both rows have.
        lower: Pairs in which it is negative.
        mean: Its mean.
        half: Half-width of the mean's 95 % confidence interval (Student's t); NaN for one pair.
        inner: Half-width of the 90 % interval, which tests equivalence at 5 % by two one-sided t-tests.
        p: Two-sided p-value of the paired t-test; NaN for one pair.
    """

    pairs: int
    lower: int
    mean: float
    half: float
    inner: float
    p: float

    def times(self, factor: float) -> "Difference":
        """Return the difference in another unit."""
        scaled = (factor * self.mean, abs(factor) * self.half, abs(factor) * self.inner)
        return Difference(self.pairs, self.lower, *scaled, self.p)


def paired_difference(of: pd.Series, minus: pd.Series) -> Difference | None:
    """Compute the difference of two rows' values by seed; None without a shared seed.

    Example:
        >>> paired_difference(pd.Series({0: 3.0, 1: 4.0}), pd.Series({0: 1.0, 2: 9.0})).mean
        2.0
    """
    pairs = (of - minus).dropna()
    if pairs.empty:
        return None
    widths = (half_width(pairs), half_width(pairs, 0.9))
    return Difference(len(pairs), int((pairs < 0).sum()), float(pairs.mean()), *widths, p_value(pairs))


def half_width(values: pd.Series, share: float = 0.95) -> float:
    """Return the half-width of the confidence interval of a mean (Student's t); NaN for one value."""
    return float(values.sem() * t.ppf((1 + share) / 2, len(values) - 1))


def p_value(differences: pd.Series) -> float:
    """Return the two-sided p-value of a mean of zero (Student's t); NaN for one value.

    Example:
        >>> p_value(pd.Series([0.0, 0.0])), round(p_value(pd.Series([1.0, 3.0])), 3)
        (1.0, 0.295)
    """
    if len(differences) < 2:
        return float("nan")
    mean, error = abs(differences.mean()), differences.sem()
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(mean / error, len(differences) - 1))


def holm(p: pd.Series, planned: int) -> pd.Series:
    """Correct p-values for the number of tests that were planned (Holm, 1979); unknown ones stay unknown.

    Tests that were planned and not made count as if they had the largest p-values.

    Example:
        >>> holm(pd.Series([0.01, 0.04, 0.03]), 3).tolist()
        [0.03, 0.06, 0.06]
        >>> holm(pd.Series([0.01, 0.03]), 4).tolist()
        [0.04, 0.09]
    """
    known = p.dropna().sort_values()
    factors = pd.Series(range(planned, planned - len(known), -1), index=known.index)
    return (known * factors).cummax().clip(upper=1.0).reindex(p.index)
