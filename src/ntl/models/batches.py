"""Padded batches, and models that are evaluated."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ntl.errors import UserError


def pad(
    rows: Sequence[Sequence[Any]], value: float, left: bool = False, dtype: torch.dtype = torch.long
) -> Tensor:
    """Pad rows of different lengths into a tensor `[rows, longest]`."""
    tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, True, value, "left" if left else "right")


def pad_questions(rows: Sequence[Sequence[int]], pad_id: int, left: bool = False) -> dict[str, Tensor]:
    """Pad token ids as `input_ids` with their `attention_mask`, both `[rows, longest]`."""
    ones = [[1] * len(row) for row in rows]
    return {"input_ids": pad(rows, pad_id, left), "attention_mask": pad(ones, 0, left)}


def check_lengths(rows: Sequence[Sequence[int]], model: PreTrainedModel) -> None:
    """Raise a UserError if a row of token ids is longer than the model can read."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is not None and (longest := max(map(len, rows), default=0)) > most:
        raise UserError(
            f"a question and its answer take {longest} tokens; this model takes at most {most}. Choose "
            "another model, or increase max_position_embeddings in its configuration."
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Prepare a model for evaluation: no gradients and no dropout."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def cache_name(model: PreTrainedModel) -> str:
    """Return what a model calls its cache, which depends on the release; empty without one."""
    accepted = inspect.signature(type(model).forward).parameters
    names = ("cache", "past_key_values", "cache_params")
    return next((name for name in names if name in accepted), "")
