"""Proper scores of predicted quantiles, and the coverage of intervals.

Source: Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007,
equation 43 (interval score); Laio and Tamea, HESS 2007 (CRPS as an integral of pinball losses).
"""

import math

import numpy as np
from numpy.typing import ArrayLike


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
    return _mean(2 * (pinball * weights).sum(axis=-1))


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
    return _mean(outside == 0), _mean(high - low), _mean(score)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
