"""Second stage: reads whole logits, or the product of hidden states and a head, and writes their gradients.

A product is read in blocks of positions, which are never whole. The backward pass of `read_product` computes
the logits again, in a fourth product. A loss that is a sum over positions needs three, as whole logits do:
`differentiate` computes its gradients while it has the logits of a block, and `WithGradients` keeps them for
the backward pass.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.engine.readout import COMPUTED_IN, Backend, Grads, Readout, Wanted, given_type
from ntloss.engine.shards import Shard, Sharded, local_columns, unwrap_replicated

# `once_differentiable` raises only if the second backward pass reaches it. `torch.autograd.grad` with respect
# to some inputs may not reach it, and gradient penalties and Hessians would silently lack second derivatives.
NOT_TWICE = (
    "a number-aware loss cannot be differentiated twice: call backward without create_graph=True, or use "
    "torch.func (grad, hessian) with NTLCrossEntropyLoss"
)
# Logits that are copied to float32 at a time (4 MiB): few enough to need little memory, and enough to make
# the overhead of an operation negligible.
CHUNK = 1 << 20
# The logarithm of a larger probability is exact to rounding.
SAFE_PROBABILITY = 1e-20
# Devices whose logits the Triton kernels (kernels.py) read and write, if Triton is installed. Its interpreter
# adds the CPU.
KERNEL_DEVICES: tuple[str, ...] = ()
if importlib.util.find_spec("triton") is not None:
    KERNEL_DEVICES = ("cuda", "xpu", *(["cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else []))
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


def read(logits: Tensor, labels: Tensor, wanted: Wanted, shard: Shard | None = None) -> Readout:
    """Read logits `[positions, vocab]`, or with a shard this rank's columns of them, differentiably.

    `labels` are `[positions]`, token ids in the vocabulary, or -1 where ignored. Whole logits have no
    transform: models transform them themselves. They need one buffer of their size, which becomes their
    gradient; none without a gradient.
    """
    plainly = torch.compiler.is_compiling() and logits.device.type not in ("cpu", *KERNEL_DEVICES)
    if not torch.compiler.is_compiling():
        plainly = torch._C._are_functorch_transforms_active()
    if shard is None and plainly:
        # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
        return read_plainly(logits, labels, wanted)
    keep = torch.is_grad_enabled() and logits.requires_grad
    return Readout(*_Read.apply(logits, labels, *wanted[:2], shard, keep))  # type: ignore[no-untyped-call]


class _Read(torch.autograd.Function):
    """The readout of whole logits; arguments are flat, so that the compiler can trace them."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        token_ids: Tensor,
        mean: bool,
        shard: Shard | None,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        backend = backend_of(logits.device, shard, torch.compiler.is_compiling())
        readout = backend.read(logits, labels, Wanted(token_ids, mean), keep)
        columns = [column for column in readout[:5] if column is not None]
        ctx.save_for_backward(logits, labels, token_ids, readout.softmax, *columns)
        ctx.mark_non_differentiable(columns[0])
        ctx.set_materialize_grads(False)
        ctx.mean, ctx.shard, ctx.softmax_spent = mean, shard, False
        return tuple(columns)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        logits, labels, token_ids, softmax, *columns = ctx.saved_tensors
        # `.data`, so that autograd does not reject the change of a saved tensor. An earlier backward pass
        # through a retained graph has spent the softmax.
        kept = None if softmax is None or ctx.softmax_spent else softmax.data
        ctx.softmax_spent = True
        grad = torch.empty_like(logits) if kept is None else kept
        readout = Readout(*columns)._replace(softmax=kept)
        backend = backend_of(logits.device, ctx.shard, torch.compiler.is_compiling())
        backend.write(grad, logits, labels, Wanted(token_ids, ctx.mean), readout, filled(given, columns))
        return grad, *[None] * 5


def filled(grads: Sequence[Tensor | None], columns: Sequence[Tensor]) -> list[Tensor]:
    """Put zeros in place of missing gradients of the columns of a readout after `row_max`."""
    pairs = zip(grads, columns[1:], strict=True)
    return [torch.zeros_like(column) if grad is None else grad for grad, column in pairs]


def backend_of(device: torch.device, shard: Shard | None = None, traced: bool = False) -> Backend:
    """Return what reads logits on a device, or a shard's columns; `traced` says that a compiler traces it."""
    backend: Backend = CustomOperators() if traced else Operators()
    if not traced and device.type in KERNEL_DEVICES:
        from ntloss.engine.kernels import Kernels  # Triton takes long to import

        backend = Kernels()
    return backend if shard is None else Sharded(backend, shard)


def _joined(parts: Sequence[Readout]) -> Readout:
    """Join the readouts of consecutive positions, without their softmax."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part[:5] for part in parts), strict=True)
    return Readout(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]


def read_plainly(logits: Tensor, labels: Tensor, wanted: Wanted) -> Readout:
    """Read logits by differentiable operators."""
    logits = wanted.transform.apply(logits.to(COMPUTED_IN[logits.dtype]))
    # A row that is -inf everywhere has no finite maximum.
    highest = logits.detach().amax(-1).clamp(min=torch.finfo(logits.dtype).min)
    shifted_lse = (logits - highest.unsqueeze(-1)).exp_().sum(-1).log()
    number_logits = logits.index_select(-1, wanted.token_ids)
    label_logit = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return Readout(highest, shifted_lse, label_logit, number_logits, logits.mean(-1) if wanted.mean else None)


class Operators:
    """PyTorch's operators, in float32 copies of a few rows at a time unless the logits have that dtype.

    The softmax of such logits is kept, which the gradient is then made of. Half precision would round it, and
    the slope of a soft cap needs the logits.
    """

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """See `Backend.read`."""
        scale, softcap = wanted.transform
        if not keep or softcap is not None or logits.dtype != COMPUTED_IN[logits.dtype]:
            pieces = _pieces(logits)
            return _joined([read_plainly(logits[piece], labels[piece], wanted) for piece in pieces])
        if scale != 1.0:
            logits = torch.mul(logits, scale, out=logits if overwrite else None)
        columns = labels.clamp(min=0).unsqueeze(-1)
        number_logits = logits.index_select(-1, wanted.token_ids)
        mean_logit = logits.mean(-1) if wanted.mean else None
        label_logit = logits.gather(-1, columns).squeeze(-1)
        on_cpu = logits.device.type == "cpu"
        highest = logits.amax(-1) if overwrite or not on_cpu else None
        softmax = torch.softmax(logits, -1, out=logits if overwrite else None)
        # lse = z_j - log p_j for any j, and the label's column is at hand. Where its probability is too
        # small, the largest one is used, which takes more passes. The check does not synchronize on the CPU.
        label_prob = softmax.gather(-1, columns).squeeze(-1)
        row_max, shifted_lse = label_logit.detach(), label_prob.log().neg_()
        if not on_cpu or (len(label_prob) and not label_prob.amin().item() > SAFE_PROBABILITY):
            is_safe = label_prob > SAFE_PROBABILITY
            highest = logits.amax(-1) if highest is None else highest
            # The softmax of a row of -inf is NaN; its log-normalizer is -inf.
            of_highest = torch.where(highest.isneginf(), -torch.inf, -softmax.amax(-1).log_())
            row_max = torch.where(is_safe, row_max, highest)
            shifted_lse = torch.where(is_safe, shifted_lse, of_highest)
        return Readout(row_max, shifted_lse, label_logit, number_logits, mean_logit, softmax)

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """See `Backend.write`."""
        transform, of_softmax = wanted.transform, readout.softmax is not None
        labels = labels.clamp(min=0).unsqueeze(-1)
        token_ids = wanted.token_ids.clamp(min=0) if wanted.in_part else wanted.token_ids
        for piece in [slice(None)] if of_softmax else _pieces(logits):
            lse, of_lse, of_label, of_numbers = (each[piece] for each in (readout.shifted_lse, *grads[:3]))
            if of_softmax:  # and so without a soft cap
                z = work = grad.mul_(of_lse.unsqueeze(-1))
            else:
                z = transform.apply(logits[piece].to(lse.dtype))
                work = (z - readout.row_max[piece].unsqueeze(-1)).exp_()
                work.mul_((of_lse * torch.exp(-lse)).unsqueeze(-1))
            # Ignored rows of NaN or infinite logits are zero, but 0 times NaN is NaN. On accelerators the
            # check would synchronize, so they stay NaN, as with F.cross_entropy; the kernels skip them.
            if work.device.type == "cpu" and not math.isfinite(lse.sum()):
                work.masked_fill_(((of_lse == 0) & ~lse.isfinite()).unsqueeze(-1), 0)
            if wanted.mean:
                work.add_(grads[3][piece].unsqueeze(-1) / logits.shape[-1])
            work.scatter_add_(-1, labels[piece], of_label.unsqueeze(-1))
            work.scatter_add_(-1, token_ids.expand(len(work), -1), of_numbers)
            if transform != (1.0, None):
                work.mul_(transform.derivative(z))
            if not of_softmax:
                grad[piece].copy_(work)


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Divide positions into pieces whose copies are small; at least one, which an empty batch needs."""
    rows = max(1, CHUNK // logits.shape[-1])
    for start in range(0, max(len(logits), 1), rows):
        yield slice(start, start + rows)


class CustomOperators:
    """The backend in custom operators, which torch.compile calls unchanged.

    On the CPU this is faster than the code that the compiler generates from the same formulas
    (benchmarks/losses.py). In eager mode the backend is called, because calling a custom operator takes
    longer. They take neither records nor a transform, which whole logits do not have.
    """

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """See `Backend.read`."""
        found, count = _READ(logits, labels, wanted.token_ids, wanted.mean, keep), 4 + wanted.mean
        return Readout(*found[:count])._replace(softmax=found[count] if len(found) > count else None)

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """See `Backend.write`."""
        of_softmax, columns = readout.softmax is not None, list(readout[:4])
        _WRITE(grad, logits, labels, wanted.token_ids, wanted.mean, columns, list(grads), of_softmax)


def _read(logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool) -> list[Tensor]:
    row_max, *others = backend_of(logits.device).read(logits, labels, Wanted(token_ids, mean), keep)
    # The maximum may be the label's logit, but an operator's outputs must not alias.
    return [row_max.clone(), *(each for each in others if each is not None)]


def _shapes_of_read(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool
) -> list[Tensor]:
    keeps = keep and logits.dtype == COMPUTED_IN[logits.dtype] and logits.device.type not in KERNEL_DEVICES
    readout = read_plainly(logits, labels, Wanted(token_ids, mean))
    return [*readout[: 4 + mean], *([torch.empty_like(logits)] if keeps else [])]  # type: ignore[list-item]


def _write(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    mean: bool,
    columns: Sequence[Tensor],
    grads: Sequence[Tensor],
    of_softmax: bool,
) -> None:
    wanted = Wanted(token_ids, mean, in_part=True)
    readout = Readout(*columns)._replace(softmax=grad if of_softmax else None)
    backend_of(logits.device).write(grad, logits, labels, wanted, readout, grads)


_READ = torch.library.custom_op(
    "ntloss::read",
    _read,
    mutates_args=(),
    schema="(Tensor logits, Tensor labels, Tensor token_ids, bool mean, bool keep) -> Tensor[]",
)
_READ.register_fake(_shapes_of_read)
_WRITE = torch.library.custom_op(
    "ntloss::write",
    _write,
    mutates_args=("grad",),
    schema="(Tensor(a!) grad, Tensor logits, Tensor labels, Tensor token_ids, bool mean, Tensor[] columns, "
    "Tensor[] grads, bool of_softmax) -> ()",
)


class Product(NamedTuple):
    """Hidden states and the head that makes logits of them."""

    hidden: Tensor  # `[positions, hidden]`
    weight: Tensor  # `[vocab, hidden]`, or this rank's rows of it
    bias: Tensor | None  # `[vocab]`, likewise
    rows: int = 0  # positions of a block

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of positions and their logits, in the dtype of the hidden states and in one buffer."""
        weight = self.weight.to(self.hidden.dtype).t()
        bias = None if self.bias is None else self.bias.to(self.hidden.dtype)
        buffer = self.hidden.new_empty(min(self.rows, len(self.hidden)), len(self.weight))
        # At least one block, so that an empty batch has results of the right shapes.
        for start in range(0, max(len(self.hidden), 1), self.rows):
            block = slice(start, start + self.rows)
            hidden = self.hidden[block]
            logits = buffer[: len(hidden)]
            if bias is None:
                torch.mm(hidden, weight, out=logits)
            else:
                torch.addmm(bias, hidden, weight, out=logits)
            yield block, logits


def read_product(product: Product, labels: Tensor, wanted: Wanted, shard: Shard | None) -> Readout:
    """Read the logits of a product, or with a shard this rank's columns of them, differentiably."""
    return Readout(*_ReadProduct.apply(*product, labels, wanted, shard))  # type: ignore[no-untyped-call]


class _ReadProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: int,
        labels: Tensor,
        wanted: Wanted,
        shard: Shard | None,
    ) -> tuple[Tensor, ...]:
        backend, blocks = backend_of(hidden.device, shard), Product(hidden, weight, bias, rows).blocks()
        readout = _joined([backend.read(each, labels[block], wanted) for block, each in blocks])
        columns = [column for column in readout if column is not None]
        ctx.save_for_backward(hidden, weight, bias, labels, *columns)
        ctx.mark_non_differentiable(columns[0])
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.wanted, ctx.shard = rows, wanted, shard
        return tuple(columns)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        hidden, weight, bias, labels, *columns = ctx.saved_tensors
        product, needed = Product(hidden, weight, bias, ctx.rows), ctx.needs_input_grad[:3]
        grads, known = filled(given, columns), Readout(*columns)
        found = differentiate(product, labels, ctx.wanted, ctx.shard, needed, grads, known)[0]
        cast = zip(found, (hidden, weight, bias), strict=True)
        return *(None if grad is None else grad.to(each.dtype) for grad, each in cast), *[None] * 4


def differentiate(
    product: Product,
    labels: Tensor,
    wanted: Wanted,
    shard: Shard | None,
    needed: Sequence[bool],
    grads: Grads,
    known: Readout | None = None,
) -> tuple[list[Tensor | None], Readout]:
    """Compute the needed gradients of hidden states, head and bias, block by block, and the readout.

    The head's gradient is summed in the head's own dtype, in the buffer that is returned: in float32 under
    autocast of float32 weights. In bfloat16 each block rounds it once, so that its error is that of stock
    cross-entropy in as many blocks, 2.5 times that of whole logits with twelve (docs/architecture.md). In
    float16 the sum is in float32.

    Args:
        product: hidden states and head.
        labels, wanted, shard: see `logits.read`.
        needed: which of the three gradients to compute; the others are None.
        grads: the gradients of the readout of all positions.
        known: that readout. Default: each block is read here. This is in a forward pass, where the factor of
            a GradScaler is not known, and without it, the gradients of a mean over many positions underflow
            in float16, and those of large values overflow. So float16 blocks are scaled to a largest gradient
            of 1.
    """
    hidden, weight, bias, _ = product
    head = weight.to(hidden.dtype)
    scaled = known is None and hidden.dtype == torch.float16
    of_hidden = of_weight = of_bias = None
    if needed[0]:
        of_hidden = torch.empty_like(hidden, dtype=torch.float32 if scaled else None)
    if needed[1]:
        of_weight = torch.zeros_like(weight, dtype=torch.float32 if weight.dtype == torch.float16 else None)
    if needed[2] and bias is not None:
        of_bias = torch.zeros_like(bias, dtype=COMPUTED_IN[bias.dtype])
    backend, parts = backend_of(hidden.device, shard), []
    # Logits are overwritten by their softmax, and by their gradient.
    for block, logits in product._replace(weight=head).blocks():
        if known is None:
            readout = backend.read(logits, labels[block], wanted, keep=True, overwrite=True)
            parts.append(readout._replace(softmax=None))
        else:
            readout = Readout(*(None if column is None else column[block] for column in known))  # type: ignore[arg-type]
        own, scale = [grad[block] for grad in grads], None
        if scaled:
            scale = torch.cat([grad.flatten() for grad in own] + [own[0].new_zeros(1)]).abs().amax()
            scale = torch.where(scale == 0, 1.0, scale)
            own = [grad / scale for grad in own]
        backend.write(logits, logits, labels[block], wanted, readout, own)
        if of_hidden is not None and scale is None:
            torch.mm(logits, head, out=of_hidden[block])
        elif of_hidden is not None:
            of_hidden[block] = _scaled(logits @ head, scale)
        if of_weight is not None and of_weight.dtype == logits.dtype:
            of_weight.addmm_(logits.t(), hidden[block])
        elif of_weight is not None:
            of_weight.add_(_scaled(logits.t() @ hidden[block], scale))
        if of_bias is not None:
            of_bias.add_(_scaled(logits.sum(0, dtype=of_bias.dtype), scale))
    if of_hidden is not None and shard is not None:  # each rank has used its own rows of the head only
        dist.all_reduce(of_hidden, group=shard.group)
    if known is None:
        known = _joined(parts)
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


def read_numbers(product: Product, wanted: Wanted, shard: Shard | None, rows: Tensor | None) -> Readout:
    """Compute the number tokens' logits alone, 0 but for `rows`, if given: a readout for the number term.

    The log-sum-exp is not computed; a constant above that of the number tokens stands for it, because the
    gradient by number logits does not depend on it.
    """
    hidden, token_ids, held = product.hidden, wanted.token_ids, None
    if rows is not None:  # with a thousand number tokens, computing all positions would cost more
        hidden = hidden[rows]
    if shard is not None:
        token_ids, held = shard.locate(token_ids)
        token_ids = token_ids.clamp(min=0)
    bias = None if product.bias is None else product.bias[token_ids].to(hidden.dtype)
    logits = F.linear(hidden, product.weight[token_ids].to(hidden.dtype), bias)
    logits = wanted.transform.apply(logits.to(COMPUTED_IN[logits.dtype]))
    if held is not None and shard is not None:
        logits = torch.where(held, logits, 0)
        dist.all_reduce(logits, group=shard.group)
    if rows is not None:
        logits = logits.new_zeros(len(product.hidden), len(token_ids)).index_copy(0, rows, logits)
    highest = logits.amax(-1)
    return Readout(highest, torch.full_like(highest, math.log(len(token_ids)) + 1), highest, logits)


def local_product(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, vocab_size: int, group: dist.ProcessGroup | None
) -> tuple[Product, Shard | None]:
    """Check hidden states `[..., hidden]` and head, and return this rank's part, cast as autocast would.

    Raise the errors of `unwrap_replicated` and `local_columns`, a TypeError for dtypes and a ValueError for
    shapes that do not fit.
    """
    shard, plain = None, (Tensor, nn.Parameter)
    if type(hidden) not in plain:
        hidden = unwrap_replicated(hidden)
    if group is not None or type(weight) not in plain:
        weight, shard = local_columns(weight, 0, vocab_size, group)
    if bias is not None and type(bias) not in plain:
        bias = local_columns(bias, 0, vocab_size, None)[0]
    given = {"hidden_states": hidden, "lm_head_weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in COMPUTED_IN:
            raise TypeError(
                f"{name}: expected a floating-point tensor, given {given_type(tensor)}: cast float8 to "
                "bfloat16 or float32"
            )
    size = vocab_size if shard is None else shard.size
    if weight.dim() != 2 or weight.shape != (size, *hidden.shape[-1:]):
        raise ValueError(
            f"lm_head_weight of shape {list(weight.shape)} does not fit {size:,} tokens and hidden_states "
            f"of shape {list(hidden.shape)}: expected [vocab, hidden] and [..., hidden]. Models "
            "often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size)."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias of shape {list(bias.shape)}: expected [vocab] = [{size}]")
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))  # the head is cast to its dtype
    elif any(each is not None and each.dtype != hidden.dtype for each in (weight, bias)):
        raise TypeError(
            f"hidden_states are {hidden.dtype}, lm_head_weight {weight.dtype}"
            f"{'' if bias is None else f', bias {bias.dtype}'}: cast them to one dtype, or use autocast"
        )
    return Product(hidden, weight, bias), shard


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
