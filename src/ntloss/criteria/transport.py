"""Losses that measure how far the predicted distribution is from its target along the number line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ntloss.criteria.criterion import Criterion, CriterionInput, Tabulated, check_positive
from ntloss.criteria.entropies import gaussian_targets


@dataclass(frozen=True)
class Wasserstein:
    r"""Wasserstein-1 distance between the predicted distribution and the label's value (NTL-WAS).

    $\sum_j p_j \, |v_j - v_k|$ for a label of value $v_k$: the expected absolute error of a number drawn
    from the model. It ranges from 0 to the range of the values and is 0 only if all probability is on the
    label's value. If the label is uncertain, it is smallest with all probability on the label's median, so
    it sharpens the distribution beyond the truth; `CRPS` does not.

    Args:
        squash_factor: ratio of the largest to the smallest cost of a wrong value, above 1. The cost becomes
            $1 + (|v_j - v_k| - c_{min})(s - 1)/(c_{max} - c_{min})$ with $c_{min}$ and $c_{max}$ the smallest
            non-zero and the largest distance between two values. Use it for irregularly spaced or very large
            values. Default: None, the plain distance.

    Raises:
        ValueError: `squash_factor` is not a finite number above 1.

    Source: "Regress, Don't Guess", ICML 2025, NTL-WAS; the squashing is from the package ntloss.

    Example:
        >>> from ntloss import CriterionInput, Wasserstein
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> Wasserstein()(CriterionInput(probs.log(), values, target=torch.tensor([0])))
        tensor([0.7500])
    """

    squash_factor: float | None = None

    def __post_init__(self) -> None:
        check_squash(self.squash_factor)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        return self.bind(x.values, x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Return the loss; a ValueError if the distances between the values cannot be squashed."""
        # Here rather than at each call, because reading values synchronizes an accelerator.
        check_squash(self.squash_factor, values)
        return self._loss

    def _loss(self, x: CriterionInput) -> Tensor:
        cost = (x.values - x.values[x.target].unsqueeze(-1)).abs()
        if self.squash_factor is not None:
            cost = squashed(cost, x.values, self.squash_factor)
        return (x.log_probs.exp() * cost).sum(-1)

    def worst(self, values: Tensor) -> float:
        """Return the largest cost between two values of the vocabulary."""
        check_squash(self.squash_factor, values)
        return float(values[-1] - values[0] if self.squash_factor is None else self.squash_factor)


def squashed(distance: Tensor, values: Tensor, factor: float) -> Tensor:
    """Map non-zero distances between ascending `values` to the range from 1 to `factor`."""
    smallest, largest = values.diff().min(), values[-1] - values[0]
    stretched = 1 + (distance - smallest) * ((factor - 1) / (largest - smallest))
    return torch.where(distance == 0, 0.0, stretched)


def check_squash(factor: float | None, values: Tensor | None = None) -> None:
    """Raise a ValueError unless a squash factor is above 1 or None, and the distances of `values` differ."""
    if factor is None:
        return
    if not 1 < factor < math.inf:
        raise ValueError(
            f"squash_factor={factor!r}: expected a finite number above 1 (at 1 every wrong value costs the "
            "same), or None for the plain distance"
        )
    if values is not None and (len(values) < 2 or values.diff().min() == values[-1] - values[0]):
        raise ValueError(
            f"squash_factor={factor} needs at least three distinct values, or distances that "
            f"differ; the vocabulary has the values {values.tolist()}. Omit squash_factor."
        )


@dataclass(frozen=True)
class CRPS:
    r"""Continuous ranked probability score between the predicted distribution and the label's value.

    $\sum_j (F_j - 1[v_j \ge v_k])^2 (v_{j+1} - v_j)$ with $F$ the cumulative probability over the sorted
    values, which is $E|X - v_k| - \frac{1}{2} E|X - X'|$ for two independent draws $X$ and $X'$ from the
    model. It ranges from 0 to the range of the values and is 0 only if all probability is on the label's
    value. It is a strictly proper score: if the label is uncertain, it is smallest exactly at the label's
    own distribution, among all distributions over the numbers. With `reweigh` it is not proper.

    Source: Matheson and Winkler, Management Science 1976; the second form is from Gneiting and Raftery,
    "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007, equation 21.

    Example:
        >>> from ntloss import CRPS, CriterionInput
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> CRPS()(CriterionInput(probs.log(), values, target=torch.tensor([0])))  # 0.5 ** 2 + 0.25 ** 2
        tensor([0.3125])
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        below = torch.arange(len(x.values) - 1, device=x.target.device)
        step = (below >= x.target.unsqueeze(-1)).to(x.log_probs.dtype)
        apart = x.probs.cumsum(-1)[:, :-1] - step
        return (apart.square() * x.values.diff()).sum(-1)

    def worst(self, values: Tensor) -> float:
        """Return the range of the values."""
        return float(values[-1] - values[0])


@dataclass(frozen=True)
class SmoothedWasserstein(Tabulated):
    r"""Wasserstein-1 distance between the predicted distribution and a Gaussian around the label's value.

    $\sum_i |P_i - Q_i| (v_{i+1} - v_i)$ with $P$ and $Q$ the cumulative probabilities of $p$ and of
    $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$ over the sorted values. It ranges from 0 to about the range
    of the values and is 0 exactly if $p = q$. The model is asked to spread its probability: its most likely
    value is the label's, but its mean and median move inwards for labels near the ends. If the label is
    uncertain, it is smallest where $P$ is the median of the cumulative targets.

    Use it with `GaussianCrossEntropy`, which has the same targets; `Wasserstein` is its limit for small
    `sigma`.

    Args:
        sigma: standard deviation of the target, in the units of the values. Default: 1, as published.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> from ntloss import CriterionInput, SmoothedWasserstein
        >>> log_probs, values = torch.tensor([[-1e3, 0.0, -1e3]]), torch.tensor([0.0, 1.0, 2.0])
        >>> x = CriterionInput(log_probs, values, target=torch.tensor([1]))
        >>> round(SmoothedWasserstein(sigma=1.0)(x).item(), 4)  # 1 - 1 / (1 + 2 exp(-1/2))
        0.5481
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)

    def _tables(self, values: Tensor) -> dict[str, Tensor]:
        return {"cumulative": gaussian_targets(values, self.sigma).cumsum(-1)}

    def _loss(self, x: CriterionInput, cumulative: Tensor) -> Tensor:
        apart = x.probs.cumsum(-1) - cumulative[x.target]
        return (apart[:, :-1].abs() * x.values.diff()).sum(-1)

    def worst(self, values: Tensor) -> float:
        """Compute the largest distance from a single value to a target."""
        # The distance is convex in the value, so it is largest for the first or the last one.
        cumulative = gaussian_targets(values, self.sigma).cumsum(-1)[:, :-1]
        return float(max(((end - cumulative).abs() @ values.diff()).max() for end in (0, 1)))
