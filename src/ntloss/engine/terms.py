"""Cross-entropy and number term of each position, from a readout; the same for every way to read logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, reweighed
from ntloss.engine.readout import IDENTITY, Readout, Transform
from ntloss.engine.record import make_record
from ntloss.engine.reduction import REDUCTIONS
from ntloss.engine.tables import NumberTables


@dataclass(frozen=True)
class Objective:
    """What is minimised: a combined loss without its tensors and the weight of its number term.

    Args:
        criterion: how wrong a number is.
        worst: its worst cost where it is reweighed, else None.
        mode: "add" or "replace".
        ignore_index: label of positions that do not count.
        label_smoothing: of cross-entropy, from 0 to 1.
        z_loss: factor of the squared log-normalizer.
        transform: of the logits.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: an option outside of its range.
    """

    criterion: Criterion
    worst: float | None
    mode: str = "add"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    transform: Transform = IDENTITY
    reduction: str = "mean"

    def __post_init__(self) -> None:
        expected = {
            "mode": (self.mode, self.mode in ("add", "replace"), "'add' or 'replace'"),
            "label_smoothing": (self.label_smoothing, 0 <= self.label_smoothing <= 1, "0 to 1"),
            "z_loss": (self.z_loss, 0 <= self.z_loss < math.inf, "0 or more"),
            "softcap": (
                self.transform.softcap,
                self.transform.softcap is None or 0 < self.transform.softcap < math.inf,
                "a number above 0, or None",
            ),
            "logit_scale": (self.transform.scale, 0 < self.transform.scale < math.inf, "a number above 0"),
            "reduction": (self.reduction, self.reduction in REDUCTIONS, " or ".join(map(repr, REDUCTIONS))),
        }
        for name, (given, fits, range_) in expected.items():
            if not fits:
                raise ValueError(f"{name}={given!r}: expected {range_}")


class LossTerms(NamedTuple):
    """A combined loss and its two terms.

    Args:
        loss: what to call `backward` on: `ce + weight * ntl` and, if asked for, the z-loss.
        ce: cross-entropy, detached.
        ntl: the number term before its weight, detached.
    """

    loss: Tensor
    ce: Tensor
    ntl: Tensor


class Positions(NamedTuple):
    """What the labels say of each position; all `[positions]`.

    Args:
        labels: token ids, 0 where ignored.
        target: index of the label's value, 0 where it is no number.
        ce: factor of the position's cross-entropy in the loss: its weight over the normaliser.
        ntl: the same for the number term, before the term's weight.
        z: the same for the z-loss.
    """

    labels: Tensor
    target: Tensor
    ce: Tensor
    ntl: Tensor
    z: Tensor

    def select(self, rows: Tensor | slice) -> Positions:
        """The same of some positions."""
        return Positions(*(column[rows] for column in self))


def read_labels(
    labels: Tensor,
    tables: NumberTables,
    objective: Objective,
    loss_weights: Tensor | None,
    num_items_in_batch: Tensor | float | None,
    num_numbers_in_batch: Tensor | float | None,
    dtype: torch.dtype,
) -> Positions:
    """Look up targets, and how much each position counts.

    Args:
        labels: `[positions]`.
        tables: the number tokens.
        objective: reduction, mode and ignore_index are read.
        loss_weights: `[positions]`, or None for 1.
        num_items_in_batch: what "mean" divides cross-entropy by. Default: the sum of the weights.
        num_numbers_in_batch: what "mean" divides the number term by. Default: the same over number labels.
        dtype: of the factors.

    Returns:
        The positions.
    """
    target, is_number = tables.targets(labels, objective.ignore_index)
    counted = labels != objective.ignore_index
    weights = counted.to(dtype)
    if loss_weights is not None:
        weights = torch.where(counted, loss_weights.to(dtype), 0)
    number_weights = torch.where(is_number, weights, 0)
    per_item = per_number = None
    if objective.reduction == "mean":
        per_item = _reciprocal(weights.sum() if num_items_in_batch is None else num_items_in_batch)
        per_number = _reciprocal(
            number_weights.sum() if num_numbers_in_batch is None else num_numbers_in_batch
        )
    z = weights if per_item is None else weights * per_item
    if objective.mode == "replace":
        ce, ntl = torch.where(is_number, 0, z), torch.where(is_number, z, 0)
    else:
        ce, ntl = z, number_weights if per_number is None else number_weights * per_number
    return Positions(torch.where(counted, labels, 0), target, ce, ntl, z)


def _reciprocal(divisor: Tensor | float) -> Tensor | float:
    # Nothing to average over is a loss of zero.
    if isinstance(divisor, Tensor):
        return torch.where(divisor > 0, 1 / divisor.clamp(min=torch.finfo(torch.float32).tiny), 0)
    return 1 / divisor if divisor > 0 else 0.0


def shift_left(
    labels: Tensor, loss_weights: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Give each position the label (and weight) of the next one, as causal models need it.

    Args:
        labels: `[..., seq]`; the last position gets `ignore_index`, so the logits stay whole.
        loss_weights: `[..., seq]`, or None.
        ignore_index: label of positions that do not count.

    Returns:
        Labels and weights of the same shapes.
    """
    labels = F.pad(labels[..., 1:], (0, 1), value=ignore_index)
    return labels, None if loss_weights is None else F.pad(loss_weights[..., 1:], (0, 1))


def position_terms(
    readout: Readout, positions: Positions, tables: NumberTables, objective: Objective, weight: float | Tensor
) -> LossTerms:
    """Loss of each position, multiplied with its factor: sums of these are the batch's loss.

    Args:
        readout: of the logits, transformed.
        positions: of the labels.
        tables: the number tokens.
        objective: what is minimised.
        weight: of the number term.

    Returns:
        The terms, each `[positions]`; those besides the loss are detached.
    """
    readout = readout.only(positions.z != 0)
    log_normalizer = readout.log_normalizer
    ce = log_normalizer - readout.label_logit
    if objective.label_smoothing:
        smooth = log_normalizer - readout.mean_logit
        ce = (1 - objective.label_smoothing) * ce + objective.label_smoothing * smooth
    ce = _scale(ce, positions.ce)
    mass_of = log_normalizer if objective.worst is not None else None
    record = make_record(readout.number_logits, tables, positions.target, mass_of)
    ntl = _scale(reweighed(objective.criterion, record, objective.worst), positions.ntl)
    loss = ce + weight * ntl
    if objective.z_loss:
        loss = loss + objective.z_loss * _scale(log_normalizer.square(), positions.z)
    return LossTerms(loss, ce.detach(), ntl.detach())


def _scale(term: Tensor, factor: Tensor) -> Tensor:
    # Positions that do not count contribute exactly nothing, be their term infinite.
    return torch.where(factor != 0, term, 0) * factor


def reduce_terms(terms: LossTerms, reduction: str, shape: torch.Size) -> LossTerms:
    """Sum the positions' terms, or give them the labels' shape for "none"."""
    if reduction == "none":
        return LossTerms(*(term.reshape(shape) for term in terms))
    return LossTerms(*(term.sum() for term in terms))
