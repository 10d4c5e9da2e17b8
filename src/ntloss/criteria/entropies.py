"""Losses with targets that are spread over values near the label's, and the entropy of each digit alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput, Needs, Tabulated, check_choice, check_positive

# The log-probability of a logit of -inf, which is replaced by -1e30 to keep gradients finite.
_IMPOSSIBLE = -1e29


def gaussian_targets(values: Tensor, sigma: float) -> Tensor:
    r"""Compute targets `[values, values]`: row k is $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$."""
    return torch.softmax(-(values - values.unsqueeze(-1)).square() / (2 * sigma**2), -1)


def cross_entropy_of(targets: Tensor, log_probs: Tensor) -> Tensor:
    r"""Compute $-\sum_j q_j \log p_j$; +inf if a value with $q_j > 0$ has probability 0."""
    impossible = (targets > 0) & (log_probs < _IMPOSSIBLE)
    return torch.where(impossible, torch.inf, -targets * log_probs).sum(-1)


def cross_entropy_of_all(targets: Tensor, x: CriterionInput, criterion: object) -> Tensor:
    """Compute the cross-entropy with targets `[positions, values]` over the whole vocabulary, text included.

    Where it replaces cross-entropy, it includes that of the label's form among those of its value. Raise a
    ValueError that names the criterion if the input has no `log_mass`.
    """
    if x.log_mass is None:
        raise ValueError(f"log_mass is None, but {criterion!r} needs the probability on text")
    no_number = torch.where(x.log_mass < _IMPOSSIBLE, torch.inf, -x.log_mass)
    loss = cross_entropy_of(targets, x.log_probs) + no_number
    return loss if x.form_log_probs is None else loss - x.form_log_probs


@dataclass(frozen=True)
class GaussianCrossEntropy(Tabulated):
    r"""Cross-entropy with the label smoothed over values near it, in nats.

    $-\sum_j q_j (z_j - lse)$ with $q_j \propto \exp(-(v_j - v_k)^2 / 2\sigma^2)$ and the $lse$ of the whole
    vocabulary, so probability on text counts too. It ranges from the entropy of q to infinity, and is
    smallest exactly if the probabilities are q, without any on text. If the label is uncertain, the average q
    is optimal.

    The paper's baseline uses it *instead of* cross-entropy at number positions: `mode="replace"` of the
    combined losses. Use it where near misses are acceptable, not where answers are either right or wrong.

    Args:
        sigma: standard deviation of the target, in units of the values. As sigma decreases, the loss
            approaches cross-entropy. Default: 1, as published.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> from ntloss import GaussianCrossEntropy, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, GaussianCrossEntropy(sigma=1.0))
        >>> round(loss(torch.zeros(1, 16), torch.tensor([4])).item(), 4)  # log(16)
        2.7726
    """

    sigma: float = 1.0
    needs = Needs(log_normalizer=True)

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)

    def _tables(self, values: Tensor) -> dict[str, Tensor]:
        return {"targets": gaussian_targets(values, self.sigma)}

    def _loss(self, x: CriterionInput, targets: Tensor) -> Tensor:
        return cross_entropy_of_all(targets[x.target], x, self)


@dataclass(frozen=True)
class Dist2(Tabulated):
    r"""Kullback-Leibler divergence from a target that decays with distance (DIST2Loss), in nats.

    $KL(q \| p) = \sum_j q_j (\log q_j - \log p_j)$ with $q_j \propto \exp(-d_{jk} / \tau)$. It ranges from 0
    to infinity, and is zero exactly if p = q; the most likely value is then the label's. If the label is
    uncertain, the average q is optimal.

    Use it if predicting a neighboring value is nearly right. It sees only the distribution within the number
    tokens; cross-entropy beside it covers the rest. The paper's weights by place are
    `PlaceWeighted(Dist2(), "linear")`.

    Args:
        tau: temperature of the target; a higher one spreads it, and as it approaches 0, the loss becomes
            cross-entropy within the number tokens. Default: 1, as published.
        distance: "squared" (default, as published) or "absolute" difference of the values.

    Raises:
        ValueError: `tau` is not above 0, or an unknown distance.

    Source: DIST2Loss, ICLR 2026.

    Example:
        >>> from ntloss import CriterionInput, Dist2
        >>> probs, values = torch.tensor([[0.5, 0.5]]), torch.tensor([0.0, 1.0])
        >>> x = CriterionInput(probs.log(), values, target=torch.tensor([0]))
        >>> round(Dist2(tau=1.0)(x).item(), 4)  # q = [0.7311, 0.2689]
        0.1109
    """

    tau: float = 1.0
    distance: str = "squared"

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        check_choice("distance", self.distance, ("squared", "absolute"))

    def _tables(self, values: Tensor) -> dict[str, Tensor]:
        apart = (values - values.unsqueeze(-1)).abs()
        targets = torch.softmax(-(apart.square() if self.distance == "squared" else apart) / self.tau, -1)
        return {"targets": targets, "entropies": -torch.xlogy(targets, targets).sum(-1)}

    def _loss(self, x: CriterionInput, targets: Tensor, entropies: Tensor) -> Tensor:
        # Rounding may give slightly less than zero, the minimum.
        return cross_entropy_of(targets[x.target], x.log_probs) - entropies[x.target]


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
        >>> from ntloss import CriterionInput
        >>> from ntloss.criteria import SmoothedWasserstein
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


@dataclass(frozen=True)
class DigitEntropy:
    r"""Binary cross-entropy of each digit's raw logit, weighted with its probability (DEL).

    $0.01 \, mean_j \; p_j \, (softplus(z_j) - [j = k] z_j)$ penalizes likely digits other than the label's.
    It ranges from 0 to infinity, and tends to zero if all probability is on the label and $z_k$ is large.
    Unlike all other criteria it depends on the level of the logits: it also tends to zero if all probability
    is on a *wrong* digit and all logits are far below zero. So use it beside cross-entropy with weight 1, as
    published. The paper's weights by place are `PlaceWeighted(DigitEntropy(), "decimal")`.

    Source: DEL, 2026.

    Example:
        >>> from ntloss import DigitEntropy, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, DigitEntropy())
        >>> round(1000 * loss(torch.zeros(1, 16), torch.tensor([4])).item(), 4)  # 0.01 * log(2) / 10
        0.6931
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        if x.logits is None:
            raise ValueError(f"logits are None, but {self!r} depends on their level")
        # softplus(-z) is softplus(z) - z without the difference of large numbers.
        target = x.target.unsqueeze(-1)
        signed = x.logits.scatter(-1, target, -x.logits.gather(-1, target))
        return 0.01 * (x.probs * F.softplus(signed)).mean(-1)
