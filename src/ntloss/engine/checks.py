"""Checks of what the caller gave: what was given, what was expected, what to do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ntloss.criteria import Criterion, needs_of
from ntloss.engine.reduction import REDUCTIONS


def check_logits(logits: Tensor, vocab_size: int) -> None:
    """Raise unless `logits` are floating-point and `vocab_size` wide."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        given = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits: expected a floating-point tensor [..., vocab], given {given}")
    if logits.dim() == 0 or logits.shape[-1] != vocab_size:
        raise ValueError(
            f"logits of shape {list(logits.shape)} do not end in the vocabulary's size, {vocab_size:,}. "
            "Models often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size), or NTLoss(tokenizer, vocab_size=...)."
        )


def check_head(hidden_states: Tensor, lm_head_weight: Tensor, bias: Tensor | None, vocab_size: int) -> None:
    """Raise unless hidden states, head and bias fit each other and the vocabulary."""
    autocast = isinstance(hidden_states, Tensor) and torch.amp.is_autocast_available(
        hidden_states.device.type
    )
    autocast = autocast and torch.is_autocast_enabled(hidden_states.device.type)
    for name, tensor in (("hidden_states", hidden_states), ("lm_head_weight", lm_head_weight)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name}: expected a floating-point tensor, given {given}")
    if lm_head_weight.dim() != 2 or hidden_states.shape[-1:] != lm_head_weight.shape[-1:]:
        raise ValueError(
            f"lm_head_weight of shape {list(lm_head_weight.shape)} does not fit hidden_states of shape "
            f"{list(hidden_states.shape)}: expected [vocab, hidden] and [..., hidden]"
        )
    if len(lm_head_weight) != vocab_size:
        raise ValueError(
            f"lm_head_weight has {len(lm_head_weight):,} rows, the vocabulary {vocab_size:,} tokens. Models "
            "often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size)."
        )
    if bias is not None and not isinstance(bias, Tensor):
        raise TypeError(f"bias: expected a floating-point tensor or None, given {type(bias).__name__}")
    if bias is not None and bias.shape != lm_head_weight.shape[:1]:
        raise ValueError(f"bias of shape {list(bias.shape)}: expected [vocab] = [{vocab_size}]")
    for name, parameter in (("lm_head_weight", lm_head_weight), ("bias", bias)):
        if parameter is not None and parameter.dtype != hidden_states.dtype and not autocast:
            raise TypeError(
                f"hidden_states are {hidden_states.dtype}, {name} is {parameter.dtype}: cast one, or use "
                "autocast"
            )
        if parameter is not None and parameter.device != hidden_states.device:
            raise ValueError(
                f"hidden_states are on {hidden_states.device}, {name} on {parameter.device}: move one to the "
                "other"
            )


def check_weight(weight: object, validate: bool | None = None) -> None:
    """Raise unless the number term's weight is a finite number of 0 or more, or a tensor of one.

    By default (`validate=None`) a tensor is read on the CPU only, and never inside `torch.compile`.
    """
    if isinstance(weight, Tensor) and weight.numel() == 1:
        if torch.compiler.is_compiling():
            return
        if not (weight.device.type == "cpu" if validate is None else validate):
            return
        weight = weight.item()
    if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise ValueError(f"weight={weight!r}: expected a finite number of 0 or more, or a tensor of one")


def check_normalizers(num_items: object, num_numbers: object, mode: str, reduction: str) -> None:
    """Raise unless the normalisers belong to a mean, and come together."""
    if num_items is None and num_numbers is None:
        return
    if reduction != "mean":
        raise ValueError(
            "num_items_in_batch and num_numbers_in_batch are what reduction='mean' divides by; given with "
            f"reduction={reduction!r}"
        )
    for name, count in (("num_items_in_batch", num_items), ("num_numbers_in_batch", num_numbers)):
        if isinstance(count, (int, float)) and not count >= 0:
            raise ValueError(f"{name}={count}: expected 0 or more")
    if mode == "add" and (num_items is None or num_numbers is None):
        missing = "num_items_in_batch" if num_items is None else "num_numbers_in_batch"
        raise ValueError(
            f"{missing} is missing: normalised by the one count and not the other, the gradient would depend "
            "on how a batch is split. `loss.normalizers(labels)` counts both; sum them over micro-batches "
            "and ranks."
        )


def check_labels(
    leading: torch.Size,
    device: torch.device,
    labels: Tensor,
    loss_weights: Tensor | None,
    reduction: str,
) -> None:
    """Raise unless labels and weights fit inputs of shape `[*leading, ...]`; looks at no values."""
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: expected a tensor of token ids, torch.int64, given {given}")
    if labels.shape != leading:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit: expected {list(leading)}, the shape of the "
            "logits (or hidden states) without their last dimension. Where a causal model's labels are "
            "shifted, its logits are too: logits[:, :-1], labels[:, 1:]."
        )
    if labels.device != device:
        raise ValueError(f"labels are on {labels.device}, the logits on {device}: move one to the other")
    if loss_weights is not None:
        if not isinstance(loss_weights, Tensor) or loss_weights.is_complex():
            given = loss_weights.dtype if isinstance(loss_weights, Tensor) else type(loss_weights).__name__
            raise TypeError(f"loss_weights: expected a real tensor, given {given}")
        if loss_weights.shape != labels.shape:
            raise ValueError(
                f"loss_weights of shape {list(loss_weights.shape)}: expected that of the labels, "
                f"{list(labels.shape)}"
            )
        if loss_weights.device != device:
            raise ValueError(
                f"loss_weights are on {loss_weights.device}, the logits on {device}: move one to the other"
            )
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, REDUCTIONS))}")


def check_sequence_ids(labels: Tensor, sequence_ids: Tensor | None, criterion: Criterion) -> None:
    """Raise unless numbers can be told apart, where the criterion looks at them."""
    if sequence_ids is None:
        if labels.dim() < 2 and needs_of(criterion).spans:
            raise ValueError(
                f"labels of shape {list(labels.shape)}, and {criterion!r} looks at whole numbers: without "
                "rows it cannot tell where a sequence ends. Give labels as [batch, seq], or sequence_ids of "
                "the labels' shape (zeros where all is one sequence)."
            )
        return
    if not isinstance(sequence_ids, Tensor) or sequence_ids.is_floating_point():
        given = sequence_ids.dtype if isinstance(sequence_ids, Tensor) else type(sequence_ids).__name__
        raise TypeError(f"sequence_ids: expected a tensor of integers, given {given}")
    if sequence_ids.shape != labels.shape or sequence_ids.device != labels.device:
        raise ValueError(
            f"sequence_ids of shape {list(sequence_ids.shape)} on {sequence_ids.device}: expected those of "
            f"the labels, {list(labels.shape)} on {labels.device}"
        )


def check_values(
    labels: Tensor,
    loss_weights: Tensor | None,
    vocab_size: int,
    ignore_index: int,
    validate: bool | None,
) -> None:
    """Raise where a label lies outside of the vocabulary or a weight is negative.

    Reading values synchronises an accelerator with the host, so by default (`validate=None`) only tensors
    on the CPU are read, and nothing inside `torch.compile`.
    """
    if torch.compiler.is_compiling():
        return
    if not (labels.device.type == "cpu" if validate is None else validate) or labels.numel() == 0:
        return
    outside = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"label {int(labels[outside][0])} lies outside of the vocabulary: expected 0 to "
            f"{vocab_size - 1:,}, or ignore_index={ignore_index}. Were the labels made by another tokenizer?"
        )
    # Written so that NaN fails too.
    if loss_weights is not None and not (fits := (loss_weights >= 0) & (loss_weights < torch.inf)).all():
        bad = loss_weights[~fits][0].item()
        raise ValueError(f"loss_weights hold {bad}: expected finite weights of 0 or more")
