"""Losses from hidden states and the head's weight, without holding the logits of all tokens.

The head is applied to blocks of tokens. If the loss is a sum over positions, `SumOfBlocks` computes the
gradients in the same pass, because each position's gradient is known up to one common factor: three matrix
products, as with whole logits. Otherwise (one loss per position, or criteria that look at several of them),
`SummarizeHidden` returns the readout of all positions, and its backward pass recomputes the logits in a
fourth product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntloss.engine.readout import (
    COMPUTED_IN,
    NOT_TWICE,
    Readout,
    Selection,
    flat,
    keeps_softmax,
    summarize_block,
    values_are_hidden,
    write_gradient,
)
from ntloss.engine.shards import Shard, local_columns, unwrap_replicated
from ntloss.engine.targets import FLOATS, Targets, given_type
from ntloss.engine.terms import LossTerms

# Number of positions at which a CPU's matrix products reach full speed.
_ROWS_ON_CPU = 512
# Logits that a block on the CPU may always hold, even if that is more than an eighth of all: 64 MiB of
# float32.
LOGITS_ON_CPU = 1 << 24
# On accelerators, the fewest positions of a block, and the most logits: 1 GiB of bfloat16. More positions
# mean fewer passes over the head's gradient.
_ROWS_ON_ACCELERATORS = 256
_LOGITS_ON_ACCELERATORS = 1 << 29


class Head(NamedTuple):
    """A language model's head, which maps hidden states to logits."""

    weight: Tensor  # `[vocab, hidden]`, or this rank's rows of it
    bias: Tensor | None  # `[vocab]`, likewise
    shard: Shard | None  # this rank's part of the vocabulary, or None if it holds all of it

    def summarize(
        self, logits: Tensor, labels: Tensor, selection: Selection, softmax: Tensor | None = None
    ) -> Readout:
        """Summarize a block of logits without a graph; see `readout.summarize_block`."""
        if self.shard is not None:
            readout = self.shard.summarize(logits, labels, selection)
        else:
            readout = summarize_block(logits, labels, selection, softmax)
        if logits.dtype == torch.float16:
            check_overflow(readout.row_max, labels >= 0)
        return readout


def local_head(
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    bias: Tensor | None,
    vocab_size: int,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Head]:
    """Check hidden states and head, and return this rank's part of them, cast as autocast would.

    Raise the errors of `unwrap_replicated`, `local_columns` and `check_head`.
    """
    shard, plain = None, (Tensor, nn.Parameter)
    if type(hidden_states) not in plain:
        hidden_states = unwrap_replicated(hidden_states)
    if group is not None or type(lm_head_weight) not in plain:
        lm_head_weight, shard = local_columns(lm_head_weight, 0, vocab_size, group)
    if bias is not None and type(bias) not in plain:
        bias = local_columns(bias, 0, vocab_size, None)[0]
    check_head(hidden_states, lm_head_weight, bias, vocab_size if shard is None else shard.size)
    device = hidden_states.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden_states, lm_head_weight = hidden_states.to(dtype), lm_head_weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return hidden_states, Head(lm_head_weight, bias, shard)


def check_head(hidden_states: Tensor, lm_head_weight: Tensor, bias: Tensor | None, vocab_size: int) -> None:
    """Check that hidden states, head and bias fit each other and the vocabulary.

    Raise a TypeError for dtypes, a ValueError for shapes and devices.
    """
    parameters = {"lm_head_weight": lm_head_weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in {"hidden_states": hidden_states, **parameters}.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            given = given_type(tensor)
            raise TypeError(
                f"{name}: expected a floating-point tensor, given {given}: cast float8 to bfloat16 or float32"
            )
    if lm_head_weight.dim() != 2 or hidden_states.shape[-1:] != lm_head_weight.shape[-1:]:
        raise ValueError(
            f"lm_head_weight of shape {list(lm_head_weight.shape)} does not fit hidden_states of shape "
            f"{list(hidden_states.shape)}: expected [vocab, hidden] and [..., hidden]"
        )
    if len(lm_head_weight) != vocab_size:
        raise ValueError(
            f"lm_head_weight has {len(lm_head_weight):,} rows, the vocabulary {vocab_size:,} tokens. Models "
            "often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size)."
        )
    if bias is not None and bias.shape != lm_head_weight.shape[:1]:
        raise ValueError(f"bias of shape {list(bias.shape)}: expected [vocab] = [{vocab_size}]")
    device = hidden_states.device
    autocast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    for name, tensor in parameters.items():
        if tensor.dtype != hidden_states.dtype and not autocast:
            found = f"hidden_states are {hidden_states.dtype}, {name} is {tensor.dtype}"
            raise TypeError(f"{found}: cast one of them, or use autocast")
        if tensor.device != device:
            found = f"hidden_states are on {device}, {name} on {tensor.device}"
            raise ValueError(f"{found}: move them to one device")


def check_overflow(largest: Tensor, counted: Tensor) -> None:
    """Raise a ValueError if the largest logit of a `counted` row has overflowed float16; on the CPU only."""
    if largest.device.type == "cpu" and not values_are_hidden() and (largest.isposinf() & counted).any():
        raise ValueError(
            "logits in float16 exceed its largest number, 65,504: expected hidden states and a head in "
            "bfloat16 or float32, or smaller ones"
        )


def rows_for(positions: int, vocab_size: int, device: torch.device) -> int:
    """Return the number of positions in a block.

    On the CPU: at most 512, and at most an eighth of the positions unless 2^24 logits allow more. On
    accelerators: an eighth of the positions, at most 2^29 logits, but at least 256 positions.
    """
    if device.type == "cpu":
        return min(_ROWS_ON_CPU, max(positions // 8, LOGITS_ON_CPU // vocab_size, 1))
    rows = min(positions // 8, _LOGITS_ON_ACCELERATORS // vocab_size)
    return max(rows, _ROWS_ON_ACCELERATORS)


class SumOfBlocks(torch.autograd.Function):
    """The terms of a combined loss, summed over the positions of `hidden`, `rows` of them at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight_of_head: Tensor,
        bias: Tensor | None,
        head: Head,
        selection: Selection,
        rows: int,
        targets: Targets,
        terms_of: Callable[[Readout, Targets], LossTerms],
        grad_enabled: bool,  # always False inside of a Function's forward
    ) -> tuple[Tensor, ...]:
        """Sum the terms, and compute the gradients of the loss."""
        # In float16 the gradients of a mean over many positions underflow, those of large values overflow,
        # and the factor of a GradScaler is not known yet. So each block is scaled to a largest gradient of 1.
        needed = ctx.needs_input_grad if grad_enabled else (False,) * 3
        gradients = _Gradients(hidden, head, selection, needed, scaled=hidden.dtype == torch.float16)
        dtype = COMPUTED_IN[hidden.dtype]
        overwrite = gradients.wanted and head.shard is None and keeps_softmax(hidden, selection.transform)
        sums = [hidden.new_zeros((), dtype=dtype)] * 3  # of loss, ce and ntl
        for block, logits in _blocks(hidden, head, rows):
            here = targets.select(block)
            readout = head.summarize(logits, here.labels, selection, logits if overwrite else None)
            for leaf in (leaves := readout[1:]):  # row_max has no gradient
                leaf.requires_grad_(gradients.wanted)
            with torch.set_grad_enabled(gradients.wanted):
                terms = terms_of(readout, here)
            sums = [total + term.detach() for total, term in zip(sums, terms[:3], strict=True)]
            if gradients.wanted:
                grads = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
                used = *readout[:2], readout.number_logits
                gradients.add(block, logits, here.labels, used, grads, overwrite)
        ctx.dtype = hidden.dtype
        ctx.gradients = gradients.finish()
        ctx.mark_non_differentiable(*sums[1:])
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradients by that of the loss."""
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        if ctx.gradients is None:
            raise RuntimeError(
                "backward was called a second time through a linear loss, which has freed its gradients. "
                "Compute the loss again, or use reduction='none', which recomputes the logits, and reduce it."
            )
        gradients, ctx.gradients = ctx.gradients, None
        grads = (None if grad is None else grad.mul_(grad_loss).to(ctx.dtype) for grad in gradients)
        return *grads, *[None] * 6


class SummarizeHidden(torch.autograd.Function):
    """The `Readout` of the logits of `hidden`, `rows` positions at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight_of_head: Tensor,
        bias: Tensor | None,
        head: Head,
        selection: Selection,
        rows: int,
        labels: Tensor,
    ) -> tuple[Tensor, ...]:
        """Keep the readout alone."""
        parts = [head.summarize(z, labels[block], selection) for block, z in _blocks(hidden, head, rows)]
        readout = Readout(*map(torch.cat, zip(*parts, strict=True)))
        used = *readout[:2], readout.number_logits
        ctx.save_for_backward(hidden, weight_of_head, bias, labels, selection.token_ids, *used)
        ctx.mark_non_differentiable(readout.row_max)
        ctx.transform, ctx.mean, ctx.shard, ctx.rows = *selection[1:], head.shard, rows
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the logits again, and overwrite them with their gradient."""
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        hidden, weight_of_head, bias, labels, token_ids, *readout = ctx.saved_tensors
        head = Head(weight_of_head, bias, ctx.shard)
        selection = Selection(token_ids, ctx.transform, ctx.mean)
        gradients = _Gradients(hidden, head, selection, ctx.needs_input_grad, scaled=False)
        for block, logits in _blocks(hidden, head, ctx.rows):
            of_block, here = ([column[block] for column in columns] for columns in (readout, grads))
            gradients.add(block, logits, labels[block], of_block, here)
        grads_of_inputs = (None if grad is None else grad.to(hidden.dtype) for grad in gradients.finish())
        return *grads_of_inputs, *[None] * 4


def _blocks(hidden: Tensor, head: Head, rows: int) -> Iterator[tuple[slice, Tensor]]:
    # All blocks share one buffer: the caller is done with a block before it takes the next.
    buffer = hidden.new_empty(min(rows, len(hidden)), len(head.weight))
    # At least one block, so that an empty batch has results of the right shapes.
    for start in range(0, max(len(hidden), 1), rows):
        block = slice(start, start + rows)
        inputs = hidden[block]
        logits = buffer[: len(inputs)]
        if head.bias is None:
            torch.mm(inputs, head.weight.t(), out=logits)
        else:
            torch.addmm(head.bias, inputs, head.weight.t(), out=logits)
        yield block, logits


class _Gradients:
    """The needed gradients of hidden states, head and bias, accumulated block by block."""

    def __init__(
        self, hidden: Tensor, head: Head, selection: Selection, needed: Sequence[bool], scaled: bool
    ) -> None:
        self.head = head
        self.selection = selection
        self.inputs = hidden
        self.scaled = scaled
        self.wanted = any(needed[:3])
        # float32 or float64 for the head's gradients, which are sums over blocks, and for scaled blocks.
        dtype = COMPUTED_IN[hidden.dtype]
        self.hidden = torch.empty_like(hidden, dtype=dtype if scaled else None) if needed[0] else None
        self.weight = torch.zeros_like(head.weight, dtype=dtype) if needed[1] else None
        bias = head.bias if needed[2] else None
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=dtype)

    def add(
        self,
        block: slice,
        logits: Tensor,
        labels: Tensor,
        readout: Sequence[Tensor],
        grads: Sequence[Tensor],
        is_softmax: bool = False,
    ) -> None:
        """Accumulate a block; its logits, or their softmax, are overwritten by their gradient."""
        scale = None
        if self.scaled:
            scale = torch.cat([grad.flatten() for grad in grads] + [grads[0].new_zeros(1)]).abs().amax()
            scale = torch.where(scale == 0, 1.0, scale)
            grads = [grad / scale for grad in grads]
        selection = self.selection
        if self.head.shard is not None:
            labels, selection, grads = self.head.shard.localize(labels, selection, grads)
        write_gradient(logits, logits, labels, *flat(selection), list(readout), list(grads), is_softmax)
        if self.hidden is not None:
            if scale is None:
                torch.mm(logits, self.head.weight, out=self.hidden[block])
            else:
                self.hidden[block] = _scaled(logits @ self.head.weight, scale)
        if self.weight is not None:
            if self.weight.dtype == logits.dtype:
                self.weight.addmm_(logits.t(), self.inputs[block])
            else:
                self.weight.add_(_scaled(logits.t() @ self.inputs[block], scale))
        if self.bias is not None:
            self.bias.add_(_scaled(logits.sum(0, dtype=self.bias.dtype), scale))

    def finish(self) -> list[Tensor | None]:
        """Return the gradients in their accumulation dtypes, summed over ranks."""
        if self.hidden is not None and self.head.shard is not None:
            # Each rank has used its own rows of the head only.
            dist.all_reduce(self.hidden, group=self.head.shard.group)
        return [self.hidden, self.weight, self.bias]


def _scaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    return grad if scale is None else grad.to(scale.dtype) * scale
