"""The interface of criteria: their input, their needs and their result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial

import torch
from torch import Tensor

from ntloss.numbers.spans import NumberSpans


@dataclass(frozen=True)
class CriterionInput:
    """Input of a criterion, one row per position, in float32 or float64.

    It may include positions whose label is not a number, because shapes are static on accelerators and under
    `torch.compile`; their losses are dropped. A criterion that looks across positions gets all of them.

    Args:
        log_probs: `[positions, values]`, log of the distribution over the distinct values, restricted to
            the number tokens; the forms of a value (`4`, `▁4`) are merged.
        values: `[values]`, the distinct values, ascending.
        target: `[positions]`, index of the label's value in `values`.
        log_mass: `[positions]`, log of the total probability of the number tokens under the softmax over the
            vocabulary; None if the log-normalizer is unknown.
        number_logsumexp: `[positions]`, logsumexp of the number tokens' logits, so that the values' logits
            are `log_probs + number_logsumexp`; None if only probabilities are known.
        spans: the number that each position belongs to; None unless the criterion needs it.
        has_form: `[values, digits]`, bool: whether a token of 1, 2, ... digits, without a point or an
            exponent of its own, has this value; None without spans.
    """

    log_probs: Tensor
    values: Tensor
    target: Tensor
    log_mass: Tensor | None = None
    number_logsumexp: Tensor | None = None
    spans: NumberSpans | None = None
    has_form: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """`[positions, values]`, the distribution over the distinct values."""
        return self.log_probs.exp()

    @property
    def target_values(self) -> Tensor:
        """`[positions]`, the labels' values."""
        return self.values[self.target]


# A loss on numbers: any callable that returns one loss for each position, `[positions]`. It may also have
# - an attribute `needs`, a `Needs`;
# - an attribute `mode`, the default `mode` of combined losses; "add" without it;
# - a method `worst(values)`, the largest loss of a prediction with all probability on one of the distinct
#   `values` (`[values]`, ascending, float64), or None if it has no bound. Only `reweigh` asks for it;
# - a method `bind(values, like)`, for tables that depend on the values alone, such as a matrix of distances.
#   It returns a function of the input that holds them in the dtype and on the device of the tensor `like`. A
#   loss calls it once per dtype and device.
Criterion = Callable[[CriterionInput], Tensor]


@dataclass(frozen=True)
class Needs:
    """What a criterion needs besides the distribution, as its optional attribute `needs`.

    Args:
        log_normalizer: it reads `log_mass`, which needs the log-normalizer of the whole vocabulary.
        spans: it reads `spans`.
        across_positions: it looks at several positions at once, so the input must hold all positions of the
            batch.
        per_number: it returns one loss for each whole number, at the number's first token (other entries are
            dropped). Means divide by the count of numbers, and reweighing uses the mass at the first token.
            Implies `spans` and `across_positions`.
        decimals: a point between two digits belongs to their number.
        remainders: it reads `spans.remainders`, the digits behind each token. Implies `spans`.
    """

    log_normalizer: bool = False
    spans: bool = False
    across_positions: bool = False
    per_number: bool = False
    decimals: bool = False
    remainders: bool = False

    def __post_init__(self) -> None:
        if self.per_number or self.remainders:
            object.__setattr__(self, "spans", True)
        if self.per_number:
            object.__setattr__(self, "across_positions", True)

    def union(self, other: Needs) -> Needs:
        """Combine the needs of two criteria."""
        return Needs(*map(max, astuple(self), astuple(other)))


def needs_of(criterion: Criterion) -> Needs:
    """Return a criterion's attribute `needs`, or empty needs."""
    needs: Needs = getattr(criterion, "needs", Needs())
    return needs


def mode_of(criterion: Criterion) -> str:
    """Return a criterion's attribute `mode`, the default mode of combined losses, or "add"."""
    mode: str = getattr(criterion, "mode", "add")
    return mode


def worst_of(criterion: Criterion, values: Tensor) -> float | None:
    """Return a criterion's worst cost for distinct `values`, or None if it has none; see `Criterion`."""
    worst: Callable[[Tensor], float | None] | None = getattr(criterion, "worst", None)
    return None if worst is None else worst(values)


def bind(criterion: Criterion, values: Tensor, like: Tensor) -> Criterion:
    """Compute a criterion's tables; see `Criterion`. A criterion without tables is returned itself."""
    make: Callable[[Tensor, Tensor], Criterion] | None = getattr(criterion, "bind", None)
    return criterion if make is None else make(values, like)


class Tabulated:
    """Base class of criteria with tables: `_loss(x, **tables)` computes the loss, `_tables(values)` them."""

    _loss: Callable[..., Tensor]
    _tables: Callable[[Tensor], dict[str, Tensor]]

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        return self.bind(x.values.double(), x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Compute the tables; see `Criterion`."""
        return partial(self._loss, **{name: table.to(like) for name, table in self._tables(values).items()})


def spans_of(x: CriterionInput, criterion: object) -> NumberSpans:
    """Return the input's spans; raise a ValueError that names the criterion if there are none."""
    if x.spans is None:
        raise ValueError(
            f"spans is None, but {criterion!r} needs to know which tokens form a number: make the input with "
            "spans=ntloss.numbers.spans.find_numbers(...).flatten()"
        )
    return x.spans


def check_positive(name: str, value: float) -> None:
    """Raise a ValueError unless an option is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError unless an option is one of several names."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name}={value!r}: expected {', '.join(others)} or {last}")


def reweigh_by_mass(loss: Tensor, log_mass: Tensor, worst: float) -> Tensor:
    r"""Make probability on text cost more than the worst number.

    $m \cdot loss + 1.01 \cdot worst \cdot (1 - m)$ with $m$ the total probability of the number tokens.
    Without it, a criterion sees only the distribution *within* the number tokens, however small $m$ is.
    `loss`, `log_mass` and the result are `[positions]`; `worst` is the criterion's worst cost.

    Source: the package ntloss since 0.1 (not in the paper).
    """
    mass = log_mass.exp()
    # 1 - mass loses precision where mass is near 1; the gradient of expm1 loses it where mass is far below 1.
    on_text = torch.where(log_mass > -1, -torch.expm1(log_mass), 1 - mass)
    return mass * loss + (1.01 * worst) * on_text
