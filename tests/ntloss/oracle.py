"""The losses of design.md in float64 NumPy, one position at a time, with their gradients.

Written from the definitions and not from the library, which it never imports: slow, and easy to check by eye.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

# Name of a regression loss to (loss, derivative in the prediction), both of (prediction, target).
REGRESSION: dict[str, tuple[Callable, Callable]] = {
    "squared": (lambda x, v: (x - v) ** 2, lambda x, v: 2 * (x - v)),
    "absolute": (lambda x, v: abs(x - v), lambda x, v: np.sign(x - v)),
    "huber": (
        lambda x, v: 0.5 * (x - v) ** 2 if abs(x - v) <= 1 else abs(x - v) - 0.5,
        lambda x, v: np.clip(x - v, -1, 1),
    ),
    # Asymmetric, so that the larger of both ends decides the worst cost.
    "pinball": (
        lambda x, v: max(0.9 * (v - x), 0.1 * (x - v)),
        lambda x, v: 0.1 if x > v else -0.9,
    ),
}


@dataclass(frozen=True)
class Objective:
    """What is computed: `loss` is "wasserstein" or a key of REGRESSION."""

    loss: str = "wasserstein"
    squash_factor: float | None = None
    reweigh: bool = True


def distance_matrix(values: np.ndarray, squash_factor: float | None = None) -> np.ndarray:
    """c_jk of all pairs of distinct values."""
    distance = np.abs(values[:, None] - values[None, :])
    if squash_factor is None:
        return distance
    wrong = distance[distance > 0]
    smallest, largest = wrong.min(), wrong.max()
    squashed = 1 + (distance - smallest) * (squash_factor - 1) / (largest - smallest)
    return np.where(distance == 0, 0.0, squashed)


def worst_cost(values: np.ndarray, objective: Objective) -> float:
    """The largest cost that a distribution on one value can have."""
    if objective.loss == "wasserstein":
        return float(distance_matrix(values, objective.squash_factor).max())
    loss, _ = REGRESSION[objective.loss]
    return float(max(loss(values.min(), values.max()), loss(values.max(), values.min())))


def position(
    row: np.ndarray, label_value: float, number_values: Mapping[int, float], objective: Objective
) -> tuple[float, np.ndarray]:
    """Loss of one position whose label has `label_value`, and its gradient by the row of logits."""
    ids = np.array(sorted(number_values))
    values = np.array(sorted(set(number_values.values())), dtype=np.float64)
    value_index = np.array([int(np.flatnonzero(values == number_values[i])[0]) for i in ids])
    target = int(np.flatnonzero(values == label_value)[0])

    full = np.exp(row - row.max())
    full = full / full.sum()
    mass = full[ids].sum()
    on_numbers = row[ids]
    if np.isneginf(on_numbers).all():  # undefined: any distribution will do, as its mass is 0
        within = np.full(len(ids), 1 / len(ids))
    else:
        within = np.exp(on_numbers - on_numbers.max())
        within = within / within.sum()
    merged = np.array([within[value_index == j].sum() for j in range(len(values))])

    if objective.loss == "wasserstein":
        slope = distance_matrix(values, objective.squash_factor)[:, target]
        loss = float(merged @ slope)
    else:
        function, derivative = REGRESSION[objective.loss]
        mean = merged @ values
        loss = float(function(mean, label_value))
        slope = derivative(mean, label_value) * values
    gradient = np.zeros_like(row)
    gradient[ids] = within * (slope[value_index] - merged @ slope)
    if objective.reweigh:
        bound = 1.01 * worst_cost(values, objective)
        of_mass = -full * mass
        of_mass[ids] += full[ids]
        gradient = mass * gradient + (loss - bound) * of_mass
        loss = mass * loss + bound * (1 - mass)
    return loss, gradient


def number_token_loss(
    logits: np.ndarray,
    labels: np.ndarray,
    number_values: Mapping[int, float],
    objective: Objective,
    *,
    weights: np.ndarray | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and its gradient by the logits; for "none", the gradient of the sum of all losses."""
    rows = np.asarray(logits, dtype=np.float64).reshape(-1, logits.shape[-1])
    flat = np.asarray(labels).reshape(-1)
    weight = np.ones(len(flat)) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
    losses, gradient, divisor = np.zeros(len(flat)), np.zeros_like(rows), 0.0
    for i, label in enumerate(flat.tolist()):
        if label == ignore_index or label not in number_values:
            continue
        loss, slope = position(rows[i], number_values[label], number_values, objective)
        losses[i], gradient[i] = weight[i] * loss, weight[i] * slope
        divisor += weight[i]
    gradient = gradient.reshape(logits.shape)
    if reduction == "none":
        return losses.reshape(labels.shape), gradient
    if reduction == "mean" and divisor > 0:
        return losses.sum() / divisor, gradient / divisor
    return losses.sum(), gradient


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy, for sums of both losses."""
    rows = np.asarray(logits, dtype=np.float64).reshape(-1, logits.shape[-1])
    flat = np.asarray(labels).reshape(-1)
    shifted = rows - rows.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-log_probs[np.arange(len(flat)), flat].mean())
