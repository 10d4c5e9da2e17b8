"""Intervals with guaranteed coverage, whatever the model: split-conformal calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def interval_margin(
    lower: Tensor | Sequence[float],
    upper: Tensor | Sequence[float],
    truths: Tensor | Sequence[float],
    coverage: float,
) -> float:
    r"""Compute the margin by which intervals have to be widened to cover a share of new numbers.

    With $E_i = \max(l_i - y_i, y_i - u_i)$ on n calibration examples, it is the
    $\lceil (n + 1) c \rceil$-th smallest. `[lower - margin, upper + margin]` then covers a new example with
    probability at least c, over the calibration and the new examples together, if these are exchangeable.

    Args:
        lower: `[examples]`, lower ends, of examples that the model was not trained on. NaN is a miss.
        upper: `[examples]`, upper ends.
        truths: `[examples]`, the true numbers.
        coverage: the share c to cover, above 0 and below 1.

    Returns:
        The margin; negative if intervals are too wide, infinite if there are too few examples, or too many
        misses, for that coverage.

    Raises:
        ValueError: a coverage outside (0, 1), no examples, shapes that differ, or a NaN among the truths.

    Source: Romano, Patterson and Candès, "Conformalized quantile regression", 2019, eq. 6 to 8.

    Example:
        >>> interval_margin([0, 0, 0, 0], [10, 10, 10, 10], [5, 9, 11, 14], coverage=0.6)
        1.0
    """
    ends = [torch.as_tensor(given).detach().to("cpu", torch.float64) for given in (lower, upper, truths)]
    low, high, true = ends
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage}: expected a share above 0 and below 1, such as 0.9")
    if true.dim() != 1 or not len(true) or low.shape != true.shape or high.shape != true.shape:
        raise ValueError(
            f"lower, upper and truths of shapes {[list(end.shape) for end in ends]}: expected [examples] for "
            "each, with at least one example"
        )
    if true.isnan().any():
        raise ValueError(f"{int(true.isnan().sum())} of {len(true)} truths are NaN: leave these examples out")
    scores = torch.maximum(low - true, true - high).nan_to_num(
        nan=math.inf, posinf=math.inf, neginf=-math.inf
    )
    # A product such as 100 * 0.07 exceeds 7 by rounding.
    rank = math.ceil((len(true) + 1) * coverage - 1e-9)
    return math.inf if rank > len(true) else scores.sort().values[rank - 1].item()
