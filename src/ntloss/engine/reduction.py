"""Last stage: from one loss per position to what the caller asked for."""

from __future__ import annotations

import torch
from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")


def reduce(loss: Tensor, counted: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """Weigh and reduce the positions that count; the others contribute exactly nothing.

    Args:
        loss: `[positions]`.
        counted: `[positions]`, bool.
        weights: `[positions]`, non-negative, or None for 1 everywhere.
        reduction: "mean" divides the sum by the weights of the positions that count, "sum" does not, "none"
            leaves one loss per position.

    Returns:
        A scalar, or `[positions]`. Without any position that counts it is a zero with a graph.
    """
    weight = counted.to(loss.dtype) if weights is None else torch.where(counted, weights.to(loss.dtype), 0)
    weighted = torch.where(counted, loss, 0) * weight
    if reduction == "none":
        return weighted
    total = weighted.sum()
    if reduction == "sum":
        return total
    divisor = weight.sum()
    return total / torch.where(divisor > 0, divisor, 1)
