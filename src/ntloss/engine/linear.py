"""Combined loss from hidden states and the head's weight: the logits of all tokens are never held.

Tokens go through the head in blocks. Where the loss is a sum or a mean, the gradients are formed in the same
pass, because the gradient of each position's loss is known but for one factor: three matrix products, as with
whole logits, and none to recompute logits. For `reduction="none"` the factors are known in the backward pass
alone, which then takes the blocks a second time: four.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntloss.engine.parallel import Shard, read_shard, write_shard_gradient
from ntloss.engine.readout import Readout, compute_dtype, read_block, write_gradient
from ntloss.engine.tables import NumberTables
from ntloss.engine.terms import LossTerms, Objective, Positions, position_terms

# Smallest blocks that keep matrix products efficient.
_LEAST_ROWS = {"cpu": 64}
_LEAST_ROWS_ON_ACCELERATORS = 1024


class Problem(NamedTuple):
    """What the blocks share.

    Args:
        tables: the number tokens.
        objective: what is minimised.
        weight: of the number term.
        rows: positions in a block.
        shard: which part of the vocabulary the head holds, or None for all of it.
    """

    tables: NumberTables
    objective: Objective
    weight: float | Tensor
    rows: int
    shard: Shard | None


def rows_for(positions: int, device: torch.device) -> int:
    """Positions in a block: two buffers of a sixteenth of the logits, unless that is too few for speed."""
    return max(positions // 16, _LEAST_ROWS.get(device.type, _LEAST_ROWS_ON_ACCELERATORS))


def linear_terms(
    hidden: Tensor, head: Tensor, bias: Tensor | None, positions: Positions, problem: Problem
) -> LossTerms:
    """Loss of each position, already multiplied with its factor, or their sum.

    Args:
        hidden: `[positions, hidden]`.
        head: `[vocab, hidden]`, or the rank's part of it.
        bias: `[vocab]`, likewise, or None.
        positions: of the labels.
        problem: the rest.

    Returns:
        Scalars; `[positions]` each for `reduction="none"`.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, head = hidden.to(dtype), head.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    with torch.autocast(device, enabled=False):
        apply = _SumOfBlocks.apply if problem.objective.reduction != "none" else _EachOfBlocks.apply
        grad = torch.is_grad_enabled()
        wanted = tuple(grad and x is not None and x.requires_grad for x in (hidden, head, bias))
        loss, ce, ntl = apply(hidden, head, bias, problem, wanted, *positions)  # type: ignore[no-untyped-call]
    return LossTerms(loss, ce, ntl)


class _SumOfBlocks(torch.autograd.Function):
    """The sum over all positions; its gradients are formed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        problem: Problem,
        wanted: tuple[bool, ...],
        *positions: Tensor,
    ) -> tuple[Tensor, ...]:
        terms, ctx.gradients = _go_through_blocks(
            hidden, head, bias, Positions(*positions), problem, wanted, upstream=None
        )
        loss, ce, ntl = (term.sum() for term in terms)
        ctx.mark_non_differentiable(ce, ntl)
        return loss, ce, ntl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "backward was called a second time through a linear loss, whose gradients are spent. Compute "
                "the loss again; or pass reduction='none', which recomputes logits, and reduce it yourself."
            )
        gradients, ctx.gradients = ctx.gradients, None
        scaled = [None if gradient is None else gradient.mul_(grad_loss) for gradient in gradients]
        return (*scaled, None, None, *[None] * len(Positions._fields))


class _EachOfBlocks(torch.autograd.Function):
    """One loss for each position; the backward pass takes the blocks again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        problem: Problem,
        wanted: tuple[bool, ...],
        *positions: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden, head, bias, *positions)
        ctx.problem, ctx.wanted = problem, wanted
        terms, _ = _go_through_blocks(
            hidden, head, bias, Positions(*positions), problem, (False, False, False), upstream=None
        )
        ctx.mark_non_differentiable(terms.ce, terms.ntl)
        return tuple(terms)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, bias, *positions = ctx.saved_tensors
        _, gradients = _go_through_blocks(
            hidden, head, bias, Positions(*positions), ctx.problem, ctx.wanted, upstream=grad_loss
        )
        return (*gradients, None, None, *[None] * len(Positions._fields))


def _go_through_blocks(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    positions: Positions,
    problem: Problem,
    wanted: tuple[bool, ...],
    upstream: Tensor | None,
) -> tuple[LossTerms, list[Tensor | None]]:
    """Terms of all positions, and the gradients of hidden states, head and bias that are wanted.

    `upstream` `[positions]` is the gradient of each position's loss; None for 1.
    """
    tables, objective, weight, rows, shard = problem
    dtype = compute_dtype(hidden.dtype)
    wants_hidden, wants_head, wants_bias = wanted
    grad_hidden = torch.empty_like(hidden) if wants_hidden else None
    # Summed up over blocks, so in float32 at least.
    grad_head = torch.zeros_like(head, dtype=dtype) if wants_head else None
    grad_bias = torch.zeros_like(bias, dtype=dtype) if wants_bias and bias is not None else None
    terms = LossTerms(*(hidden.new_empty(len(hidden), dtype=dtype) for _ in LossTerms._fields))
    token_ids, mean = tables.token_ids, objective.label_smoothing > 0
    for start in range(0, len(hidden), rows):
        block = slice(start, start + rows)
        here = positions.select(block)
        logits = torch.nn.functional.linear(hidden[block], head, bias)
        keep = any(wanted) and logits.dtype == dtype
        if shard is None:
            *read, softmax = read_block(logits, here.labels, token_ids, *objective.transform, mean, keep)
        else:
            *read, softmax = read_shard(
                logits, here.labels, token_ids, objective.transform, mean, keep, shard
            )
        leaves = [tensor.requires_grad_(any(wanted)) for tensor in read]
        with torch.set_grad_enabled(any(wanted)):
            of_block = position_terms(Readout(*leaves), here, tables, objective, weight)
        for whole, part in zip(terms, of_block, strict=True):
            whole[block] = part.detach()
        if not any(wanted):
            continue
        ones = torch.ones_like(of_block.loss) if upstream is None else upstream[block].to(dtype)
        small = torch.autograd.grad(of_block.loss, leaves, ones, materialize_grads=True)
        grad_logits = softmax if keep else torch.empty_like(logits)
        of_logits = (grad_logits, keep, logits, here.labels, token_ids, leaves[0].detach())
        if shard is None:
            write_gradient(*of_logits, *objective.transform, *small)
        else:
            write_shard_gradient(*of_logits, objective.transform, small, shard)
        if grad_hidden is not None:
            torch.mm(grad_logits, head, out=grad_hidden[block])
        if grad_head is not None:
            if grad_head.dtype == grad_logits.dtype:
                grad_head.addmm_(grad_logits.t(), hidden[block])
            else:
                grad_head.add_(grad_logits.t() @ hidden[block])
        if grad_bias is not None:
            grad_bias.add_(grad_logits.sum(0, dtype=dtype))
    if grad_hidden is not None and shard is not None:
        # Each rank has gone back through its part of the head alone.
        dist.all_reduce(grad_hidden, group=shard.group)
    return terms, [
        grad_hidden,
        None if grad_head is None else grad_head.to(head.dtype),
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    ]
