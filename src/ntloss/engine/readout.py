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
    "torch.func (grad, hessian) with NTLCrossEntropyLoss"
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
    mean_logit: Tensor  # `[positions]`, mean over the vocabulary; zeros unless selected

    @classmethod
    def from_number_logits(cls, number_logits: Tensor, log_normalizer: Tensor | None = None) -> Readout:
        """Make a readout for the number term alone; pass the log-normalizer `[...]` if it needs the mass."""
        nothing = number_logits.new_zeros(len(number_logits))
        if log_normalizer is None:
            return cls(nothing, nothing, nothing, number_logits, nothing)
        shifted_lse = log_normalizer.reshape(-1).to(number_logits.dtype)
        return cls(nothing, shifted_lse, nothing, number_logits, nothing)


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
# The dtypes of inputs, and those that losses of them are computed in. `torch.promote_types` is an operator.
COMPUTED_IN = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32)
COMPUTED_IN[torch.float64] = torch.float64


class Selection(NamedTuple):
    """What a loss reads of each position's logits, besides the label's logit and the log-sum-exp."""

    token_ids: Tensor  # `[number tokens]`
    transform: Transform = IDENTITY
    mean: bool = False  # also the mean logit, for label smoothing


class Columns(Protocol):
    """The columns of sharded logits that this rank holds: `shards.Shard`."""

    def summarize(self, logits: Tensor, labels: Tensor, selection: Selection) -> Readout:
        """Summarize this rank's columns together with the other ranks, without a graph."""

    def localize(
        self, labels: Tensor, selection: Selection, grads: Sequence[Tensor]
    ) -> tuple[Tensor, Selection, Sequence[Tensor]]:
        """Restrict labels, a selection and the gradients of its readout to this rank's columns."""


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
    is_wide = logits.dtype == COMPUTED_IN[logits.dtype]
    return is_wide and transform.softcap is None and not uses_kernels(logits)


def summarize_logits(
    logits: Tensor, labels: Tensor, selection: Selection, shard: Columns | None = None
) -> Readout:
    """Summarize logits `[..., vocab]`, or with a shard this rank's columns of them, differentiably.

    `labels` are `[positions]`, token ids in the vocabulary, or -1 where ignored. The selection has no
    transform: models transform their logits themselves. This needs one buffer of the logits' size, which
    becomes their gradient; none without a gradient.
    """
    logits = logits.reshape(-1, logits.shape[-1])
    by_operators = logits.device.type != "cpu" and not uses_kernels(logits)
    if shard is None and values_are_hidden() and (by_operators or not torch.compiler.is_compiling()):
        # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
        return summarize_plainly(logits, labels, selection)
    keep = torch.is_grad_enabled() and logits.requires_grad
    arguments = logits, labels, selection.token_ids, selection.mean, keep, shard
    return Readout(*_SummarizeLogits.apply(*arguments))  # type: ignore[no-untyped-call]


def summarize_plainly(
    logits: Tensor, labels: Tensor, selection: Selection, softmax: Tensor | None = None
) -> Readout:
    """Summarize logits by PyTorch's operators; see `summarize_block`."""
    logits = logits.to(COMPUTED_IN[logits.dtype])
    if selection.transform != IDENTITY:
        logits = selection.transform.apply(logits)
    labels = labels.clamp(min=0).unsqueeze(-1)
    label_logit = logits.gather(-1, labels).squeeze(-1)
    number_logits = logits.index_select(-1, selection.token_ids)
    mean_logit = logits.mean(-1) if selection.mean else torch.zeros_like(label_logit)
    # Three ways to one log-sum-exp. Without a buffer for the softmax, the sum of exponentials is taken
    # directly. With one, the softmax is needed for the gradient anyway, and any of its probabilities gives
    # the log-sum-exp without another pass: the label's where the logits are still there to check it, the
    # largest where the softmax overwrites them.
    if softmax is None:
        row_max, shifted_lse = _from_exponentials(logits)
    elif softmax.data_ptr() == logits.data_ptr() or logits.device.type != "cpu":
        row_max = logits.amax(-1)  # before the softmax may overwrite the logits
        shifted_lse = _from_largest_probability(row_max, torch.softmax(logits, -1, out=softmax))
    else:
        torch.softmax(logits, -1, out=softmax)
        row_max, shifted_lse = _from_label_probability(logits, labels, label_logit, softmax)
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
        shard: Columns | None,
    ) -> tuple[Tensor, ...]:
        if shard is not None:
            readout, softmax = shard.summarize(logits, labels, Selection(token_ids, mean=mean)), None
        else:
            summarize = _SUMMARIZE if torch.compiler.is_compiling() else summarize_with_softmax
            *columns, softmax = summarize(logits, labels, token_ids, mean, keep and keeps_softmax(logits))
            readout = Readout(*columns)
        used = (*readout[:2], *([readout.number_logits] if uses_kernels(logits) else []))
        ctx.save_for_backward(logits, softmax, labels, token_ids, *used)
        ctx.mark_non_differentiable(readout.row_max)
        ctx.set_materialize_grads(False)
        ctx.mean, ctx.shard, ctx.softmax_spent = mean, shard, False
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        logits, softmax, labels, token_ids, *used = ctx.saved_tensors
        is_softmax = softmax is not None and softmax.numel() > 0
        if is_softmax and ctx.softmax_spent:  # in an earlier backward pass through a retained graph
            grad = torch.softmax(logits, -1)
        else:
            # `.data`, so that autograd does not reject the change of a saved tensor.
            grad = softmax.data if is_softmax else torch.empty_like(logits)
        ctx.softmax_spent = True
        selection = Selection(token_ids, mean=ctx.mean)
        grads: Sequence[Tensor] = _without_none(given, used[0], len(token_ids))
        if ctx.shard is not None:
            labels, selection, grads = ctx.shard.localize(labels, selection, grads)
        write = _WRITE_GRADIENT if torch.compiler.is_compiling() else write_gradient
        write(grad, logits, labels, *flat(selection), used, list(grads), is_softmax)
        return grad, *[None] * 5


def _without_none(given: Sequence[Tensor | None], row_max: Tensor, numbers: int) -> list[Tensor]:
    """Replace gradients of a readout that are None by zeros."""
    shapes = ((len(row_max),), (len(row_max),), (len(row_max), numbers), (len(row_max),))
    pairs = zip(given, shapes, strict=True)
    return [row_max.new_zeros(shape) if grad is None else grad for grad, shape in pairs]


def flat(selection: Selection) -> tuple[Tensor, float, float | None, bool]:
    """Return the arguments of `write_gradient` that a selection stands for; operators take no records."""
    return selection.token_ids, *selection.transform, selection.mean


def summarize_block(
    logits: Tensor, labels: Tensor, selection: Selection, softmax: Tensor | None = None
) -> Readout:
    """Summarize logits without a graph.

    `softmax` is a buffer for it in float32 or float64, which may be the logits themselves; not for kernels.
    """
    if uses_kernels(logits):
        from ntloss.engine import kernels  # Triton takes long to import

        return Readout(*kernels.summarize(logits, labels, *flat(selection)))
    whole = softmax is not None and selection.transform == IDENTITY  # no copies are needed
    count = len(logits)
    rows = max(1, count if whole else CHUNK // logits.shape[-1])
    if count <= rows:
        return summarize_plainly(logits, labels, selection, softmax)
    parts = []
    for start in range(0, count, rows):
        block = slice(start, start + rows)
        here = None if softmax is None else softmax[block]
        parts.append(summarize_plainly(logits[block], labels[block], selection, here))
    return Readout(*map(torch.cat, zip(*parts, strict=True)))


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
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep_softmax: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summarize logits, and return their softmax too if it is kept."""
    softmax = torch.empty_like(logits) if keep_softmax else None
    readout = summarize_block(logits, labels, Selection(token_ids, mean=mean), softmax)
    return (*readout, logits.new_empty(0) if softmax is None else softmax)


def _shapes_of_readout(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep_softmax: bool
) -> tuple[Tensor, ...]:
    readout = summarize_plainly(logits, labels, Selection(token_ids, mean=mean))
    return (*readout, torch.empty_like(logits) if keep_softmax else logits.new_empty(0))


def write_gradient(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    scale: float,
    softcap: float | None,
    mean: bool,
    readout: Sequence[Tensor],
    grads: Sequence[Tensor],
    is_softmax: bool,
) -> None:
    """Write the gradient of the logits to a buffer `[positions, vocab]`, which may be the logits.

    `readout` are `row_max`, `shifted_lse` and, for kernels, the number logits. Labels, token ids and `grads`,
    the gradients of the readout but for `row_max`, are those of this rank's columns. `is_softmax` says that
    the buffer holds the softmax of the logits.
    """
    if uses_kernels(logits):
        from ntloss.engine import kernels  # Triton takes long to import

        kernels.write(grad, logits, labels, token_ids, scale, softcap, mean, readout, grads)
        return
    labels = labels.clamp(min=0)
    if not is_softmax:  # else the vocabulary is not sharded
        token_ids = token_ids.clamp(min=0)
    transform = Transform(scale, softcap)
    whole = is_softmax and transform == IDENTITY  # no copies are needed
    columns = (grad, logits, labels, *readout[:2], *grads)
    rows = max(1, len(logits) if whole else CHUNK // logits.shape[-1])
    if len(logits) <= rows:
        _write_block(columns, Selection(token_ids, transform, mean), is_softmax)
        return
    for start in range(0, len(logits), rows):
        block = [column[start : start + rows] for column in columns]
        _write_block(block, Selection(token_ids, transform, mean), is_softmax)


def _write_block(columns: Sequence[Tensor], selection: Selection, is_softmax: bool) -> None:
    token_ids, transform, mean = selection
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
    if mean:
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
    "bool mean, Tensor[] readout, Tensor[] grads, bool is_softmax) -> ()",
)
