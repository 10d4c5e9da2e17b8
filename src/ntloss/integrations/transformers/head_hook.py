"""A hook on a model's head, which computes a loss in place of the logits."""

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
    check_transform,
    find_head,
    head_tensors,
    probe_of,
)
from ntloss.integrations.transformers.introspection import leads_to

_STATE = "_head_hook"


class HeadHook:
    """A hook on the head of a model.

    The head's weight is read in its forward, the only place where sharded weights are gathered. The model
    receives empty logits, so its later operations cost nothing. On the first call it receives the logits of a
    probe, and its output is compared with the assumed transform.

    Args:
        model: the model whose head is hooked.
        transform: the transform that the model is assumed to apply to its logits.
    """

    def __init__(self, model: Any, transform: Transform) -> None:
        self.model: Any = model
        self.transform = transform
        self.head: nn.Module | None = None
        self._previous: Callable[..., Any] | None = None
        self._compute: Callable[[HeadTensors], None] | None = None
        self._checked = False
        self._probe_logits: Tensor | None = None

    def attach(self) -> None:
        """Hook the model's current head: an adapter may have wrapped it since the last call."""
        head = find_head(self.model)
        if head is self.head:
            return
        self.detach()
        before, forward = vars(head).get(_STATE), vars(head).get("forward")
        self.head = head
        setattr(head, _STATE, self)
        if before is not None and leads_to(forward, _forward):  # a detached hook that a wrapper still calls
            self._previous = before._previous
        else:
            self._previous = forward
            head.forward = types.MethodType(_forward, head)

    def detach(self) -> None:
        """Remove the hook; if the head's forward was wrapped since, the hook stays and does nothing."""
        head, self.head = self.head, None
        if head is None or getattr(vars(head).get("forward"), "__func__", None) is not _forward:
            return
        delattr(head, _STATE)
        del head.forward
        if self._previous is not None:
            head.forward = self._previous

    def compute_next(self, compute: Callable[[HeadTensors], None] | None) -> None:
        """Make the head's next call run `compute`; None makes it return logits."""
        self._compute, self._probe_logits = compute, None

    def forward(self, head: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the head's forward, or compute the loss."""
        compute, self._compute = self._compute, None  # a wrapped head calls the one inside it
        if compute is None:
            return self._own_forward(head, hidden, *args, **kwargs)
        tensors = head_tensors(head, hidden)
        final_bias = getattr(self.model, "final_logits_bias", None)  # of BART and similar models
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
        """Raise a ValueError unless the model transformed the probe's logits as assumed; runs once."""
        if self._probe_logits is not None:
            check_transform(self._probe_logits, logits, self.transform, type(self.model).__name__)
            self._checked, self._probe_logits = True, None

    def _own_forward(self, head: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._previous is not None and head is self.head:
            return self._previous(*args, **kwargs)
        return type(head).forward(head, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> HeadHook:
        twin = memo[id(self)] = object.__new__(type(self))
        if id(self.model) in memo:
            vars(twin).update(copy.deepcopy(vars(self), memo))
        else:  # PEFT copies a head that is trained whole; the copy is an ordinary head
            twin.__init__(None, self.transform)  # type: ignore[misc]
        return twin


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    hook: HeadHook = getattr(self, _STATE)
    return hook.forward(self, *args, **kwargs)
