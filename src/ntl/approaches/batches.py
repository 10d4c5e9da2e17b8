"""What the approaches share: padding rows into batches, and generating with a model that may be wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    register_fsdp_forward_method,
)
from transformers import PreTrainedModel

from ntl.settings import GenerationSettings


def pad(
    rows: Sequence[Sequence[Any]], value: float, left: bool = False, dtype: torch.dtype = torch.long
) -> Tensor:
    """Pad rows of unlike length into `[rows, longest]`.

    Args:
        rows: Ids or numbers.
        value: Of the padding.
        left: Whether to pad in front.
        dtype: Of the tensor.

    Returns:
        The tensor.
    """
    longest = max(map(len, rows), default=0)
    padded = torch.full((len(rows), longest), value, dtype=dtype)
    for i, row in enumerate(rows):
        start = longest - len(row) if left else 0
        padded[i, start : start + len(row)] = torch.as_tensor(row, dtype=dtype)
    return padded


def pad_questions(rows: Sequence[Sequence[int]], pad_id: int, left: bool = False) -> dict[str, Tensor]:
    """Pad questions, with a mask.

    Args:
        rows: Token ids.
        pad_id: Of the padding.
        left: Whether to pad in front.

    Returns:
        `input_ids` and `attention_mask`, both `[rows, longest]`.
    """
    ones = [[1] * len(row) for row in rows]
    return {"input_ids": pad(rows, pad_id, left), "attention_mask": pad(ones, 0, left)}


@contextmanager
def answering(unwrapped: PreTrainedModel, model: nn.Module) -> Iterator[PreTrainedModel]:
    """Make a model ready to generate: no gradients, no dropout, whole parameters.

    Args:
        unwrapped: The model itself, which has `generate`.
        model: The same, perhaps wrapped for data parallelism.

    Yields:
        The model itself.
    """
    was_training = unwrapped.training
    whole = (
        FullyShardedDataParallel.summon_full_params(model, writeback=False)
        if isinstance(model, FullyShardedDataParallel)
        else nullcontext()
    )
    # no_grad, not inference_mode: what a sharded model gathers meanwhile is used in training again.
    with torch.no_grad(), whole:
        unwrapped.eval()
        try:
            yield unwrapped
        finally:
            unwrapped.train(was_training)


def generate(
    unwrapped: PreTrainedModel,
    model: nn.Module,
    questions: dict[str, Tensor],
    generation: GenerationSettings,
) -> Tensor:
    """Generate token ids with beam search.

    Args:
        unwrapped: The model itself.
        model: The same, perhaps wrapped for data parallelism.
        questions: `input_ids` and `attention_mask`.
        generation: Beams and length.

    Returns:
        `[rows, seq]`, as transformers gives them, on the CPU.
    """
    # Sharded parameters are gathered in every forward pass: all ranks must make as many.
    sharded = isinstance(unwrapped, FSDPModule) and torch.distributed.get_world_size() > 1
    if sharded and "generate" not in vars(unwrapped):
        # It calls the encoder behind the model's back, whose embeddings would still be sharded.
        register_fsdp_forward_method(unwrapped, "generate")
    with answering(unwrapped, model):
        return unwrapped.generate(
            **{key: value.to(unwrapped.device) for key, value in questions.items()},
            max_new_tokens=generation.max_new_tokens,
            num_beams=generation.beams,
            do_sample=False,
            synced_gpus=sharded,
        ).cpu()
