"""What a transformers model is: its wrappers, where its loss is computed, whether labels are shifted."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


def without_wrappers(model: Any) -> Any:
    """The model inside of torch.compile, DistributedDataParallel and PEFT."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "config"):
            model = model.module
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model


def calls_loss_function(model_class: type) -> bool:
    """Whether a class's forward, or one that it extends, calls `self.loss_function`."""
    forwards = (vars(parent)["forward"] for parent in model_class.__mro__ if "forward" in vars(parent))
    return any("loss_function" in inspect.unwrap(forward).__code__.co_names for forward in forwards)


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
