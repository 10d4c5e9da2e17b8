"""First stage: targets and weights from the labels, the same for every way to read logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.engine.readout import compute_dtype
from ntloss.numbers.spans import NumberSpans, find_numbers

if TYPE_CHECKING:
    from ntloss.engine.objective import Objective

REDUCTIONS = ("mean", "sum", "none")
DIVISORS = ("items", "numbers")


class Targets(NamedTuple):
    """Targets and weights of each position; all `[positions]`.

    For a mean, the weights are already divided by the total weight of the items or numbers.

    Args:
        labels: token ids, -1 where ignored.
        target: index of the label's value, 0 where the label is not a number.
        counted: bool, False where the label is ignored.
        item_weights: weight of the position.
        ce_weights: weight of its cross-entropy.
        number_weights: weight of its number term, 0 where it has none.
        number_rows: `[number terms]`, indices of the positions whose number term has weight. None if the term
            of every position is computed: on accelerators and under `torch.compile`, where shapes must be
            static, and for criteria that look at several positions.
        spans: the number that each position belongs to; None unless the criterion needs it.
    """

    labels: Tensor
    target: Tensor
    counted: Tensor
    item_weights: Tensor
    ce_weights: Tensor
    number_weights: Tensor
    number_rows: Tensor | None
    spans: NumberSpans | None

    def select(self, rows: Tensor | slice) -> Targets:
        """Select some positions."""
        labels, target, counted, item_weights, ce_weights, number_weights = (x[rows] for x in self[:6])
        number_rows = None if self.number_rows is None else number_weights.nonzero().squeeze(-1)
        spans = None if self.spans is None else self.spans.select(rows)
        return Targets(labels, target, counted, item_weights, ce_weights, number_weights, number_rows, spans)


def read_labels(
    labels: Tensor,
    inputs: Tensor,
    objective: Objective,
    loss_weights: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    num_numbers_in_batch: Tensor | float | None = None,
    sequence_ids: Tensor | None = None,
    number_weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    mode: str = "add",
    normalize_by: str = "numbers",
    shift: bool = False,
    validate: bool | None = None,
    weight: float | Tensor = 0.0,
) -> Targets:
    """Check labels, shift them, find their numbers, and compute the weight of each position.

    Args:
        inputs: `[..., width]`, logits or hidden states, for their shape, device and dtype.
        objective: the objective, for its tables and needs.
        weight: weight of the number term, checked with the other values.

    The other arguments are those of `NTLCrossEntropyLoss` and its `forward`.

    Raises:
        TypeError: see `check_labels`.
        ValueError: an unknown reduction, labels without sequences for a criterion on whole numbers, or
            see `check_labels` and `check_values`.
    """
    tables, needs = objective.tables, objective.needs
    check_labels(labels, inputs, loss_weights, sequence_ids, number_weights)
    check_values(
        labels,
        loss_weights,
        tables.vocabulary.vocab_size,
        ignore_index,
        validate,
        weight,
        number_weights,
        mode,
    )
    if num_items_in_batch is not None or num_numbers_in_batch is not None:
        _check_normalizers(num_items_in_batch, num_numbers_in_batch, normalize_by, reduction)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, REDUCTIONS))}")
    if needs.spans and sequence_ids is None and labels.dim() < 2:
        raise ValueError(
            f"labels of shape {list(labels.shape)}, but {objective.criterion!r} looks at whole numbers and "
            "needs to know where sequences end: expected labels of shape [batch, seq], or sequence_ids of "
            "the labels' shape (all zeros for a single sequence)"
        )
    if shift:
        _, number_weights = shift_left(labels, number_weights, ignore_index)
        labels, loss_weights = shift_left(labels, loss_weights, ignore_index)
        if sequence_ids is not None:
            # A position belongs to the sequence of its shifted label.
            sequence_ids, _ = shift_left(sequence_ids, None, ignore_index=-1)
    spans = None
    if needs.spans and tables.kinds is not None:
        spans = find_numbers(labels, tables.kinds, sequence_ids, needs.decimals, ignore_index).flatten()
    labels = labels.reshape(-1).long()  # gather accepts int32 only since torch 2.8
    target, is_number = tables.lookup(labels, ignore_index)
    has_term = spans.starts if needs.per_number and spans is not None else is_number
    counted = labels != ignore_index
    dtype = compute_dtype(inputs.dtype)
    item_weights = counted.to(dtype)
    if loss_weights is not None:
        item_weights = torch.where(counted, loss_weights.reshape(-1).to(dtype), 0)
    factors = torch.ones_like(item_weights)
    if number_weights is not None:
        factors = torch.where(is_number, number_weights.reshape(-1).to(dtype), 0)
        if needs.per_number and spans is not None:  # a number has the weight of its first token
            of_number = torch.zeros_like(factors).scatter_add(
                0, spans.number, torch.where(spans.starts, factors, 0)
            )
            factors = of_number[spans.number]
    term_weights = torch.where(has_term, item_weights * factors, 0)
    if reduction == "mean":
        per_item = _reciprocal(item_weights if num_items_in_batch is None else num_items_in_batch, dtype)
        normalized = item_weights * per_item
        per_term = per_item
        if normalize_by == "numbers" and mode == "add":
            per_term = _reciprocal(
                term_weights if num_numbers_in_batch is None else num_numbers_in_batch, dtype
            )
            if num_items_in_batch is not None and num_numbers_in_batch is None:
                per_term = per_term * normalized.sum()  # this batch's share of the items
        term_weights, item_weights = term_weights * per_term, normalized
    ce_weights = item_weights
    if mode == "replace":
        ce_weights = torch.where(is_number, item_weights * (1 - factors).clamp(min=0), item_weights)
    number_rows = None
    static_shapes = labels.device.type != "cpu" or torch.compiler.is_compiling()
    if not objective.needs_all_positions and not static_shapes:
        number_rows = term_weights.nonzero().squeeze(-1)
    labels = torch.where(counted, labels, -1)
    return Targets(labels, target, counted, item_weights, ce_weights, term_weights, number_rows, spans)


def _reciprocal(weights: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    """Invert a count, or the sum of weights; 0 stays 0, so that the mean over nothing is 0."""
    if isinstance(weights, Tensor):
        divisor = weights.to(dtype).sum()
        return torch.where(divisor > 0, 1 / divisor.clamp(min=torch.finfo(torch.float32).tiny), 0)
    return 1 / weights if weights > 0 else 0.0


def shift_left(
    labels: Tensor, loss_weights: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Shift labels and weights `[..., seq]` by one position to the left, for causal models.

    The last position gets `ignore_index`, so the length stays that of the logits. Raise a ValueError for
    labels without a dimension.
    """
    if labels.dim() == 0:
        raise ValueError("shift=True with labels of shape []: expected [..., seq], to shift along seq")
    # Pad before slicing, so that empty sequences stay empty.
    labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return labels, None if loss_weights is None else F.pad(loss_weights, (0, 1))[..., 1:]


def check_labels(
    labels: Tensor,
    inputs: Tensor,
    loss_weights: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    number_weights: Tensor | None = None,
) -> None:
    """Check that labels, weights and sequence ids fit inputs `[..., width]`, without reading values.

    Raises:
        TypeError: labels or sequence ids that are not integers, or weights that are not real tensors.
        ValueError: a shape or a device other than the inputs'.
    """
    leading, device = inputs.shape[:-1], inputs.device
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: expected a tensor of token ids, torch.int64, given {given}")
    if labels.shape != leading:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit: expected {list(leading)}, the shape of the "
            "logits (or hidden states) without their last dimension. To shift a causal model's labels, shift "
            "its logits too: logits[:, :-1], labels[:, 1:]."
        )
    if labels.device != device:
        raise ValueError(f"labels are on {labels.device}, the logits on {device}: move one to the other")
    beside = {"loss_weights": loss_weights, "sequence_ids": sequence_ids, "number_weights": number_weights}
    for name, tensor in beside.items():
        if tensor is None:
            continue
        integers = name == "sequence_ids"
        fits = isinstance(tensor, Tensor) and not tensor.is_complex()
        if not fits or (integers and tensor.is_floating_point()):
            given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            expected = "a tensor of integers" if integers else "a real tensor"
            raise TypeError(f"{name}: expected {expected}, given {given}")
        if tensor.shape != leading:
            found = f"{name} of shape {list(tensor.shape)}"
            raise ValueError(f"{found}: expected that of the labels, {list(leading)}")
        if tensor.device != device:
            raise ValueError(f"{name} are on {tensor.device}, the logits on {device}: move one to the other")


def check_values(
    labels: Tensor,
    loss_weights: Tensor | None,
    vocab_size: int,
    ignore_index: int,
    validate: bool | None,
    weight: float | Tensor = 0.0,
    number_weights: Tensor | None = None,
    mode: str = "add",
) -> None:
    """Raise a ValueError unless labels lie inside the vocabulary and weights are finite and not negative.

    With mode='replace', number weights are 1 at most. Reading values synchronizes an accelerator with the
    host. So by default (`validate=None`) only tensors on the CPU are checked, and nothing under
    `torch.compile`.
    """
    if torch.compiler.is_compiling() or not (labels.device.type == "cpu" if validate is None else validate):
        return
    if isinstance(weight, Tensor):  # a float was checked when it was set
        check_weight(weight, validate)
    outside = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"label {int(labels[outside][0])} lies outside the vocabulary: expected 0 to "
            f"{vocab_size - 1:,}, or ignore_index={ignore_index}. Are the labels from another tokenizer?"
        )
    most = 1.0 if mode == "replace" else math.inf  # there it splits a label between the two terms
    for name, weights, limit in (
        ("loss_weights", loss_weights, math.inf),
        ("number_weights", number_weights, most),
    ):
        # NaN fails these comparisons too.
        if weights is None or (fits := (weights >= 0) & (weights <= limit) & (weights < math.inf)).all():
            continue
        expected = (
            "finite weights, 0 or more" if limit == math.inf else "weights from 0 to 1 with mode='replace'"
        )
        raise ValueError(f"{name} contain {weights[~fits][0].item()}: expected {expected}")


def check_weight(weight: object, validate: bool | None = None) -> None:
    """Raise a ValueError unless the number term's weight is a finite number, 0 or more, or a scalar tensor.

    By default (`validate=None`) a tensor is checked on the CPU only. Under `torch.compile` it never is.
    """
    if isinstance(weight, Tensor) and weight.numel() == 1:
        if torch.compiler.is_compiling() or not (
            weight.device.type == "cpu" if validate is None else validate
        ):
            return
        weight = weight.item()
    if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise ValueError(f"weight={weight!r}: expected a finite number, 0 or more, or a scalar tensor")


def _check_normalizers(num_items: object, num_numbers: object, normalize_by: str, reduction: str) -> None:
    """Raise a ValueError if the counts of a batch are negative, or not those that the loss divides by."""
    if reduction != "mean":
        raise ValueError(
            "num_items_in_batch and num_numbers_in_batch are the divisors of reduction='mean': omit them "
            f"with reduction={reduction!r}"
        )
    if num_numbers is not None and normalize_by == "items":
        raise ValueError(
            "num_numbers_in_batch is the divisor of the number term with normalize_by='numbers', and this "
            "loss divides both terms by num_items_in_batch (normalize_by='items'): omit it, or make the loss "
            "with normalize_by='numbers'"
        )
    if num_items is None:
        raise ValueError(
            "num_items_in_batch is missing, but num_numbers_in_batch is given: cross-entropy would depend on "
            "how a batch is split. `loss.normalizers(labels)` computes both; sum them over micro-batches and "
            "ranks."
        )
    for name, count in (("num_items_in_batch", num_items), ("num_numbers_in_batch", num_numbers)):
        if isinstance(count, (int, float)) and not count >= 0:
            raise ValueError(f"{name}={count}: expected 0 or more")
