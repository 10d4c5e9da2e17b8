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

    The logsumexp is kept as two terms, `row_max + log_sum_exp`: for large logits it is large, and a single
    float32 would lose the digits that determine a probability. For a logit z,
    `-log p = log_sum_exp + (row_max - z)`. A label's logit serves as the maximum unless it is very unlikely.
    """

    row_max: Tensor  # `[positions]`
    log_sum_exp: Tensor  # `[positions]`, log of the sum of exp(logits - row_max) over the vocabulary
    label_logit: Tensor  # `[positions]`
    number_logits: Tensor  # `[positions, number tokens]`, in the order of the token ids
    mean_logit: Tensor  # `[positions]`, mean over the vocabulary; empty unless requested

    @classmethod
    def from_number_logits(cls, number_logits: Tensor, log_normalizer: Tensor | None = None) -> Readout:
        """Make a readout for the number term alone; pass the log-normalizer `[...]` if it needs the mass."""
        nothing = number_logits.new_empty(0)
        if log_normalizer is None:
            return cls(nothing, nothing, nothing, number_logits, nothing)
        log_sum_exp = log_normalizer.reshape(-1).to(number_logits.dtype)
        return cls(torch.zeros_like(log_sum_exp), log_sum_exp, nothing, number_logits, nothing)


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


class Columns(Protocol):
    """The columns of sharded logits that this rank holds: `shards.Shard`."""

    def summarize(self, logits: Tensor, query: Query) -> Readout:
        """Summarize this rank's columns together with the other ranks, without a graph."""

    def localize(self, query: Query, grads: Sequence[Tensor]) -> tuple[Query, Sequence[Tensor]]:
        """Restrict a query, and the gradients of its readout, to this rank's columns."""


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager that disables autocast on a device."""
    # The compiler of torch 2.7 cannot trace is_autocast_available.
    if not torch.compiler.is_compiling() and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def values_are_hidden() -> bool:
    """Whether tensors have no values that Python could read: under `torch.compile` and `torch.func`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def summarize_logits(
    logits: Tensor, query: Query, inplace: bool = False, shard: Columns | None = None
) -> Readout:
    """Summarize logits `[..., vocab]`, or with a shard this rank's columns of them, differentiably.

    This needs one buffer of the logits' size, which becomes their gradient; none without a gradient or with
    `inplace`, which writes the gradient over the logits (in eager mode only).
    """
    logits = logits.reshape(-1, logits.shape[-1])
    by_operators = logits.device.type != "cpu" and logits.device.type not in KERNEL_DEVICES
    if shard is None and values_are_hidden() and (by_operators or not torch.compiler.is_compiling()):
        # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
        return summarize_plainly(logits, query)
    keep = torch.is_grad_enabled() and logits.requires_grad
    readout = _SummarizeLogits.apply(logits, *query, keep, inplace, shard)  # type: ignore[no-untyped-call]
    return Readout(*readout)


def summarize_plainly(logits: Tensor, query: Query, softmax: Tensor | None = None) -> Readout:
    """Summarize logits by PyTorch's operators; see `summarize_block`."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if query.transform != IDENTITY:
        logits = query.transform.apply(logits)
    labels = query.labels.clamp(min=0)
    label_logit = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    number_logits = logits.index_select(-1, query.token_ids)
    mean_logit = logits.mean(-1) if query.mean else logits.new_empty(0)
    row_max, log_sum_exp = _log_normalizer(logits, labels, label_logit, softmax)
    return Readout(row_max, log_sum_exp, label_logit, number_logits, mean_logit)


class _SummarizeLogits(torch.autograd.Function):
    """Keeps the softmax of the forward pass, and turns it into the gradient in place.

    Kernels and shards keep nothing: kernels read the logits again, which takes no longer than reading a
    softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        token_ids: Tensor,
        transform: Transform,
        mean: bool,
        keep: bool,
        inplace: bool,
        shard: Columns | None,
    ) -> tuple[Tensor, ...]:
        if shard is not None:
            readout, softmax = shard.summarize(logits, Query(labels, token_ids, transform, mean)), None
        else:
            wide = logits.dtype == torch.promote_types(logits.dtype, torch.float32)
            keep_softmax = keep and not inplace and wide and logits.device.type not in KERNEL_DEVICES
            *columns, softmax = summarize_with_softmax(
                logits, labels, token_ids, *transform, mean, keep_softmax
            )
            readout = Readout(*columns)
        ctx.save_for_backward(logits, softmax, labels, token_ids, *readout)
        ctx.mark_non_differentiable(readout.row_max)
        ctx.transform, ctx.inplace, ctx.shard, ctx.softmax_spent = transform, inplace, shard, False
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        logits, softmax, labels, token_ids, *readout = ctx.saved_tensors
        if ctx.inplace and ctx.softmax_spent:
            raise RuntimeError(
                "backward was called a second time, but the first call wrote the gradient over the logits. "
                "Compute the loss again, or omit inplace_backward."
            )
        is_softmax = softmax is not None and softmax.numel() > 0
        if is_softmax and ctx.softmax_spent:  # in an earlier backward pass through a retained graph
            grad = torch.softmax(ctx.transform.apply(logits), -1)
        else:
            # `.data`, so that autograd does not reject the change of a saved tensor.
            grad = softmax.data if is_softmax else logits.data if ctx.inplace else torch.empty_like(logits)
        ctx.softmax_spent = True
        query = Query(labels, token_ids, ctx.transform)
        if ctx.shard is not None:
            query, grads = ctx.shard.localize(query, grads)
        write_gradient(
            grad, logits, query.labels, query.token_ids, *query.transform, readout, list(grads), is_softmax
        )
        return grad, *[None] * 7


def summarize_block(
    logits: Tensor, query: Query, softmax: Tensor | None = None, positions: Tensor | None = None
) -> Readout:
    """Summarize logits without a graph, or only those at some `positions`.

    `softmax` is a buffer for it in float32 or float64, which may be the logits themselves; not for kernels,
    and not with `positions`.
    """
    if logits.device.type in KERNEL_DEVICES and positions is None:
        from ntloss.engine import kernels  # Triton takes long to import

        labels, token_ids, transform, mean = query
        return Readout(*kernels.summarize(logits, labels, token_ids, *transform, mean))
    whole = softmax is not None and query.transform == IDENTITY  # no copies are needed
    count = len(logits if positions is None else positions)
    rows = max(1, count if whole else CHUNK // logits.shape[-1])
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
    """Compute `row_max` and `log_sum_exp`, and the softmax if it has a buffer."""
    if softmax is None:
        # A row that is -inf everywhere has no finite maximum.
        highest = logits.detach().amax(-1).clamp(min=torch.finfo(logits.dtype).min)
        return highest, (logits - highest.unsqueeze(-1)).exp_().sum(-1).log()
    from_highest = softmax.data_ptr() == logits.data_ptr() or logits.device.type != "cpu"
    highest = logits.amax(-1) if from_highest else label_logit
    torch.softmax(logits, -1, out=softmax)  # works row by row, so in place too
    if not from_highest:
        # lse = z_j - log p_j for any j. The label's column is at hand. If its probability is too small, the
        # largest one is used, which takes two more passes. The check does not synchronize on the CPU.
        label_prob = softmax.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        safe = label_prob > SAFE_PROBABILITY
        log_sum_exp = -label_prob.log()
        if bool(safe.all()):
            return label_logit, log_sum_exp
        highest = logits.amax(-1)
    # The softmax of a row of -inf is NaN; its log-normalizer is -inf.
    of_highest = torch.where(highest.isneginf(), 0, -softmax.amax(-1).log_())
    if from_highest:
        return highest, of_highest
    return torch.where(safe, label_logit, highest), torch.where(safe, log_sum_exp, of_highest)


# Custom operators, so that torch.compile calls them unchanged: on the CPU they are faster than the code that
# it generates from the same formulas (benchmarks/losses.py). Their arguments have to be flat.
@torch.library.custom_op("ntloss::summarize_logits", mutates_args=())
def summarize_with_softmax(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    scale: float,
    softcap: float | None,
    mean: bool,
    keep_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summarize logits, and return their softmax too if it is kept."""
    softmax = torch.empty_like(logits) if keep_softmax else None
    readout = summarize_block(logits, Query(labels, token_ids, Transform(scale, softcap), mean), softmax)
    return (*readout, logits.new_empty(0) if softmax is None else softmax)


@summarize_with_softmax.register_fake
def _(logits: Tensor, labels: Tensor, token_ids: Tensor, *options: Any) -> tuple[Tensor, ...]:
    *transform, mean, keep_softmax = options
    readout = summarize_plainly(logits, Query(labels, token_ids, Transform(*transform), mean))
    return (*readout, torch.empty_like(logits) if keep_softmax else logits.new_empty(0))


@torch.library.custom_op(
    "ntloss::write_gradient",
    mutates_args=("grad",),
    schema="(Tensor(a!) grad, Tensor logits, Tensor labels, Tensor token_ids, float scale, float? softcap, "
    "Tensor[] readout, Tensor[] grads, bool is_softmax) -> ()",
)
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

    Query and `grads`, the gradients of the readout but for `row_max`, are those of this rank's columns.
    `is_softmax` says that the buffer holds the softmax of the logits.
    """
    if logits.device.type in KERNEL_DEVICES:
        from ntloss.engine import kernels  # Triton takes long to import

        kernels.write(grad, logits, labels, token_ids, readout, scale, softcap, grads)
        return
    row_max, log_sum_exp = readout[:2]
    grad_log_sum_exp, grad_label_logit, grad_number_logits, grad_mean_logit = grads
    labels, token_ids = labels.clamp(min=0), token_ids.clamp(min=0)
    transform = Transform(scale, softcap)
    whole = is_softmax and transform == IDENTITY  # no copies are needed
    rows = max(1, len(logits) if whole else CHUNK // logits.shape[-1])
    for start in range(0, len(logits), rows):
        block = slice(start, start + rows)
        part = None
        if not is_softmax or softcap is not None:
            part = transform.apply(logits[block].to(log_sum_exp.dtype))
        factor = grad_log_sum_exp[block]
        if part is None or is_softmax:
            work = grad[block]
        else:
            work = (part - row_max[block, None]).exp_()
            factor = factor * torch.exp(-log_sum_exp[block])
        work.mul_(factor.unsqueeze(-1))
        if work.device.type == "cpu":
            # Ignored rows of NaN or infinite logits are zero, but 0 times NaN is NaN. On accelerators the
            # check would synchronize, so they stay NaN, as with F.cross_entropy; the kernels skip them.
            normalizer = row_max[block] + log_sum_exp[block]
            broken = (grad_log_sum_exp[block] == 0) & ~normalizer.isfinite()
            if bool(broken.any()):
                work.masked_fill_(broken.unsqueeze(-1), 0)
        if len(grad_mean_logit):
            work.add_(grad_mean_logit[block, None] / logits.shape[-1])
        work.scatter_add_(-1, labels[block, None], grad_label_logit[block, None])
        work.scatter_add_(-1, token_ids.expand(len(work), -1), grad_number_logits[block])
        if transform != IDENTITY:
            work.mul_(transform.derivative(work if part is None else part))
        if not is_softmax:
            grad[block] = work
