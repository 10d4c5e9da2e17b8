"""A combined loss as the function that trainers ask for: of a model's outputs, labels and a count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss

Loss = NTLCrossEntropyLoss | NTLLinearCrossEntropyLoss


def loss_of_outputs(loss: NTLCrossEntropyLoss) -> Callable[..., Tensor]:
    """Make the function that a trainer calls with a model's outputs, the labels and its count of items.

    It is what `Trainer(compute_loss_func=...)` of transformers and trainers derived from it expect. Both
    terms are divided by the trainer's count, so they are exact under gradient accumulation and on several
    ranks. The model is called without labels: an encoder-decoder then needs `decoder_input_ids`, and a
    mixture of experts adds no router loss. `make_trainer_number_aware` has neither limit.

    Args:
        loss: the loss, with `shift=True` for a causal model.

    Returns:
        A function of `outputs` (a model's outputs with `logits`, or the logits `[batch, seq, vocab]`),
        `labels` `[batch, seq]` and `num_items_in_batch`; further keyword arguments are ignored.

    Raises:
        TypeError: `loss` is not an `NTLCrossEntropyLoss`.

    Example:
        >>> import torch
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> compute_loss = loss_of_outputs(NTLCrossEntropyLoss(digits))
        >>> outputs, labels = {"logits": torch.zeros(1, 2, 12)}, torch.tensor([[3, 11]])
        >>> whole = compute_loss(outputs, labels)
        >>> share = compute_loss(outputs, labels, num_items_in_batch=8)  # 2 of the 8 labels of a step
        >>> bool(torch.isclose(share, whole / 4))
        True
    """
    if not isinstance(loss, NTLCrossEntropyLoss):
        raise TypeError(f"expected an NTLCrossEntropyLoss, which takes logits, given {type(loss).__name__}")

    def compute_loss(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | float | None = None, **_: Any
    ) -> Tensor:
        logits = outputs if isinstance(outputs, Tensor) else _logits_of(outputs)
        found = loss(logits, labels.to(logits.device), num_items_in_batch=num_items_in_batch)
        return found.loss if isinstance(found, LossTerms) else found

    return compute_loss


def _logits_of(outputs: Any) -> Tensor:
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
    return logits
