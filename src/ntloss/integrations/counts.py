"""Counts over accumulated micro-batches and ranks, for loops in PyTorch, Lightning and accelerate.

A mean over tokens depends on how a batch is split, unless every part divides by the same count. Cross-entropy
is divided by the count of tokens, the number term by that of number labels. No later rescaling can correct
both, so the counts must be known before the first micro-batch is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
from ntloss.integrations.collator import NUMBER_WEIGHTS

if TYPE_CHECKING:
    from ntloss.integrations.transformers import NumberAwareModel

Loss = NTLCrossEntropyLoss | NTLLinearCrossEntropyLoss


def counter_of(loss: Loss) -> NTLCrossEntropyLoss:
    """Return a loss that counts as `loss` does, but may be on another device: that of a loader's labels."""
    return NTLCrossEntropyLoss(
        loss.vocabulary,
        loss.objective.criterion,
        mode=loss.mode,
        ignore_index=loss.ignore_index,
        shift=loss.shift,
        validate=loss.validate,
    )


class CountedBatches:
    """The batches of a loader, each with the counts that its loss is divided by.

    The counts are those of the whole optimizer step, over `accumulate` micro-batches and all ranks, divided
    by the number of these parts. *Averaging* the losses over micro-batches and ranks then gives the gradient
    of one large batch, for cross-entropy and for the number term, however the number labels are spread.
    Lightning (`accumulate_grad_batches`), accelerate (`gradient_accumulation_steps`) and data-parallel
    wrappers (DDP, FSDP) average by themselves; in your own loop, divide the loss by `accumulate`.

    With accelerate, control the synchronization of gradients yourself (`accelerator.no_sync`):
    `accelerator.accumulate` depends on whether the loader has ended, but `CountedBatches` reads one step
    ahead.

    Args:
        loader: any iterable of batches, with the same number of batches on each rank. Lightning adds a
            distributed sampler to a `DataLoader` only, not to this class.
        loss: a combined loss; or the handle of `make_number_aware`, whose model is called with batch and
            counts, `model(**batch, **counts)`.
        accumulate: micro-batches per optimizer step. The last step of an epoch may have fewer. Default: 1.
        labels: function of a batch that returns its labels, or a dict of `labels` and of the `loss_weights`,
            `sequence_ids` and `number_weights` that the loss is called with. Default: `labels` of the batch,
            and its `number_weights`, if there are any; with a handle, the whole batch.
        group: process group over which data is split. Default: all ranks, if `torch.distributed` is in use.

    Raises:
        TypeError: `loss` has no `normalizers`.
        ValueError: `accumulate` is not an integer of 1 or more; while iterating, a batch without labels.

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
        >>> {name: count.item() for name, count in counts.items()}  # of 4 tokens
        {'num_items_in_batch': 2.0}
    """

    def __init__(
        self,
        loader: Iterable[Any],
        loss: Loss | NumberAwareModel,
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
                f"{type(loss).__name__} does not count numbers: expected NTLCrossEntropyLoss, "
                "NTLLinearCrossEntropyLoss or the handle that make_number_aware returns"
            )
        self.loader = loader
        self.accumulate = accumulate
        self._counter: Any = counter_of(loss) if isinstance(loss, Loss) else loss
        self._normalize_by = (loss if isinstance(loss, Loss) else loss.loss).normalize_by
        self.labels = labels or (_labels_of if isinstance(loss, Loss) else lambda batch: batch)
        self.group = group

    def __len__(self) -> int:
        """Number of micro-batches, if the loader has a length."""
        return len(self.loader)  # type: ignore[arg-type]

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
        by_numbers = self._normalize_by == "numbers"
        return {"num_items_in_batch": items, **({"num_numbers_in_batch": numbers} if by_numbers else {})}

    def _inputs(self, batch: Any) -> Mapping[str, Tensor]:
        found = self.labels(batch)
        inputs = found if isinstance(found, Mapping) else {"labels": found}
        if not isinstance(inputs.get("labels"), Tensor):
            names = f" with {sorted(batch)}" if isinstance(batch, Mapping) else ""
            raise ValueError(
                f"no labels found in a batch, a {type(batch).__name__}{names}: expected a tensor in "
                "batch['labels']. If they are elsewhere: CountedBatches(..., labels=lambda batch: batch[1])."
            )
        return inputs


def _labels_of(batch: Any) -> Any:
    names = ("labels", NUMBER_WEIGHTS)
    return {name: batch.get(name) for name in names} if hasattr(batch, "get") else None


def _sum_over_ranks(total: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    # Labels of a loader are on the CPU, and NCCL supports accelerators only.
    device, accelerator = total.device, torch.accelerator.current_accelerator()
    if f"{device.type}:" not in dist.get_backend_config(group) and accelerator is not None:
        device = accelerator
    shared = total.to(device, copy=True)
    dist.all_reduce(shared, group=group)
    return shared.to(total.device)
