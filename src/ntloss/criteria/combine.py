"""Criteria made of others: reweighed by mass, weighted by place, averaged over each number, summed."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntloss.criteria.criterion import (
    Criterion,
    CriterionInput,
    Needs,
    bind,
    check_choice,
    needs_of,
    spans_of,
    worst_of,
)
from ntloss.criteria.distances import Wasserstein
from ntloss.criteria.whole_numbers import Magnitude, RelativeError, at_starts


def place_weights(x: CriterionInput, criterion: object, weighting: str, place_base: float = 1.2) -> Tensor:
    r"""Compute the weight of each position from the decimal place of its digit.

    Args:
        x: the input, with spans.
        criterion: the criterion that needs the weights, for the error message.
        weighting: "exponential": $b^r$ with r the number of digits after this one (NTIL); "linear": $r + 1$
            (DIST2Loss); "decimal": $2 (place + 1)$ for integer digits and $1.02^{place - 1}$ after the
            point, where places are -1, -2, ... (DEL).
        place_base: $b$. Default: 1.2.

    Returns:
        `[positions]`, at most 1e30, so that no weight is infinite; base 1.2 reaches that after 379 digits.

    Raises:
        ValueError: the input has no spans.
    """
    spans = spans_of(x, criterion)
    dtype = x.log_probs.dtype
    digits_after = spans.place_from_end.to(dtype)
    if weighting == "linear":
        return digits_after + 1
    if weighting == "exponential":
        return torch.pow(place_base, digits_after).clamp(max=1e30)
    place = spans.place.to(dtype)
    return torch.where(place >= 0, 2 * (place + 1), torch.pow(1.02, place - 1))


def _replace(given: Criterion, **parts: Any) -> Criterion:
    """Copy a frozen criterion with other parts, unchecked: bound criteria do not state their needs."""
    replaced = copy.copy(given)
    for name, part in parts.items():
        object.__setattr__(replaced, name, part)
    return replaced


@dataclass(frozen=True)
class Reweighed:
    r"""A criterion with a penalty for probability on text, which costs more than the worst number.

    $m \cdot loss + 1.01 \cdot worst \cdot (1 - m)$ with $m$ the total probability of the number tokens, for
    a whole number at its first token, and `worst` the criterion's worst cost. Without it, a criterion sees
    only the distribution *within* the number tokens, however small $m$ is. It is 0 only if, in addition, no
    probability is on text, and ranges up to 1.01 times the worst cost.

    Nothing balances the penalty where the label ends a number, so it makes numbers too long
    (docs/differences.md). The published classes use it by default.

    Args:
        criterion: the criterion to reweigh, with a worst cost.

    Raises:
        ValueError: the criterion has no worst cost.

    Source: the package ntloss since 0.1 (not in the paper).

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary, Reweighed, Wasserstein
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss = NumberTokenLoss(digits, Reweighed(Wasserstein()))
        >>> logits = torch.full((1, 12), -1e4)
        >>> logits[0, [4, 11]] = 0.0  # half of the probability on 4, half on text
        >>> round(loss(logits, torch.tensor([3])).item(), 4)  # 0.5 * 1 + 1.01 * 9 * 0.5
        5.045
    """

    criterion: Criterion

    def __post_init__(self) -> None:
        if not hasattr(self.criterion, "worst"):
            raise self._without_worst()

    def _without_worst(self) -> ValueError:
        return ValueError(
            "Reweighed needs a criterion with a worst cost (a method `worst` that returns a number), and "
            f"{self.criterion!r} has none: omit Reweighed"
        )

    @property
    def needs(self) -> Needs:
        """The criterion's needs, and the log-normalizer."""
        return needs_of(self.criterion).union(Needs(log_normalizer=True))

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        return self.bind(x.values.double(), x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Bind the criterion and its worst cost; a ValueError if it has none for these values."""
        worst = worst_of(self.criterion, values)
        if worst is None:
            raise self._without_worst()
        return functools.partial(_reweighed, criterion=bind(self.criterion, values, like), worst=worst)


def _reweighed(x: CriterionInput, criterion: Criterion, worst: float) -> Tensor:
    assert x.log_mass is not None  # because Reweighed needs the log-normalizer
    mass = x.log_mass.exp()
    # 1 - mass loses precision where mass is near 1; the gradient of expm1 loses it where mass is far below 1.
    on_text = torch.where(x.log_mass > -1, -torch.expm1(x.log_mass), 1 - mass)
    return mass * criterion(x) + (1.01 * worst) * on_text


@dataclass(frozen=True)
class PlaceWeighted:
    r"""A criterion weighted by the decimal place of the digit in its number.

    $w(place) \cdot loss$; with `Wasserstein` it is NTIL's token term. Its minimum is the criterion's; its
    range is scaled by the weights. Use it if a wrong leading digit is worse than a wrong last one. Means
    still count each position once.

    Args:
        criterion: the criterion to weight, with one loss per token.
        weighting: "exponential" (default): `place_base ** r` with r the number of digits after this one;
            "linear": r + 1; "decimal": see `place_weights`.
        place_base: base of the exponential weights, 1 or more. Default: 1.2, as published.
        decimals: a point between two digits belongs to their number. Default: True for "decimal", else False.

    Raises:
        ValueError: an unknown weighting, a base below 1, or a criterion with one loss per number.

    Source: NTIL, ACL 2025, the exponential position-based weighting.

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import PlaceWeighted, Wasserstein
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, PlaceWeighted(Wasserstein(), place_base=2.0))
        >>> logits = torch.full((1, 3, 16), -1e4)
        >>> logits[..., 4] = 0.0  # certain of 4, three times
        >>> loss(logits, torch.tensor([[5, 5, 5]]), reduction="none")
        tensor([[4., 2., 1.]])
    """

    criterion: Criterion
    weighting: str = "exponential"
    place_base: float = 1.2
    decimals: bool | None = None

    def __post_init__(self) -> None:
        check_choice("weighting", self.weighting, ("exponential", "linear", "decimal"))
        if not 1 <= self.place_base < float("inf"):
            raise ValueError(f"place_base={self.place_base!r}: expected a finite number of 1 or more")
        if needs_of(self.criterion).per_number:
            raise ValueError(
                f"criterion={self.criterion!r} returns one loss per number, and a number has no place: "
                "expected a criterion on tokens, such as Wasserstein()"
            )

    @property
    def needs(self) -> Needs:
        """The criterion's needs, and spans."""
        decimals = self.weighting == "decimal" if self.decimals is None else self.decimals
        return needs_of(self.criterion).union(Needs(spans=True, decimals=decimals))

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        return self.criterion(x) * place_weights(x, self, self.weighting, self.place_base)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Bind the weighted criterion."""
        return _replace(self, criterion=bind(self.criterion, values, like))


@dataclass(frozen=True)
class PerNumber:
    """The mean of a criterion over the tokens of each number, so that every number counts once.

    It has the criterion's minimum and range. Use it to keep long numbers from outweighing short ones, or to
    add a criterion on tokens to one on whole numbers (`WeightedSum`).

    Args:
        criterion: the criterion to average, with one loss per token.
        decimals: a point between two digits belongs to their number. Default: False, unless the criterion
            needs it.

    Raises:
        ValueError: a criterion with one loss per number.

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import PerNumber, Wasserstein
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, PerNumber(Wasserstein()))
        >>> logits = torch.full((1, 4, 16), -1e4)
        >>> logits[..., 4] = 0.0  # certain of 4
        >>> loss(logits, torch.tensor([[5, 7, 11, 4]]), reduction="none")
        tensor([[2., 0., 0., 0.]])
    """

    criterion: Criterion
    decimals: bool = False

    def __post_init__(self) -> None:
        if needs_of(self.criterion).per_number:
            raise ValueError(
                f"criterion={self.criterion!r} returns one loss per number already: omit PerNumber"
            )

    @property
    def needs(self) -> Needs:
        """The criterion's needs, and whole numbers."""
        return needs_of(self.criterion).union(Needs(per_number=True, decimals=self.decimals))

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each number, at its first token: `[positions]`."""
        spans = spans_of(x, self)
        is_number = spans.digits > 0
        loss = torch.where(is_number, self.criterion(x), 0)
        nothing = torch.zeros_like(loss)
        count = nothing.scatter_add(0, spans.number, is_number.to(loss.dtype))
        return at_starts(nothing.scatter_add(0, spans.number, loss) / count.clamp(min=1), spans)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Bind the averaged criterion."""
        return _replace(self, criterion=bind(self.criterion, values, like))

    def worst(self, values: Tensor) -> float | None:
        """Return the criterion's worst cost."""
        return worst_of(self.criterion, values)


@dataclass(frozen=True)
class WeightedSum:
    r"""A weighted sum of criteria: $\sum_i w_i \, loss_i$.

    A distribution that minimizes all criteria also minimizes the sum. If all have a worst cost, so has
    the sum: the weighted sum of the worst costs.

    Args:
        criteria: the criteria to sum, either all with one loss per token or all with one per number.
        weights: weight of each criterion, 0 or more. Default: 1.

    Raises:
        ValueError: no criterion, a different number of weights than criteria, a negative weight, or criteria
            on tokens together with criteria on whole numbers.

    Example:
        >>> from ntloss.criteria import CriterionInput, ExpectedValue, Wasserstein, WeightedSum
        >>> probs, values = torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([3.0, 4.0, 5.0])
        >>> x = CriterionInput(probs.log(), values, target=torch.tensor([1]))
        >>> WeightedSum((Wasserstein(), ExpectedValue()), (0.5, 1.0))(x)  # 0.5 * 1 + 1.0 * 0
        tensor([0.5000])
    """

    criteria: Sequence[Criterion]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        criteria = tuple(self.criteria)
        weights = (1.0,) * len(criteria) if self.weights is None else tuple(self.weights)
        if not criteria or len(criteria) != len(weights):
            raise ValueError(
                f"{len(criteria)} criteria and {len(weights)} weights: expected at least one criterion, and "
                "one weight for each"
            )
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"weights={weights}: expected finite numbers, 0 or more")
        per_number = [needs_of(criterion).per_number for criterion in criteria]
        if any(per_number) and not all(per_number):
            on_tokens = [c for c, whole in zip(criteria, per_number, strict=True) if not whole]
            raise ValueError(
                f"{on_tokens} return one loss per token, the others one per number, and a mean divides by "
                "the count of one or the other: wrap them in PerNumber(criterion)"
            )
        # Tuples, even if a configuration file has lists, so that the criterion can be hashed.
        object.__setattr__(self, "criteria", criteria)
        object.__setattr__(self, "weights", weights)

    @property
    def _terms(self) -> list[tuple[float, Criterion]]:
        assert self.weights is not None
        return list(zip(self.weights, self.criteria, strict=True))

    @property
    def needs(self) -> Needs:
        """The combined needs of all criteria."""
        return functools.reduce(Needs.union, map(needs_of, self.criteria))

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        losses = [(weight, criterion(x)) for weight, criterion in self._terms]
        # An infinite loss with a weight of 0 counts as 0.
        weighted = [
            weight * (loss if weight else loss.masked_fill(loss.isinf(), 0)) for weight, loss in losses
        ]
        return functools.reduce(torch.add, weighted)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Bind each criterion."""
        return _replace(self, criteria=tuple(bind(criterion, values, like) for criterion in self.criteria))

    def worst(self, values: Tensor) -> float | None:
        """Return the weighted sum of the worst costs, or None if a criterion has none."""
        total = 0.0
        for weight, criterion in self._terms:
            cost = worst_of(criterion, values)
            if cost is None:
                return None
            total += weight * cost
        return total


def ntil(
    place_base: float = 1.2,
    token: float = 1.0,
    relative: float = 0.2,
    magnitude: float = 0.2,
    temperature: float = 0.1,
    hard: bool = True,
    decimals: bool = False,
) -> WeightedSum:
    r"""Numerical Token Integrity Loss (NTIL): digits weighted by place, and the whole number.

    $token \cdot mean_t \, b^{place_t} W_t + relative \cdot R + magnitude \cdot M$ for each number, with the
    Wasserstein distance W of each of its digits, `RelativeError` R and `Magnitude` M. It is 0 or more,
    without an upper bound, and zero exactly if all digits are certain and right.

    The published code differs: it averages over the digits and numbers of each row before it averages over
    rows, adds a little Gumbel noise to the argmax, and multiplies the loss by the detached ratio of the
    batch's cross-entropy to its NTIL. This makes the gradient depend on how a batch is split, so it is left
    out here.

    Args:
        place_base: see `PlaceWeighted`. Default: 1.2, as published.
        token, relative, magnitude: weights of the terms. Default: 1, 0.2 and 0.2, as published.
        temperature, hard, decimals: see `RelativeError`.

    Returns:
        The criterion.

    Raises:
        ValueError: an option is out of range.

    Source: "Advancing Sequential Numerical Prediction in Autoregressive Models", ACL 2025.

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary, ntil
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, ntil())
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 0.0  # certain of 19
        >>> round(loss(logits, torch.tensor([[1, 4]])).item(), 4)  # 5 / 2 + 0.2 * 5 / 20 + 0.2 * log(20 / 15)
        2.6075
    """
    digits = PlaceWeighted(Wasserstein(), "exponential", place_base, decimals)
    options = temperature, hard, decimals
    criteria = PerNumber(digits), RelativeError(*options), Magnitude(*options)
    return WeightedSum(criteria, (token, relative, magnitude))
