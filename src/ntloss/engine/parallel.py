"""Readout of logits whose vocabulary is sharded over ranks (tensor parallelism).

Every rank holds some columns of the logits, and all labels. Two all-reduces, none of width V, make the same
small readout on each of them: one of the rows' maxima; one of the sums of exponentials, the label logits and
the number logits, which their owners contribute. Each rank then computes the same loss, and the gradient of
its own columns, without a collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

from ntloss.engine.readout import (
    IDENTITY,
    Readout,
    Transform,
    compute_dtype,
    refuse_double_backward,
    write_gradient,
)


class Shard(NamedTuple):
    """Which part of the vocabulary this rank holds.

    Args:
        start: first token id.
        size: count of tokens.
        vocab_size: count of tokens of all ranks together.
        group: the ranks that hold the vocabulary together.
    """

    start: int
    size: int
    vocab_size: int
    group: dist.ProcessGroup

    @classmethod
    def of(cls, size: int, vocab_size: int, group: dist.ProcessGroup) -> Shard:
        """The part of a rank that holds `size` tokens: ceil(vocab / ranks) each, as DTensor does."""
        world = dist.get_world_size(group)
        each = -(-vocab_size // world)
        if each * (world - 1) >= vocab_size:
            raise ValueError(
                f"shards of {each:,} tokens leave some of {world} ranks without a token of {vocab_size:,}: "
                "expected fewer ranks, or a padded vocabulary"
            )
        start = dist.get_rank(group) * each
        if size != min(each, vocab_size - start):
            raise ValueError(
                f"rank {dist.get_rank(group)} of {dist.get_world_size(group)} holds {size:,} tokens of a "
                f"vocabulary of {vocab_size:,}: expected {min(each, vocab_size - start):,}, shards of "
                f"ceil(vocab / ranks) in the order of ranks. Pass vocab_size=<width of all shards together>, "
                "padding included, where the vocabulary is made."
            )
        return cls(start, size, vocab_size, group)

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Local columns of global token ids, and which of them this rank holds (others get column 0)."""
        local = ids - self.start
        held = (local >= 0) & (local < self.size)
        return torch.where(held, local, 0), held


def local_columns(
    tensor: Tensor, dim: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, dist.ProcessGroup | None]:
    """This rank's part of logits (`dim=-1`) or of a head (`dim=0`), and the group that shares the whole.

    Args:
        tensor: a DTensor, or a plain tensor.
        dim: dimension of the vocabulary.
        group: group of plain tensors that are sharded, None for whole ones.

    Returns:
        The local tensor, and None for the group where the tensor is whole.

    Raises:
        ValueError: a DTensor that is neither replicated nor sharded over the vocabulary alone.
    """
    if not _is_dtensor(tensor):
        return tensor, group
    sharded = [i for i, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if not sharded:
        return tensor.to_local(), None
    if len(sharded) > 1 or not tensor.placements[sharded[0]].is_shard(dim % tensor.ndim):
        raise ValueError(
            f"DTensor with placements {tensor.placements}: expected the vocabulary, dimension "
            f"{dim % tensor.ndim}, to be sharded over one dimension of the mesh, and nothing else. "
            "Redistribute it first."
        )
    return tensor.to_local(), tensor.device_mesh.get_group(sharded[0])


def replicated(tensor: Tensor) -> Tensor:
    """The local tensor of one that every rank holds whole.

    Raises:
        ValueError: a DTensor that is sharded.
    """
    if not _is_dtensor(tensor):
        return tensor
    if not all(placement.is_replicate() for placement in tensor.placements):
        raise ValueError(
            f"DTensor with placements {tensor.placements}: expected hidden states that every rank holds "
            "whole (Replicate). Redistribute them first."
        )
    return tensor.to_local()


_GROUPS_WITH_SAME_LABELS: set[tuple[int, ...]] = set()


def check_same_labels(labels: Tensor, group: dist.ProcessGroup) -> None:
    """Raise unless all ranks of a group hold the same labels; asked at the first call of each group.

    Tensor parallelism shards a head over ranks that see the same batch. FSDP shards it over ranks that see
    others, and the DTensor looks the same.

    Args:
        labels: any shape; it may differ between ranks.
        group: the ranks that hold the vocabulary together.

    Raises:
        ValueError: the labels differ.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    if ranks in _GROUPS_WITH_SAME_LABELS or torch.compiler.is_compiling():
        return
    flat = labels.reshape(-1).to(torch.int64)
    places = torch.arange(1, flat.numel() + 1, device=flat.device)
    sums = torch.stack([flat.sum(), (flat * places).sum(), places.new_tensor(flat.numel())])
    largest = torch.cat([sums, -sums])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    if not torch.equal(largest[:3], -largest[3:]):
        raise ValueError(
            f"the ranks {list(ranks)} share a sharded vocabulary and hold different labels: expected the "
            "same batch on each, as in tensor parallelism. Gather a head that FSDP has sharded first: "
            "weight.full_tensor()."
        )
    _GROUPS_WITH_SAME_LABELS.add(ranks)


def _is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    if type(tensor) in (Tensor, nn.Parameter) or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor  # slow to import, and seldom needed

    return isinstance(tensor, DTensor)


def read_shard(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    transform: Transform,
    mean: bool,
    softmax: Tensor | None,
    shard: Shard,
) -> Readout:
    """Read the rank's columns together with the other ranks; like `readout.read_block`.

    Args:
        logits: `[positions, columns of this rank]`.
        labels: `[positions]`, global token ids.
        token_ids: `[number tokens]`, global.
        transform: of the logits.
        mean: also read the mean logit.
        softmax: where to write the softmax of the rank's columns; or None.
        shard: what this rank holds.

    Returns:
        The readout, the same on every rank.
    """
    part = transform.apply(logits.to(compute_dtype(logits.dtype)))
    highest = part.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=shard.group)
    # A row of -inf everywhere has no maximum to subtract.
    highest = highest.clamp(min=torch.finfo(part.dtype).min)
    exponentials = (part - highest.unsqueeze(-1)).exp_()
    local_labels, held = shard.locate(labels)
    label_logit = torch.where(held, part.gather(-1, local_labels.unsqueeze(-1)).squeeze(-1), 0)
    local_ids, held = shard.locate(token_ids)
    number_logits = torch.where(held, part.index_select(-1, local_ids), 0)
    columns = [exponentials.sum(-1, keepdim=True), label_logit.unsqueeze(-1), number_logits]
    if mean:
        columns.append(part.sum(-1, keepdim=True) / shard.vocab_size)
    together = torch.cat(columns, -1)
    dist.all_reduce(together, group=shard.group)
    total, label_logit, number_logits = together[:, 0], together[:, 1], together[:, 2 : 2 + len(token_ids)]
    if softmax is not None:
        torch.div(exponentials, total.unsqueeze(-1), out=softmax)
    mean_logit = together[:, -1].clone() if mean else part.new_empty(0)
    return Readout(highest, total.log(), label_logit.clone(), number_logits.clone(), mean_logit)


def write_shard_gradient(
    grad: Tensor,
    is_softmax: bool,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    level: Tensor,
    log_sum: Tensor,
    transform: Transform,
    grads: tuple[Tensor, ...],
    shard: Shard,
) -> None:
    """Write the gradient of this rank's columns; like `readout.write_gradient`, with global token ids."""
    grad_log_sum, grad_label_logit, grad_number_logits, grad_mean_logit = grads
    local_labels, held = shard.locate(labels)
    grad_label_logit = torch.where(held, grad_label_logit, 0)
    local_ids, held = shard.locate(token_ids)
    grad_number_logits = torch.where(held, grad_number_logits, 0)
    write_gradient(
        grad,
        is_softmax,
        logits,
        local_labels,
        local_ids,
        level,
        log_sum,
        *transform,
        grad_log_sum,
        grad_label_logit,
        grad_number_logits,
        # write_gradient takes the mean over the columns that it sees.
        grad_mean_logit * (shard.size / shard.vocab_size),
    )


def read_sharded_logits(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    shard: Shard,
    transform: Transform = IDENTITY,
    mean: bool = False,
) -> Readout:
    """Read logits of which each rank holds some columns; differentiable.

    Args:
        logits: `[positions, columns of this rank]`.
        labels: `[positions]`, global token ids.
        token_ids: `[number tokens]`, global.
        shard: what this rank holds.
        transform: of the logits.
        mean: also read the mean logit.

    Returns:
        The readout, the same on every rank.
    """
    return Readout(*_ReadShard.apply(logits, labels, token_ids, shard, transform, mean))  # type: ignore[no-untyped-call]


class _ReadShard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        token_ids: Tensor,
        shard: Shard,
        transform: Transform,
        mean: bool,
    ) -> tuple[Tensor, ...]:
        readout = read_shard(logits, labels, token_ids, transform, mean, None, shard)
        ctx.save_for_backward(logits, labels, token_ids, *readout.log_normalizer)
        ctx.mark_non_differentiable(readout.level)
        ctx.shard, ctx.transform = shard, transform
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        logits, labels, token_ids, level, log_sum = ctx.saved_tensors
        grad = torch.empty_like(logits)
        write_shard_gradient(
            grad, False, logits, labels, token_ids, level, log_sum, ctx.transform, grads[1:], ctx.shard
        )
        return grad, None, None, None, None, None
