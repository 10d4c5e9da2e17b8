"""Losses that count how far probability lies from where it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ntloss.criteria.criterion import BoundCriterion, CriterionInput, check_positive
from ntloss.criteria.smoothed_targets import gaussian_targets


@dataclass(frozen=True)
class Wasserstein:
    r"""Wasserstein-1 distance between the predicted distribution and the label's value (NTL-WAS).

    $\sum_j p_j \, |v_j - v_k|$ for a label of value $v_k$: the expected absolute error of a number drawn
    from the model. From 0 to the range of the values; zero only where all probability is on the label's
    value. Where the label is uncertain, best is all probability on its median.

    Args:
        squash_factor: how many times worse the farthest value is than the nearest wrong one, > 1; costs
            become $1 + (|v_j - v_k| - c_{min})(s - 1)/(c_{max} - c_{min})$ off the label's value. For
            vocabularies of irregular or very large values. Default: the plain distance.

    Source: "Regress, Don't Guess", ICML 2025, NTL-WAS; the squashing is from the package ntloss.

    Example:
        >>> import torch
        >>> x = CriterionInput(
        ...     log_probs=torch.tensor([[0.5, 0.25, 0.25]]).log(),
        ...     values=torch.tensor([0.0, 1.0, 2.0]),
        ...     target=torch.tensor([0]),
        ... )
        >>> Wasserstein()(x)
        tensor([0.7500])
    """

    squash_factor: float | None = None

    def __post_init__(self) -> None:
        if self.squash_factor is not None and not (1 < self.squash_factor < math.inf):
            raise ValueError(
                f"squash_factor={self.squash_factor!r}: expected a finite number above 1 (at 1 every wrong "
                "value costs the same), or None for the plain distance"
            )

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`, in units of the values (or squashed)."""
        cost = (x.values - x.target_values.unsqueeze(-1)).abs()
        if self.squash_factor is not None:
            cost = squashed(cost, x.values, self.squash_factor)
        return (x.probs * cost).sum(-1)

    def worst(self, values: Tensor) -> float:
        """The largest cost between two values of the vocabulary."""
        if self.squash_factor is None:
            return float(values[-1] - values[0])
        check_squash(values, self.squash_factor)
        return float(self.squash_factor)


def squashed(distance: Tensor, values: Tensor, factor: float) -> Tensor:
    """Map distances between values `[values]`, ascending, to 1 to `factor`; zero stays zero."""
    smallest, largest = values.diff().min(), values[-1] - values[0]
    stretched = 1 + (distance - smallest) * ((factor - 1) / (largest - smallest))
    return torch.where(distance == 0, 0.0, stretched)


def check_squash(values: Tensor, factor: float) -> None:
    """Raise unless the distances between `values` can be squashed."""
    if len(values) < 2 or values.diff().min() == values[-1] - values[0]:
        raise ValueError(
            f"squash_factor={factor} needs at least three distinct values, or distances that "
            f"differ; the vocabulary has the values {values.tolist()}. Omit squash_factor."
        )


@dataclass(frozen=True)
class SmoothedWasserstein:
    r"""Wasserstein-1 distance between the predicted distribution and a Gaussian around the label's value.

    $\sum_i |P_i - Q_i| (v_{i+1} - v_i)$ with $P$ and $Q$ the cumulated probabilities of $p$ and of
    $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$ over the sorted values. From 0 to about the range of the
    values. Zero exactly where $p = q$: the model is asked to spread its probability, so its most likely value
    is the label's, and its mean and median are shifted inwards for labels near the ends. Where the
    label is uncertain, best is the distribution whose cumulated probabilities are the targets' medians.

    Use it with `GaussianCrossEntropy`, whose targets it shares; `Wasserstein` is its limit for small `sigma`.

    Args:
        sigma: width of the target, in units of the values. Default: 1, as published.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> import torch
        >>> from ntloss.criteria import CriterionInput, SmoothedWasserstein
        >>> values = torch.tensor([0.0, 1.0, 2.0])
        >>> x = CriterionInput(torch.tensor([[-1e3, 0.0, -1e3]]), values, torch.tensor([1]))
        >>> round(SmoothedWasserstein(sigma=1.0)(x).item(), 4)  # 1 - 1 / (1 + 2 exp(-1/2))
        0.5481
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`, in units of the values."""
        return self.bind(x.values.double(), x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> BoundCriterion:
        """Compute the cumulated targets, `[values, values]`: row k is that of value k."""
        return partial(self._loss, cumulated=gaussian_targets(values, self.sigma).cumsum(-1).to(like))

    def _loss(self, x: CriterionInput, cumulated: Tensor) -> Tensor:
        apart = x.probs.cumsum(-1) - cumulated[x.target]
        return (apart[:, :-1].abs() * x.values.diff()).sum(-1)

    def worst(self, values: Tensor) -> float:
        """The largest distance of one value to a target; convex, so that of the first or last value."""
        cumulated = gaussian_targets(values, self.sigma).cumsum(-1)[:, :-1]
        gaps = values.diff()
        return float(torch.stack([((1 - cumulated) * gaps).sum(-1), (cumulated * gaps).sum(-1)]).max())
