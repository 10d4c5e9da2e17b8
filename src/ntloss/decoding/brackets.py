"""Bounds on quantiles of partly known distributions: the masses of single numbers and of ranges."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Relative tolerance for masses, so that a quantile exactly between two halves is decided.
ROUNDING = 1e-9


class Known(NamedTuple):
    """Masses of several distributions in one table; all `[entries]`, float64 but the first.

    Args:
        question: which distribution an entry belongs to, from 0.
        mass: its probability mass.
        low: the smallest number that it may be.
        high: the largest; equal to `low` for a number.
        likely: the number that it counts as in the estimate.
        number: bool, whether it is a complete number. Otherwise any part of the mass may be no number at all.
    """

    question: Tensor
    mass: Tensor
    low: Tensor
    high: Tensor
    likely: Tensor
    number: Tensor


def brackets(known: Known, quantiles: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Bracket the quantiles of normalized distributions.

    With C the mass of complete numbers and U that of ranges, whatever the ranges turn out to be,

    .. math::
        \frac{C(\le x)}{C + U(high > x)} \le F(x) \le
        \frac{C(\le x) + U(low \le x)}{C + U(low \le x)}.

    Args:
        known: what is known.
        quantiles: `[quantiles]`, float64.
        count: number of distributions.

    Returns:
        Estimate, lower and upper end, each `[count, quantiles]`; NaN if there is no mass.
    """
    numbers = torch.where(known.number, known.mass, 0)
    question, mass = known.question, known.mass
    lower = _smallest(question, known.low, mass, numbers, quantiles, ROUNDING, count)
    upper = _smallest(question, known.high, numbers, mass, quantiles, -ROUNDING, count)
    values = _smallest(question, known.likely, mass, mass, quantiles, -ROUNDING, count)
    lower = torch.minimum(lower, upper)  # the rounding may cross them
    values = torch.minimum(torch.maximum(values, lower), upper)
    return values, lower, upper


def _smallest(
    question: Tensor,
    candidates: Tensor,
    below: Tensor,
    above: Tensor,
    quantiles: Tensor,
    slack: float,
    count: int,
) -> Tensor:
    """Find the least candidate x with (1 - q) below(<= x) >= q above(> x) + slack, `[count, quantiles]`."""
    order = candidates.argsort()
    order = order[question[order].argsort(stable=True)]
    question, candidates = question[order], candidates[order]
    sizes = torch.bincount(question, minlength=count)
    first = sizes.cumsum(0) - sizes
    under, total = _cumulate(below[order], question, first, sizes)
    over, total_over = _cumulate(above[order], question, first, sizes)
    rest = total_over[question] - over
    allowed = slack * torch.maximum(total, total_over)[question]
    reached = (1 - quantiles) * under[:, None] >= quantiles * rest[:, None] + allowed[:, None]
    missed = torch.zeros(count, len(quantiles), dtype=torch.int64)
    missed.index_add_(0, question, (~reached).long())
    index = first[:, None] + missed.minimum((sizes - 1)[:, None])
    index = index.clamp(min=0, max=max(len(candidates) - 1, 0))
    empty = ((total + total_over) == 0)[:, None]
    found = candidates[index] if len(candidates) else torch.zeros(index.shape, dtype=torch.float64)
    return torch.where(empty, torch.nan, found)


def _cumulate(mass: Tensor, question: Tensor, first: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative sums within each question, inclusive, and each question's total."""
    sums = torch.cat([mass.new_zeros(1), mass.cumsum(0)])
    start = sums[first]
    return sums[1:] - start[question], sums[first + sizes] - start


def modes(question: Tensor, value: Tensor, mass: Tensor, unexpanded: Tensor) -> tuple[Tensor, Tensor]:
    """Find the likeliest numbers.

    Args:
        question: `[numbers]`, which distribution each complete number belongs to.
        value: `[numbers]`; a number may occur several times.
        mass: `[numbers]`.
        unexpanded: `[count]`, mass of the ranges of each distribution.

    Returns:
        The numbers, `[count]`, NaN if there is none; and whether no other can be likelier, `[count]`, bool.
    """
    count = len(unexpanded)
    keys, index = torch.unique(torch.stack([question.double(), value], dim=-1), dim=0, return_inverse=True)
    mass = torch.zeros(len(keys), dtype=torch.float64).index_add(0, index, mass)
    keys, mass = keys[mass > 0], mass[mass > 0]
    order = mass.argsort(descending=True, stable=True)
    order = order[keys[order, 0].argsort(stable=True)]
    # Two entries without mass are appended, so that `first + 1` always exists.
    keys = torch.cat([keys[order], keys.new_full((2, 2), torch.nan)])
    mass = torch.cat([mass[order], mass.new_zeros(2)])
    sizes = torch.bincount(keys[:-2, 0].long(), minlength=count)
    first = sizes.cumsum(0) - sizes
    ahead = mass[first] - torch.where(sizes > 1, mass[first + 1], 0)
    found = sizes > 0
    return torch.where(found, keys[first, 1], torch.nan), found & (ahead >= unexpanded)
