"""Second stage: read the few quantities of each position's logits that losses need, and write their gradient.

Cross-entropy and every criterion are functions of `lse = logsumexp_j z_j`, the label's logit and the number
tokens' logits. So only the backends handle tensors of width V: `Operators` here, `kernels.Kernels` on GPUs,
and `shards.Sharded`, which makes one of these work on a sharded vocabulary. A backend has two functions,
`read` and `write`. The gradient of a row of logits is

    dL/dz = dL/dlse * softmax(z) + dL/dz_label at the label + dL/dz_N at the number tokens

so a number loss adds one scalar and a few entries per row to the gradient that cross-entropy writes anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

# Logits that are copied to float32 at a time (4 MiB): few enough to need little memory, and enough to make
# the overhead of an operation negligible.
CHUNK = 1 << 20
# The logarithm of a larger probability is exact to rounding.
SAFE_PROBABILITY = 1e-20
# The dtypes of inputs, and those that losses of them are computed in. `torch.promote_types` is an operator.
COMPUTED_IN = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32)
COMPUTED_IN[torch.float64] = torch.float64

Grads: TypeAlias = Sequence[Tensor]


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
    mean_logit: Tensor | None = None  # `[positions]`, mean over the vocabulary, if it is wanted
    softmax: Tensor | None = None  # `[positions, vocab]`, where it was kept; the gradient is made of it

    @classmethod
    def joined(cls, parts: Sequence[Readout]) -> Readout:
        """Join the readouts of consecutive positions, without their softmax."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part[:5] for part in parts), strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]

    def select(self, block: slice) -> Readout:
        """Select consecutive positions, without their softmax."""
        return Readout(*(None if column is None else column[block] for column in self[:5]))  # type: ignore[arg-type]


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


class Wanted(NamedTuple):
    """What a loss reads of each position's logits, besides the label's logit and the log-sum-exp."""

    token_ids: Tensor  # `[number tokens]`
    mean: bool = False  # also the mean logit, for label smoothing
    transform: Transform = IDENTITY
    in_part: bool = False  # whether ids are -1 where they are not among the columns, with a gradient of 0


class Backend(Protocol):
    """A way to read logits `[positions, columns]`, and to write their gradient."""

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """Read logits without a graph.

        `labels` are columns, or -1 for positions that are ignored. `keep` says that a gradient will be
        written: a backend may then keep the softmax, in place of the logits if it may `overwrite` them.
        """
        ...

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """Write the gradient of the logits to `grad`, which may be the logits.

        It is the softmax of the readout if that was kept. `grads` are the gradients of the readout from
        `shifted_lse` to `mean_logit`, if that is wanted.
        """
        ...


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
            if transform != IDENTITY:
                work.mul_(transform.derivative(z))
            if not of_softmax:
                grad[piece].copy_(work)


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Divide positions into pieces whose copies are small; at least one, which an empty batch needs."""
    rows = max(1, CHUNK // logits.shape[-1])
    for start in range(0, max(len(logits), 1), rows):
        yield slice(start, start + rows)
