"""Probability on text: how a loss that sees the number tokens alone is made to mind it."""

from __future__ import annotations

import torch
from torch import Tensor

from ntloss.criteria.record import Criterion, NumberRecord


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


def worst_cost(criterion: Criterion, values: Tensor, reweigh: bool | None) -> float | None:
    """What `reweighed` needs of a criterion; asked once, because it may read a tensor's value.

    Args:
        criterion: the criterion.
        values: `[values]`, the distinct values, ascending, float64.
        reweigh: None for "where the criterion has a worst cost".

    Returns:
        The worst cost, or None where nothing is to be reweighed.

    Raises:
        TypeError: `criterion` is none.
        ValueError: `reweigh=True` for a criterion without a worst cost.
    """
    if not callable(criterion) or not callable(getattr(criterion, "worst", None)):
        raise TypeError(
            f"criterion={criterion!r}: expected a callable with a method `worst`, such as Wasserstein(), or "
            "what get_criterion(name) makes"
        )
    if isinstance(criterion, type):
        raise TypeError(
            f"criterion={criterion.__name__} is a class: expected an instance, {criterion.__name__}()"
        )
    worst = criterion.worst(values)
    if reweigh and worst is None:
        raise ValueError(
            f"reweigh=True needs a criterion with a worst cost, and {criterion!r} has none: "
            "leave reweigh away, or pass reweigh=False"
        )
    return None if reweigh is False else worst


def reweighed(criterion: Criterion, record: NumberRecord, worst: float | None) -> Tensor:
    """The criterion's loss of each position, reweighed unless `worst` is None: `[positions]`."""
    loss = criterion(record)
    if loss.shape != record.target.shape:
        raise ValueError(
            f"criterion {criterion!r} gave shape {list(loss.shape)}: expected one loss for each position, "
            f"{list(record.target.shape)}"
        )
    if worst is None:
        return loss
    assert record.log_mass is not None, "whoever reweighs reads the log-normalizer"
    return reweigh_by_mass(loss, record.log_mass, worst)
