"""Cross-entropy plus number term in float64 NumPy, with gradients written down by hand, never by autograd.

Like `oracle`, which gives the number term of a position, it is written from the definitions and imports
nothing of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import oracle

# (row of logits, label's value, number values) -> (loss, gradient by the row)
PositionTerm = Callable[[np.ndarray, float, Mapping[int, float]], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Combined:
    """What is minimised; the defaults are those of the library."""

    number: oracle.Objective | PositionTerm = field(default_factory=oracle.Objective)
    weight: float = 0.3
    mode: str = "add"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0
    reduction: str = "mean"


class Expected(NamedTuple):
    """Values: scalars, or one of each position for "none". Gradient of `loss` (weighted with `upstream`)."""

    loss: np.ndarray
    ce: np.ndarray
    ntl: np.ndarray
    gradient: np.ndarray


def combined(
    logits: np.ndarray,
    labels: np.ndarray,
    number_values: Mapping[int, float],
    options: Combined,
    *,
    weights: np.ndarray | None = None,
    num_items: float | None = None,
    num_numbers: float | None = None,
    upstream: np.ndarray | float = 1.0,
) -> Expected:
    """The combined loss of logits `[..., vocab]` and its gradient by them."""
    rows = np.asarray(logits, dtype=np.float64).reshape(-1, logits.shape[-1])
    flat = np.asarray(labels).reshape(-1).tolist()
    count = len(flat)
    weight = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
    counted = np.array([label != options.ignore_index for label in flat], dtype=bool).reshape(count)
    is_number = counted & np.array([label in number_values for label in flat], dtype=bool).reshape(count)
    per_item = per_number = 1.0
    if options.reduction == "mean":
        items = (weight * counted).sum() if num_items is None else num_items
        numbers = (weight * is_number).sum() if num_numbers is None else num_numbers
        per_item, per_number = (1 / n if n > 0 else 0.0 for n in (items, numbers))
    up = np.broadcast_to(np.asarray(upstream, dtype=np.float64).reshape(-1), count)

    loss, ce, ntl = np.zeros(count), np.zeros(count), np.zeros(count)
    gradient = np.zeros_like(rows)
    for i in np.flatnonzero(counted & (weight > 0)):
        row, slope = _transform(rows[i], options)
        here = np.zeros_like(row)
        as_number = is_number[i] and options.mode == "replace"
        factor = weight[i] * per_item
        log_normalizer = row.max() + np.log(np.exp(row - row.max()).sum())
        softmax = np.exp(row - log_normalizer)
        if not as_number:
            value, part = _cross_entropy(row, log_normalizer, softmax, flat[i], options.label_smoothing)
            ce[i] = factor * value
            here += factor * part
        if is_number[i]:
            of_number = factor if as_number else weight[i] * per_number
            value, part = _number_term(row, number_values, flat[i], options)
            ntl[i] = of_number * value
            here += options.weight * of_number * part
        here += options.z_loss * factor * 2 * log_normalizer * softmax
        loss[i] = ce[i] + options.weight * ntl[i] + options.z_loss * factor * log_normalizer**2
        gradient[i] = up[i] * slope * here
    gradient = gradient.reshape(logits.shape)
    if options.reduction == "none":
        return Expected(*(term.reshape(labels.shape) for term in (loss, ce, ntl)), gradient)
    return Expected(loss.sum(), ce.sum(), ntl.sum(), gradient)


def through_head(
    hidden: np.ndarray, weight: np.ndarray, gradient: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of hidden states, head weight and bias, from that of the logits."""
    rows, states = gradient.reshape(-1, gradient.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
    return gradient @ weight, rows.T @ states, rows.sum(0)


def _transform(row: np.ndarray, options: Combined) -> tuple[np.ndarray, np.ndarray | float]:
    row = row * options.logit_scale
    if options.softcap is None:
        return row, options.logit_scale
    tanh = np.tanh(row / options.softcap)
    return options.softcap * tanh, options.logit_scale * (1 - tanh**2)


def _cross_entropy(
    row: np.ndarray, log_normalizer: float, softmax: np.ndarray, label: int, smoothing: float
) -> tuple[float, np.ndarray]:
    # Cross-entropy with a target distribution that sums to one.
    target = np.full(len(row), smoothing / len(row))
    target[label] += 1 - smoothing
    asked = target > 0
    return float((target[asked] * (log_normalizer - row[asked])).sum()), softmax - target


def _number_term(
    row: np.ndarray, number_values: Mapping[int, float], label: int, options: Combined
) -> tuple[float, np.ndarray]:
    if isinstance(options.number, oracle.Objective):
        return oracle.position(row, number_values[label], number_values, options.number)
    return options.number(row, number_values[label], number_values)
