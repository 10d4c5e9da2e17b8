"""Means of the terms of a loss over an evaluation, because the mean of batches is not the mean of labels."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss
from ntloss.engine.targets import IGNORED


class _Sums(NamedTuple):
    """Sums over the labels of an evaluation; those of a batch are tensors before they are added."""

    ce: Any = 0.0  # cross-entropy, without the labels at which the number term replaces it
    ntl: Any = 0.0  # the number term before its weight
    ce_of_all: Any = 0.0  # cross-entropy at all labels
    items: Any = 0.0  # the labels' weights: what all but the number term are divided by
    numbers: Any = 0.0  # what the number term is divided by
    batches: Any = 0.0  # the number of batches with labels, which may all be ignored


def divisors_of(
    loss: NTLCrossEntropyLoss, labels: Tensor, beside: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return what a loss divides the cross-entropy of a batch by, and what its number term."""
    names = ("loss_weights", "sequence_ids", "number_weights", "numbers")
    items, numbers = loss.normalizers(labels, *(beside[name] for name in names))
    return items, numbers if loss.divides_by_numbers else items


class EvaluationMeans:
    """Means of both terms, and of what model and trainer add to them, over all labels of an evaluation.

    Args:
        trainer: the trainer that evaluates.
        loss: its loss.
    """

    def __init__(self, trainer: Any, loss: NTLCrossEntropyLoss) -> None:
        self.trainer, self.loss = trainer, loss
        self._sums, self._added = _Sums(), 0.0
        self._own = self._items = 0.0  # the loss and the labels' weights since the last returned loss

    def add(self, labels: Tensor, beside: Mapping[str, Any], terms: LossTerms, ce: Tensor) -> None:
        """Add a batch: the labels and keywords that the loss was called with, and what it returned.

        `ce` is cross-entropy at all labels, also where the number term replaces it.
        """
        items, numbers = divisors_of(self.loss, labels, beside)
        divisor = beside["num_items_in_batch"]
        of_items = items if divisor is None else torch.as_tensor(divisor, device=items.device)
        # A mean over numbers was multiplied by the batch's share of the items.
        of_numbers = numbers * torch.where(items > 0, of_items / items, 0)
        sums = (terms.ce * of_items, terms.ntl * of_numbers, ce * of_items, items, numbers, torch.ones(()))
        found = _Sums(*(each.detach().sum().to("cpu", torch.float64).item() for each in sums))
        self._sums = _Sums(*map(operator.add, self._sums, found))
        self._own += terms.loss.item() * found.items
        self._items += found.items

    def add_returned(self, loss: Tensor) -> None:
        """Add what a trainer's loss of a batch has beyond the number-aware loss, as a mean over labels."""
        if self._items:  # else the loss may be NaN
            self._added += loss.item() * self._items - self._own
        self._own = self._items = 0.0

    def means(self) -> dict[str, float]:
        """Return `loss`, `ce` and `ntl` over all processes, each of which calls this; {} without labels.

        They are NaN, as the loss of stock training is, if all labels are ignored.
        """
        device = self.trainer.args.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        found = torch.tensor([*self._sums, self._added], dtype=dtype, device=device)
        *of_labels, added = self.trainer.accelerator.reduce(found, reduction="sum").tolist()
        sums = _Sums(*of_labels)
        if not sums.items:
            return dict.fromkeys(("loss", "ce", "ntl"), math.nan) if sums.batches else {}
        ntl = sums.ntl / sums.numbers if sums.numbers else 0.0
        return {
            "loss": (sums.ce + added) / sums.items + float(self.loss.weight) * ntl,
            "ce": sums.ce_of_all / sums.items,
            "ntl": ntl,
        }

    def without_repeated_rows(self, labels: Tensor) -> Tensor:
        """Ignore the rows that a distributed sampler repeats to fill the last batch."""
        state, args = self.trainer.accelerator.gradient_state, self.trainer.args
        if args.world_size == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return labels
        # A collator may make several rows of one.
        rows = max(len(labels) // args.eval_batch_size, 1) if len(labels) % args.eval_batch_size == 0 else 1
        own = rows * state.remainder - args.process_index * len(labels)  # rows that are not repeated
        if own >= len(labels):
            return labels
        repeated = torch.arange(len(labels), device=labels.device) >= own
        return labels.masked_fill(repeated.unsqueeze(-1), IGNORED)
