"""Checks of what the caller gave: what was given, what was expected, what to do."""

from __future__ import annotations

import torch
from torch import Tensor

from ntloss.engine.reduction import REDUCTIONS


def check_logits(logits: Tensor, vocab_size: int) -> None:
    """Raise unless `logits` are floating-point and `vocab_size` wide."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        given = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits: expected a floating-point tensor [..., vocab], given {given}")
    if logits.dim() == 0 or logits.shape[-1] != vocab_size:
        raise ValueError(
            f"logits of shape {list(logits.shape)} do not end in the vocabulary's size, {vocab_size:,}. "
            "Models often pad their embeddings: pass vocab_size=<width of the logits> where the vocabulary "
            "or the loss is made."
        )


def check_labels(
    logits: Tensor,
    labels: Tensor,
    loss_weights: Tensor | None,
    reduction: str,
) -> None:
    """Raise unless shapes, dtypes and devices fit together; looks at no tensor's values."""
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: expected a tensor of token ids, torch.int64, given {given}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)}: expected "
            f"{list(logits.shape[:-1])}. For a causal model shift first: logits[:, :-1], labels[:, 1:]."
        )
    if labels.device != logits.device:
        raise ValueError(f"labels are on {labels.device}, logits on {logits.device}: move one to the other")
    if loss_weights is not None:
        if not isinstance(loss_weights, Tensor) or loss_weights.is_complex():
            raise TypeError(f"loss_weights: expected a real tensor, given {type(loss_weights).__name__}")
        if loss_weights.shape != labels.shape:
            raise ValueError(
                f"loss_weights of shape {list(loss_weights.shape)}: expected that of the labels, "
                f"{list(labels.shape)}"
            )
        if loss_weights.device != logits.device:
            raise ValueError(
                f"loss_weights are on {loss_weights.device}, logits on {logits.device}: move one to the other"
            )
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, REDUCTIONS))}")


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
    if loss_weights is not None and not (loss_weights >= 0).all():
        bad = loss_weights[~(loss_weights >= 0)][0].item()
        raise ValueError(f"loss_weights hold {bad}: expected weights of 0 or more")
