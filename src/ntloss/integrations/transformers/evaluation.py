"""Means of cross-entropy and number term over a whole evaluation, for any batch size and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ntloss import LossTerms
from ntloss.integrations.outputs import Loss
from ntloss.metrics import gather


class TermSums:
    """Sums of both terms over batches, because the mean of batch means is not the mean over all labels."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of each term, followed by its count

    def add(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch.

        Args:
            loss: the loss that computed the terms.
            inputs: arguments of its `forward`, by name.
            terms: of the batch.
        """
        read = (inputs.get(name) for name in ("loss_weights", "sequence_ids", "number_weights"))
        items, numbers = loss.normalizers(inputs["labels"], *read)
        if loss.normalize_by == "items" or loss.mode == "replace":
            numbers = items
        given = inputs.get("num_items_in_batch"), inputs.get("num_numbers_in_batch")
        divided_by = items if given[0] is None else given[0]
        # Without a count of numbers, the number term is this batch's mean times its share of the items.
        of_numbers = numbers * divided_by / items.clamp(min=1) if given[1] is None else given[1]
        sums = []
        for term, count, factor in ((terms.ce, items, divided_by), (terms.ntl, numbers, of_numbers)):
            sums += [term.detach().sum() * (factor if loss.reduction == "mean" else 1.0), count]
        dtype = loss.tables.values.dtype  # float64, if the device has it
        stacked = torch.stack([torch.as_tensor(s, dtype=dtype, device=terms.ce.device) for s in sums])
        self._sums = stacked if self._sums is None else self._sums.to(stacked) + stacked

    def pop(self) -> dict[str, float]:
        """Return the means `ce` and `ntl` over all processes, each of which calls this; reset the sums."""
        nothing = torch.zeros(4, dtype=torch.float64)
        own = nothing if self._sums is None else self._sums.to("cpu", torch.float64)
        self._sums = None
        ce, items, ntl, numbers = torch.stack(gather(own, None)).sum(0).tolist()
        return {
            name: total / count for name, total, count in (("ce", ce, items), ("ntl", ntl, numbers)) if count
        }


@contextmanager
def summed_terms(losses: tuple[Loss, ...]) -> Iterator[TermSums]:
    """Sum the terms that some losses compute, each with `return_terms`, without repeated rows."""
    sums = TermSums()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def see(loss: Loss, _: tuple[()], inputs: dict[str, Any], terms: LossTerms) -> None:
        sums.add(loss, *without_repeated_rows(loss, inputs, terms))

    hooks = [loss.register_forward_hook(see, with_kwargs=True) for loss in losses]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()


def without_repeated_rows(
    loss: Loss, inputs: dict[str, Any], terms: LossTerms
) -> tuple[dict[str, Any], LossTerms]:
    """Return inputs and terms of a batch without rows that a distributed evaluation repeats to fill it."""
    from accelerate.state import GradientState  # type: ignore[import-untyped]  # every Trainer has it

    state, labels = GradientState(), inputs["labels"]
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    own = state.remainder - rank * len(labels)  # this process's rows that are not repeated
    if not state.end_of_dataloader or state.remainder <= 0 or own >= len(labels) or labels.dim() < 2:
        return inputs, terms
    repeated = torch.arange(len(labels), device=labels.device) >= own
    labels = labels.masked_fill(repeated.unsqueeze(-1), loss.ignore_index)
    inputs = {**inputs, "labels": labels, "num_items_in_batch": None, "num_numbers_in_batch": None}
    return inputs, loss.forward(**inputs)  # type: ignore[return-value]  # does not call hooks
