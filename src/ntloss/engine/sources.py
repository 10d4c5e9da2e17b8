"""Where logits come from: whole, or as the product of hidden states and a head, in blocks of positions.

`Read` turns a source into its `Readout`; for a product, its backward pass computes the logits again, in a
fourth product. A loss that is a sum over positions needs three, as whole logits do: `differentiate` computes
its gradients while it has the logits of a block, and `WithGradients` keeps them for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.engine.backends import KERNEL_DEVICES, backend_of
from ntloss.engine.readout import (
    COMPUTED_IN,
    Grads,
    Readout,
    Transform,
    Wanted,
    read_plainly,
    values_are_hidden,
)
from ntloss.engine.shards import Shard, local_columns, unwrap_replicated
from ntloss.engine.targets import FLOATS, given_type

# `once_differentiable` raises only if the second backward pass reaches it. `torch.autograd.grad` with respect
# to some inputs may not reach it, and gradient penalties and Hessians would silently lack second derivatives.
NOT_TWICE = (
    "a number-aware loss cannot be differentiated twice: call backward without create_graph=True, or use "
    "torch.func (grad, hessian) with NTLCrossEntropyLoss"
)
# Number of positions at which a CPU's matrix products reach full speed.
_ROWS_ON_CPU = 512
# Logits that a block on the CPU may always hold, even if that is more than an eighth of all: 64 MiB of
# float32.
LOGITS_ON_CPU = 1 << 24
# On accelerators: the fewest and most blocks, between which a block has at most this many logits, 128 MiB of
# bfloat16. The head's gradient is read, written and, in half precision, rounded once a block.
_FEWEST_BLOCKS, _MOST_BLOCKS = 6, 12
_LOGITS_ON_ACCELERATORS = 1 << 26
# The fewest positions of such a block; their number is a multiple of 64, as tiles of matrix products are.
_ROWS_ON_ACCELERATORS, _TILE = 256, 64


class Source(NamedTuple):
    """Logits `[positions, vocab]`, or hidden states and the head that makes logits of them."""

    inputs: Tensor  # logits, or `[positions, hidden]`
    weight: Tensor | None = None  # `[vocab, hidden]`, or this rank's rows of it
    bias: Tensor | None = None  # `[vocab]`, likewise
    rows: int = 0  # positions of a block

    def cast(self) -> Source:
        """Cast a head to the dtype of its inputs."""
        dtype, (inputs, weight, bias, rows) = self.inputs.dtype, self
        weight = None if weight is None else weight.to(dtype)
        return Source(inputs, weight, None if bias is None else bias.to(dtype), rows)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of positions and the logits that the head makes of them, which share one buffer."""
        assert self.weight is not None
        buffer = self.inputs.new_empty(min(self.rows, len(self.inputs)), len(self.weight))
        # At least one block, so that an empty batch has results of the right shapes.
        for start in range(0, max(len(self.inputs), 1), self.rows):
            block = slice(start, start + self.rows)
            inputs, weight = self.inputs[block], self.weight.t()
            logits = buffer[: len(inputs)]
            if self.bias is None:
                torch.mm(inputs, weight, out=logits)
            else:
                torch.addmm(self.bias, inputs, weight, out=logits)
            yield block, logits


class Head(NamedTuple):
    """A head, and how its logits are computed; see `NTLCrossEntropyLoss.from_hidden`."""

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    logit_scale: float = 1.0
    chunk_size: int | None = None


def read(source: Source, labels: Tensor, wanted: Wanted, shard: Shard | None = None) -> Readout:
    """Read the logits of a source, or with a shard this rank's columns of them, differentiably.

    `labels` are `[positions]`, token ids in the vocabulary, or -1 where ignored. Whole logits have no
    transform: models transform them themselves. They need one buffer of their size, which becomes their
    gradient; none without a gradient.
    """
    logits = source.inputs if source.weight is None else None
    if logits is not None and shard is None and values_are_hidden():
        by_operators = logits.device.type not in ("cpu", *KERNEL_DEVICES)
        if by_operators or not torch.compiler.is_compiling():
            # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
            return read_plainly(logits, labels, wanted)
    keep = logits is not None and torch.is_grad_enabled() and logits.requires_grad
    return Readout(*Read.apply(*source, labels, *wanted[:3], shard, keep))  # type: ignore[no-untyped-call]


class Read(torch.autograd.Function):
    """The readout of a source; arguments are flat, so that the compiler can trace them."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rows: int,
        labels: Tensor,
        token_ids: Tensor,
        mean: bool,
        transform: Transform,
        shard: Shard | None,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        """Keep the readout, and the softmax of whole logits if the backend keeps it."""
        wanted = Wanted(token_ids, mean, transform)
        backend = backend_of(inputs.device, shard, weight is None and torch.compiler.is_compiling())
        if weight is None:
            readout = backend.read(inputs, labels, wanted, keep)
        else:
            blocks = Source(inputs, weight, bias, rows).cast().blocks()
            readout = Readout.joined([backend.read(each, labels[block], wanted) for block, each in blocks])
            _check_overflow(inputs, readout.row_max, labels)
        columns = [column for column in readout[:5] if column is not None]
        ctx.save_for_backward(inputs, weight, bias, labels, token_ids, readout.softmax, *columns)
        ctx.mark_non_differentiable(columns[0])
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.mean, ctx.transform, ctx.shard, ctx.softmax_spent = rows, mean, transform, shard, False
        return tuple(columns)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        """Turn the softmax, or logits that are computed again, into the gradient."""
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        inputs, weight, bias, labels, token_ids, softmax, *columns = ctx.saved_tensors
        wanted, known = Wanted(token_ids, ctx.mean, ctx.transform), Readout(*columns)
        pairs = zip(given, columns[1:], strict=True)
        grads = [torch.zeros_like(column) if grad is None else grad for grad, column in pairs]
        if weight is not None:
            source, needed = Source(inputs, weight, bias, ctx.rows), ctx.needs_input_grad[:3]

            def grads_of(block: slice, _: Readout) -> Grads:
                return [grad[block] for grad in grads]

            gradients = differentiate(source, labels, wanted, ctx.shard, needed, grads_of, known)[0]
            cast = zip(gradients, (inputs, weight, bias), strict=True)
            return *(None if grad is None else grad.to(each.dtype) for grad, each in cast), *[None] * 7
        # `.data`, so that autograd does not reject the change of a saved tensor. An earlier backward pass
        # through a retained graph has spent the softmax.
        kept = None if softmax is None or ctx.softmax_spent else softmax.data
        ctx.softmax_spent = True
        grad = torch.empty_like(inputs) if kept is None else kept
        backend = backend_of(inputs.device, ctx.shard, torch.compiler.is_compiling())
        backend.write(grad, inputs, labels, wanted, known._replace(softmax=kept), grads)
        return grad, *[None] * 9


def differentiate(
    source: Source,
    labels: Tensor,
    wanted: Wanted,
    shard: Shard | None,
    needed: Sequence[bool],
    grads_of: Callable[[slice, Readout], Grads],
    known: Readout | None = None,
) -> tuple[list[Tensor | None], Readout]:
    """Compute the needed gradients of hidden states, head and bias, block by block, and the readout.

    The head's gradient is summed in the head's own dtype, in the buffer that is returned: in float32 under
    autocast of float32 weights. In bfloat16 each block rounds it once, so that its error is that of stock
    cross-entropy in as many blocks, 2.5 times that of whole logits with twelve (docs/architecture.md). In
    float16 the sum is in float32.

    Args:
        source: hidden states and head.
        labels, wanted, shard: see `read`.
        needed: which of the three gradients to compute; the others are None.
        grads_of: returns the gradients of the readout in a block, from the block and its readout.
        known: the readout of all positions. Default: each block is read before `grads_of`. This is in a
            forward pass, where the factor of a GradScaler is not known, and without it, the gradients of a
            mean over many positions underflow in float16, and those of large values overflow. So float16
            blocks are scaled to a largest gradient of 1.
    """
    hidden, weight, bias, _ = source
    source = source.cast()
    assert weight is not None
    assert source.weight is not None
    scaled = known is None and hidden.dtype == torch.float16
    of_hidden = of_weight = of_bias = None
    if needed[0]:
        of_hidden = torch.empty_like(hidden, dtype=torch.float32 if scaled else None)
    if needed[1]:
        of_weight = torch.zeros_like(weight, dtype=torch.float32 if weight.dtype == torch.float16 else None)
    if needed[2] and bias is not None:
        of_bias = torch.zeros_like(bias, dtype=COMPUTED_IN[bias.dtype])
    backend, parts = backend_of(hidden.device, shard), []
    for block, logits in source.blocks():  # which are overwritten by their softmax, and by their gradient
        if known is None:
            readout = backend.read(logits, labels[block], wanted, keep=True, overwrite=True)
            parts.append(readout._replace(softmax=None))
        else:
            readout = known.select(block)
        grads, scale = grads_of(block, readout), None
        if scaled:
            scale = torch.cat([grad.flatten() for grad in grads] + [grads[0].new_zeros(1)]).abs().amax()
            scale = torch.where(scale == 0, 1.0, scale)
            grads = [grad / scale for grad in grads]
        backend.write(logits, logits, labels[block], wanted, readout, grads)
        if of_hidden is not None and scale is None:
            torch.mm(logits, source.weight, out=of_hidden[block])
        elif of_hidden is not None:
            of_hidden[block] = _scaled(logits @ source.weight, scale)
        if of_weight is not None and of_weight.dtype == logits.dtype:
            of_weight.addmm_(logits.t(), source.inputs[block])
        elif of_weight is not None:
            of_weight.add_(_scaled(logits.t() @ source.inputs[block], scale))
        if of_bias is not None:
            of_bias.add_(_scaled(logits.sum(0, dtype=of_bias.dtype), scale))
    if of_hidden is not None and shard is not None:  # each rank has used its own rows of the head only
        dist.all_reduce(of_hidden, group=shard.group)
    if known is None:
        known = Readout.joined(parts)
        _check_overflow(hidden, known.row_max, labels)
    return [of_hidden, of_weight, of_bias], known


class WithGradients(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *source: Tensor | None) -> Tensor:
        """Keep the gradients, those of hidden states, head and bias."""
        ctx.gradients, ctx.dtypes = gradients, [None if each is None else each.dtype for each in source]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradients by that of the loss."""
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        if ctx.gradients is None:
            raise RuntimeError(
                "backward was called a second time through a linear loss, which has freed its gradients. "
                "Compute the loss again, or use reduction='none', which recomputes the logits, and reduce it."
            )
        gradients, ctx.gradients = ctx.gradients, None
        pairs = zip(gradients, ctx.dtypes, strict=True)
        return (
            None,
            None,
            *(None if grad is None else grad.mul_(grad_loss).to(dtype) for grad, dtype in pairs),
        )


def read_numbers(source: Source, wanted: Wanted, shard: Shard | None, rows: Tensor | None) -> Readout:
    """Compute the number tokens' logits alone, 0 but for `rows`, if given: a readout for the number term.

    The log-sum-exp is not computed; a constant above that of the number tokens stands for it, because the
    gradient by number logits does not depend on it.
    """
    inputs, token_ids, held = source.inputs, wanted.token_ids, None
    assert source.weight is not None
    if rows is not None:  # with a thousand number tokens, computing all positions would cost more
        inputs = inputs[rows]
    if shard is not None:
        token_ids, held = shard.locate(token_ids)
        token_ids = token_ids.clamp(min=0)
    bias = None if source.bias is None else source.bias[token_ids].to(inputs.dtype)
    logits = F.linear(inputs, source.weight[token_ids].to(inputs.dtype), bias)
    logits = wanted.transform.apply(logits.to(COMPUTED_IN[logits.dtype]))
    if held is not None and shard is not None:
        logits = torch.where(held, logits, 0)
        dist.all_reduce(logits, group=shard.group)
    if rows is not None:
        logits = logits.new_zeros(len(source.inputs), len(token_ids)).index_copy(0, rows, logits)
    highest = logits.amax(-1)
    return Readout(highest, torch.full_like(highest, math.log(len(token_ids)) + 1), highest, logits)


def local_source(
    hidden_states: Tensor, head: Head, vocab_size: int, group: dist.ProcessGroup | None
) -> tuple[Source, Transform, Shard | None]:
    """Check hidden states `[..., hidden]` and head, and return this rank's part, cast as autocast would.

    Raise the errors of `unwrap_replicated`, `local_columns` and `check_head`.
    """
    weight, bias, softcap, scale, chunk_size = head
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size={chunk_size!r}: expected 1 or more tokens, or None")
    transform = Transform(scale, softcap).check()
    shard, plain = None, (Tensor, nn.Parameter)
    if type(hidden_states) not in plain:
        hidden_states = unwrap_replicated(hidden_states)
    if group is not None or type(weight) not in plain:
        weight, shard = local_columns(weight, 0, vocab_size, group)
    if bias is not None and type(bias) not in plain:
        bias = local_columns(bias, 0, vocab_size, None)[0]
    check_head(hidden_states, weight, bias, vocab_size if shard is None else shard.size)
    device = hidden_states.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        hidden_states = hidden_states.to(torch.get_autocast_dtype(device))  # the head is cast to its dtype
    return Source(hidden_states, weight, bias), transform, shard


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


def rows_for(positions: int, vocab_size: int, device: torch.device) -> int:
    """Return the number of positions in a block.

    On the CPU: at most 512, and at most an eighth of the positions unless 2^24 logits allow more. On
    accelerators: a sixth of the positions, less if these are more than 2^26 logits (128 MiB of bfloat16), but
    at least a twelfth and 256.
    """
    if device.type == "cpu":
        return min(_ROWS_ON_CPU, max(positions // 8, LOGITS_ON_CPU // vocab_size, 1))
    rows = min(positions // _FEWEST_BLOCKS, _LOGITS_ON_ACCELERATORS // vocab_size)
    rows = max(rows, positions // _MOST_BLOCKS, _ROWS_ON_ACCELERATORS)
    return -(-rows // _TILE) * _TILE


def _scaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    return grad if scale is None else grad.to(scale.dtype) * scale


def _check_overflow(inputs: Tensor, largest: Tensor, labels: Tensor) -> None:
    """Raise a ValueError if a head in float16 has overflowed at a position that counts; on the CPU only."""
    if inputs.dtype != torch.float16 or inputs.device.type != "cpu" or values_are_hidden():
        return
    if (largest.isposinf() & (labels >= 0)).any():
        raise ValueError(
            "logits in float16 exceed its largest number, 65,504: expected hidden states and a head in "
            "bfloat16 or float32, or smaller ones"
        )
