"""Intervals with known true numbers: how good they are, and how they cover a share of new numbers.

Split conformal prediction, by levels for a model with a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Numbers = Tensor | Sequence[float] | float
_OUTERMOST = 1e-9  # levels of quantiles are above 0 and below 1


def conformal_score(scores: Numbers, coverage: float) -> float:
    r"""Return the score that a new one does not exceed with a probability of at least `coverage`.

    It is the $\lceil (n + 1) c \rceil$-th smallest of n scores if the new one is exchangeable with them.

    Args:
        scores: `[examples]`, such as the errors of a model on rows that it was not trained on.
        coverage: the share c to cover, above 0 and below 1.

    Returns:
        The score, float64; infinite if there are too few for that coverage.

    Source: Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005.

    Example:
        >>> conformal_score([1.0, 5.0, 2.0, 3.0], 0.6), conformal_score([1.0, 5.0, 2.0, 3.0], 0.9)
        (3.0, inf)
    """
    known = _as_float64(scores)
    # A product such as 100 * 0.07 exceeds 7 by rounding.
    rank = math.ceil((len(known) + 1) * coverage - 1e-9)
    return math.inf if rank > len(known) else known.sort().values[rank - 1].item()


@dataclass(frozen=True)
class Calibration:
    r"""Levels of a model's quantiles, chosen such that they hold what they promise on new rows.

    Of calibration rows, the model's probability $F_i(y_i)$ of at most the true answer is known. The new
    answer's one is at most their `conformal_score` of q with a probability of at least q, so that the model's
    quantile at this level holds it; and likewise from below. This holds for any model if new rows are
    exchangeable with the calibration rows. The median is read at the level that half of them are below.

    Args:
        below: `[rows]`, float64, the probability of smaller numbers than the true one.
        upto: `[rows]`, float64, the probability of the true number and smaller ones.

    Source: "Distributional conformal prediction", Chernozhukov, Wüthrich and Zhu, PNAS 2021, here with a
    level for each tail.

    Example:
        >>> too_narrow = torch.tensor([0.0, 0.01, 0.2, 0.4, 0.5, 0.6, 0.8, 0.99, 1.0], dtype=torch.float64)
        >>> Calibration(too_narrow, too_narrow).level(0.2)
        0.01
    """

    below: Tensor
    upto: Tensor

    def __len__(self) -> int:
        return len(self.below)

    def level(self, quantile: float) -> float:
        """Return the level at which the model's quantile is read.

        Raises:
            ValueError: there are too few rows for this quantile.
        """
        if quantile == 0.5:
            level = float(((self.below + self.upto) / 2).quantile(0.5))
        elif quantile < 0.5:
            level = -conformal_score(-self.upto, 1 - quantile)
        else:
            # The quantile at a level is the smallest number whose probability reaches it.
            level = math.nextafter(conformal_score(self.below, quantile), math.inf)
        if math.isinf(level):
            tail = min(quantile, 1 - quantile)
            raise ValueError(
                f"{len(self)} held-out rows cannot calibrate the quantile {quantile:g}; expected at least "
                f"{math.ceil(round(1 / tail, 9)) - 1}. Fit more rows, or ask for narrower intervals."
            )
        return min(max(level, _OUTERMOST), 1 - _OUTERMOST)

    def covers(self, level: float) -> bool:
        """Return whether there are enough rows for an interval of a level."""
        return math.isfinite(conformal_score(self.below, (1 + level) / 2))

    def expected_coverage(self, level: float) -> tuple[float, float]:
        """Return the share of new answers in an interval of a level, as its 95 % interval; this needs scipy.

        It follows a beta distribution over sets of calibration rows.
        """
        from scipy.stats import beta

        outside = 2 * math.floor(round((len(self) + 1) * (1 - level) / 2, 9))
        low, high = beta.ppf([0.025, 0.975], len(self) + 1 - outside, outside)
        return float(low), float(high)


def interval_coverage(low: Numbers, high: Numbers, truths: Numbers) -> float:
    """Compute the share of true numbers inside their intervals, bounds included.

    It is 0.9 for the intervals between the quantiles .05 and .95 of a calibrated model.

    Args:
        low: `[examples]`, lower ends; NaN is a miss.
        high: `[examples]`, upper ends.
        truths: `[examples]`, the true numbers.

    Returns:
        The share, from 0 to 1.

    Raises:
        ValueError: no examples, shapes that differ, or a NaN among the truths.

    Example:
        >>> interval_coverage([0, 0, 0, 0], [10, 10, 10, 10], [5, 9, 11, 10])
        0.75
    """
    lower, upper, true = (_as_float64(given) for given in (low, high, truths))
    if true.dim() != 1 or not len(true) or lower.shape != true.shape or upper.shape != true.shape:
        raise ValueError(
            f"low, high and truths of shapes {[list(end.shape) for end in (lower, upper, true)]}: expected "
            "[examples] for each, with at least one example"
        )
    if true.isnan().any():
        raise ValueError(f"{int(true.isnan().sum())} of {len(true)} truths are NaN: leave these examples out")
    return ((lower <= true) & (true <= upper)).double().mean().item()


def pinball_loss(values: Numbers, truths: Numbers, levels: Sequence[float] | float) -> Tensor:
    r"""Compute the mean pinball loss of quantiles, which the true quantiles minimize.

    It is $\max(\tau (x - \hat x), (\tau - 1)(x - \hat x))$ for a true number x and its predicted quantile of
    level τ: half the absolute error for the median.

    Args:
        values: `[examples, levels]`, as `NumberQuantiles.values`; `[examples]` for a single level.
        truths: `[examples]`, the true numbers.
        levels: the quantiles' levels, or one, each above 0 and below 1.

    Returns:
        The mean over the examples at each level, `[levels]`, float64, in units of the numbers; a scalar for a
        single level.

    Raises:
        ValueError: a level outside (0, 1), or shapes that do not fit.

    Source: Koenker and Bassett, "Regression quantiles", Econometrica 1978.

    Example:
        >>> pinball_loss([[1.0, 4.0], [2.0, 3.0]], [4.0, 7.0], (0.05, 0.5))
        tensor([0.2000, 1.0000], dtype=torch.float64)
    """
    quantiles, true, level = (_as_float64(given) for given in (values, truths, levels))
    if not bool(((level > 0) & (level < 1)).all()):
        raise ValueError(f"levels={levels}: expected numbers above 0 and below 1, such as 0.5")
    if quantiles.shape != (*true.shape, *level.shape):
        raise ValueError(
            f"values of shape {list(quantiles.shape)} for truths of shape {list(true.shape)}: expected "
            f"{[*true.shape, *level.shape]}, a column for each level"
        )
    error = true.reshape(*true.shape, *[1] * level.dim()) - quantiles
    return torch.maximum(level * error, (level - 1) * error).mean(0)


def _as_float64(given: Numbers) -> Tensor:
    if isinstance(given, Tensor):
        return given.detach().cpu().double()
    if hasattr(given, "to_numpy"):  # a column of pandas, which is read by its labels and not by place
        given = given.to_numpy()
    # Without the dtype, a list would be rounded to float32 first. `as_tensor` would share the memory of
    # a NumPy array, and warns if the array is read-only, as those of pandas are.
    return torch.tensor(given, dtype=torch.float64)
