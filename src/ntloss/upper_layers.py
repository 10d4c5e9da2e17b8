"""What makes a step of a causal language model cheap where only a part of its work is needed.

Where only the upper layers are trained, the output of the lower ones is computed before, and a step costs as
much as the upper ones. Where only some logits are needed, the head multiplies a copy of their states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class _Reached(Exception):  # noqa: N818, it is no error
    """Carries the input of the first upper layer out of a forward pass, which ends there."""


class UpperLayers:
    """Computes the output of a causal model's lower layers, and lets the model use it in their place.

    Args:
        model: a causal language model of transformers.
        layers: all of its layers.
        count: number of upper layers; of fewer layers, all are upper ones.
        returns_tuple: whether a layer returns a tuple, as BLOOM's do. Default: a tensor.
    """

    def __init__(self, model: Any, layers: nn.ModuleList, count: int, returns_tuple: bool = False) -> None:
        self._model = model
        self._lower, self._first = layers[:-count], layers[-min(count, len(layers))]
        self._returns_tuple = returns_tuple

    @torch.no_grad()
    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the lower layers; return the input of the first upper one, `[batch, seq, width]`."""

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else kwargs["hidden_states"])

        hook = self._first.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._model(**inputs, use_cache=False)
        except _Reached as reached:
            states: Tensor = reached.args[0]
            return states
        finally:
            hook.remove()
        raise AssertionError("the forward pass ended before the first upper layer")

    @contextmanager
    def given(self, states: Tensor) -> Iterator[None]:
        """Let the model use these states, `[batch, seq, width]`, instead of running its lower layers."""

        def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return (hidden_states,) if self._returns_tuple else hidden_states

        def inject(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (states, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": states}

        hook = self._first.register_forward_pre_hook(inject, with_kwargs=True)
        for layer in self._lower:
            vars(layer)["forward"] = skip
        try:
            yield
        finally:
            hook.remove()
            for layer in self._lower:
                del vars(layer)["forward"]


def copy_views(head: nn.Module) -> RemovableHandle:
    """Let a head multiply a copy of its input, on which PyTorch's CPU product is up to ten times as fast.

    With `logits_to_keep`, the input is a view.

    Returns:
        The hook, whose `remove` ends this.
    """
    return head.register_forward_pre_hook(lambda _, args: (args[0].contiguous(), *args[1:]))
