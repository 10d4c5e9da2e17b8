"""Means of cross-entropy and number term over a whole evaluation, for any batch size and number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ntloss.engine.objective import LossTerms
from ntloss.integrations.counts import Loss
from ntloss.metrics import gather


class TermSums:
    """Sums of both terms over batches, because the mean of batch means is not the mean over all labels.

    Attributes:
        listening: True while a Trainer evaluates: the number-aware model then passes its batches to `see`.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of each term, followed by its count
        self.listening = False

    def reset(self, listening: bool = False) -> None:
        """Discard the sums."""
        self._sums, self.listening = None, listening

    def add(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch.

        Args:
            loss: the loss that computed the terms.
            inputs: arguments of its `forward`, by name; labels, weights, sequence ids and the two counts are
                read.
            terms: of the batch.
        """
        read = (inputs.get(name) for name in ("loss_weights", "sequence_ids", "number_weights"))
        counts = loss.normalizers(inputs["labels"], *read)
        divisors = [inputs.get("num_items_in_batch"), inputs.get("num_numbers_in_batch")]
        if loss.mode == "replace":  # both terms are divided by the count of all labels
            counts, divisors = (counts[0], counts[0]), [divisors[0], divisors[0]]
        sums = []
        for term, count, divisor in zip((terms.ce, terms.ntl), counts, divisors, strict=True):
            factor = count if divisor is None else divisor
            sums += [term.detach().sum() * (factor if loss.reduction == "mean" else 1.0), count]
        dtype = loss.tables.values.dtype  # float64, if the device has it
        stacked = torch.stack([torch.as_tensor(s, dtype=dtype, device=terms.ce.device) for s in sums])
        self._sums = stacked if self._sums is None else self._sums.to(stacked) + stacked

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def see(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch of an evaluation, without the rows that a sampler repeated to fill it."""
        self.add(loss, *without_repeated_rows(loss, inputs, terms))

    def pop(self) -> dict[str, float]:
        """Return the means `ce` and `ntl` over all processes, each of which calls this; reset the sums."""
        nothing = torch.zeros(4, dtype=torch.float64)
        own = nothing if self._sums is None else self._sums.to("cpu", torch.float64)
        self.reset()
        sums = torch.stack(gather(own, None)).sum(0).tolist()
        return {
            name: total / count for name, total, count in (("ce", *sums[:2]), ("ntl", *sums[2:])) if count > 0
        }


def without_repeated_rows(
    loss: Loss, inputs: dict[str, Any], terms: LossTerms
) -> tuple[dict[str, Any], LossTerms]:
    """Return inputs and terms of a batch without rows that a distributed evaluation repeats to fill it."""
    repeated = _repeated_rows(inputs["labels"])
    if repeated is None:
        return inputs, terms
    labels = inputs["labels"].masked_fill(repeated, loss.ignore_index)
    inputs = {**inputs, "labels": labels, "num_items_in_batch": None, "num_numbers_in_batch": None}
    return inputs, loss.forward(**inputs)  # type: ignore[return-value]  # does not call hooks


def _repeated_rows(labels: Tensor) -> Tensor | None:
    """Mask `[batch, 1]` of this process's rows that fill up the last evaluation batch; None if none do."""
    from accelerate.state import GradientState  # type: ignore[import-untyped]  # every Trainer has it

    state = GradientState()
    if not state.end_of_dataloader or state.remainder <= 0 or labels.dim() < 2:
        return None
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    if (rank + 1) * len(labels) <= state.remainder:
        return None
    rows = rank * len(labels) + torch.arange(len(labels), device=labels.device)
    is_repeated: Tensor = rows >= state.remainder
    return is_repeated.unsqueeze(-1)
