"""Means over seeds with their confidence intervals, and corrections for the number of tests."""

from collections.abc import Iterable

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


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number (Holm, 1979); unknown ones stay unknown.

    Example:
        >>> holm(pd.Series([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    known = p.dropna().sort_values()
    factors = pd.Series(range(len(known), 0, -1), index=known.index)
    return (known * factors).cummax().clip(upper=1.0).reindex(p.index)
