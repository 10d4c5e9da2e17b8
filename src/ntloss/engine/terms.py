"""Cross-entropy and number term of each position, from a readout; the same for every way to read logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, Needs, needs_of, reweighed
from ntloss.engine.readout import IDENTITY, LogNormalizer, Readout, Transform, without_autocast
from ntloss.engine.record import make_record
from ntloss.engine.reduction import REDUCTIONS
from ntloss.engine.tables import NumberTables
from ntloss.numbers import NumberSpans


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
            "reduction": (self.reduction, self.reduction in REDUCTIONS, " or ".join(map(repr, REDUCTIONS))),
        }
        for name, (given, fits, range_) in expected.items():
            if not fits:
                raise ValueError(f"{name}={given!r}: expected {range_}")
        self.transform.check()

    @property
    def needs(self) -> Needs:
        """What the criterion asks for."""
        return needs_of(self.criterion)


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
        spans: which number each position belongs to; None unless the criterion asks for it.
    """

    labels: Tensor
    target: Tensor
    ce: Tensor
    ntl: Tensor
    z: Tensor
    spans: NumberSpans | None = None

    def select(self, rows: Tensor | slice) -> Positions:
        """The same of some positions."""
        labels, target, ce, ntl, z = (column[rows] for column in self[:5])
        spans = None if self.spans is None else self.spans.select(rows)
        return Positions(labels, target, ce, ntl, z, spans)


def read_labels(
    labels: Tensor,
    tables: NumberTables,
    objective: Objective,
    loss_weights: Tensor | None,
    num_items_in_batch: Tensor | float | None,
    num_numbers_in_batch: Tensor | float | None,
    dtype: torch.dtype,
    spans: NumberSpans | None = None,
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
        spans: `[positions]` each, where the criterion asks for them.

    Returns:
        The positions.
    """
    target, is_number = tables.targets(labels, objective.ignore_index)
    counted = labels != objective.ignore_index
    weights = counted.to(dtype)
    if loss_weights is not None:
        weights = torch.where(counted, loss_weights.to(dtype), 0)
    has_term = is_number  # the positions that the criterion gives a loss for
    if objective.needs.per_number:
        assert spans is not None
        has_term = spans.starts
    number_weights = torch.where(has_term, weights, 0)
    per_item = per_number = None
    if objective.reduction == "mean":
        per_item = _reciprocal(weights.sum() if num_items_in_batch is None else num_items_in_batch, dtype)
        per_number = _reciprocal(
            number_weights.sum() if num_numbers_in_batch is None else num_numbers_in_batch, dtype
        )
    z = weights if per_item is None else weights * per_item
    if objective.mode == "replace":
        ce, ntl = torch.where(is_number, 0, z), torch.where(has_term, z, 0)
    else:
        ce, ntl = z, number_weights if per_number is None else number_weights * per_number
    return Positions(torch.where(counted, labels, 0), target, ce, ntl, z, spans)


def _reciprocal(divisor: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    # Nothing to average over is a loss of zero.
    if isinstance(divisor, Tensor):
        divisor = divisor.to(dtype)
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
    if labels.dim() == 0:
        raise ValueError("shift=True with labels of shape []: expected [..., seq], to move along seq")
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
        weight: of the number term; a tensor is not differentiated.

    Returns:
        The terms, each `[positions]`; those besides the loss are detached.
    """
    readout = readout.only(positions.z != 0)
    log_normalizer = readout.log_normalizer
    ce = log_normalizer.negative_log_prob(readout.label_logit)
    if objective.label_smoothing:
        smooth = log_normalizer.negative_log_prob(readout.mean_logit)
        ce = (1 - objective.label_smoothing) * ce + objective.label_smoothing * smooth
    ce = _scale(ce, positions.ce)
    ntl = _number_term(readout, positions, tables, objective)
    loss = ce + (weight.detach() if isinstance(weight, Tensor) else weight) * ntl
    if objective.z_loss:
        loss = loss + objective.z_loss * _scale(log_normalizer.total.square(), positions.z)
    return LossTerms(loss, ce.detach(), ntl.detach())


def _number_term(
    readout: Readout, positions: Positions, tables: NumberTables, objective: Objective
) -> Tensor:
    number_logits, log_normalizer = readout.number_logits, readout.log_normalizer
    with without_autocast(number_logits.device):
        if _may_select(positions, objective, number_logits.device):
            rows = (positions.ntl != 0).nonzero().squeeze(-1)
            here = LogNormalizer(*(part[rows] for part in log_normalizer))
            record = make_record(number_logits.index_select(0, rows), tables, positions.target[rows], here)
            term = reweighed(objective.criterion, record, objective.worst) * positions.ntl[rows]
            return term.new_zeros(positions.ntl.shape).index_copy(0, rows, term)
        number_logits = torch.where((positions.z != 0).unsqueeze(-1), number_logits, 0)
        record = make_record(number_logits, tables, positions.target, log_normalizer, positions.spans)
        return _scale(reweighed(objective.criterion, record, objective.worst), positions.ntl)


def _may_select(positions: Positions, objective: Objective, device: torch.device) -> bool:
    # A criterion that looks at several positions, or at whole numbers, is given them all.
    if positions.spans is not None or objective.needs.across_positions:
        return False
    # With a thousand number tokens the record of every position costs more than that of the number labels.
    # How many those are is known without a synchronisation on the CPU alone, and never to the compiler.
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _scale(term: Tensor, factor: Tensor) -> Tensor:
    # Positions that do not count contribute exactly nothing, be their term infinite.
    return torch.where(factor != 0, term, 0) * factor


def reduce_terms(terms: LossTerms, reduction: str, shape: torch.Size) -> LossTerms:
    """Sum the positions' terms, or give them the labels' shape for "none"."""
    if reduction == "none":
        return LossTerms(*(term.reshape(shape) for term in terms))
    return LossTerms(*(term.sum() for term in terms))
