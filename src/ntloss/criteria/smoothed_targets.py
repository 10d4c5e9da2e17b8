"""Losses towards a target distribution that is spread over the values near the label's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ntloss.criteria.criterion import BoundCriterion, CriterionInput, Needs, check_positive


def gaussian_targets(values: Tensor, sigma: float) -> Tensor:
    r"""Smoothed targets: row k is $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$.

    Args:
        values: `[values]`.
        sigma: width, in units of the values.

    Returns:
        `[values, values]`, each row sums to 1.
    """
    return torch.softmax(-(values - values.unsqueeze(-1)).square() / (2 * sigma**2), -1)


@dataclass(frozen=True)
class GaussianCrossEntropy:
    r"""Cross-entropy with the label smoothed over the values near it.

    $-\sum_j q_j (z_j - lse)$ with $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$ and $lse$ that of the whole
    vocabulary, so probability on text counts too. From the entropy of q to infinity; smallest exactly where
    all probability is on the number tokens and distributed as q (where the label is uncertain, as the
    average q).

    The paper's baseline is this *in place of* cross-entropy at number positions: `mode="replace"` of the
    combined losses. Use it where a calibrated spread is wanted, not where answers are right or wrong.

    Args:
        sigma: width of the target, in units of the values; cross-entropy is the limit for small ones.
            Default: 1, as published.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import GaussianCrossEntropy
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, GaussianCrossEntropy(sigma=1.0))
        >>> round(loss(torch.zeros(1, 16), torch.tensor([4])).item(), 4)  # log(16)
        2.7726
    """

    sigma: float = 1.0
    needs = Needs(log_normalizer=True)

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`, in nats."""
        return self.bind(x.values.double(), x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> BoundCriterion:
        """Compute the targets, `[values, values]`: row k is that of value k."""
        return partial(self._loss, targets=gaussian_targets(values, self.sigma).to(like))

    def _loss(self, x: CriterionInput, targets: Tensor) -> Tensor:
        if x.log_mass is None:
            raise ValueError(f"log_mass is None, and {self!r} needs the probability on text too")
        return -(targets[x.target] * x.log_probs).sum(-1) - x.log_mass

    def worst(self, values: Tensor) -> None:
        """None: a probability of zero costs infinitely much."""


_DISTANCES = ("squared", "absolute")


@dataclass(frozen=True)
class Dist2:
    r"""Kullback-Leibler divergence from a target that decays with distance (DIST2Loss).

    $KL(q \| p) = \sum_j q_j (\log q_j - \log p_j)$ with $q_j \propto \exp(-d_{jk} / \tau)$. From 0 to
    infinity; zero exactly where p = q. The most likely value is then the label's. Where the label is
    uncertain, best is the average q.

    Use it where predicting a neighbour is nearly right. It sees the distribution within the number tokens
    alone; cross-entropy beside it covers the rest. The paper's weights by place are
    `PlaceWeighted(Dist2(), "linear")`.

    Args:
        tau: temperature of the target: higher ones spread it; cross-entropy is the limit for low ones.
            Default: 1, as published.
        distance: "squared" (default, as published) or "absolute" difference of the values.

    Raises:
        ValueError: `tau` is not above 0, or an unknown distance.

    Source: DIST2Loss, ICLR 2026.

    Example:
        >>> import torch
        >>> from ntloss.criteria import CriterionInput, Dist2
        >>> values = torch.tensor([0.0, 1.0])
        >>> x = CriterionInput(torch.tensor([[0.5, 0.5]]).log(), values, torch.tensor([0]))
        >>> round(Dist2(tau=1.0)(x).item(), 4)  # q = [0.7311, 0.2689]
        0.1109
    """

    tau: float = 1.0
    distance: str = "squared"

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        if self.distance not in _DISTANCES:
            raise ValueError(f"distance={self.distance!r}: expected one of {_DISTANCES}")

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`, in nats."""
        return self.bind(x.values.double(), x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> BoundCriterion:
        """Compute the targets `[values, values]`, row k that of value k, and their entropies `[values]`."""
        apart = values - values.unsqueeze(-1)
        distances = apart.square() if self.distance == "squared" else apart.abs()
        targets = torch.softmax(-distances / self.tau, -1)
        entropies = -torch.xlogy(targets, targets).sum(-1)
        return partial(self._loss, targets=targets.to(like), entropies=entropies.to(like))

    def _loss(self, x: CriterionInput, targets: Tensor, entropies: Tensor) -> Tensor:
        # Rounding may leave a little less than zero, the smallest divergence.
        return -(targets[x.target] * x.log_probs).sum(-1) - entropies[x.target]

    def worst(self, values: Tensor) -> None:
        """None: a probability of zero costs infinitely much."""
