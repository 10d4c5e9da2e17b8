"""Counts over accumulated micro-batches and ranks, for loops in PyTorch, Lightning and accelerate.

A mean over tokens depends on how a batch is split, unless every part divides by the same count. Cross-entropy
and the number term divide by counts of their own, tokens and number labels, so no rescaling afterwards can
mend both: the counts have to be there before the first micro-batch is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss

Loss = NTLCrossEntropyLoss | NTLLinearCrossEntropyLoss


class Counter(Protocol):
    """What counts labels and numbers of a batch: a loss, or the handle of a number-aware model."""

    def normalizers(self, *args: Any, **inputs: Any) -> tuple[Tensor, Tensor]:
        """`num_items_in_batch` and `num_numbers_in_batch`, scalars."""


def counter_of(loss: Loss) -> NTLCrossEntropyLoss:
    """What counts as a loss does, on the labels' device: a loader's lie on the CPU, the model elsewhere."""
    return NTLCrossEntropyLoss(
        loss.vocabulary, loss.objective.criterion, ignore_index=loss.ignore_index, shift=loss.shift
    )


class CountedBatches:
    """A loader's batches, each with the counts that its loss divides by.

    The counts are those of the whole optimizer step, over `accumulate` micro-batches and all ranks, divided
    by how many these are. So the losses of the micro-batches are to be *averaged* over micro-batches and
    ranks, which Lightning (`accumulate_grad_batches`), accelerate (`gradient_accumulation_steps`) and
    data-parallel wrappers (DDP, FSDP) do anyway, and the gradient is that of one large batch, for
    cross-entropy and for the number term, however many number labels each part holds. In a loop of your own
    divide the loss by `accumulate`. With accelerate say yourself when gradients are synchronised
    (`accelerator.no_sync`): what `accelerator.accumulate` asks is whether the loader is at its end, and this
    one reads a step ahead.

    Args:
        loader: any iterable of batches; on several ranks, of as many on each. Lightning does not give it a
            distributed sampler, as it does for a `DataLoader`.
        loss: says which labels count: a combined loss; or the handle of `make_number_aware`, whose model is
            called with batch and counts, `model(**batch, **counts)`.
        accumulate: micro-batches per optimizer step. The last step of an epoch may have fewer. Default: 1.
        labels: finds in a batch the labels that the loss is given; or a dict of `labels` and the
            `loss_weights` and `sequence_ids` beside them, which count, too. Default: `batch["labels"]`; of a
            handle the whole batch.
        group: process group over which data is split. Default: all; without `torch.distributed` none.

    Raises:
        TypeError: `loss` counts nothing.
        ValueError: `accumulate` is not a whole number of 1 or more; while iterating, a batch without labels.

    Example:
        >>> import torch
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits)
        >>> loader = [{"labels": torch.tensor([3, 4, 11])}, {"labels": torch.tensor([11])}]
        >>> for batch, counts in CountedBatches(loader, loss_fn, accumulate=2):
        ...     logits = torch.zeros(len(batch["labels"]), 12, requires_grad=True)
        ...     loss = loss_fn(logits, batch["labels"], **counts) / 2
        ...     loss.backward()
        >>> {name: count.item() for name, count in counts.items()}  # of 4 tokens and 2 numbers
        {'num_items_in_batch': 2.0, 'num_numbers_in_batch': 1.0}
    """

    def __init__(
        self,
        loader: Iterable[Any],
        loss: Loss | Counter,
        accumulate: int = 1,
        labels: Callable[[Any], Tensor | Mapping[str, Tensor]] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ValueError(
                f"accumulate={accumulate!r}: expected 1 or more micro-batches per optimizer step"
            )
        loss = getattr(loss, "_orig_mod", loss)  # of torch.compile
        if not hasattr(loss, "normalizers"):
            raise TypeError(
                f"{type(loss).__name__} counts no numbers: expected NTLCrossEntropyLoss, "
                "NTLLinearCrossEntropyLoss or the handle that make_number_aware returns"
            )
        self.loader = loader
        self.accumulate = accumulate
        self._counter: Counter
        if isinstance(loss, Loss):
            self._counter, self.labels = counter_of(loss), labels or _labels_of
        else:
            self._counter, self.labels = loss, labels or (lambda batch: batch)
        self.group = group

    def __len__(self) -> int:
        """Count of micro-batches, where the loader knows it."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        batches = iter(self.loader)
        while step := list(itertools.islice(batches, self.accumulate)):
            counts = self._count(step)
            for batch in step:
                yield batch, counts

    def _count(self, step: list[Any]) -> dict[str, Tensor]:
        each = [torch.stack(self._counter.normalizers(**self._inputs(batch))) for batch in step]
        total, parts = torch.stack(each).sum(0), self.accumulate
        if dist.is_available() and dist.is_initialized():
            total = _sum_over_ranks(total, self.group)
            parts *= dist.get_world_size(self.group)
        items, numbers = (total / parts).unbind()
        return {"num_items_in_batch": items, "num_numbers_in_batch": numbers}

    def _inputs(self, batch: Any) -> Mapping[str, Tensor]:
        found = self.labels(batch)
        inputs = found if isinstance(found, Mapping) else {"labels": found}
        if not isinstance(inputs.get("labels"), Tensor):
            names = f" with {sorted(batch)}" if isinstance(batch, Mapping) else ""
            raise ValueError(
                f"no labels found in a batch, a {type(batch).__name__}{names}: expected a tensor in "
                "batch['labels']. Where they are elsewhere, say so: CountedBatches(..., labels=lambda batch: "
                "batch[1])."
            )
        return inputs


def _labels_of(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return batch.get("labels")
    return None if isinstance(batch, (tuple, list)) else batch["labels"]


def _sum_over_ranks(total: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    # Loaders give labels on the CPU, and NCCL speaks with accelerators alone.
    device, accelerator = total.device, torch.accelerator.current_accelerator()
    if f"{device.type}:" not in dist.get_backend_config(group) and accelerator is not None:
        device = accelerator
    shared = total.to(device, copy=True)
    dist.all_reduce(shared, group=group)
    return shared.to(total.device)
