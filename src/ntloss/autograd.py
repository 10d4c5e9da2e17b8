"""What the library's autograd functions share."""

from __future__ import annotations

import torch


def refuse_double_backward() -> None:
    """Raise in a backward pass that is itself to be differentiated.

    `once_differentiable` raises only if the second pass runs through it: `torch.autograd.grad` of some
    inputs, and so gradient penalties and Hessians, leave it out, and drop second derivatives in silence.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a number-aware loss cannot be differentiated twice: call backward without create_graph=True"
        )
