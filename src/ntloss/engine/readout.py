"""What losses read of each position's logits, and the backends that read it.

Cross-entropy and every criterion are functions of `lse = logsumexp_j z_j`, the label's logit and the number
tokens' logits. So only backends handle tensors of width V: `read.Operators`, `kernels.Kernels` on GPUs, and
`shards.Sharded`, which makes one of these work on a sharded vocabulary. The gradient of a row of logits is

    dL/dz = dL/dlse * softmax(z) + dL/dz_label at the label + dL/dz_N at the number tokens

so a number loss adds one scalar and a few entries per row to the gradient that cross-entropy writes anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

# The dtypes of inputs, and those that losses of them are computed in. `torch.promote_types` is an operator.
COMPUTED_IN = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32)
COMPUTED_IN[torch.float64] = torch.float64

Grads: TypeAlias = Sequence[Tensor]  # of a readout from `shifted_lse` to `mean_logit`, if that is wanted


def given_type(given: object) -> object:
    """Name the type of an argument for an error message: of a tensor its dtype."""
    return given.dtype if isinstance(given, Tensor) else type(given).__name__


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


class Transform(NamedTuple):
    """The transform that some heads apply to their logits: `softcap * tanh(scale * z / softcap)`."""

    scale: float = 1.0
    softcap: float | None = None  # no cap

    def apply(self, logits: Tensor) -> Tensor:
        """Transform logits of any shape; the identity returns the same tensor."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def derivative(self, transformed: Tensor) -> Tensor | float:
        """Compute the derivative at each logit from the transformed logits."""
        return self.scale * (1 if self.softcap is None else 1 - (transformed / self.softcap).square())


class Wanted(NamedTuple):
    """What a loss reads of each position's logits, besides the label's logit and the log-sum-exp."""

    token_ids: Tensor  # `[number tokens]`
    mean: bool = False  # also the mean logit, for label smoothing
    transform: Transform = Transform()
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
        """Write the gradient to `grad`: the softmax of the readout if that was kept, or the logits."""
        ...
