r"""Schedules for $\lambda$, the weight of the number term.

A number loss can slow down a model that starts from random weights and does not know yet what digits look
like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ntloss.engine.targets import check_weight


class WeightScheduler:
    r"""Sets a loss's `weight` to $\lambda \cdot$ schedule(step).

    It has no state: after a resume, call `set_step` with the step that was reached. A tensor weight is
    changed in place, which recompiles nothing under `torch.compile`. With a float that changes at each step,
    the compiler recompiles until it gives up, so compile a loss made with `weight=torch.tensor(0.3)`.

    Args:
        loss: an object with a `weight`, a float or a scalar tensor, such as `NTLCrossEntropyLoss`.
        schedule: maps an optimizer step, from 0, to a factor of the weight: finite, 0 or more.
        weight: $\lambda$, the full weight. Default: the loss's current weight.

    Raises:
        TypeError: `loss` has no such `weight`, or `schedule` is not callable.
        ValueError: `weight` is negative or not finite.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, weight=0.5)
        >>> warmup = WeightScheduler(loss_fn, lambda step: min(step / 10, 1.0))
        >>> warmup.set_step(4)
        0.2
        >>> loss_fn.weight
        0.2
    """

    def __init__(self, loss: Any, schedule: Callable[[int], float], weight: float | None = None) -> None:
        current: Any = getattr(loss, "weight", None)
        is_scalar = isinstance(current, Tensor) and current.numel() == 1
        if not (is_scalar or isinstance(current, (int, float))):
            raise TypeError(
                f"{type(loss).__name__}.weight is {type(current).__name__}: expected a float or a scalar "
                "tensor, as in NTLCrossEntropyLoss. Of a number-aware model, pass handle.loss. Multiply a "
                "loss without a weight by weight * schedule(step) yourself."
            )
        if not callable(schedule):
            raise TypeError(
                f"schedule={schedule!r}: expected a function of the step: lambda step: min(step / 500, 1.0)"
            )
        self.loss, self.schedule = loss, schedule
        # Read now: set_step overwrites the attribute.
        full = current if weight is None else weight
        self.weight = float(full.item() if isinstance(full, Tensor) else full)
        check_weight(self.weight)

    def set_step(self, step: int) -> float:
        """Set the loss's weight for a step.

        Args:
            step: number of optimizer steps done, the same for all micro-batches of the step.

        Returns:
            The new weight.

        Raises:
            ValueError: `step` is negative, or the schedule's factor is negative or not finite.
        """
        if step < 0:
            raise ValueError(f"step={step}: expected the number of optimizer steps done, 0 or more")
        factor = float(self.schedule(step))
        if not 0 <= factor < math.inf:  # NaN fails too
            raise ValueError(
                f"the schedule gives {factor} at step {step}: expected a finite factor, 0 or more"
            )
        weight = self.weight * factor
        if isinstance(self.loss.weight, Tensor):
            self.loss.weight.data.fill_(weight)
        else:
            self.loss.weight = weight
        return weight
