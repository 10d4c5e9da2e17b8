"""What a transformers model is: its wrappers, where its loss is computed, what it makes of its labels."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def without_wrappers(model: Any) -> Any:
    """The model inside of torch.compile, DistributedDataParallel, FSDP, DeepSpeed and PEFT."""
    # Wrappers pass attributes on, so that only their own say what they are; a model may have a `module`, too.
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


def leads_to(forward: Any, function: Callable[..., Any] | None) -> bool:
    """Whether a forward is this function or, as accelerate makes them, wrapped around it."""
    while forward is not None:
        if getattr(forward, "__func__", forward) is function:
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


def calls_loss_function(model_class: type) -> bool:
    """Whether a class's forward, or one that it extends, calls `self.loss_function`."""
    return "loss_function" in _names_in_forward(model_class)


def check_inline_loss(model: Any) -> None:
    """Raise where a model computes a loss inline that is something else than cross-entropy of its logits."""
    names = _names_in_forward(type(model))
    known = ("CrossEntropyLoss", "cross_entropy", "loss_f")  # loss_function, loss_fct, mlm_loss_fct, loss_fn
    if not any(part in name for part in known for name in names):
        raise ValueError(
            f"{type(model).__name__}.forward computes no cross-entropy that could be made number-aware: "
            "expected a language model's. Use NTLCrossEntropyLoss on its logits."
        )


def _names_in_forward(model_class: type) -> set[str]:
    forwards = (vars(parent)["forward"] for parent in model_class.__mro__ if "forward" in vars(parent))
    return {name for forward in forwards for name in inspect.unwrap(forward).__code__.co_names}


def decoder_inputs_of(model: Any, labels: Tensor) -> Tensor:
    """The decoder inputs that an encoder-decoder makes of its labels, in its forward.

    Args:
        model: the model.
        labels: `[batch, seq]`.

    Returns:
        `[batch, seq]`, token ids: the labels shifted to the right.

    Raises:
        ValueError: its class does not say how.
    """
    for name in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, name):
            made: Tensor = getattr(model, name)(labels)
            return made
    for parent in type(model).__mro__:  # M2M100, Whisper, Blenderbot: a function beside the class
        if shift := getattr(sys.modules.get(parent.__module__), "shift_tokens_right", None):
            made = shift(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
            return made
    raise ValueError(
        f"{type(model).__name__} has no prepare_decoder_input_ids_from_labels: expected 'decoder_input_ids' "
        "in the batch, beside the labels"
    )


def shifts_labels(model: Any) -> bool:
    """Whether a model's loss compares position i with label i + 1.

    Raises:
        ValueError: its class does not say so.
    """
    if model.config.is_encoder_decoder or getattr(model, "loss_type", None) == "ForMaskedLM":
        return False
    if not calls_loss_function(type(model)):
        raise ValueError(
            f"{type(model).__name__} computes its loss inline, and is no encoder-decoder: whether it shifts "
            "labels cannot be told. Pass shift=True where position i predicts label i + 1, else shift=False."
        )
    return True  # a loss type that is none of transformers' is read as that of causal models there, too
