"""First stage: targets and weights from the labels, the same wherever the logits come from."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import Needs, check_choice
from ntloss.engine.readout import values_are_hidden
from ntloss.engine.tables import NumberTables
from ntloss.numbers.spans import NumberSpans, find_numbers, measure_remainders

MODES = ("add", "replace")
REDUCTIONS = ("mean", "sum", "none")
DIVISORS = ("items", "numbers")
_Given = TypeVar("_Given", Tensor, Tensor | None)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Weights(NamedTuple):
    """What a call gives beside the labels; see `NTLCrossEntropyLoss.forward`."""

    loss_weights: Tensor | None = None
    number_weights: Tensor | None = None
    sequence_ids: Tensor | None = None
    num_items: Tensor | float | None = None
    num_numbers: Tensor | float | None = None
    number_samples: Tensor | None = None


class TargetOptions(NamedTuple):
    """The options of a loss that concern its labels; see `NTLCrossEntropyLoss`."""

    ignore_index: int = -100
    reduction: str = "mean"
    mode: str = "add"
    normalize_by: str = "numbers"
    shift: bool = False
    validate: bool | None = None


class Targets(NamedTuple):
    """Targets and weights of each position, `[positions]`; for a mean, weights are divided by their total."""

    labels: Tensor  # token ids, -1 where ignored
    target: Tensor  # index of the label's value, 0 where the label is not a number
    counted: Tensor  # bool, False where the label is ignored
    item_weights: Tensor  # weight of the position
    ce_weights: Tensor  # weight of its cross-entropy
    number_weights: Tensor  # weight of its number term, 0 where it has none
    # `[number terms]`, indices of the positions whose number term has weight. None if the term of every
    # position is computed: where shapes must be static (on accelerators, under `torch.compile` and
    # `torch.func`), and for criteria that look at several positions.
    number_rows: Tensor | None
    spans: NumberSpans | None  # the number that each position belongs to, if the criterion needs it
    shape: torch.Size | None  # of the losses with reduction="none"; None if they are summed

    def select(self, rows: Tensor | slice) -> Targets:
        """Select some positions."""
        columns = [column[rows] for column in self[:6]]
        number_rows = None if self.number_rows is None else columns[-1].nonzero().squeeze(-1)
        spans = None if self.spans is None else self.spans.select(rows)
        shape = None if self.shape is None else columns[0].shape
        return Targets(*columns, number_rows, spans, shape)  # type: ignore[arg-type, call-arg]


def prepare_targets(
    labels: Tensor,
    inputs: Tensor,
    tables: NumberTables,
    needs: Needs,
    weights: Weights,
    options: TargetOptions,
) -> Targets:
    """Check labels `[...]`, shift them, find their numbers, and compute the weight of each position.

    `inputs`, logits or hidden states `[..., width]`, are asked for their shape, device and dtype only. Raise
    a TypeError or ValueError that names what does not fit.
    """
    ignore_index, reduction, mode, _, shift, validate = options
    check_labels(labels, inputs, tables.vocabulary.vocab_size, ignore_index, validate)
    if any(given is not None for given in weights):
        _check_weights(weights, labels, options)
        _check_samples(weights.number_samples, labels, needs, options.validate)
    if reduction not in REDUCTIONS:  # an attribute of the loss may change
        check_choice("reduction", reduction, REDUCTIONS)
    if needs.spans and weights.sequence_ids is None and labels.dim() < 2:
        raise ValueError(
            f"labels of shape {list(labels.shape)}, but the criterion looks at whole numbers and needs to "
            "know where sequences end: expected labels of shape [batch, seq], or sequence_ids of the labels' "
            "shape (all zeros for a single sequence)"
        )
    if shift:  # a position belongs to the sequence of its shifted label
        labels = shift_left(labels, ignore_index)
        weights = Weights(  # torch 2.7 does not compile a slice of a named tuple
            shift_left(weights.loss_weights),
            shift_left(weights.number_weights),
            shift_left(weights.sequence_ids, -1),
            weights.num_items,
            weights.num_numbers,
            weights.number_samples,  # of whole rows
        )
    positions, spans = labels.shape, None
    shape = positions if reduction == "none" else None
    if needs.spans and tables.kinds is not None:
        sequence_ids = weights.sequence_ids
        spans = find_numbers(labels, tables.kinds, sequence_ids, needs.decimals, ignore_index).flatten()
    labels = labels.reshape(-1).long()  # gather accepts int32 only since torch 2.8
    counted = labels != ignore_index
    labels = torch.where(counted, labels, -1)
    value = tables.value_of_token[labels.clamp(min=0)]
    target, is_number = value.clamp(min=0), counted & (value >= 0)
    if needs.remainders and spans is not None:
        of_labels = torch.where(is_number, tables.values[target], 0)
        samples = weights.number_samples
        if samples is not None:  # from rows to positions
            samples = samples.unsqueeze(-2).expand(*positions, samples.shape[-1]).flatten(0, -2)
        spans = measure_remainders(spans, of_labels, samples)
    has_term = spans.starts if needs.per_number and spans is not None else is_number

    dtype = torch.promote_types(inputs.dtype, torch.float32)
    item_weights = counted.to(dtype)
    if weights.loss_weights is not None:
        item_weights = torch.where(counted, weights.loss_weights.reshape(-1).to(dtype), 0)
    factors = torch.ones_like(item_weights)
    if weights.number_weights is not None:
        factors = torch.where(is_number, weights.number_weights.reshape(-1).to(dtype), 0)
        if needs.per_number and spans is not None:  # a number has the weight of its first token
            of_starts = torch.where(spans.starts, factors, 0)
            factors = torch.zeros_like(factors).scatter_add(0, spans.number, of_starts)[spans.number]
    term_weights = torch.where(has_term, item_weights * factors, 0)
    if reduction == "mean":
        items, numbers = weights.num_items, weights.num_numbers
        per_term = per_item = _reciprocal(item_weights if items is None else items, dtype)
        if options.normalize_by == "numbers" and mode == "add":
            per_term = _reciprocal(term_weights if numbers is None else numbers, dtype)
            if items is not None and numbers is None:
                per_term = per_term * (item_weights.sum() * per_item)  # this call's share of the items
        item_weights, term_weights = item_weights * per_item, term_weights * per_term
    ce_weights = item_weights
    if mode == "replace":
        ce_weights = torch.where(is_number, item_weights * (1 - factors).clamp(min=0), item_weights)
    number_rows = None
    static_shapes = labels.device.type != "cpu" or values_are_hidden()
    if not (needs.across_positions or static_shapes):
        number_rows = term_weights.nonzero().squeeze(-1)
    columns = (labels, target, counted, item_weights, ce_weights, term_weights)
    return Targets(*columns, number_rows, spans, shape)


def _reciprocal(weights: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    """Invert a count, or the sum of weights; 0 stays 0, so that the mean over nothing is 0."""
    if isinstance(weights, Tensor):
        divisor = weights.to(dtype).sum()
        return torch.where(divisor > 0, 1 / divisor.clamp(min=torch.finfo(torch.float32).tiny), 0)
    return 1 / weights if weights > 0 else 0.0


def shift_left(given: _Given, fill: float = 0) -> _Given:
    """Shift a tensor `[..., seq]` by one position to the left, for causal models; None stays None.

    The last position gets `fill`, so the length stays that of the logits. Raise a ValueError for a tensor
    without a dimension.
    """
    if given is None:
        return None
    if given.dim() == 0:
        raise ValueError("shift=True with labels of shape []: expected [..., seq], to shift along seq")
    return F.pad(given, (0, 1), value=fill)[..., 1:]  # in this order, so that empty sequences stay empty


def given_type(given: object) -> object:
    """Name the type of an argument for an error message: of a tensor its dtype."""
    return given.dtype if isinstance(given, Tensor) else type(given).__name__


def _reads_values(tensor: Tensor, validate: bool | None) -> bool:
    """Whether to check a tensor's values: by default on the CPU only, where it does not synchronize."""
    return not values_are_hidden() and (tensor.device.type == "cpu" if validate is None else validate)


def check_logits(logits: Tensor, vocab_size: int) -> None:
    """Raise a TypeError unless logits are float16 to float64, a ValueError unless `vocab_size` wide."""
    if not isinstance(logits, Tensor) or logits.dtype not in FLOATS:
        raise TypeError(
            f"logits: expected a floating-point tensor [..., vocab], given {given_type(logits)}: cast float8 "
            "logits to bfloat16 or float32"
        )
    if logits.dim() == 0 or logits.shape[-1] != vocab_size:
        raise ValueError(
            f"logits of shape {list(logits.shape)} do not end in the vocabulary's size, {vocab_size:,}. "
            "Models often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size), or NTLoss(tokenizer, vocab_size=...)."
        )


def check_labels(
    labels: Tensor, inputs: Tensor, vocab_size: int, ignore_index: int, validate: bool | None
) -> None:
    """Check that labels fit inputs `[..., width]` and, if their values are read, lie in the vocabulary.

    Raise a TypeError for labels that are not integers, and a ValueError for all else.
    """
    leading = inputs.shape[:-1]
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels: expected a tensor of token ids, torch.int64, given {given_type(labels)}")
    if labels.shape != leading:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit: expected {list(leading)}, the shape of the "
            "logits (or hidden states) without their last dimension. To shift a causal model's labels, shift "
            "its logits too: logits[:, :-1], labels[:, 1:]."
        )
    if labels.device != inputs.device:
        raise ValueError(
            f"labels are on {labels.device}, the logits on {inputs.device}: move one to the other"
        )
    if values_are_hidden() or not (labels.device.type == "cpu" if validate is None else validate):
        return
    outside = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"label {int(labels[outside][0])} lies outside the vocabulary: expected 0 to "
            f"{vocab_size - 1:,}, or ignore_index={ignore_index}. Are the labels from another tokenizer?"
        )


def _check_weights(weights: Weights, labels: Tensor, options: TargetOptions) -> None:
    """Check what a call gives beside the labels, which have been checked."""
    _check_counts(weights, options)
    loss_weights, number_weights, sequence_ids, *_ = weights
    tensors = {"loss_weights": loss_weights, "number_weights": number_weights, "sequence_ids": sequence_ids}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        integers = name == "sequence_ids"
        if not isinstance(tensor, Tensor) or tensor.is_complex() or (integers and tensor.is_floating_point()):
            expected = "a tensor of integers" if integers else "a real tensor"
            raise TypeError(f"{name}: expected {expected}, given {given_type(tensor)}")
        if tensor.shape != labels.shape:
            found = f"{name} of shape {list(tensor.shape)}"
            raise ValueError(f"{found}: expected that of the labels, {list(labels.shape)}")
        if tensor.device != labels.device:
            found = f"{name} are on {tensor.device}, the logits on {labels.device}"
            raise ValueError(f"{found}: move one to the other")
        if integers or not _reads_values(labels, options.validate):
            continue
        # With mode="replace", a number weight splits a label between the two terms.
        splits = name == "number_weights" and options.mode == "replace"
        valid = (tensor >= 0) & (tensor <= (1 if splits else torch.inf)) & (tensor < torch.inf)
        if not valid.all():  # NaN fails these comparisons too
            expected = "weights from 0 to 1 with mode='replace'" if splits else "finite weights, 0 or more"
            raise ValueError(f"{name} contain {tensor[~valid][0].item()}: expected {expected}")


def _check_samples(samples: Tensor | None, labels: Tensor, needs: Needs, validate: bool | None) -> None:
    """Raise a TypeError or ValueError unless samples fit the labels' rows, and the criterion reads them."""
    if samples is None:
        return
    if not isinstance(samples, Tensor) or samples.is_complex():
        raise TypeError(f"number_samples: expected a real tensor, given {given_type(samples)}")
    rows = labels.shape[:-1]
    if samples.dim() != len(rows) + 1 or samples.shape[:-1] != rows or not samples.shape[-1]:
        raise ValueError(
            f"number_samples of shape {list(samples.shape)}: expected {[*rows, 'samples']}, the numbers of "
            "each row, padded with NaN"
        )
    if samples.device != labels.device:
        raise ValueError(
            f"number_samples are on {samples.device}, the labels on {labels.device}: move one to the other"
        )
    if not needs.remainders:
        raise ValueError(
            "number_samples need a criterion with targets on whole numbers, such as HLGauss(sigma): this "
            "loss would ignore them"
        )
    if _reads_values(samples, validate) and (samples.isinf() | samples.isnan().all(-1, keepdim=True)).any():
        raise ValueError("number_samples: expected at least one number in each row and none infinite")


def _check_counts(weights: Weights, options: TargetOptions) -> None:
    """Raise a ValueError if a count is negative, or not what the loss divides by."""
    items, numbers = weights.num_items, weights.num_numbers
    if options.reduction != "mean" and not items is numbers is None:
        raise ValueError(
            "num_items_in_batch and num_numbers_in_batch are the divisors of reduction='mean': omit them "
            f"with reduction={options.reduction!r}"
        )
    if numbers is not None and options.normalize_by == "items":
        raise ValueError(
            "num_numbers_in_batch is the divisor of the number term with normalize_by='numbers', and this "
            "loss divides both terms by num_items_in_batch (normalize_by='items'): omit it, or make the loss "
            "with normalize_by='numbers'"
        )
    if numbers is not None and items is None:
        raise ValueError(
            "num_items_in_batch is missing, but num_numbers_in_batch is given: cross-entropy would depend on "
            "how a batch is split. `loss.normalizers(labels)` computes both; sum them over micro-batches and "
            "ranks."
        )
    for name, count in (("num_items_in_batch", items), ("num_numbers_in_batch", numbers)):
        if isinstance(count, (int, float)) and not count >= 0:
            raise ValueError(f"{name}={count}: expected 0 or more")


def check_weight(weight: object, validate: bool | None = None) -> None:
    """Raise a ValueError unless the number term's weight is a finite number, 0 or more, or a scalar tensor.

    By default (`validate=None`) a tensor is checked on the CPU only. Under `torch.compile` it never is.
    """
    if isinstance(weight, Tensor) and weight.numel() == 1:
        if not _reads_values(weight, validate):
            return
        weight = weight.item()
    if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise ValueError(f"weight={weight!r}: expected a finite number, 0 or more, or a scalar tensor")
