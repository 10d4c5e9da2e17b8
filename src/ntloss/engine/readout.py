"""Second stage: summarize logits of width V in the few quantities that losses need.

Cross-entropy and every criterion are functions of `lse = logsumexp_j z_j`, the label's logit and the number
tokens' logits. So only this file, `linear.py` (hidden states) and `shards.py` (sharded vocabularies) handle
tensors of width V. The gradient of a row of logits is

    dL/dz = dL/dlse * softmax(z) + dL/dz_label at the label + dL/dz_N at the number tokens

so a number loss adds one scalar and a few entries per row to the gradient that cross-entropy writes anyway.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

# Logits that are copied to float32 at a time (4 MiB): few enough to need little memory, and enough to make
# the overhead of an operation negligible.
CHUNK = 1 << 20
# `once_differentiable` raises only if the second backward pass reaches it. `torch.autograd.grad` with respect
# to some inputs may not reach it, and gradient penalties and Hessians would silently lack second derivatives.
NOT_TWICE = (
    "a number-aware loss cannot be differentiated twice: call backward without create_graph=True, or use "
    "torch.func (grad, hessian) with NTLCrossEntropyLoss or NumberTokenLoss"
)
# The logarithm of a larger probability is exact to rounding.
SAFE_PROBABILITY = 1e-20
# Devices whose logits the Triton kernels (kernels.py) read and write, if Triton is installed. Its interpreter
# adds the CPU.
KERNEL_DEVICES: tuple[str, ...] = ()
if importlib.util.find_spec("triton") is not None:
    KERNEL_DEVICES = ("cuda", "xpu", *(["cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else []))


class Readout(NamedTuple):
    """Quantities of each position's logits, in float32 or float64; all but `row_max` are differentiable.

    The logsumexp is kept as two terms, `row_max + shifted_lse`: for large logits it is large, and a single
    float32 would lose the digits that determine a probability. For a logit z,
    `-log p = shifted_lse + (row_max - z)`. A label's logit serves as the maximum unless it is very unlikely.
    """

    row_max: Tensor  # `[positions]`
    shifted_lse: Tensor  # `[positions]`, logsumexp of logits - row_max over the vocabulary
    label_logit: Tensor  # `[positions]`
    number_logits: Tensor  # `[positions, number tokens]`, in the order of the token ids
    mean_logit: Tensor  # `[positions]`, mean over the vocabulary; empty unless requested

    @classmethod
    def from_number_logits(cls, number_logits: Tensor, log_normalizer: Tensor | None = None) -> Readout:
        """Make a readout for the number term alone; pass the log-normalizer `[...]` if it needs the mass."""
        nothing = number_logits.new_empty(0)
        if log_normalizer is None:
            return cls(nothing, nothing, nothing, number_logits, nothing)
        shifted_lse = log_normalizer.reshape(-1).to(number_logits.dtype)
        return cls(torch.zeros_like(shifted_lse), shifted_lse, nothing, number_logits, nothing)


class Transform(NamedTuple):
    """The transform that some heads apply to their logits: `softcap * tanh(scale * z / softcap)`."""

    scale: float = 1.0
    softcap: float | None = None  # no cap

    def check(self) -> Transform:
        """Return the transform; raise a ValueError unless both values are in range."""
        if not 0 < self.scale < math.inf:
            raise ValueError(f"logit_scale={self.scale!r}: expected a number above 0")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ValueError(f"softcap={self.softcap!r}: expected a number above 0, or None")
        return self

    def apply(self, logits: Tensor) -> Tensor:
        """Transform logits of any shape; the identity returns the same tensor."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def derivative(self, transformed: Tensor) -> Tensor | float:
        """Compute the derivative at each logit from the transformed logits."""
        if self.softcap is None:
            return self.scale
        return (1 - (transformed / self.softcap).square()) * self.scale


IDENTITY = Transform()


class Query(NamedTuple):
    """What to read of logits."""

    labels: Tensor  # `[positions]`, token ids in the vocabulary, or -1 where ignored: kernels skip the row
    token_ids: Tensor  # `[number tokens]`
    transform: Transform
    mean: bool = False  # also read the mean logit, for label smoothing


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that losses of inputs in `dtype` are computed in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32  # promote_types is an operator


class Columns(Protocol):
    """The columns of sharded logits that this rank holds: `shards.Shard`."""

    def summarize(self, logits: Tensor, query: Query) -> Readout:
        """Summarize this rank's columns together with the other ranks, without a graph."""

    def localize(self, query: Query, grads: Sequence[Tensor]) -> tuple[Query, Sequence[Tensor]]:
        """Restrict a query, and the gradients of its readout, to this rank's columns."""


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager that disables autocast on a device."""
    # The compiler of torch 2.7 cannot trace these.
    if not torch.compiler.is_compiling() and not (
        torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    ):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def values_are_hidden() -> bool:
    """Whether tensors have no values that Python could read: under `torch.compile` and `torch.func`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def uses_kernels(logits: Tensor) -> bool:
    """Whether the Triton kernels handle logits on this device, or PyTorch's operators."""
    return logits.device.type in KERNEL_DEVICES


def keeps_softmax(logits: Tensor, transform: Transform = IDENTITY) -> bool:
    """Whether a buffer like the logits may hold their softmax, which the gradient is then made of.

    Kernels read the logits again, which takes no longer than reading a softmax. In half precision, the
    softmax would be rounded. The slope of a soft cap needs the logits.
    """
    is_wide = logits.dtype == compute_dtype(logits.dtype)
    return is_wide and transform.softcap is None and not uses_kernels(logits)


def summarize_logits(
    logits: Tensor, query: Query, inplace: bool = False, shard: Columns | None = None
) -> Readout:
    """Summarize logits `[..., vocab]`, or with a shard this rank's columns of them, differentiably.

    The query has no transform: models transform their logits themselves. This needs one buffer of the
    logits' size, which becomes their gradient; none without a gradient or with `inplace`, which writes the
    gradient over the logits (in eager mode only).
    """
    logits = logits.reshape(-1, logits.shape[-1])
    by_operators = logits.device.type != "cpu" and not uses_kernels(logits)
    if shard is None and values_are_hidden() and (by_operators or not torch.compiler.is_compiling()):
        # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
        return summarize_plainly(logits, query)
    keep = torch.is_grad_enabled() and logits.requires_grad
    further = query.mean, keep, inplace, shard
    readout = _SummarizeLogits.apply(logits, *query[:2], *further)  # type: ignore[no-untyped-call]
    return Readout(*readout)


def summarize_plainly(logits: Tensor, query: Query, softmax: Tensor | None = None) -> Readout:
    """Summarize logits by PyTorch's operators; see `summarize_block`."""
    logits = logits.to(compute_dtype(logits.dtype))
    if query.transform != IDENTITY:
        logits = query.transform.apply(logits)
    labels = query.labels.clamp(min=0).unsqueeze(-1)
    label_logit = logits.gather(-1, labels).squeeze(-1)
    number_logits = logits.index_select(-1, query.token_ids)
    mean_logit = logits.mean(-1) if query.mean else logits.new_empty(0)
    row_max, shifted_lse = _log_normalizer(logits, labels, label_logit, softmax)
    return Readout(row_max, shifted_lse, label_logit, number_logits, mean_logit)


class _SummarizeLogits(torch.autograd.Function):
    """Turns the softmax of the forward pass, if one is kept, into the gradient in place."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        token_ids: Tensor,
        mean: bool,
        keep: bool,
        inplace: bool,
        shard: Columns | None,
    ) -> tuple[Tensor, ...]:
        if shard is not None:
            readout, softmax = shard.summarize(logits, Query(labels, token_ids, IDENTITY, mean)), None
        else:
            keep = keep and not inplace and keeps_softmax(logits)
            summarize = _SUMMARIZE if torch.compiler.is_compiling() else summarize_with_softmax
            *columns, softmax = summarize(logits, labels, token_ids, mean, keep)
            readout = Readout(*columns)
        used = used_by_gradient(readout)[: 3 if uses_kernels(logits) else 2]
        ctx.save_for_backward(logits, softmax, labels, token_ids, *used)
        ctx.mark_non_differentiable(readout.row_max)
        ctx.set_materialize_grads(False)
        ctx.inplace, ctx.shard, ctx.softmax_spent = inplace, shard, False
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        logits, softmax, labels, token_ids, *used = ctx.saved_tensors
        if ctx.inplace and ctx.softmax_spent:
            raise RuntimeError(
                "backward was called a second time, but the first call wrote the gradient over the logits. "
                "Compute the loss again, or omit inplace_backward."
            )
        is_softmax = softmax is not None and softmax.numel() > 0
        if is_softmax and ctx.softmax_spent:  # in an earlier backward pass through a retained graph
            grad = torch.softmax(logits, -1)
        else:
            # `.data`, so that autograd does not reject the change of a saved tensor.
            grad = softmax.data if is_softmax else logits.data if ctx.inplace else torch.empty_like(logits)
        ctx.softmax_spent = True
        query, write = Query(labels, token_ids, IDENTITY), write_gradient
        if torch.compiler.is_compiling():
            write = _WRITE_GRADIENT
        grads: Sequence[Tensor] = grads_of_readout(given, used[0], len(token_ids))
        if ctx.shard is not None:
            query, grads = ctx.shard.localize(query, grads)
        write(grad, logits, *query[:2], *query.transform, used, list(grads), is_softmax)
        return grad, *[None] * 6


def used_by_gradient(readout: Readout) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `write_gradient` needs of a readout."""
    return readout.row_max, readout.shifted_lse, readout.number_logits


def grads_of_readout(given: Sequence[Tensor | None], row_max: Tensor, numbers: int) -> list[Tensor]:
    """Replace gradients of a readout that are None by zeros; that of the mean logit stays empty."""
    shapes = ((len(row_max),), (len(row_max),), (len(row_max), numbers), (0,))
    pairs = zip(given, shapes, strict=True)
    return [row_max.new_zeros(shape) if grad is None else grad for grad, shape in pairs]


def summarize_block(
    logits: Tensor, query: Query, softmax: Tensor | None = None, positions: Tensor | None = None
) -> Readout:
    """Summarize logits without a graph, or only those at some `positions`.

    `softmax` is a buffer for it in float32 or float64, which may be the logits themselves; not for kernels,
    and not with `positions`.
    """
    if uses_kernels(logits) and positions is None:
        from ntloss.engine import kernels  # Triton takes long to import

        labels, token_ids, transform, mean = query
        return Readout(*kernels.summarize(logits, labels, token_ids, *transform, mean))
    whole = softmax is not None and query.transform == IDENTITY  # no copies are needed
    count = len(logits if positions is None else positions)
    rows = max(1, count if whole else CHUNK // logits.shape[-1])
    if positions is None and count <= rows:
        return summarize_plainly(logits, query, softmax)
    parts = []
    for start in range(0, max(count, 1), rows):
        block: slice | Tensor = slice(start, start + rows)
        if positions is not None:
            block = positions[block]
        here = None if softmax is None else softmax[block]
        parts.append(summarize_plainly(logits[block], query._replace(labels=query.labels[block]), here))
    return Readout(*map(torch.cat, zip(*parts, strict=True)))


def _log_normalizer(
    logits: Tensor, labels: Tensor, label_logit: Tensor, softmax: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `row_max` and `shifted_lse`, and the softmax if it has a buffer."""
    if softmax is None:
        return _from_exponentials(logits)
    is_overwritten = softmax.data_ptr() == logits.data_ptr()
    if is_overwritten or logits.device.type != "cpu":
        highest = logits.amax(-1)  # before the logits may be gone
        return highest, _from_largest_probability(highest, torch.softmax(logits, -1, out=softmax))
    return _from_label_probability(logits, labels, label_logit, torch.softmax(logits, -1, out=softmax))


def _from_exponentials(logits: Tensor) -> tuple[Tensor, Tensor]:
    # A row that is -inf everywhere has no finite maximum.
    highest = logits.detach().amax(-1).clamp(min=torch.finfo(logits.dtype).min)
    return highest, (logits - highest.unsqueeze(-1)).exp_().sum(-1).log()


def _from_largest_probability(highest: Tensor, softmax: Tensor) -> Tensor:
    # The softmax of a row of -inf is NaN; its log-normalizer is -inf.
    return torch.where(highest.isneginf(), 0, -softmax.amax(-1).log_())


def _from_label_probability(
    logits: Tensor, labels: Tensor, label_logit: Tensor, softmax: Tensor
) -> tuple[Tensor, Tensor]:
    # lse = z_j - log p_j for any j, and the label's column is at hand. Where its probability is too small,
    # the largest one is used, which takes two more passes. The check does not synchronize on the CPU.
    label_prob = softmax.gather(-1, labels).squeeze(-1)
    shifted_lse = -label_prob.log()
    if not len(label_prob) or bool(label_prob.amin() > SAFE_PROBABILITY):
        return label_logit.clone(), shifted_lse  # an operator's outputs must not alias
    safe, highest = label_prob > SAFE_PROBABILITY, logits.amax(-1)
    of_highest = _from_largest_probability(highest, softmax)
    return torch.where(safe, label_logit, highest), torch.where(safe, shifted_lse, of_highest)


def summarize_with_softmax(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    mean: bool,
    keep_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summarize logits, and return their softmax too if it is kept."""
    softmax = torch.empty_like(logits) if keep_softmax else None
    readout = summarize_block(logits, Query(labels, token_ids, IDENTITY, mean), softmax)
    return (*readout, logits.new_empty(0) if softmax is None else softmax)


def _shapes_of_readout(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep_softmax: bool
) -> tuple[Tensor, ...]:
    readout = summarize_plainly(logits, Query(labels, token_ids, IDENTITY, mean))
    return (*readout, torch.empty_like(logits) if keep_softmax else logits.new_empty(0))


def write_gradient(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    scale: float,
    softcap: float | None,
    readout: Sequence[Tensor],
    grads: Sequence[Tensor],
    is_softmax: bool,
) -> None:
    """Write the gradient of the logits to a buffer `[positions, vocab]`, which may be the logits.

    `readout` are `row_max`, `shifted_lse` and, for kernels, the number logits. Query
    and `grads`, the gradients of the readout but for `row_max`, are those of this rank's columns.
    `is_softmax` says that the buffer holds the softmax of the logits.
    """
    if uses_kernels(logits):
        from ntloss.engine import kernels  # Triton takes long to import

        kernels.write(grad, logits, labels, token_ids, readout, scale, softcap, grads)
        return
    labels = labels.clamp(min=0)
    if not is_softmax:  # else the vocabulary is not sharded
        token_ids = token_ids.clamp(min=0)
    transform = Transform(scale, softcap)
    whole = is_softmax and transform == IDENTITY  # no copies are needed
    columns = (grad, logits, labels, *readout[:2], *grads)
    rows = max(1, len(logits) if whole else CHUNK // logits.shape[-1])
    if len(logits) <= rows:
        _write_block(columns, token_ids, transform, is_softmax)
        return
    for start in range(0, len(logits), rows):
        # The gradient of the mean logit is empty if it was not read; so are its blocks.
        block = [column[start : start + rows] for column in columns]
        _write_block(block, token_ids, transform, is_softmax)


def _write_block(
    columns: Sequence[Tensor], token_ids: Tensor, transform: Transform, is_softmax: bool
) -> None:
    grad, logits, labels, row_max, shifted_lse, of_lse, of_label, of_numbers, of_mean = columns
    if is_softmax:
        part = work = grad.mul_(of_lse.unsqueeze(-1))
    else:
        part = transform.apply(logits.to(shifted_lse.dtype))
        work = (part - row_max.unsqueeze(-1)).exp_().mul_((of_lse * torch.exp(-shifted_lse)).unsqueeze(-1))
    if work.device.type == "cpu":
        # Ignored rows of NaN or infinite logits are zero, but 0 times NaN is NaN. On accelerators the check
        # would synchronize, so they stay NaN, as with F.cross_entropy; the kernels skip them.
        normalizer = row_max + shifted_lse
        if not math.isfinite(normalizer.sum()):
            work.masked_fill_(((of_lse == 0) & ~normalizer.isfinite()).unsqueeze(-1), 0)
    if len(of_mean):
        work.add_(of_mean.unsqueeze(-1) / logits.shape[-1])
    work.scatter_add_(-1, labels.unsqueeze(-1), of_label.unsqueeze(-1))
    work.scatter_add_(-1, token_ids.expand(len(work), -1), of_numbers)
    if transform != IDENTITY:
        work.mul_(transform.derivative(part))  # with a softmax, there is no soft cap
    if not is_softmax:
        grad.copy_(work)


# Custom operators, so that torch.compile calls these functions unchanged: on the CPU they are faster than the
# code that it generates from the same formulas (benchmarks/losses.py). Their arguments have to be flat. In
# eager mode the functions are called, because calling an operator takes longer.
_SUMMARIZE = torch.library.custom_op("ntloss::summarize_logits", summarize_with_softmax, mutates_args=())
_SUMMARIZE.register_fake(_shapes_of_readout)
_WRITE_GRADIENT = torch.library.custom_op(
    "ntloss::write_gradient",
    write_gradient,
    mutates_args=("grad",),
    schema="(Tensor(a!) grad, Tensor logits, Tensor labels, Tensor token_ids, float scale, float? softcap, "
    "Tensor[] readout, Tensor[] grads, bool is_softmax) -> ()",
)
