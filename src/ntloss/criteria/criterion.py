"""The interface of criteria: their input, their needs and their result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Protocol

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
        logits: `[positions, values]`, the values' logits, whose level `log_probs` do not have; None if only
            probabilities are known.
        spans: the number that each position belongs to; None unless the criterion needs it.
        has_form: `[values, digits]`, bool: whether a token of 1, 2, ... digits, without a point or an
            exponent of its own, has this value; None without spans.
        form_log_probs: `[positions]`, log of the share of the label's own token among the forms of its value;
            None if each value has one form, or beside a cross-entropy that sees it.
    """

    log_probs: Tensor
    values: Tensor
    target: Tensor
    log_mass: Tensor | None = None
    logits: Tensor | None = None
    spans: NumberSpans | None = None
    has_form: Tensor | None = None
    form_log_probs: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """`[positions, values]`, the distribution over the distinct values."""
        return self.log_probs.exp()

    @property
    def target_values(self) -> Tensor:
        """`[positions]`, the labels' values."""
        return self.values[self.target]


class Criterion(Protocol):
    """A loss on numbers: any callable that takes a `CriterionInput` and returns one loss for each position.

    It may also have
    - an attribute `needs`, a `Needs`. Default: it needs nothing but the distribution;
    - an attribute `mode`, the default `mode` of combined losses. Default: "add";
    - a method `worst(values)`, the largest loss of a prediction with all probability on one of the distinct
      `values` (`[values]`, ascending, float64), or None if it has no bound. Only `Reweighed` asks for it;
    - a method `bind(values, like)`, for tables that depend on the values alone, such as a matrix of
      distances. It returns a function of the input that holds them in the dtype and on the device of the
      tensor `like`. A loss calls it once per dtype and device, because tables that are made at each call are
      5 to 30 times slower. `Tabulated` has one.
    """

    def __call__(self, x: CriterionInput, /) -> Tensor:
        """Compute the loss of each position: `[positions]`."""


@dataclass(frozen=True)
class Needs:
    """What a criterion needs besides the distribution, as its optional attribute `needs`.

    Args:
        log_normalizer: it reads `log_mass`, which needs the log-normalizer of the whole vocabulary.
        spans: it reads `spans`.
        across_positions: it looks at several positions at once, so the input must hold all positions of the
            batch.
        per_number: it returns one loss for each whole number, at the number's first token (other entries are
            dropped). Means divide by the count of numbers, and `Reweighed` uses the mass at the first token.
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


def parts_of(criterion: Any) -> list[Any]:
    """Return a criterion and, if it is made of others, those too."""
    others = [*getattr(criterion, "criteria", ()), getattr(criterion, "criterion", None)]
    return [criterion, *(part for other in others if other is not None for part in parts_of(other))]


def mode_of(criterion: Criterion) -> str:
    """Return the default mode of combined losses: "replace" if a part of the criterion asks for it."""
    return "replace" if any(getattr(p, "mode", "add") == "replace" for p in parts_of(criterion)) else "add"


def annealed_parts(criterion: Criterion) -> list[Any]:
    """Return the parts of a criterion that change over training: those with a schedule."""
    return [part for part in parts_of(criterion) if getattr(part, "schedule", None) is not None]


def worst_of(criterion: Criterion, values: Tensor) -> float | None:
    """Return a criterion's worst cost for distinct `values`, or None if it has none; see `Criterion`."""
    worst: Callable[[Tensor], float | None] | None = getattr(criterion, "worst", None)
    return None if worst is None else worst(values)


def bind(criterion: Criterion, values: Tensor, like: Tensor) -> Criterion:
    """Compute a criterion's tables; see `Criterion`. A criterion without tables is returned itself."""
    make: Callable[[Tensor, Tensor], Criterion] | None = getattr(criterion, "bind", None)
    return criterion if make is None else make(values, like)


class Tabulated:
    """Base class of criteria with tables that depend on the values alone.

    A subclass defines `_tables(values)`, which returns them by name, computed from the distinct `values`
    (`[values]`, ascending, float64), and `_loss(x, **tables)`, which computes the loss of each position. A
    loss makes the tables once per dtype and device.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> class SquareRoot(Tabulated):
        ...     def _tables(self, values):
        ...         return {"costs": (values - values.unsqueeze(-1)).abs().sqrt()}
        ...
        ...     def _loss(self, x, costs):
        ...         return (x.probs * costs[x.target]).sum(-1)
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, SquareRoot())
    """

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
