"""Train the upper layers of a model, and compute the output of the frozen ones once.

Computed once and kept in memory, it makes a step of training as cheap as the layers that are trained.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ntl.errors import UserError
from ntloss.upper_layers import UpperLayers

KEY = "weights.trained_layers"
STATES = "states"  # the column of what the frozen layers return, `[tokens, width]` in each row


class FrozenLayers(UpperLayers):
    """Freezes all of a model but its upper layers, the norm behind them, and the given heads.

    Of an encoder-decoder, the encoder is frozen, and only decoder layers are counted. The frozen layers stay
    in evaluation mode: their dropout would make the cached output wrong.

    A batch with the column `states`, `[batch, seq, width]`, is what the frozen layers returned for it before:
    they are not run.

    Attributes:
        can_be_kept: Whether the output of the frozen layers can be computed once: of causal models, unless a
            trained head shares its weights with the embeddings, so that the output changes.
        width: Width of the states.
    """

    def __init__(self, model: PreTrainedModel, trained: int, heads: Sequence[nn.Module] = ()):
        layers = _decoder_layers(model)
        if not 1 <= trained <= len(layers):
            raise UserError(
                f"{KEY}={trained}: the model has {len(layers)} layers; expected 1 to {len(layers)}. Omit "
                "it to train all weights."
            )
        embedded = {id(weight) for weight in model.get_input_embeddings().parameters()}
        ties = any(id(weight) in embedded for head in heads for weight in head.parameters())
        self.can_be_kept = not model.config.is_encoder_decoder and not ties
        norms, output = _probe(model, layers[0])
        returns_tuple = isinstance(output, tuple)
        super().__init__(model, layers, trained, returns_tuple)
        self.width: int = (output[0] if returns_tuple else output).shape[-1]
        trained_parts = [part for module in (*layers[-trained:], *norms, *heads) for part in module.modules()]
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
        self._using: AbstractContextManager[None] | None = None
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after, always_call=True)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for part in self._frozen_modules:
            part.training = False
        states = kwargs.pop(STATES, None)
        if states is not None:
            self._using = self.given(states)
            self._using.__enter__()
        return args, kwargs

    def _after(self, *_: Any) -> None:
        if self._using is not None:
            self._using.__exit__(None, None, None)
            self._using = None


def pad_states(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Pad the states of rows on the left, as the column `states`; nothing if they have none."""
    states = [row[STATES] for row in rows if STATES in row]
    return {STATES: pad_sequence(states, batch_first=True, padding_side="left")} if states else {}


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Find the list of decoder layers; a UserError if there is none."""
    config = model.config.get_text_config(decoder=True)
    count = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    decoder = model.get_decoder()
    for module in decoder.modules() if decoder is not None else ():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UserError(
        f"{KEY}: the layers of {type(model).__name__} cannot be found; expected one list of {count} decoder "
        "layers. Omit it to train all weights."
    )


def _probe(model: PreTrainedModel, first: nn.Module) -> tuple[list[nn.Module], Any]:
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
