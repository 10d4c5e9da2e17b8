"""Losses towards a target distribution that is spread over the values near the label's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ntloss.criteria.places import place_weights
from ntloss.criteria.record import Needs, NumberRecord, table


def positive(name: str, value: float) -> None:
    """Raise unless an option is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")


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
        positive("sigma", self.sigma)

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`, in nats."""
        if record.log_mass is None:
            raise ValueError(f"record.log_mass is None, and {self!r} needs the probability on text too")
        targets = table(self, record, "targets")[record.target]
        return -(targets * record.log_probs).sum(-1) - record.log_mass

    def tables(self, values: Tensor) -> dict[str, Tensor]:
        """`targets` `[values, values]`: row k is the target of value k."""
        return {"targets": gaussian_targets(values, self.sigma)}

    def worst(self, values: Tensor) -> None:
        """None: a probability of zero costs infinitely much."""


_DISTANCES = ("squared", "absolute")


@dataclass(frozen=True)
class Dist2:
    r"""Kullback-Leibler divergence from a target that decays with distance (DIST2Loss).

    $KL(q \| p) = \sum_j q_j (\log q_j - \log p_j)$ with $q_j \propto \exp(-d_{jk} / \tau)$. From 0 to
    infinity; zero exactly where p = q. The most likely value is then the label's. Where the label is
    uncertain, best is the average q.

    Use it where predicting a neighbour is nearly right; it sees the distribution within the number tokens
    alone, cross-entropy beside it minds the rest.

    Args:
        tau: temperature of the target: higher ones spread it; cross-entropy is the limit for low ones.
            Default: 1, as published.
        distance: "squared" (default, as published) or "absolute" difference of the values.
        place_weighted: multiply with 1 + the count of digits of the number behind this one, so that leading
            digits count more. Default: False.

    Raises:
        ValueError: `tau` is not above 0, or an unknown distance.

    Source: DIST2Loss, ICLR 2026.

    Example:
        >>> import torch
        >>> from ntloss.criteria import Dist2, NumberRecord
        >>> values = torch.tensor([0.0, 1.0])
        >>> record = NumberRecord(torch.tensor([[0.5, 0.5]]).log(), values, torch.tensor([0]))
        >>> round(Dist2(tau=1.0)(record).item(), 4)  # q = [0.7311, 0.2689]
        0.1109
    """

    tau: float = 1.0
    distance: str = "squared"
    place_weighted: bool = False

    def __post_init__(self) -> None:
        positive("tau", self.tau)
        if self.distance not in _DISTANCES:
            raise ValueError(f"distance={self.distance!r}: expected one of {_DISTANCES}")

    @property
    def needs(self) -> Needs:
        """Places, where it weighs with them."""
        return Needs(spans=self.place_weighted)

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`, in nats."""
        targets = table(self, record, "targets")[record.target]
        entropy = table(self, record, "entropies")[record.target]
        # Rounding may leave a little less than the zero that it cannot fall below.
        loss = -(targets * record.log_probs).sum(-1) - entropy
        return loss * place_weights(record, self, "linear") if self.place_weighted else loss

    def tables(self, values: Tensor) -> dict[str, Tensor]:
        """`targets` `[values, values]`: row k is the target of value k; `entropies` `[values]`."""
        apart = values - values.unsqueeze(-1)
        distances = apart.square() if self.distance == "squared" else apart.abs()
        targets = torch.softmax(-distances / self.tau, -1)
        return {"targets": targets, "entropies": -torch.xlogy(targets, targets).sum(-1)}

    def worst(self, values: Tensor) -> None:
        """None: a probability of zero costs infinitely much."""
