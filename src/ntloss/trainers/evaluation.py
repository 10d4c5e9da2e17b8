"""Means of the terms of a loss over an evaluation, because the mean of batches is not the mean of labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss
from ntloss.engine.targets import PreparedLabels


def total_weight(record: PreparedLabels) -> Tensor:
    """Return the weight of all labels of a record that count, by which a loss divides."""
    counted = record.labels >= 0
    return counted.sum() if record.weights is None else torch.where(counted, record.weights, 0).sum()


class EvaluationMeans:
    """Means of both terms, and of what model and trainer add to them, over all labels of an evaluation.

    Args:
        trainer: the trainer that evaluates.
        loss: its loss.
    """

    def __init__(self, trainer: Any, loss: NTLCrossEntropyLoss) -> None:
        self.trainer, self.loss = trainer, loss
        # Sums over labels of cross-entropy (without the labels at which the number term replaces it), of the
        # number term before its weight, of cross-entropy at all labels and of the labels' weights; batches
        # with labels, which may all be ignored; what model and trainer add.
        self._sums = torch.zeros(6, dtype=torch.float64)
        self._own = self._items = 0.0  # the loss and the labels' weights since the last returned loss

    def add(self, record: PreparedLabels, count: Any, terms: LossTerms, ce: Tensor) -> None:
        """Add a batch: what the loss was called with, and what it returned.

        `ce` is cross-entropy at all labels, also where the number term replaces it.
        """
        items = total_weight(record)
        divisor = items if count is None else torch.as_tensor(count, device=items.device)
        sums = (terms.ce * divisor, terms.ntl * divisor, ce * divisor, items)
        found = torch.stack([each.detach().sum().to("cpu", torch.float64) for each in sums])
        self._sums[:4] += found
        self._sums[4] += 1
        self._own += terms.loss.item() * found[3].item()
        self._items += found[3].item()

    def add_returned(self, loss: Tensor) -> None:
        """Add what a trainer's loss of a batch has beyond the number-aware loss, as a mean over labels."""
        if self._items:  # else the loss may be NaN
            self._sums[5] += loss.item() * self._items - self._own
        self._own = self._items = 0.0

    def means(self) -> dict[str, float]:
        """Return `loss`, `ce` and `ntl` over all processes, each of which calls this; {} without labels.

        They are NaN, as the loss of stock training is, if all labels are ignored.
        """
        device = self.trainer.args.device
        found = self._sums.to(device, torch.float32 if device.type == "mps" else torch.float64)
        sums = self.trainer.accelerator.reduce(found, reduction="sum").tolist()
        ce, ntl, ce_of_all, items, batches, added = sums
        if not items:
            return dict.fromkeys(("loss", "ce", "ntl"), math.nan) if batches else {}
        loss = (ce + added + float(self.loss.weight) * ntl) / items
        return {"loss": loss, "ce": ce_of_all / items, "ntl": ntl / items}

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
        return labels.masked_fill(repeated.unsqueeze(-1), -1)
