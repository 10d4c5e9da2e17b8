"""Numbers as a head predicts them: perhaps on a log scale, and standardised by the training answers.

The statistics are in `config.ntl`, so that they are saved with the model, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from ntl.encodings.xval import LARGEST
from ntl.errors import UserError

UNKNOWN = {"answer_mean": None, "answer_deviation": None}
"""What `config.ntl` says before a training."""


def fit(config: PreTrainedConfig, answers: Sequence[float]) -> None:
    """Take the statistics of the training answers; a model that has some keeps them.

    Args:
        config: Of the model.
        answers: The numbers; without any, predictions are left as they are.
    """
    if config.ntl["answer_mean"] is None:
        values = _scaled(torch.tensor(answers, dtype=torch.float64), config)
        mean = values.mean().item() if len(values) else 0.0
        deviation = values.std(correction=0).item() if len(values) else 1.0
        # A new dictionary: a copy of the configuration may hold the old one.
        config.ntl = {**config.ntl, "answer_mean": mean, "answer_deviation": deviation or 1.0}


def standardise(values: Tensor, config: PreTrainedConfig) -> Tensor:
    """Turn numbers into what the head should predict, in float32.

    Args:
        values: Of any shape, float64.
        config: Of the model.

    Returns:
        The same shape.
    """
    mean, deviation = _statistics(config)
    return ((_scaled(values, config) - mean) / deviation).float()


def restore(predicted: Tensor, config: PreTrainedConfig) -> Tensor:
    """Turn what a head predicted into numbers, in float32.

    Args:
        predicted: Of any shape.
        config: Of the model.

    Returns:
        The same shape, at most 10³⁰ in magnitude; 0 where the head said NaN.
    """
    mean, deviation = _statistics(config)
    values = predicted.double().nan_to_num() * deviation + mean
    if config.ntl["log_scale"]:
        values = values.sign() * values.abs().clamp(max=70).expm1()
    return values.clamp(-LARGEST, LARGEST).float()


def _scaled(values: Tensor, config: PreTrainedConfig) -> Tensor:
    values = values.clamp(-LARGEST, LARGEST)
    return values.sign() * values.abs().log1p() if config.ntl["log_scale"] else values


def _statistics(config: PreTrainedConfig) -> tuple[float, float]:
    mean, deviation = config.ntl["answer_mean"], config.ntl["answer_deviation"]
    if mean is None:
        raise UserError(
            "the number head of this model was never trained: it has no statistics of training answers; "
            "expected a model that was trained as it is set. Train it first, or name another one."
        )
    return mean, deviation
