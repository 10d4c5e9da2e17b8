"""Means of the terms of a loss over an evaluation, because the mean of batches is not the mean of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss


class EvaluationMeans:
    """Means of both terms, and of what a model adds, over all labels of an evaluation.

    Args:
        trainer: the trainer that evaluates.
        loss: its loss.
    """

    def __init__(self, trainer: Any, loss: NTLCrossEntropyLoss) -> None:
        self.trainer, self.loss = trainer, loss
        # Of both terms, of cross-entropy at all labels, and of what the model adds; then what the first two
        # are divided by, and the number of batches with labels, which may all be ignored.
        self._sums = torch.zeros(7, dtype=torch.float64)

    def add(
        self, labels: Tensor, beside: Mapping[str, Any], terms: LossTerms, ce: Tensor, added: Tensor | None
    ) -> None:
        """Add a batch: the labels and keywords that the loss was called with, and what it returned.

        `ce` is cross-entropy at all labels, also where the number term replaces it.
        """
        names = ("loss_weights", "sequence_ids", "number_weights", "numbers")
        items, numbers = self.loss.normalizers(labels, *(beside[name] for name in names))
        if self.loss.normalize_by == "items" or self.loss.mode == "replace":
            numbers = items
        divisor = beside["num_items_in_batch"]
        of_items = items if divisor is None else torch.as_tensor(divisor, device=items.device)
        # A mean over numbers was multiplied by the batch's share of the items.
        of_numbers = numbers * torch.where(items > 0, of_items / items, 0)
        added = items.new_zeros(()) if added is None else added * items
        found = (
            terms.ce * of_items,
            terms.ntl * of_numbers,
            ce * of_items,
            added,
            items,
            numbers,
            torch.ones(()),
        )
        self._sums += torch.stack([each.detach().sum().to("cpu", torch.float64) for each in found])

    def means(self) -> dict[str, float]:
        """Return `loss`, `ce` and `ntl` over all processes, each of which calls this; {} without labels.

        They are NaN, as the loss of stock training is, if all labels are ignored.
        """
        device = self.trainer.args.device
        sums = self._sums.to(device, torch.float32 if device.type == "mps" else torch.float64)
        found = self.trainer.accelerator.reduce(sums, reduction="sum").tolist()
        rest, ntl, ce, added, items, numbers, batches = found
        if not items:
            return dict.fromkeys(("loss", "ce", "ntl"), math.nan) if batches else {}
        ntl = ntl / numbers if numbers else 0.0
        return {
            "loss": (rest + added) / items + float(self.loss.weight) * ntl,
            "ce": ce / items,
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
        return labels.masked_fill(repeated.unsqueeze(-1), -100)
