"""Helpers for approaches: pad rows into batches, and generate with a model that may be wrapped."""

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

from ntl.config.settings import GenerationSettings
from ntl.encodings.format_mask import FormatMask
from ntl.errors import UserError
from ntloss import NumberVocabulary
from ntloss.decoding import NumberQuantiles, number_quantiles


def pad(
    rows: Sequence[Sequence[Any]], value: float, left: bool = False, dtype: torch.dtype = torch.long
) -> Tensor:
    """Pad rows of different lengths into a tensor `[rows, longest]`.

    Args:
        rows: Rows of ids or numbers.
        value: Padding value.
        left: Whether to pad on the left.
        dtype: Data type of the tensor.

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
    """Pad questions and make their attention mask.

    Args:
        rows: Token ids.
        pad_id: Id of the padding token.
        left: Whether to pad on the left.

    Returns:
        `input_ids` and `attention_mask`, both `[rows, longest]`.
    """
    ones = [[1] * len(row) for row in rows]
    return {"input_ids": pad(rows, pad_id, left), "attention_mask": pad(ones, 0, left)}


@contextmanager
def generation_mode(unwrapped: PreTrainedModel, model: nn.Module) -> Iterator[PreTrainedModel]:
    """Prepare a model for generation: no gradients, no dropout, and gathered parameters.

    Args:
        unwrapped: The unwrapped model, which has `generate`.
        model: The same model, possibly wrapped for data parallelism.

    Yields:
        The unwrapped model.
    """
    was_training = unwrapped.training
    whole = (
        FullyShardedDataParallel.summon_full_params(model, writeback=False)
        if isinstance(model, FullyShardedDataParallel)
        else nullcontext()
    )
    # no_grad, not inference_mode: training reuses parameters that a sharded model gathers here.
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
    mask: FormatMask | None = None,
) -> Tensor:
    """Generate token ids with beam search.

    Args:
        unwrapped: The unwrapped model.
        model: The same model, possibly wrapped for data parallelism.
        questions: `input_ids` and `attention_mask`.
        generation: Decoding settings.
        mask: Tokens that answers may have. Such answers end by themselves, after at most `mask.longest`
            tokens. Default: any token, up to `generation.max_new_tokens`.

    Returns:
        Token ids of the answers, `[rows, seq]`, without the start token or the prompt, on the CPU.
    """
    # Every forward pass gathers sharded parameters, so all ranks must run equally many.
    sharded = _is_sharded(unwrapped)
    if sharded and "generate" not in vars(unwrapped):
        # `generate` calls the encoder directly, bypassing the hook that gathers the embeddings.
        register_fsdp_forward_method(unwrapped, "generate")
    prompt = 1 if unwrapped.config.is_encoder_decoder else questions["input_ids"].shape[1]
    options: dict[str, Any] = {"max_new_tokens": generation.max_new_tokens}
    if mask is not None:
        options = {"max_new_tokens": mask.longest, "logits_processor": [mask.processor(prompt)]}
    with generation_mode(unwrapped, model):
        tokens = unwrapped.generate(
            **{key: value.to(unwrapped.device) for key, value in questions.items()},
            **options,
            num_beams=generation.beams,
            do_sample=False,
            synced_gpus=sharded,
        )
    return tokens[:, prompt:].cpu()


def read_quantiles(
    unwrapped: PreTrainedModel,
    model: nn.Module,
    questions: dict[str, Tensor],
    vocabulary: NumberVocabulary,
    levels: Sequence[float],
    **options: Any,
) -> NumberQuantiles:
    """Read quantiles of the next number with `ntloss.decoding.number_quantiles`.

    Args:
        unwrapped: The unwrapped model.
        model: The same model, possibly wrapped for data parallelism.
        questions: `input_ids` and `attention_mask`.
        vocabulary: The number tokens.
        levels: Levels of the quantiles.
        **options: More arguments of `number_quantiles`.

    Returns:
        The quantiles, on the model's device.

    Raises:
        UserError: The model is sharded, or does not fit the options.
    """
    if _is_sharded(unwrapped):  # the search of each rank takes another number of forward passes
        raise UserError(
            "quantiles need the whole model in each process, and this one is sharded. Pass "
            "evaluation.read=[greedy]."
        )
    with generation_mode(unwrapped, model):
        inputs = {key: value.to(unwrapped.device) for key, value in questions.items()}
        try:
            return number_quantiles(unwrapped, inputs, vocabulary, levels, **options)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"quantiles cannot be read from this model: {error} Or pass evaluation.read=[greedy]."
            ) from error


def _is_sharded(unwrapped: PreTrainedModel) -> bool:
    return isinstance(unwrapped, FSDPModule) and torch.distributed.get_world_size() > 1
