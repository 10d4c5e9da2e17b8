"""Criteria made of others."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ntloss.criteria.places import PlaceWeighted
from ntloss.criteria.record import (
    Criterion,
    Needs,
    NumberRecord,
    needs_of,
    record_of_part,
    tables_of_parts,
)
from ntloss.criteria.transport import Wasserstein
from ntloss.criteria.whole_numbers import Magnitude, PerNumber, RelativeError


@dataclass(frozen=True)
class WeightedSum:
    r"""Several criteria at once: $\sum_i w_i \, loss_i$.

    Smallest where all are, if there is such a place. `reweigh` acts on the sum, with the sum of the worst
    costs, where all have one.

    Args:
        criteria: what is added up: all of them one loss per token, or all one per number.
        weights: of each, 0 or more. Default: 1.

    Raises:
        ValueError: no criterion, a weight too many or too few or below 0, or criteria on tokens beside
            criteria on whole numbers.

    Example:
        >>> import torch
        >>> from ntloss import ExpectedValue, NumberRecord, Wasserstein
        >>> from ntloss.criteria import WeightedSum
        >>> record = NumberRecord(
        ...     log_probs=torch.tensor([[0.5, 0.0, 0.5]]).log(),
        ...     values=torch.tensor([3.0, 4.0, 5.0]),
        ...     target=torch.tensor([1]),
        ... )
        >>> WeightedSum((Wasserstein(), ExpectedValue()), (0.5, 1.0))(record)  # 0.5 * 1 + 1.0 * 0
        tensor([0.5000])
    """

    criteria: Sequence[Criterion]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        criteria = tuple(self.criteria)
        weights = (1.0,) * len(criteria) if self.weights is None else tuple(self.weights)
        if not criteria or len(criteria) != len(weights):
            raise ValueError(
                f"{len(criteria)} criteria and {len(weights)} weights: expected one or more, and as many"
            )
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"weights={weights}: expected finite numbers of 0 or more")
        per_number = [needs_of(criterion).per_number for criterion in criteria]
        if any(per_number) and not all(per_number):
            on_tokens = [c for c, whole in zip(criteria, per_number, strict=True) if not whole]
            raise ValueError(
                f"{on_tokens} give one loss per token, the others one per number, and a mean divides by the "
                "count of one or the other. Wrap them: PerNumber(criterion)."
            )
        # Lists of a configuration file; and a criterion can be hashed.
        object.__setattr__(self, "criteria", criteria)
        object.__setattr__(self, "weights", weights)

    @property
    def needs(self) -> Needs:
        """What any of them needs."""
        return functools.reduce(Needs.union, map(needs_of, self.criteria))

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`."""
        assert self.weights is not None
        total = None
        for i, (criterion, weight) in enumerate(zip(self.criteria, self.weights, strict=True)):
            part = weight * criterion(record_of_part(record, i))
            total = part if total is None else total + part
        assert total is not None
        return total

    def tables(self, values: Tensor) -> dict[str, Tensor]:
        """Those of all of them."""
        return tables_of_parts(tuple(self.criteria), values)

    def worst(self, values: Tensor) -> float | None:
        """The sum of the worst costs, or None where one of them has none."""
        assert self.weights is not None
        each = [criterion.worst(values) for criterion in self.criteria]
        costs = [cost for cost in each if cost is not None]
        if len(costs) < len(each):
            return None
        return sum(weight * cost for weight, cost in zip(self.weights, costs, strict=True))


def ntil(
    place_base: float = 1.2,
    token: float = 1.0,
    relative: float = 0.2,
    magnitude: float = 0.2,
    temperature: float = 0.1,
    hard: bool = True,
    decimals: bool = False,
) -> WeightedSum:
    r"""Numerical Token Integrity Loss: digits weighted by place, and the whole number (NTIL).

    $token \cdot mean_t \, b^{place_t} W_t + relative \cdot R + magnitude \cdot M$ for each number, with the
    Wasserstein distance W of each of its digits, `RelativeError` R and `Magnitude` M. From 0 up, without a
    bound; zero exactly where all digits are certain and right.

    The published code averages over the digits of a row, and over its numbers, before it averages over rows;
    adds a little Gumbel noise to the argmax; and multiplies with the detached ratio of cross-entropy to NTIL
    of the batch. This does none of it: the gradient would depend on how a batch is split.

    Args:
        place_base: see `PlaceWeighted`. Default: 1.2, as published.
        token: weight of the digits' term. Default: 1, as published.
        relative: weight of `RelativeError`. Default: 0.2, as published.
        magnitude: weight of `Magnitude`. Default: 0.2, as published.
        temperature: see `RelativeError`. Default: 0.1, as published.
        hard: see `RelativeError`.
        decimals: a point between two digits belongs to their number. Default: False.

    Returns:
        The criterion.

    Raises:
        ValueError: an option outside of its range.

    Source: "Advancing Sequential Numerical Prediction in Autoregressive Models", ACL 2025.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import ntil
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, ntil())
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 0.0  # certain of 19
        >>> round(loss(logits, torch.tensor([[1, 4]])).item(), 4)  # 5 / 2 + 0.2 * 5 / 20 + 0.2 * log(20 / 15)
        2.6075
    """
    digits = PlaceWeighted(Wasserstein(), "exponential", place_base, decimals)
    criteria = (
        PerNumber(digits),
        RelativeError(temperature, hard, decimals),
        Magnitude(temperature, hard, decimals),
    )
    return WeightedSum(criteria, (token, relative, magnitude))
