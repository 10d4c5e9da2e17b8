"""How wrong is a number: one small function of what the model says at each position.

A criterion takes a `NumberRecord` and gives one loss per position. It never sees logits of width V, so it
is plain PyTorch on `[positions, values]`, and autograd does the rest.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class NumberRecord:
    """What a criterion is told, one row per position, in float32 or float64.

    Positions whose label is no number are there too (shapes stay static); their losses are dropped.

    Args:
        log_probs: `[positions, values]`, log of the distribution over the distinct values, restricted to
            the number tokens; a value's forms (`4`, `▁4`) are merged.
        values: `[values]`, the distinct values, ascending.
        target: `[positions]`, index of the label's value in `values`.
        log_mass: `[positions]`, log of the probability of all number tokens together under the softmax over
            the whole vocabulary; None where the log-normalizer was not asked for.
        log_normalizer: `[positions]`, logsumexp over the whole vocabulary; None likewise.
    """

    log_probs: Tensor
    values: Tensor
    target: Tensor
    log_mass: Tensor | None = None
    log_normalizer: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """`[positions, values]`, the distribution itself."""
        return self.log_probs.exp()

    @property
    def target_values(self) -> Tensor:
        """`[positions]`, the labels' values."""
        return self.values[self.target]


class Criterion(Protocol):
    """A loss on numbers: any callable with these two methods serves."""

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`."""
        ...

    def worst(self, values: Tensor) -> float | None:
        """Largest loss that a prediction of one single value can have, or None without a bound.

        Args:
            values: `[values]`, the distinct values, ascending, float64.
        """
        ...


@dataclass(frozen=True)
class Wasserstein:
    r"""Wasserstein-1 distance between the predicted distribution and the label's value (NTL-WAS).

    $\sum_j p_j \, |v_j - v_k|$ for a label of value $v_k$: the expected absolute error of a number drawn
    from the model. Zero only where all probability is on the label's value.

    Args:
        squash_factor: how many times worse the farthest value is than the nearest wrong one, > 1; costs
            become $1 + (|v_j - v_k| - c_{min})(s - 1)/(c_{max} - c_{min})$ off the label's value. For
            vocabularies of irregular or very large values. Default: the plain distance.

    Source: "Regress, Don't Guess", ICML 2025, NTL-WAS; the squashing is from the package ntloss.

    Example:
        >>> import torch
        >>> record = NumberRecord(
        ...     log_probs=torch.tensor([[0.5, 0.25, 0.25]]).log(),
        ...     values=torch.tensor([0.0, 1.0, 2.0]),
        ...     target=torch.tensor([0]),
        ... )
        >>> Wasserstein()(record)
        tensor([0.7500])
    """

    squash_factor: float | None = None

    def __post_init__(self) -> None:
        if self.squash_factor is not None and not (1 < self.squash_factor < math.inf):
            raise ValueError(
                f"squash_factor={self.squash_factor!r}: expected a finite number above 1 (at 1 every wrong "
                "value costs the same), or None for the plain distance"
            )

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`, in units of the values (or squashed)."""
        cost = self.cost(record.values, record.target_values.unsqueeze(-1))
        return (record.probs * cost).sum(-1)

    def cost(self, values: Tensor, target_values: Tensor) -> Tensor:
        """Cost of predicting `values` `[values]` for `target_values` `[..., 1]`: `[..., values]`."""
        distance = (values - target_values).abs()
        if self.squash_factor is None:
            return distance
        smallest = values.diff().min()
        largest = values[-1] - values[0]
        squashed = 1 + (distance - smallest) * ((self.squash_factor - 1) / (largest - smallest))
        return torch.where(distance == 0, 0.0, squashed)

    def worst(self, values: Tensor) -> float:
        """The largest cost between two values of the vocabulary."""
        if self.squash_factor is None:
            return float(values[-1] - values[0])
        if len(values) < 2 or values.diff().min() == values[-1] - values[0]:
            raise ValueError(
                f"squash_factor={self.squash_factor} needs at least three distinct values, or distances that "
                f"differ; the vocabulary has the values {values.tolist()}. Leave squash_factor away."
            )
        return float(self.squash_factor)


_EXPECTED_VALUE_LOSSES: dict[str, Callable[..., Tensor]] = {
    "squared": F.mse_loss,
    "absolute": F.l1_loss,
    "huber": F.huber_loss,
}


@dataclass(frozen=True)
class ExpectedValue:
    r"""Regression loss between the expected value of the distribution and the label's value (NTL-L_p).

    $\ell(\sum_j p_j v_j,\; v_k)$. With the squared error it is NTL-MSE. It is zero wherever the *mean* is
    right, so half the probability on 3 and half on 5 costs nothing for a label of 4: prefer `Wasserstein`
    unless the mean is what you read out.

    Args:
        loss: "squared" (default), "absolute", "huber" (delta 1), or a callable `(prediction, target) ->
            loss` that works element by element. One that has a `reduction` parameter, such as
            `torch.nn.functional.smooth_l1_loss`, is called with `reduction="none"`.

    Source: "Regress, Don't Guess", ICML 2025, NTL-MSE.

    Example:
        >>> import torch
        >>> record = NumberRecord(
        ...     log_probs=torch.tensor([[0.5, 0.0, 0.5]]).log(),
        ...     values=torch.tensor([3.0, 4.0, 5.0]),
        ...     target=torch.tensor([0]),
        ... )
        >>> ExpectedValue("squared")(record)
        tensor([1.])
    """

    loss: str | Callable[..., Tensor] = "squared"
    _function: Callable[..., Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in _EXPECTED_VALUE_LOSSES:
            raise ValueError(
                f"loss={self.loss!r}: expected one of {sorted(_EXPECTED_VALUE_LOSSES)}, or a callable "
                "(prediction, target) -> loss"
            )
        function = _EXPECTED_VALUE_LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        if _takes_reduction(function):  # asked once: torch.compile cannot trace inspect
            function = functools.partial(function, reduction="none")
        object.__setattr__(self, "_function", function)

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`, in the units of `loss`."""
        return self.elementwise((record.probs * record.values).sum(-1), record.target_values)

    def elementwise(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Apply the regression loss to each pair; both and the result are `[positions]`.

        Raises:
            ValueError: the callable gave another shape than it was given.
        """
        losses = self._function(prediction, target)
        if losses.shape != prediction.shape:
            raise ValueError(
                f"the loss function {self.loss!r} gave shape {tuple(losses.shape)} for predictions of "
                f"shape {tuple(prediction.shape)}. Expected one loss for each."
            )
        return losses

    def worst(self, values: Tensor) -> float:
        """The larger loss of taking the smallest value for the largest, or the other way round."""
        ends = torch.stack([values[0], values[-1]])
        return float(self.elementwise(ends, ends.flip(0)).abs().max())


def _takes_reduction(function: Callable[..., Tensor]) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except ValueError:  # builtins without a signature
        return False


def reweigh_by_mass(loss: Tensor, log_mass: Tensor, worst: float) -> Tensor:
    r"""Make probability on text cost more than the worst number.

    $m \cdot loss + 1.01 \cdot worst \cdot (1 - m)$ with $m$ the probability of all number tokens. Without
    it a criterion sees only the distribution *within* the number tokens, however little they have.

    Args:
        loss: `[positions]`.
        log_mass: `[positions]`, log of $m$.
        worst: the criterion's largest cost.

    Returns:
        `[positions]`.

    Source: the package ntloss since 0.1 (not in the paper).
    """
    mass = log_mass.exp()
    # Each is exact where it is taken: 1 - mass loses digits near 1, and the gradient of expm1 far below.
    on_text = torch.where(log_mass > -1, -torch.expm1(log_mass), 1 - mass)
    return mass * loss + (1.01 * worst) * on_text


def worst_cost(criterion: Criterion, values: Tensor, reweigh: bool | None) -> float | None:
    """What `reweighed` needs of a criterion; asked once, because it may read a tensor's value.

    Args:
        criterion: the criterion.
        values: `[values]`, the distinct values, ascending, float64.
        reweigh: None for "where the criterion has a worst cost".

    Returns:
        The worst cost, or None where nothing is to be reweighed.

    Raises:
        ValueError: `reweigh=True` for a criterion without a worst cost.
    """
    worst = criterion.worst(values)
    if reweigh and worst is None:
        raise ValueError(
            f"reweigh=True needs a criterion with a worst cost, and {criterion!r} has none: "
            "leave reweigh away, or pass reweigh=False"
        )
    return None if reweigh is False else worst


def reweighed(criterion: Criterion, record: NumberRecord, worst: float | None) -> Tensor:
    """The criterion's loss of each position, reweighed unless `worst` is None: `[positions]`."""
    loss = criterion(record)
    if worst is None:
        return loss
    assert record.log_mass is not None, "whoever reweighs reads the log-normalizer"
    return reweigh_by_mass(loss, record.log_mass, worst)
