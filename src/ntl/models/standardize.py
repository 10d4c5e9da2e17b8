"""Shared by the number heads: initial weights, and standardization by the statistics of the training answers.

The statistics are stored in `config.ntl`, so that they are saved with the model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, T5PreTrainedModel
from transformers import initialization as init

from ntl.encodings.number_values import LARGEST
from ntl.errors import UserError

NO_STATISTICS: dict[str, Any] = {"answer_mean": None, "answer_deviation": None}
"""Entries of `config.ntl` before training."""


def init_weights(model: T5PreTrainedModel, module: nn.Module) -> None:
    """Initialize a module of a T5 model with a number head; serves as its `_init_weights`."""
    T5PreTrainedModel._init_weights(model, module)
    if isinstance(module, nn.Linear) and module.bias is not None:  # the head: T5's layers have no bias
        # transformers' default for T5 is far too large for numbers of mean 0 and standard deviation 1.
        init.normal_(module.weight, std=module.in_features**-0.5)


def fit(config: PreTrainedConfig, answers: Sequence[float]) -> None:
    """Store the statistics of the training answers, if there are any, in `config.ntl`, unless it has some."""
    if config.ntl["answer_mean"] is None:
        values = _scaled(torch.tensor(answers, dtype=torch.float64), config)
        mean = values.mean().item() if len(values) else 0.0
        deviation = values.std(correction=0).item() if len(values) else 1.0
        # A new dictionary, because copies of the configuration share the old one.
        config.ntl = {**config.ntl, "answer_mean": mean, "answer_deviation": deviation or 1.0}


def standardize(values: Tensor, config: PreTrainedConfig) -> Tensor:
    """Standardize numbers of any shape, float64, into float32 targets of the head."""
    mean, deviation = _statistics(config)
    return ((_scaled(values, config) - mean) / deviation).float()


def restore(predicted: Tensor, config: PreTrainedConfig) -> Tensor:
    """Convert predictions of the head, of any shape, NaN as 0, back to float32 numbers, clipped to ±10³⁰."""
    mean, deviation = _statistics(config)
    values = predicted.double().nan_to_num() * deviation + mean
    if config.ntl["log_scale"]:
        values = values.sign() * values.abs().clamp(max=70).expm1()
    return values.clamp(-LARGEST, LARGEST).float()


def _scaled(values: Tensor, config: PreTrainedConfig) -> Tensor:
    values = values.clamp(-LARGEST, LARGEST)
    return values.sign() * values.abs().log1p() if config.ntl["log_scale"] else values


def _statistics(config: PreTrainedConfig) -> tuple[float, float]:
    """Return the mean and the deviation of the training answers; a UserError says if there are none."""
    mean, deviation = config.ntl["answer_mean"], config.ntl["answer_deviation"]
    if mean is None:
        raise UserError(
            "the number head of this model is untrained: it has no statistics of training answers; "
            "expected a model trained with these model_args. Train it first, or choose another one."
        )
    return mean, deviation
