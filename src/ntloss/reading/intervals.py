"""Intervals with known true numbers: how good they are, and the margin with which they cover a share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = Tensor | Sequence[float] | float


def interval_margin(low: Numbers, high: Numbers, truths: Numbers, coverage: float) -> float:
    r"""Compute the margin by which intervals have to be widened to cover a share of new numbers.

    With $E_i = \max(l_i - y_i, y_i - u_i)$ on n calibration examples, it is the
    $\lceil (n + 1) c \rceil$-th smallest. Intervals that `widen` moves by the margin then cover a new example
    with probability at least c, over the calibration and the new examples together, if these are
    exchangeable.

    Args:
        low: `[examples]`, lower ends, of examples that the model was not trained on. NaN is a miss.
        high: `[examples]`, upper ends.
        truths: `[examples]`, the true numbers.
        coverage: the share c to cover, above 0 and below 1.

    Returns:
        The margin, computed in float64; negative if intervals are too wide, infinite if there are too few
        examples, or too many misses, for that coverage.

    Raises:
        ValueError: a coverage outside (0, 1), no examples, shapes that differ, or a NaN among the truths.

    Source: Romano, Patterson and Candès, "Conformalized quantile regression", 2019, eq. 6 to 8.

    Example:
        >>> interval_margin([0, 0, 0, 0], [10, 10, 10, 10], [5, 9, 11, 14], coverage=0.6)
        1.0
    """
    lower, upper, true = _checked(low, high, truths)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage}: expected a share above 0 and below 1, such as 0.9")
    scores = torch.maximum(lower - true, true - upper).nan_to_num(
        nan=math.inf, posinf=math.inf, neginf=-math.inf
    )
    # A product such as 100 * 0.07 exceeds 7 by rounding.
    rank = math.ceil((len(true) + 1) * coverage - 1e-9)
    return math.inf if rank > len(true) else scores.sort().values[rank - 1].item()


def widen(low: Numbers, median: Numbers, high: Numbers, margin: float) -> tuple[Tensor, Tensor]:
    """Move the ends of intervals outwards by a margin, or inwards by a negative one, at most to the median.

    Args:
        low: `[...]`, lower ends.
        median: `[...]`, the medians, at which ends stop that move inwards.
        high: `[...]`, upper ends.
        margin: what `interval_margin` returns.

    Returns:
        The new lower and upper ends, `[...]`, float64.

    Example:
        >>> widen([49, 20], [50, 50], [51, 90], margin=-5)
        (tensor([50., 25.], dtype=torch.float64), tensor([50., 85.], dtype=torch.float64))
    """
    lower, middle, upper = (_as_float64(given) for given in (low, median, high))
    return torch.minimum(lower - margin, middle), torch.maximum(upper + margin, middle)


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
    lower, upper, true = _checked(low, high, truths)
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


def _checked(low: Numbers, high: Numbers, truths: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    lower, upper, true = (_as_float64(given) for given in (low, high, truths))
    if true.dim() != 1 or not len(true) or lower.shape != true.shape or upper.shape != true.shape:
        raise ValueError(
            f"low, high and truths of shapes {[list(end.shape) for end in (lower, upper, true)]}: expected "
            "[examples] for each, with at least one example"
        )
    if true.isnan().any():
        raise ValueError(f"{int(true.isnan().sum())} of {len(true)} truths are NaN: leave these examples out")
    return lower, upper, true
