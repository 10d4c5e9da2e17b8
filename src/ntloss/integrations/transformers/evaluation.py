"""Means of cross-entropy and number term over a whole evaluation, for any batch size and count of ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ntloss.engine.objective import LossTerms
from ntloss.integrations.counts import Loss
from ntloss.metrics import gather


class TermSums:
    """Both terms of many batches, as sums: a mean of the batches' means is not the mean of the whole."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of both terms, and what each is divided by

    def add(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch.

        Args:
            loss: what computed the terms.
            inputs: by the names of its `forward`; `labels` and what is counted and divided by are read.
            terms: of the batch.
        """
        own = loss.normalizers(inputs["labels"], inputs.get("loss_weights"), inputs.get("sequence_ids"))
        given = [inputs.get("num_items_in_batch"), inputs.get("num_numbers_in_batch")]
        if loss.mode == "replace":  # there both are divided by the count of all
            own, given = (own[0], own[0]), [given[0], given[0]]
        sums = []
        for term, count, over in zip((terms.ce, terms.ntl), own, given, strict=True):
            factor = 1.0
            if loss.reduction == "mean":
                factor = count if over is None else over  # type: ignore[assignment]
            sums += [term.detach().sum() * factor, count]
        dtype = loss.tables.values.dtype  # float64, where the device has it
        stacked = torch.stack([torch.as_tensor(s, dtype=dtype, device=terms.ce.device) for s in sums])
        self._sums = stacked if self._sums is None else self._sums.to(stacked) + stacked

    def pop(self) -> dict[str, float]:
        """Return the means `ce` and `ntl` over all processes, which must all call this; reset the sums."""
        nothing = torch.zeros(4, dtype=torch.float64)
        own = nothing if self._sums is None else self._sums.to("cpu", torch.float64)
        self._sums = None
        sums = torch.stack(gather(own, None)).sum(0).tolist()
        return {
            name: total / count for name, total, count in (("ce", *sums[:2]), ("ntl", *sums[2:])) if count > 0
        }


class EvaluatedTerms(TermSums):
    """The terms of the batches that a number-aware loss computes while a Trainer evaluates.

    Attributes:
        listening: whether the loss should pass its batches to `see`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listening = False

    def start(self) -> None:
        """Reset the sums and listen."""
        self._sums, self.listening = None, True

    def stop(self) -> None:
        """Stop listening."""
        self.listening = False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def see(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch, without the rows that only fill it up."""
        self.add(loss, *without_repeated_rows(loss, inputs, terms))


def without_repeated_rows(
    loss: Loss, inputs: dict[str, Any], terms: LossTerms
) -> tuple[dict[str, Any], LossTerms]:
    """A batch's inputs and terms without the rows that a distributed evaluation repeats to fill it up."""
    repeated = _repeated_rows(inputs["labels"])
    if repeated is None:
        return inputs, terms
    labels = inputs["labels"].masked_fill(repeated, loss.ignore_index)
    inputs = {**inputs, "labels": labels, "num_items_in_batch": None, "num_numbers_in_batch": None}
    return inputs, loss.forward(**inputs)  # type: ignore[return-value]  # without calling hooks


def _repeated_rows(labels: Tensor) -> Tensor | None:
    """`[batch, 1]`, the rows of this process that fill up the last batch of an evaluation; None without."""
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
