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
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.autograd import refuse_double_backward

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Logits that are copied to float32 at a time (4 MiB): few enough to need little memory, and enough to make
# the overhead of an operation negligible.
_CHUNK = 1 << 20
# The logarithm of a larger probability is exact to rounding.
_SAFE_PROBABILITY = 1e-20
# Devices whose logits the Triton kernels (kernels.py) read and write, if Triton is installed. Its interpreter
# adds the CPU.
KERNEL_DEVICES: tuple[str, ...] = ()
if importlib.util.find_spec("triton") is not None:
    KERNEL_DEVICES = ("cuda", "xpu", *(["cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else []))


class Readout(NamedTuple):
    """Quantities of each position's logits, in float32 or float64; all but `row_max` are differentiable.

    The logsumexp is kept as two terms, `row_max + log_sum_exp`: for large logits it is large, and a single
    float32 would lose the digits that determine a probability. For a logit z,
    `-log p = log_sum_exp + (row_max - z)`.

    Args:
        row_max: `[positions]`, the row's maximum, or its label's logit, which serves as well unless the label
            is vanishingly unlikely; it has no gradient.
        log_sum_exp: `[positions]`, log of the sum of `exp(logits - row_max)` over the vocabulary.
        label_logit: `[positions]`, logit of the label.
        number_logits: `[positions, number tokens]`, in the order of the token ids.
        mean_logit: `[positions]`, mean over the vocabulary; empty unless requested.
    """

    row_max: Tensor
    log_sum_exp: Tensor
    label_logit: Tensor
    number_logits: Tensor
    mean_logit: Tensor

    @classmethod
    def from_number_logits(cls, number_logits: Tensor, log_normalizer: Tensor | None = None) -> Readout:
        """Make a readout for the number term alone; pass the log-normalizer `[...]` if it needs the mass."""
        nothing = number_logits.new_empty(0)
        if log_normalizer is None:
            return cls(nothing, nothing, nothing, number_logits, nothing)
        log_sum_exp = log_normalizer.reshape(-1).to(number_logits.dtype)
        return cls(torch.zeros_like(log_sum_exp), log_sum_exp, nothing, number_logits, nothing)


class Transform(NamedTuple):
    """The transform that some heads apply to their logits: `softcap * tanh(scale * z / softcap)`.

    Args:
        scale: factor, above 0. Default: 1.
        softcap: bound of the absolute value, above 0. Default: None.
    """

    scale: float = 1.0
    softcap: float | None = None

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


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager that disables autocast on a device."""
    # The compiler of torch 2.7 cannot trace is_autocast_available.
    if not torch.compiler.is_compiling() and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def values_are_hidden() -> bool:
    """Whether tensors have no values that Python could read: under `torch.compile` and `torch.func`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of softmax and sums for inputs of `dtype`: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def check_logits(logits: Tensor, vocab_size: int) -> None:
    """Raise a TypeError unless logits are float16 to float64, a ValueError unless `vocab_size` wide."""
    if not isinstance(logits, Tensor) or logits.dtype not in FLOATS:
        given = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(
            f"logits: expected a floating-point tensor [..., vocab], given {given}: cast float8 logits to "
            "bfloat16 or float32"
        )
    if logits.dim() == 0 or logits.shape[-1] != vocab_size:
        raise ValueError(
            f"logits of shape {list(logits.shape)} do not end in the vocabulary's size, {vocab_size:,}. "
            "Models often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size), or NTLoss(tokenizer, vocab_size=...)."
        )


def summarize_logits(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    transform: Transform = IDENTITY,
    mean: bool = False,
    inplace: bool = False,
) -> Readout:
    """Summarize logits, differentiably.

    Args:
        logits: `[..., vocab]`, any float dtype.
        labels: `[positions]`, token ids, all inside the vocabulary; -1 where ignored, so that the kernels
            skip the row.
        token_ids: `[number tokens]`.
        transform: transform of the logits. Default: none.
        mean: also read the mean logit, for label smoothing.
        inplace: write the gradient over the logits; in eager mode only.

    Returns:
        The readout. It needs one buffer of the logits' size, which becomes their gradient; none with
        `inplace` or without a gradient.
    """
    logits = logits.reshape(-1, logits.shape[-1])
    by_operators = logits.device.type != "cpu" and logits.device.type not in KERNEL_DEVICES
    if values_are_hidden() and (by_operators or not torch.compiler.is_compiling()):
        # The compiler fuses this into few passes over the logits. torch.func transforms operators only.
        return _summarize_plainly(logits, labels, token_ids, transform, mean)
    keep = torch.is_grad_enabled() and logits.requires_grad
    readout = _SummarizeLogits.apply(logits, labels, token_ids, transform, mean, keep, inplace)  # type: ignore[no-untyped-call]
    return Readout(*readout)


def _summarize_plainly(
    logits: Tensor, labels: Tensor, token_ids: Tensor, transform: Transform, mean: bool
) -> Readout:
    transformed = transform.apply(logits.to(compute_dtype(logits.dtype)))
    return Readout(
        *_log_normalizer(transformed),
        transformed.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1),
        transformed.index_select(-1, token_ids),
        transformed.mean(-1) if mean else transformed.new_empty(0),
    )


class _SummarizeLogits(torch.autograd.Function):
    """Keeps the softmax of the forward pass, and turns it into the gradient in place.

    Kernels keep nothing: they read the logits again, which takes no longer than reading a softmax.
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
    ) -> tuple[Tensor, ...]:
        wide = logits.dtype == compute_dtype(logits.dtype)
        keep_softmax = keep and not inplace and wide and logits.device.type not in KERNEL_DEVICES
        *readout, softmax = _summarize_logits(logits, labels, token_ids, *transform, mean, keep_softmax)
        row_max, log_sum_exp, _, number_logits, _ = readout
        ctx.save_for_backward(logits, labels, token_ids, row_max, log_sum_exp, number_logits, softmax)
        ctx.mark_non_differentiable(row_max)
        ctx.transform, ctx.inplace, ctx.softmax_spent = transform, inplace, False
        return tuple(readout)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        logits, labels, token_ids, row_max, log_sum_exp, number_logits, softmax = ctx.saved_tensors
        if ctx.inplace and ctx.softmax_spent:
            raise RuntimeError(
                "backward was called a second time, but the first call wrote the gradient over the logits. "
                "Compute the loss again, or omit inplace_backward."
            )
        is_softmax = softmax.numel() > 0
        if is_softmax and ctx.softmax_spent:  # in an earlier backward pass through a retained graph
            grad = torch.softmax(ctx.transform.apply(logits), -1)
        else:
            # `.data`, so that autograd does not reject the change of a saved tensor.
            grad = softmax.data if is_softmax else logits.data if ctx.inplace else torch.empty_like(logits)
        ctx.softmax_spent = True
        readout = row_max, log_sum_exp, number_logits
        write_gradient(grad, is_softmax, logits, labels, token_ids, readout, ctx.transform, grads)
        return grad, *[None] * 6


def summarize_block(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    transform: Transform,
    mean: bool,
    softmax: Tensor | None = None,
    positions: Tensor | None = None,
) -> Readout:
    """Summarize logits without a graph.

    Args:
        logits, labels, token_ids, transform, mean: see `summarize_logits`.
        softmax: `[positions, vocab]`, float32 or float64, output buffer of the softmax, which may be the
            logits themselves; not for kernels. Default: none.
        positions: indices of the positions to read; only without `softmax`. Default: all.

    Returns:
        The readout.
    """
    if logits.device.type in KERNEL_DEVICES and positions is None:
        from ntloss.engine import kernels  # Triton takes long to import

        return Readout(*kernels.summarize(logits, labels, token_ids, *transform, mean))
    labels = labels.clamp(min=0)
    whole = softmax is not None and transform == IDENTITY  # no copies are needed
    rows = max(1, len(logits) if whole else _CHUNK // logits.shape[-1])
    parts = []
    for start in range(0, len(logits if positions is None else positions), rows):
        block: slice | Tensor = slice(start, start + rows)
        if positions is not None:
            block = positions[block]
        part = logits[block].to(compute_dtype(logits.dtype))
        if transform != IDENTITY:
            part = transform.apply(part)
        label_logit = part.gather(-1, labels[block].unsqueeze(-1)).squeeze(-1)
        number_logits = part.index_select(-1, token_ids)
        part_mean = part.mean(-1) if mean else part.new_empty(0)
        if softmax is None:
            row_max, log_sum_exp = _log_normalizer(part)
        elif softmax is logits and transform == IDENTITY:
            highest = part.amax(-1)
            torch.softmax(part, -1, out=part)  # works row by row, so in place too
            row_max, log_sum_exp = _of_highest(highest, part)
        else:
            torch.softmax(part, -1, out=softmax[block])
            row_max, log_sum_exp = _of_softmax(part, softmax[block], labels[block], label_logit)
        parts.append((row_max, log_sum_exp, label_logit, number_logits, part_mean))
    if not parts:
        return _empty_readout(logits[:0], labels[:0], token_ids, mean)
    return Readout(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _log_normalizer(logits: Tensor) -> tuple[Tensor, Tensor]:
    # A row that is -inf everywhere has no finite maximum.
    highest = logits.detach().amax(-1).clamp(min=torch.finfo(logits.dtype).min)
    return highest, (logits - highest.unsqueeze(-1)).exp_().sum(-1).log()


def _of_softmax(part: Tensor, softmax: Tensor, labels: Tensor, label_logit: Tensor) -> tuple[Tensor, Tensor]:
    # lse = z_j - log p_j for any j. The label's column is at hand. If its probability is too small, the
    # largest one is used, which takes two more passes. The check does not synchronize on the CPU.
    if part.device.type != "cpu":
        return _of_highest(part.amax(-1), softmax)
    label_prob = softmax.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    safe = label_prob > _SAFE_PROBABILITY
    log_sum_exp = -label_prob.log()
    if bool(safe.all()):
        return label_logit, log_sum_exp
    highest, log_sum_of_highest = _of_highest(part.amax(-1), softmax)
    return torch.where(safe, label_logit, highest), torch.where(safe, log_sum_exp, log_sum_of_highest)


def _of_highest(highest: Tensor, softmax: Tensor) -> tuple[Tensor, Tensor]:
    # The softmax of a row of -inf is NaN; its log-normalizer is -inf.
    return highest, torch.where(highest.isneginf(), 0, -softmax.amax(-1).log_())


# Custom operators, so that torch.compile calls them unchanged: on the CPU they are faster than the code that
# it generates from the same formulas (benchmarks/losses.py).
@torch.library.custom_op("ntloss::summarize_logits", mutates_args=())
def _summarize_logits(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    scale: float,
    softcap: float | None,
    mean: bool,
    keep_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    softmax = torch.empty_like(logits) if keep_softmax else None
    readout = summarize_block(logits, labels, token_ids, Transform(scale, softcap), mean, softmax)
    return (*readout, logits.new_empty(0) if softmax is None else softmax)


@_summarize_logits.register_fake
def _(
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    scale: float,
    softcap: float | None,
    mean: bool,
    keep_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    softmax = torch.empty_like(logits) if keep_softmax else logits.new_empty(0)
    return (*_empty_readout(logits, labels, token_ids, mean), softmax)


def _empty_readout(logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool) -> Readout:
    like = torch.empty_like(labels, dtype=compute_dtype(logits.dtype))
    numbers = like.new_empty(logits.shape[0], token_ids.shape[0])
    means = torch.empty_like(like) if mean else like.new_empty(0)
    return Readout(like, torch.empty_like(like), torch.empty_like(like), numbers, means)


def write_gradient(
    grad: Tensor,
    is_softmax: bool,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    readout: tuple[Tensor, Tensor, Tensor],
    transform: Transform,
    grads: tuple[Tensor, ...],
) -> None:
    """Write the gradient of the logits to `grad`, which holds their softmax if `is_softmax`.

    `readout` holds `row_max`, `log_sum_exp` and `number_logits`; `grads` the gradients of all but `row_max`.
    """
    _write_gradient(grad, is_softmax, logits, labels, token_ids, *readout, *transform, *grads)


@torch.library.custom_op("ntloss::write_gradient", mutates_args=("grad",))
def _write_gradient(
    grad: Tensor,
    is_softmax: bool,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    row_max: Tensor,
    log_sum_exp: Tensor,
    number_logits: Tensor,
    scale: float,
    softcap: float | None,
    grad_log_sum_exp: Tensor,
    grad_label_logit: Tensor,
    grad_number_logits: Tensor,
    grad_mean_logit: Tensor,
) -> None:
    if logits.device.type in KERNEL_DEVICES:
        from ntloss.engine import kernels  # Triton takes long to import

        kernels.write(
            grad,
            logits,
            labels,
            token_ids,
            row_max,
            log_sum_exp,
            number_logits,
            scale,
            softcap,
            grad_log_sum_exp,
            grad_label_logit,
            grad_number_logits,
            grad_mean_logit,
        )
        return
    labels, token_ids = labels.clamp(min=0), token_ids.clamp(min=0)
    transform = Transform(scale, softcap)
    whole = is_softmax and transform == IDENTITY  # no copies are needed
    rows = max(1, len(logits) if whole else _CHUNK // logits.shape[-1])
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
        _zero_broken_rows(work, grad_log_sum_exp[block], row_max[block] + log_sum_exp[block])
        if len(grad_mean_logit):
            work.add_(grad_mean_logit[block, None] / logits.shape[-1])
        work.scatter_add_(-1, labels[block, None], grad_label_logit[block, None])
        work.scatter_add_(-1, token_ids.expand(len(work), -1), grad_number_logits[block])
        if transform != IDENTITY:
            work.mul_(transform.derivative(work if part is None else part))
        if not is_softmax:
            grad[block] = work


def _zero_broken_rows(work: Tensor, grad_log_sum_exp: Tensor, log_normalizer: Tensor) -> None:
    """Zero the rows of ignored positions whose logits are NaN or infinite, because 0 times NaN is NaN."""
    # On accelerators the check would synchronize, so such rows stay NaN there, as with F.cross_entropy. The
    # kernels do not read them.
    if work.device.type == "cpu":
        broken = (grad_log_sum_exp == 0) & ~log_normalizer.isfinite()
        if bool(broken.any()):
            work.masked_fill_(broken.unsqueeze(-1), 0)


def check_overflow(largest: Tensor, counted: Tensor | None = None) -> None:
    """Raise a ValueError if logits that were computed in float16 have overflowed; on the CPU only.

    Args:
        largest: `[...]`, the logits, or the largest of each row.
        counted: bool, `[...]`, rows to check. Default: all.
    """
    if largest.device.type == "cpu" and not values_are_hidden():
        overflowed = largest.isposinf() if counted is None else largest.isposinf() & counted
        if overflowed.any():
            raise ValueError(
                "logits in float16 exceed its largest number, 65,504: expected hidden states and a head in "
                "bfloat16 or float32, or smaller ones"
            )
