"""Means over seeds with their confidence intervals, and corrections for the number of tests."""

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd
from scipy.stats import t


def mean_and_interval(values: Iterable[float | None]) -> tuple[float, float]:
    """Compute the mean over seeds and the half-width of its 95 % confidence interval (Student's t).

    Args:
        values: One value per seed.

    Returns:
        The mean, NaN if any value is None or NaN or there is none; and the half-width, NaN also for one seed.
    """
    known = pd.Series(list(values), dtype=float)
    return float(known.mean(skipna=False)), float(known.sem(skipna=False) * t.ppf(0.975, len(known) - 1))


class Difference(NamedTuple):
    """A difference of two rows of a report, paired by seed; NaN where there are too few pairs.

    Args:
        pairs: Seeds that both rows have.
        lower: Pairs in which it is negative.
        mean: Its mean.
        half: Half-width of the mean's 95 % confidence interval (Student's t).
        inner: Half-width of the 90 % interval, which tests equivalence at 5 % by two one-sided t-tests.
        p: Two-sided p-value of the paired t-test.
    """

    pairs: int
    lower: int
    mean: float
    half: float
    inner: float
    p: float


def paired_difference(of: pd.Series, minus: pd.Series) -> Difference:
    """Compute the difference of two rows' values by seed.

    Example:
        >>> found = paired_difference(pd.Series({0: 3.0, 1: 4.0}), pd.Series({0: 2.0, 1: 1.0, 2: 7.0}))
        >>> found.mean, round(found.p, 3)
        (2.0, 0.295)
    """
    pairs = (of - minus).dropna()
    mean, error, freedom = float(pairs.mean()), float(pairs.sem()), len(pairs) - 1
    # Equal differences have no error.
    p = float(2 * t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    half, inner = (float(error * t.ppf((1 + share) / 2, freedom)) for share in (0.95, 0.9))
    return Difference(len(pairs), int((pairs < 0).sum()), mean, half, inner, p)


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
