"""Losses from hidden states and the head's weight: the logits of all tokens are never held.

Tokens go through the head in blocks. Where the loss is a sum over positions, `sum_of_blocks` forms the
gradients in the same pass, because each position's is known but for one common factor: three matrix products,
as with whole logits. Where it is not (one loss for each position, criteria that look at several positions),
`read_hidden` gives the readout of all positions, and its backward pass takes the blocks again: four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.engine.parallel import Shard, read_shard, write_shard_gradient
from ntloss.engine.readout import (
    LogNormalizer,
    Readout,
    Transform,
    compute_dtype,
    read_block,
    refuse_double_backward,
    without_autocast,
    write_gradient,
)
from ntloss.engine.tables import NumberTables
from ntloss.engine.terms import LossTerms, Objective, Positions, position_terms

# Least and most positions in a block.
_ROWS_ON_CPU = (100, 256)
_ROWS_ON_ACCELERATORS = (256, 4096)
# Most logits in a block, in elements.
_LARGEST_BLOCK = 1 << 27


class Head(NamedTuple):
    """A language model's head: what turns hidden states into logits.

    Args:
        weight: `[vocab, hidden]`, or this rank's rows of it.
        bias: `[vocab]`, likewise, or None.
        transform: of the logits.
        shard: which part of the vocabulary this rank holds, or None for all of it.
    """

    weight: Tensor
    bias: Tensor | None
    transform: Transform
    shard: Shard | None

    def under_autocast(self, hidden: Tensor) -> tuple[Tensor, Head]:
        """Hidden states and head in the dtype that autocast, if it is on, would give a linear layer."""
        device = hidden.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return hidden, self
        dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(dtype)
        return hidden.to(dtype), self._replace(weight=self.weight.to(dtype), bias=bias)

    def read(self, logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, overwrite: bool) -> Readout:
        """Read a block's logits without a graph; with `overwrite` their softmax takes their place."""
        arguments = (logits, labels, token_ids, self.transform, mean, logits if overwrite else None)
        return read_block(*arguments) if self.shard is None else read_shard(*arguments, self.shard)

    def write_gradient(
        self,
        logits: Tensor,
        is_softmax: bool,
        labels: Tensor,
        token_ids: Tensor,
        log_normalizer: LogNormalizer,
        grads: tuple[Tensor, ...],
    ) -> None:
        """Put the gradient of a block's logits in their (or their softmax's) place."""
        arguments = (logits, is_softmax, logits, labels, token_ids, *log_normalizer)
        if self.shard is None:
            write_gradient(*arguments, *self.transform, *grads)
        else:
            write_shard_gradient(*arguments, self.transform, grads, self.shard)


def rows_for(positions: int, vocab_size: int, device: torch.device) -> int:
    """Positions in a block: a tenth of them, unless that is too few for fast products or too many."""
    least, most = _ROWS_ON_CPU if device.type == "cpu" else _ROWS_ON_ACCELERATORS
    return min(max(positions // 10, least), most, max(least, _LARGEST_BLOCK // vocab_size))


def sum_of_blocks(
    hidden: Tensor,
    head: Head,
    positions: Positions,
    tables: NumberTables,
    objective: Objective,
    weight: float | Tensor,
    rows: int,
) -> LossTerms:
    """Sum over the positions of a combined loss.

    Args:
        hidden: `[positions, hidden]`.
        head: the head.
        positions: of the labels.
        tables: the number tokens.
        objective: what is minimised.
        weight: of the number term.
        rows: positions in a block.

    Returns:
        The terms, scalars.
    """
    hidden, head = head.under_autocast(hidden)
    with without_autocast(hidden.device):
        grad_enabled = torch.is_grad_enabled()  # it never is inside a Function's forward
        terms = _SumOfBlocks.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, head, positions, tables, objective, weight, rows, grad_enabled
        )
    return LossTerms(*terms)


def read_hidden(
    hidden: Tensor, head: Head, labels: Tensor, token_ids: Tensor, mean: bool, rows: int
) -> Readout:
    """Read the logits that hidden states have, differentiably.

    Args:
        hidden: `[positions, hidden]`.
        head: the head.
        labels: `[positions]`, token ids, all inside the vocabulary.
        token_ids: `[number tokens]`.
        mean: also read the mean logit.
        rows: positions in a block.

    Returns:
        The readout.
    """
    hidden, head = head.under_autocast(hidden)
    with without_autocast(hidden.device):
        readout = _ReadHidden.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, head, labels, token_ids, mean, rows
        )
    return Readout(*readout)


class _SumOfBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight_of_head: Tensor,
        bias: Tensor | None,
        head: Head,
        positions: Positions,
        tables: NumberTables,
        objective: Objective,
        weight: float | Tensor,
        rows: int,
        grad_enabled: bool,
    ) -> tuple[Tensor, ...]:
        # float16 has no room for the gradients of a mean over many positions, nor for those of large values,
        # and what scales the loss (a GradScaler) is not known yet: a block's largest becomes 1.
        scaled = hidden.dtype == torch.float16
        needed = ctx.needs_input_grad[:3] if grad_enabled else (False,) * 3
        gradients = _Gradients(hidden, head, needed, scaled)
        # Nothing reads logits again once their softmax is known, unless a soft cap's slope is asked for.
        overwrite = (
            gradients.wanted
            and hidden.dtype == compute_dtype(hidden.dtype)
            and objective.transform.softcap is None
        )
        mean = objective.label_smoothing > 0
        sums = LossTerms(*(hidden.new_zeros((), dtype=compute_dtype(hidden.dtype)) for _ in range(3)))
        for block, logits in _blocks(hidden, head, rows):
            here = positions.select(block)
            readout = head.read(logits, here.labels, tables.token_ids, mean, overwrite)
            leaves = readout[1:]  # all but the level
            for leaf in leaves:
                leaf.requires_grad_(gradients.wanted)
            with torch.set_grad_enabled(gradients.wanted):
                terms = position_terms(readout, here, tables, objective, weight)
                loss = terms.loss.sum()
            for total, part in zip(sums, (loss, terms.ce.sum(), terms.ntl.sum()), strict=True):
                total += part.detach()
            if gradients.wanted:
                grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
                scale = _largest(grads) if scaled else None
                grads = grads if scale is None else tuple(grad / scale for grad in grads)
                log_normalizer = LogNormalizer(readout.level, readout.log_sum.detach())
                head.write_gradient(logits, overwrite, here.labels, tables.token_ids, log_normalizer, grads)
                gradients.add(block, logits, scale)
        ctx.dtype = hidden.dtype
        ctx.gradients = gradients.finish()
        ctx.mark_non_differentiable(sums.ce, sums.ntl)
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        if ctx.gradients is None:
            raise RuntimeError(
                "backward was called a second time through a linear loss, whose gradients are spent. Compute "
                "the loss again; or pass reduction='none', which recomputes logits, and reduce it yourself."
            )
        gradients, ctx.gradients = ctx.gradients, None
        return (
            *(None if grad is None else grad.mul_(grad_loss).to(ctx.dtype) for grad in gradients),
            *[None] * 7,
        )


class _ReadHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight_of_head: Tensor,
        bias: Tensor | None,
        head: Head,
        labels: Tensor,
        token_ids: Tensor,
        mean: bool,
        rows: int,
    ) -> tuple[Tensor, ...]:
        parts = [
            head.read(logits, labels[block], token_ids, mean, overwrite=False)
            for block, logits in _blocks(hidden, head, rows)
        ]
        readout = Readout(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        ctx.save_for_backward(hidden, weight_of_head, bias, labels, token_ids, *readout.log_normalizer)
        ctx.mark_non_differentiable(readout.level)
        ctx.transform, ctx.shard, ctx.rows = head.transform, head.shard, rows
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        hidden, weight_of_head, bias, labels, token_ids, level, log_sum = ctx.saved_tensors
        head = Head(weight_of_head, bias, ctx.transform, ctx.shard)
        gradients = _Gradients(hidden, head, ctx.needs_input_grad[:3], scaled=False)
        for block, logits in _blocks(hidden, head, ctx.rows):
            # The mean logit's gradient is empty where it was not asked for; so is every block of it.
            here = tuple(grad[block] for grad in grads[1:])
            log_normalizer = LogNormalizer(level[block], log_sum[block])
            head.write_gradient(logits, False, labels[block], token_ids, log_normalizer, here)
            gradients.add(block, logits)
        return (
            *(None if grad is None else grad.to(hidden.dtype) for grad in gradients.finish()),
            *[None] * 5,
        )


def _blocks(hidden: Tensor, head: Head, rows: int) -> Iterator[tuple[slice, Tensor]]:
    # One buffer for all: whoever takes a block is done with it before the next.
    buffer = hidden.new_empty(min(rows, len(hidden)), len(head.weight))
    # One block at least, so that a batch without positions has results of the right shapes.
    for start in range(0, max(len(hidden), 1), rows):
        block = slice(start, start + rows)
        inputs = hidden[block]
        logits = buffer[: len(inputs)]
        if head.bias is None:
            torch.mm(inputs, head.weight.t(), out=logits)
        else:
            torch.addmm(head.bias, inputs, head.weight.t(), out=logits)
        yield block, logits


def _largest(grads: tuple[Tensor, ...]) -> Tensor:
    """The largest magnitude, 1 where there is none but zero."""
    largest = torch.cat([grad.flatten() for grad in grads] + [grads[0].new_zeros(1)]).abs().amax()
    return torch.where(largest == 0, 1.0, largest)


class _Gradients:
    """Gradients of hidden states, head and bias, added up block by block; those that are needed."""

    def __init__(self, hidden: Tensor, head: Head, needed: tuple[bool, ...], scaled: bool) -> None:
        self.head = head
        self.inputs = hidden
        self.wanted = any(needed)
        # In float32 at least: those of the head, sums over many blocks, and all where blocks have scales.
        dtype = compute_dtype(hidden.dtype)
        self.hidden = torch.empty_like(hidden, dtype=dtype if scaled else None) if needed[0] else None
        self.weight = torch.zeros_like(head.weight, dtype=dtype) if needed[1] else None
        self.bias = None
        if needed[2] and head.bias is not None:
            self.bias = torch.zeros_like(head.bias, dtype=dtype)

    def add(self, block: slice, grad_logits: Tensor, scale: Tensor | None = None) -> None:
        """Add those of a block, whose logits' gradients were divided by `scale`."""
        if self.hidden is not None:
            if scale is None:
                torch.mm(grad_logits, self.head.weight, out=self.hidden[block])
            else:
                self.hidden[block] = _scaled(grad_logits @ self.head.weight, scale)
        if self.weight is not None:
            if self.weight.dtype == grad_logits.dtype:
                self.weight.addmm_(grad_logits.t(), self.inputs[block])
            else:
                self.weight.add_(_scaled(grad_logits.t() @ self.inputs[block], scale))
        if self.bias is not None:
            self.bias.add_(_scaled(grad_logits.sum(0, dtype=self.bias.dtype), scale))

    def finish(self) -> list[Tensor | None]:
        """The gradients, for the caller to scale and convert."""
        if self.hidden is not None and self.head.shard is not None:
            # Each rank has gone back through its own rows of the head.
            dist.all_reduce(self.hidden, group=self.head.shard.group)
        return [self.hidden, self.weight, self.bias]


def _scaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    return grad if scale is None else grad.to(scale.dtype) * scale
