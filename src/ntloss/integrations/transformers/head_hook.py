"""Computes a loss in a model's head, in place of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ntloss.integrations.transformers.head import HeadTensors, find_head, head_tensors, probe_of


class LossInHead:
    """A context in which a model's head computes a loss in place of the logits, at its first call.

    The head's weight is read in its forward, the only place where sharded weights are gathered. The model
    receives empty logits, so its later operations cost nothing; with `probe`, it receives those of a probe,
    which show how it transforms them.

    Args:
        model: the model whose head computes the loss.
        compute: function of the head's tensors that computes the loss.
        probe: whether the model receives logits of a probe.

    Attributes:
        probe_logits: the probe's logits, with the model's final bias; None without a probe.
    """

    def __init__(self, model: Any, compute: Callable[[HeadTensors], None], probe: bool) -> None:
        self.model = model
        self.probe_logits: Tensor | None = None
        self._compute: Callable[[HeadTensors], None] | None = compute
        self._probe = probe

    def __enter__(self) -> LossInHead:
        self._head = find_head(self.model)  # an adapter may have wrapped it since the last call
        self._replaced, self._own_forward = vars(self._head).get("forward"), self._head.forward
        self._head.forward = self._forward
        return self

    def __exit__(self, *_: object) -> None:
        del self._head.forward
        if self._replaced is not None:
            self._head.forward = self._replaced

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
    def _forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        compute, self._compute = self._compute, None
        if compute is None:
            return self._own_forward(hidden, *args, **kwargs)
        tensors = head_tensors(self._head, hidden)
        final_bias = getattr(self.model, "final_logits_bias", None)  # of BART and similar models
        if final_bias is not None:
            final_bias = final_bias.reshape(-1).to(hidden)
            bias = final_bias if tensors.bias is None else tensors.bias + final_bias
            tensors = tensors._replace(bias=bias)
        compute(tensors)
        with torch.no_grad():
            if not self._probe:
                return self._own_forward(hidden[..., :0, :])
            logits = self._own_forward(probe_of(self._own_forward, hidden))
            self.probe_logits = logits if final_bias is None else logits + final_bias
            return logits
