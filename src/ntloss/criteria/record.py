"""What a criterion is told, what it may ask for, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ntloss.numbers import NumberSpans


@dataclass(frozen=True)
class NumberRecord:
    """What a criterion is told, one row per position, in float32 or float64.

    Positions whose label is no number may be there too (on accelerators and under `torch.compile` shapes stay
    static); their losses are dropped. A criterion that looks across positions is given all of them.

    Args:
        log_probs: `[positions, values]`, log of the distribution over the distinct values, restricted to
            the number tokens; a value's forms (`4`, `▁4`) are merged.
        values: `[values]`, the distinct values, ascending.
        target: `[positions]`, index of the label's value in `values`.
        log_mass: `[positions]`, log of the probability of all number tokens together under the softmax over
            the whole vocabulary; None where the log-normalizer was not asked for.
        log_normalizer: `[positions]`, logsumexp over the whole vocabulary; None likewise.
        logits: `[positions, values]`, logits of the values, forms merged; for the rare criterion that depends
            on their level.
        spans: which number each position belongs to, and its place in it; None unless the criterion needs it.
        tables: what the criterion's own `tables` gave, on the record's device and in its dtype; None where
            nobody has kept them.
    """

    log_probs: Tensor
    values: Tensor
    target: Tensor
    log_mass: Tensor | None = None
    log_normalizer: Tensor | None = None
    logits: Tensor | None = None
    spans: NumberSpans | None = None
    tables: Mapping[str, Tensor] | None = None

    @property
    def probs(self) -> Tensor:
        """`[positions, values]`, the distribution itself."""
        return self.log_probs.exp()

    @property
    def target_values(self) -> Tensor:
        """`[positions]`, the labels' values."""
        return self.values[self.target]


@dataclass(frozen=True)
class Needs:
    """What a criterion asks for besides the distribution; its attribute `needs`, where it asks for anything.

    Args:
        log_normalizer: `record.log_mass` and `record.log_normalizer`.
        spans: `record.spans`.
        across_positions: it looks at several positions at once, so all of a batch's must be in one record.
        per_number: it gives one loss for each whole number, at the number's first token (elsewhere what it
            gives does not count); means divide by the count of numbers, and reweighing is with the mass
            there. Implies `spans` and `across_positions`.
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

    # A method, not `|`: the compiler of torch 2.7 cannot trace operators of our own.
    def union(self, other: Needs) -> Needs:
        """What either asks for."""
        return Needs(
            self.log_normalizer or other.log_normalizer,
            self.spans or other.spans,
            self.across_positions or other.across_positions,
            self.per_number or other.per_number,
            self.decimals or other.decimals,
        )


class Criterion(Protocol):
    """A loss on numbers: any callable with these two methods serves.

    Two more are optional: an attribute `needs`, a `Needs`; and a method `tables(values)`, which gives tensors
    that depend on the values `[values]`, float64, alone. The losses call it once, keep what it gives with
    their own buffers, and hand it back in `record.tables`.
    """

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`."""
        ...

    def worst(self, values: Tensor) -> float | None:
        """Largest loss that a prediction of one single value can have, or None without a bound.

        Args:
            values: `[values]`, the distinct values, ascending, float64.
        """
        ...


def needs_of(criterion: Criterion) -> Needs:
    """What a criterion asks for; nothing, where it does not say."""
    needs: Needs = getattr(criterion, "needs", Needs())
    return needs


def tables_of(criterion: Criterion, values: Tensor) -> dict[str, Tensor]:
    """A criterion's tables for these values; none, where it has none."""
    make = getattr(criterion, "tables", None)
    return {} if make is None else make(values)


def table(criterion: Criterion, record: NumberRecord, name: str) -> Tensor:
    """One table of a criterion: the one that was kept, or for a record made by hand a new one."""
    kept = record.tables
    if kept is None:
        kept = tables_of(criterion, record.values.to(torch.float64))
    return kept[name].to(record.log_probs.dtype)


def tables_of_parts(parts: tuple[Criterion, ...], values: Tensor) -> dict[str, Tensor]:
    """The tables of a criterion that is made of others, each name behind the part's number."""
    return {
        f"{i}_{name}": made for i, part in enumerate(parts) for name, made in tables_of(part, values).items()
    }


def record_of_part(record: NumberRecord, part: int) -> NumberRecord:
    """The record as one part of such a criterion expects it."""
    if record.tables is None:
        return record
    own = f"{part}_"
    return replace(
        record, tables={n.removeprefix(own): t for n, t in record.tables.items() if n.startswith(own)}
    )


def spans_of(record: NumberRecord, criterion: Criterion) -> NumberSpans:
    """The record's spans.

    Raises:
        ValueError: whoever made the record left them out.
    """
    if record.spans is None:
        raise ValueError(
            f"record.spans is None, and {criterion!r} needs to know which tokens form a number: make the "
            "record with spans=ntloss.numbers.find_numbers(...).flatten()"
        )
    return record.spans
