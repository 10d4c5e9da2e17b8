"""Train the upper layers of a model, and compute the output of the frozen ones once.

Computed once and kept in memory, it makes a step of training as cheap as the layers that are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

STATES = "states"  # the entry of what the frozen layers return, `[tokens, width]` in each row
KEPT = 4e9  # bytes of the frozen layers' output that are kept
_AT_ONCE = 16  # rows whose frozen layers are run together
_INPUTS = ("input_ids", "attention_mask", "position_ids")


class _Reached(Exception):  # noqa: N818, it is no error
    """Carries the input of the first upper layer out of a forward pass, which ends there."""


class UpperLayers:
    """Freezes all of a model but its upper layers, the norm behind them, and the given heads.

    Of an encoder-decoder, the encoder is frozen, and only decoder layers are counted. The frozen layers stay
    in evaluation mode: their dropout would make the kept output wrong.

    A batch with the entry `states`, `[batch, seq, width]`, is what the frozen layers returned for it before:
    they are not run.

    Args:
        model: a language model of transformers, or a classifier of sequences; hooks are added to it.
        count: number of upper layers.
        heads: further modules that are trained. Default: none.

    Attributes:
        can_be_kept: whether the output of the frozen layers can be computed once: of causal models, unless a
            trained head shares its weights with the embeddings, so that the output changes.
        width: of the states.

    Raises:
        ValueError: the model does not have so many layers, or they cannot be found.
    """

    def __init__(self, model: Any, count: int, heads: Sequence[nn.Module] = ()) -> None:
        layers = _decoder_layers(model)
        if not 1 <= count <= len(layers):
            raise ValueError(f"the model has {len(layers)} layers; expected 1 to {len(layers)}")
        embedded = {id(weight) for weight in model.get_input_embeddings().parameters()}
        ties = any(id(weight) in embedded for head in heads for weight in head.parameters())
        self.can_be_kept: bool = not model.config.is_encoder_decoder and not ties
        norms, output = _probe(model, layers[0])
        self._returns_tuple = isinstance(output, tuple)  # as layers of BLOOM do
        self.width: int = (output[0] if self._returns_tuple else output).shape[-1]
        self._model, self._lower, self._first = model, layers[:-count], layers[-count]
        trained_parts = [part for module in (*layers[-count:], *norms, *heads) for part in module.modules()]
        kept = {id(weight) for part in trained_parts for weight in part.parameters(recurse=False)}
        for weight in model.parameters():
            weight.requires_grad_(id(weight) in kept)
        # Dropout has no weights: that of the trained layers stays on.
        holding = {id(part) for part in trained_parts}
        self._frozen_modules = [
            module
            for module in model.modules()
            if id(module) not in holding and not any(w.requires_grad for w in module.parameters())
        ]
        self._injection: RemovableHandle | None = None  # of states, during a forward pass
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Remove the hooks from the model, whose layers stay frozen."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the frozen layers; return the input of the first upper one, `[batch, seq, width]`.

        Args:
            inputs: the model's arguments.
        """

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

    def keep_states(
        self,
        rows: Sequence[MutableMapping[str, Any]],
        collate: Callable[[Sequence[Any]], Mapping[str, Any]],
        progress: Callable[[Any], Any] = iter,
    ) -> bool:
        """Add the frozen layers' output to each row, as its entry `states`, `[tokens, width]`, float32.

        Args:
            rows: each with `input_ids`; they are changed.
            collate: makes a batch of rows that is padded on the left, as `Writer.collate` does.
            progress: called with what is iterated over, for a bar. Default: none.

        Returns:
            Whether it was added: it is not if it changes during training, or takes more than 4 GB.
        """
        if not self.can_be_kept or sum(len(row["input_ids"]) for row in rows) * self.width * 4 > KEPT:
            return False
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
        for first in progress(range(0, len(order), _AT_ONCE)):
            chosen = [rows[i] for i in order[first : first + _AT_ONCE]]
            batch = collate(chosen)
            inputs = {name: batch[name].to(self._model.device) for name in _INPUTS if name in batch}
            for row, states in zip(chosen, self.states(inputs).float().cpu(), strict=True):
                # A copy: a view would keep the padding of its batch.
                row[STATES] = states[-len(row["input_ids"]) :].clone()
        return True

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Prepare a forward pass: with states, the first upper layer gets these until `_after`."""
        for part in self._frozen_modules:
            part.training = False
        states = kwargs.pop(STATES, None)
        if states is None:
            return args, kwargs

        def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return (hidden_states,) if self._returns_tuple else hidden_states

        def inject(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (states, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": states}

        self._injection = self._first.register_forward_pre_hook(inject, with_kwargs=True)
        for layer in self._lower:
            vars(layer)["forward"] = skip
        return args, kwargs

    def _after(self, *_: Any) -> None:
        if self._injection is not None:
            self._injection.remove()
            for layer in self._lower:
                del vars(layer)["forward"]
            self._injection = None


def _decoder_layers(model: Any) -> nn.ModuleList:
    """Find the list of decoder layers.

    Raises:
        ValueError: there is none.
    """
    config = model.config.get_text_config(decoder=True)
    count = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    decoder = model.get_decoder()
    for module in decoder.modules() if decoder is not None else ():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(
        f"the layers of {type(model).__name__} cannot be found; expected one list of {count} decoder layers"
    )


def _probe(model: Any, first: nn.Module) -> tuple[list[nn.Module], Any]:
    """Run one token; return the norms that run behind the layers, and what the first layer returns."""
    norms = [m for m in model.get_decoder().children() if "norm" in type(m).__name__.lower()]
    before: list[nn.Module] = []
    returned: list[Any] = []
    hooks = [
        norm.register_forward_hook(lambda module, *_: before.append(module) if not returned else None)
        for norm in norms
    ]
    hooks.append(first.register_forward_hook(lambda module, args, output: returned.append(output)))
    tokens = {"input_ids": torch.zeros(1, 1, dtype=torch.long, device=model.device)}
    if model.config.is_encoder_decoder:
        tokens["decoder_input_ids"] = tokens["input_ids"]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(**tokens, use_cache=False)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return [norm for norm in norms if norm not in before], returned[0]
