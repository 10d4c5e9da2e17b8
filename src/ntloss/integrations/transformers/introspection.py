"""Properties of a transformers model: its wrappers, where its loss is computed, how it uses labels."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def without_wrappers(model: Any) -> Any:
    """Return the model inside torch.compile, DistributedDataParallel, FSDP, DeepSpeed and PEFT wrappers."""
    # Only a wrapper's own attributes identify it: it forwards the model's, which may include `module`.
    while not isinstance(model, PreTrainedModel):
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            break
    return model


def calls_loss_function(model_class: type) -> bool:
    """Whether the forward of a class, or of a parent, calls `self.loss_function`."""
    return "loss_function" in _names_in_forward(model_class)


def check_inline_loss(model: Any) -> None:
    """Raise a ValueError if a model's inline loss is not cross-entropy of its logits."""
    names = _names_in_forward(type(model))
    known = ("CrossEntropyLoss", "cross_entropy", "loss_f")  # loss_function, loss_fct, mlm_loss_fct, loss_fn
    if not any(part in name for part in known for name in names):
        raise ValueError(
            f"{type(model).__name__}.forward computes no cross-entropy that could be made number-aware: "
            "expected a language model. Use NTLCrossEntropyLoss on its logits."
        )


def _names_in_forward(model_class: type) -> set[str]:
    forwards = (vars(parent)["forward"] for parent in model_class.__mro__ if "forward" in vars(parent))
    return {name for forward in forwards for name in inspect.unwrap(forward).__code__.co_names}


def without_labels(model: Any, names: tuple[str, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Replace the labels of a call by the decoder inputs that an inline model would derive from them.

    `names` are the parameters of its forward. Raise a ValueError if the call would add a router's loss, or
    the decoder inputs are unknown.
    """
    labels = kwargs["labels"]
    kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
    if "use_cache" in names:
        kwargs["use_cache"] = False
    has_inputs = any(kwargs.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds"))
    if model.config.is_encoder_decoder and not has_inputs:
        kwargs["decoder_input_ids"] = _decoder_inputs_of(model, labels)
    if kwargs.get("output_router_logits") or getattr(model.config, "output_router_logits", False):
        raise ValueError(
            f"{type(model).__name__} adds its routers' loss inline, which would be lost: omit "
            "output_router_logits, or use NTLCrossEntropyLoss on its logits and add that loss yourself"
        )
    return kwargs


def _decoder_inputs_of(model: Any, labels: Tensor) -> Any:
    for name in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, name):
            return getattr(model, name)(labels)
    for parent in type(model).__mro__:  # M2M100, Whisper, Blenderbot: a function of the module
        if shift := getattr(sys.modules.get(parent.__module__), "shift_tokens_right", None):
            return shift(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    raise ValueError(
        f"{type(model).__name__} has no prepare_decoder_input_ids_from_labels: expected 'decoder_input_ids' "
        "in the batch, besides the labels"
    )


def shifts_labels(model: Any) -> bool:
    """Whether a model's position i predicts label i + 1; a ValueError if its class does not tell."""
    if model.config.is_encoder_decoder or getattr(model, "loss_type", None) == "ForMaskedLM":
        return False
    if not calls_loss_function(type(model)):
        raise ValueError(
            f"{type(model).__name__} computes its loss inline and is not an encoder-decoder: whether it "
            "shifts labels is unknown. Pass shift=True if position i predicts label i + 1, else shift=False."
        )
    return True  # transformers, too, treats unknown loss types as those of causal models
