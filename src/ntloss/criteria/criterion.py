"""What a criterion is given, what it may ask for, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ntloss.number_spans import NumberSpans


@dataclass(frozen=True)
class CriterionInput:
    """What a criterion is given, one row per position, in float32 or float64.

    Positions whose label is not a number may be included (on accelerators and under `torch.compile` shapes
    stay static); their losses are dropped. A criterion that looks across positions is given all of them.

    Args:
        log_probs: `[positions, values]`, log of the distribution over the distinct values, restricted to
            the number tokens; a value's forms (`4`, `▁4`) are merged.
        values: `[values]`, the distinct values, ascending.
        target: `[positions]`, index of the label's value in `values`.
        log_mass: `[positions]`, log of the probability of all number tokens together under the softmax over
            the whole vocabulary; None where the log-normalizer is unknown.
        number_logsumexp: `[positions]`, logsumexp of the number tokens' logits: the values' logits are
            `log_probs + number_logsumexp`. None where only probabilities are known.
        spans: the number that each position belongs to; None unless the criterion needs it.
    """

    log_probs: Tensor
    values: Tensor
    target: Tensor
    log_mass: Tensor | None = None
    number_logsumexp: Tensor | None = None
    spans: NumberSpans | None = None

    @property
    def probs(self) -> Tensor:
        """`[positions, values]`, the distribution itself."""
        return self.log_probs.exp()

    @property
    def target_values(self) -> Tensor:
        """`[positions]`, the labels' values."""
        return self.values[self.target]


# What is left of a criterion once its tables are computed.
BoundCriterion = Callable[[CriterionInput], Tensor]


@dataclass(frozen=True)
class Needs:
    """What a criterion needs besides the distribution; its attribute `needs`, if it needs anything.

    Args:
        log_normalizer: `log_mass`, which takes the log-normalizer of the whole vocabulary.
        spans: `spans`.
        across_positions: it looks at several positions at once, so one input must hold all of a batch's.
        per_number: it returns one loss for each whole number, at the number's first token (its other entries
            are dropped); means divide by the count of numbers, and reweighing uses the mass there. Implies
            `spans` and `across_positions`.
        decimals: a point between two digits belongs to their number.
    """

    log_normalizer: bool = False
    spans: bool = False
    across_positions: bool = False
    per_number: bool = False
    decimals: bool = False

    def __post_init__(self) -> None:
        if self.per_number:
            object.__setattr__(self, "spans", True)
            object.__setattr__(self, "across_positions", True)

    # A method instead of `|`: the compiler of torch 2.7 cannot trace user-defined operators.
    def union(self, other: Needs) -> Needs:
        """What either needs."""
        return Needs(
            self.log_normalizer or other.log_normalizer,
            self.spans or other.spans,
            self.across_positions or other.across_positions,
            self.per_number or other.per_number,
            self.decimals or other.decimals,
        )


class Criterion(Protocol):
    """A loss on numbers: any callable with these two methods.

    Two more members are optional: an attribute `needs`, a `Needs`; and a method `bind(values, like)` for a
    criterion with tables that depend on the values alone, such as a matrix of distances. It is given the
    values `[values]` in float64 and a tensor `like`, and returns a function of the input that holds the
    tables in the dtype and on the device of `like`. A loss binds its criterion once for each of them.
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`."""
        ...

    def worst(self, values: Tensor) -> float | None:
        """Largest loss that a prediction of one single value can have, or None without a bound.

        Args:
            values: `[values]`, the distinct values, ascending, float64.
        """
        ...


def needs_of(criterion: Criterion) -> Needs:
    """What a criterion needs: its attribute `needs`, or nothing."""
    needs: Needs = getattr(criterion, "needs", Needs())
    return needs


def bind(criterion: Criterion, values: Tensor, like: Tensor) -> BoundCriterion:
    """Compute a criterion's tables; the criterion itself if it has none.

    Args:
        criterion: the criterion.
        values: `[values]`, the distinct values, ascending, float64.
        like: a tensor with the dtype and device of the tables.
    """
    make = getattr(criterion, "bind", None)
    bound: BoundCriterion = criterion if make is None else make(values, like)
    return bound


def spans_of(x: CriterionInput, asker: object) -> NumberSpans:
    """The input's spans.

    Args:
        x: the input.
        asker: what needs them, for the error message.

    Raises:
        ValueError: the input was made without spans.
    """
    if x.spans is None:
        raise ValueError(
            f"spans is None, and {asker!r} needs to know which tokens form a number: make the input with "
            "spans=ntloss.number_spans.find_numbers(...).flatten()"
        )
    return x.spans


def check_positive(name: str, value: float) -> None:
    """Raise unless an option is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")


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
