"""A helper for the library's autograd functions."""

from __future__ import annotations

import torch


def refuse_double_backward() -> None:
    """Raise an error in a backward pass with `create_graph=True`.

    `once_differentiable` raises only if the second backward pass reaches it. `torch.autograd.grad` with
    respect to some inputs may not reach it, and gradient penalties and Hessians would then silently lack
    second derivatives.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a number-aware loss cannot be differentiated twice: call backward without create_graph=True, or "
            "use torch.func (grad, hessian) with NTLCrossEntropyLoss or NumberTokenLoss"
        )
