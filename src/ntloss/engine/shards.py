"""Vocabularies that are sharded over ranks (tensor parallelism).

Every rank holds some columns of the logits, and all labels. Two small all-reduces give every rank the same
readout: the first reduces the rows' maxima; the second the sums of exponentials, the label logits and the
number logits, which their owners contribute. Each rank then computes the same loss, and the gradient of its
own columns, without another collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntloss.engine.readout import Backend, Grads, Readout, Wanted

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Shard(NamedTuple):
    """This rank's part of a sharded vocabulary."""

    start: int  # first token id
    size: int  # number of tokens on this rank
    vocab_size: int  # number of tokens on all ranks
    group: dist.ProcessGroup  # over which the vocabulary is sharded

    @classmethod
    def of(cls, size: int, vocab_size: int, group: dist.ProcessGroup) -> Shard:
        """Make the shard of a rank with `size` tokens.

        As in DTensor, each rank has ceil(vocab / ranks) tokens, the last one the rest. Raise a ValueError if
        `size` is another number, or if a rank would have no token.
        """
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        each = -(-vocab_size // world)
        if each * (world - 1) >= vocab_size or size != min(each, vocab_size - rank * each):
            raise ValueError(
                f"rank {rank} of {world} holds {size:,} tokens of a vocabulary of {vocab_size:,}: expected "
                f"shards of {each:,} in the order of ranks, the last one with the rest, none of them empty. "
                "Make the vocabulary with vocab_size=<total width of the shards, padding included>."
            )
        return cls(rank * each, size, vocab_size, group)

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of token ids, -1 for those of other ranks, and whether this rank holds them."""
        local = ids - self.start
        held = (local >= 0) & (local < self.size)
        return torch.where(held, local, -1), held


class Sharded(NamedTuple):
    """A backend on this rank's columns of sharded logits: the same readout on every rank."""

    inner: Backend
    shard: Shard

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """See `Backend.read`; no softmax is kept, because it would be that of this rank's columns."""
        shard = self.shard
        local_labels, label_held = shard.locate(labels)
        token_ids, ids_held = shard.locate(wanted.token_ids)
        local_labels = local_labels.where(label_held | (labels < 0), 0)
        local = self.inner.read(logits, local_labels, wanted._replace(token_ids=token_ids.clamp(min=0)))
        highest = local.row_max.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=shard.group)
        total = ((local.row_max - highest) + local.shifted_lse).exp()
        of_rows = [total, torch.where(label_held, local.label_logit, 0)]
        if local.mean_logit is not None:
            of_rows.append(local.mean_logit * (shard.size / shard.vocab_size))
        together = torch.cat([torch.stack(of_rows, -1), torch.where(ids_held, local.number_logits, 0)], -1)
        dist.all_reduce(together, group=shard.group)
        total, label_logit, *means = (together[:, column].clone() for column in range(len(of_rows)))
        return Readout(highest, total.log(), label_logit, together[:, len(of_rows) :].clone(), *means)

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """See `Backend.write`; ids of other ranks become -1, with a gradient of zero."""
        of_lse, of_label, of_numbers, *of_mean = grads
        labels, label_held = self.shard.locate(labels)
        token_ids, ids_held = self.shard.locate(wanted.token_ids)
        held = [torch.where(label_held, of_label, 0), torch.where(ids_held, of_numbers, 0)]
        # The gradient of the mean is divided by the number of columns on this rank.
        of_mean = [each * (self.shard.size / self.shard.vocab_size) for each in of_mean]
        wanted = wanted._replace(token_ids=token_ids, in_part=True)
        self.inner.write(grad, logits, labels, wanted, readout, [of_lse, *held, *of_mean])


def local_columns(
    tensor: Tensor, dim: int, vocab_size: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Shard | None]:
    """Return this rank's part of logits or of a head, and its shard (None for the whole vocabulary).

    The vocabulary is dimension `dim`, and `group` that of a plain sharded tensor. Raise a ValueError for a
    DTensor that is sharded otherwise than along the vocabulary, and the errors of `Shard.of`.
    """
    if _is_dtensor(tensor):
        sharded = [i for i, placement in enumerate(tensor.placements) if not placement.is_replicate()]
        if len(sharded) > 1 or not all(tensor.placements[i].is_shard(dim % tensor.ndim) for i in sharded):
            raise ValueError(
                f"DTensor with placements {tensor.placements}: expected the vocabulary, dimension "
                f"{dim % tensor.ndim}, to be sharded over one dimension of the mesh, and nothing else"
            )
        group = tensor.device_mesh.get_group(sharded[0]) if sharded else None
        tensor = tensor.to_local()
    return tensor, None if group is None else Shard.of(tensor.shape[dim], vocab_size, group)


def unwrap_replicated(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor; raise a ValueError if it is sharded."""
    if not _is_dtensor(tensor):
        return tensor
    if not all(placement.is_replicate() for placement in tensor.placements):
        raise ValueError(
            f"DTensor with placements {tensor.placements}: expected replicated hidden states (Replicate)"
        )
    return tensor.to_local()


_GROUPS_WITH_SAME_LABELS: set[tuple[int, ...]] = set()


def check_same_labels(labels: Tensor, group: dist.ProcessGroup) -> None:
    """Raise a ValueError unless all ranks of a group have the same labels; checked once for each group.

    Tensor parallelism shards a head over ranks with the same batch, FSDP over ranks with different batches;
    the DTensors look the same.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    if ranks in _GROUPS_WITH_SAME_LABELS or torch.compiler.is_compiling():
        return
    flat = labels.reshape(-1).to(torch.int64)
    positions = torch.arange(1, flat.numel() + 1, device=flat.device)
    sums = torch.stack([flat.sum(), (flat * positions).sum(), positions.new_tensor(flat.numel())])
    largest = torch.cat([sums, -sums])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    if not torch.equal(largest[:3], -largest[3:]):
        raise ValueError(
            f"ranks {list(ranks)} share a sharded vocabulary but hold different labels: expected the same "
            "batch on each, as in tensor parallelism. If FSDP has sharded the head, gather it first: "
            "weight.full_tensor()."
        )
    _GROUPS_WITH_SAME_LABELS.add(ranks)


def _is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    if type(tensor) in (Tensor, nn.Parameter) or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor  # slow to import, rarely needed

    return isinstance(tensor, DTensor)
