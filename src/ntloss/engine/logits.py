"""Reads whole logits: PyTorch's operators, and the choice between them and the kernels of a device."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ntloss.engine.readout import COMPUTED_IN, Backend, Grads, Readout, Wanted
from ntloss.engine.shards import Shard, Sharded

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
            return Readout.joined([read_plainly(logits[piece], labels[piece], wanted) for piece in pieces])
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


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager that disables autocast on a device."""
    # The compiler of torch 2.7 cannot trace these.
    if not torch.compiler.is_compiling() and not (
        torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    ):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
