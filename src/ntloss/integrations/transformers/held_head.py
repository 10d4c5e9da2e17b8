"""Holds a model's head, so that its next call computes a loss where it would have computed logits."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ntloss.engine.readout import Transform
from ntloss.integrations.transformers.head import (
    HeadTensors,
    check_logits_behind,
    find_head,
    head_tensors,
    probe_of,
)
from ntloss.integrations.transformers.introspection import leads_to

_STATE = "_held_head"


class HeldHead:
    """The head of a model.

    Its weight is read in its forward, the one place where sharded weights are gathered. The model gets logits
    of no position at all, so that whatever it does to logits costs nothing; at the first call those of a
    probe, and what it makes of these is compared with what the loss takes it to.

    Args:
        model: whose head it is.
        transform: what the model is taken to do to its logits.
    """

    def __init__(self, model: Any, transform: Transform) -> None:
        self.model: Any = model
        self.transform = transform
        self.head: nn.Module | None = None
        self._previous: Callable[..., Any] | None = None
        self._compute: Callable[[HeadTensors], None] | None = None
        self._checked = False
        self._probe_logits: Tensor | None = None

    def hold(self) -> None:
        """Hold the head that the model has now: an adapter may have been put around it."""
        head = find_head(self.model)
        if head is self.head:
            return
        self.release()
        before, forward = vars(head).get(_STATE), vars(head).get("forward")
        self.head = head
        setattr(head, _STATE, self)
        if before is not None and leads_to(forward, _forward):  # let go of, and still called by what wraps it
            self._previous = before._previous
        else:
            self._previous = forward
            head.forward = types.MethodType(_forward, head)

    def release(self) -> None:
        """Let go of it; where something was put around its forward since, that calls on."""
        head, self.head = self.head, None
        if head is None or getattr(vars(head).get("forward"), "__func__", None) is not _forward:
            return
        delattr(head, _STATE)
        del head.forward
        if self._previous is not None:
            head.forward = self._previous

    def expect(self, compute: Callable[[HeadTensors], None] | None) -> None:
        """Have the head's next call compute a loss, or, with None, logits."""
        self._compute, self._probe_logits = compute, None

    def forward(self, head: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The head's forward."""
        compute, self._compute = self._compute, None  # a wrapped head calls the one inside
        if compute is None:
            return self._own_forward(head, hidden, *args, **kwargs)
        tensors = head_tensors(head, hidden)
        final_bias = getattr(self.model, "final_logits_bias", None)  # BART's and its kin's
        if final_bias is not None:
            final_bias = final_bias.reshape(-1).to(hidden)
            bias = final_bias if tensors.bias is None else tensors.bias + final_bias
            tensors = tensors._replace(bias=bias)
        compute(tensors)
        with torch.no_grad():
            if self._checked:
                return self._own_forward(head, hidden[..., :0, :])
            logits = self._own_forward(head, probe_of(lambda probe: self._own_forward(head, probe), hidden))
            self._probe_logits = logits if final_bias is None else logits + final_bias
            return logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def check(self, logits: Tensor) -> None:
        """Raise unless the model made of the probe's logits what was expected; once."""
        if self._probe_logits is not None:
            check_logits_behind(self._probe_logits, logits, self.transform, type(self.model).__name__)
            self._checked, self._probe_logits = True, None

    def _own_forward(self, head: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._previous is not None and head is self.head:
            return self._previous(*args, **kwargs)
        return type(head).forward(head, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> HeldHead:
        twin = memo[id(self)] = object.__new__(type(self))
        if id(self.model) in memo:
            vars(twin).update(copy.deepcopy(vars(self), memo))
        else:  # PEFT copies heads that are trained whole: such a copy is an ordinary head
            twin.__init__(None, self.transform)  # type: ignore[misc]
        return twin


# The linear loss cannot be traced anyway.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    held: HeldHead = getattr(self, _STATE)
    return held.forward(self, *args, **kwargs)
