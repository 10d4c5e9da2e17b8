"""First stage: targets and weights from the labels, the same wherever the logits come from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet

from ntloss.criteria.soft import SoftTargets
from ntloss.engine.readout import COMPUTED_IN, values_are_hidden
from ntloss.engine.soft import check_soft_labels, soft_weights
from ntloss.engine.tables import NumberTables
from ntloss.numbers.labels import LabelNumbers, find_numbers, first_tokens, without_float64
from ntloss.numbers.vocabulary import NumberVocabulary

IGNORED = -100  # label of positions without a loss, the default of torch
MODES = ("add", "replace")
REDUCTIONS = ("mean", "sum", "none")
DIVISORS = ("items", "numbers")
# What a criterion reads of the whole number that a label belongs to.
OF_NUMBERS = ("place", "digits_after", "numbers", "digits", "number_sigma")
_TINY = torch.finfo(torch.float32).tiny  # a divisor in place of 0
_Given = TypeVar("_Given", Tensor, Tensor | None, SoftTargets | None)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Targets(NamedTuple):
    """Targets and weights of each position, `[positions]`, and what all positions have in common.

    For a mean, weights are divided by their total.
    """

    labels: Tensor  # token ids, -1 where ignored
    target: Tensor  # index of the label's value, -1 where the label is not a number
    counted: Tensor  # bool, False where the label is ignored
    item_weights: Tensor  # weight of the position
    ce_weights: Tensor  # weight of its cross-entropy
    number_weights: Tensor  # weight of its number term, 0 where it has none
    numbers: Tensor | None  # `[positions, columns]`, packed `LabelNumbers`, if the criterion reads them
    # `[positions, number tokens]`, the distribution of each label that is a number token, 0 elsewhere; None
    # if no label is soft. `labels` are then the likeliest tokens.
    soft: Tensor | None
    sigma: Tensor | None  # standard deviation that is given for each label's number, if any
    # bool, for a criterion that looks at several positions: True where neither the position nor its number
    # has a weight, so that its logits are not read; None if no position has a weight of its own.
    left_out: Tensor | None
    # `[number terms]`, indices of the positions whose number term has weight. None if the term of every
    # position is computed: where shapes must be static (on accelerators, under `torch.compile` and
    # `torch.func`), and for criteria that look at several positions.
    number_rows: Tensor | None
    token_ids: Tensor  # tokens whose logits are read at each position: the number tokens, or none
    replaces: bool  # whether the number term replaces cross-entropy
    is_sum: bool  # whether the losses are summed

    def select(self, rows: Tensor | slice) -> Targets:
        """Select some positions."""
        fields: tuple[Any, ...] = self
        columns: list[Any] = [None if each is None else each[rows] for each in fields[:_OF_POSITIONS]]
        targets = Targets(*columns, *fields[_OF_POSITIONS:])
        if self.number_rows is None:
            return targets
        return targets._replace(number_rows=targets.number_weights.nonzero().squeeze(-1))


_OF_POSITIONS = Targets._fields.index("number_rows")  # number of the fields that have a row a position


class LabelOptions(NamedTuple):
    """What a loss is given beside labels, in the order of the parameters of `NTLCrossEntropyLoss.forward`."""

    loss_weights: Tensor | None = None
    num_items_in_batch: Tensor | float | None = None
    sequence_ids: Tensor | None = None
    number_weights: Tensor | None = None
    numbers: Tensor | None = None
    soft_labels: SoftTargets | None = None
    number_sigma: Tensor | None = None


def prepare_targets(
    labels: Tensor,
    inputs: Tensor,
    options: LabelOptions,
    tables: NumberTables,
    reads: tuple[str, ...],
    decimals: bool,
    *,
    ignore_index: int,
    reduction: str,
    mode: str,
    divides_by_numbers: bool,
    shift: bool = False,
) -> Targets:
    """Check labels `[...]`, shift them, find their numbers, and compute the weight of each position.

    `inputs`, logits or hidden states `[..., width]`, are asked for their shape, device and dtype only;
    `reads` and `decimals` are those of the `NumberTerm`, and the keywords are attributes of
    `NTLCrossEntropyLoss`. Raise a TypeError or ValueError that names what does not fit.
    """
    loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels, number_sigma = (
        options
    )
    ignored = check_labels(labels, inputs, tables.vocabulary.vocab_size, ignore_index)
    if num_items_in_batch is not None:
        _check_count(num_items_in_batch, reduction)
    for name in ("sequence_ids", "loss_weights", "number_weights", "number_sigma"):
        if (given := getattr(options, name)) is not None:
            _check_beside(name, given, labels, mode)
    if soft_labels is not None:
        check_soft_labels(soft_labels, labels, tables.vocabulary.vocab_size, reads_values(labels))
    if not set(OF_NUMBERS) & set(reads):
        numbers = None
    elif numbers is None:
        numbers = numbers_of(labels, tables.vocabulary, sequence_ids, decimals, ignore_index, shift)
    if shift:
        labels, ignored = shift_left(labels), shift_left(ignored, True)
        loss_weights, number_weights = shift_left(loss_weights), shift_left(number_weights)
        number_sigma, soft_labels = shift_left(number_sigma), shift_left(soft_labels)
    numbers = None if numbers is None else _checked_numbers(numbers, labels)
    # `gather` accepts int32 only since torch 2.8.
    labels = labels.reshape(-1).long().masked_fill(ignored.reshape(-1), -1)
    counted = labels >= 0
    target = tables.value_of_label[labels]
    soft = None
    if soft_labels is not None:
        soft = soft_weights(soft_labels, labels, tables, reads_values(labels))
        labels = torch.where(target >= 0, tables.token_ids[soft.argmax(-1)], labels)
    has_term = is_number = target >= 0
    of_numbers = "numbers" in reads  # one term for each number, at its first token
    sigma = None
    if numbers is not None:
        found = LabelNumbers.unpack(numbers)
        is_number = is_number & (found.length > 0)  # the 2 of CO2 is no quantity
        has_term = is_number & (found.starts > 0) if of_numbers else is_number
        if number_sigma is not None:
            sigma = number_sigma.reshape(-1)[first_tokens(found)]
    item_weights = counted.to(COMPUTED_IN[inputs.dtype])
    if loss_weights is not None:
        item_weights = torch.where(counted, loss_weights.reshape(-1).to(item_weights), 0)
    factors = None
    if number_weights is not None:
        factors = torch.where(is_number, number_weights.reshape(-1).to(item_weights), 0)
        factors = factors[first_tokens(found)] if of_numbers else factors
    item_weights, ce_weights, term_weights = _divided_weights(
        item_weights, is_number, has_term, factors, num_items_in_batch, reduction, mode, divides_by_numbers
    )
    has_rows = not of_numbers and reads_values(labels)
    left_out = None
    if of_numbers and numbers is not None and loss_weights is not None:
        left_out = (item_weights == 0) & (term_weights == 0)[first_tokens(found)]
    return Targets(
        *(labels, target, counted, item_weights, ce_weights, term_weights, numbers, soft, sigma, left_out),
        number_rows=term_weights.nonzero().squeeze(-1) if has_rows else None,
        token_ids=tables.token_ids if reads or soft is not None else tables.token_ids[:0],
        replaces=mode == "replace",
        is_sum=reduction != "none",
    )


def _checked_numbers(numbers: Tensor, labels: Tensor) -> Tensor:
    """Return the numbers of labels flat, on the labels' device.

    Raise a ValueError if they are those of labels of another shape, and a TypeError if they were cast.
    """
    if numbers.shape[:-1] != labels.shape:
        raise ValueError(
            f"numbers of labels of shape {list(numbers.shape[:-1])}, but labels of shape "
            f"{list(labels.shape)}: expected numbers=loss_fn.find_numbers(labels) of these labels"
        )
    if numbers.dtype != torch.int64 and labels.device.type != "mps":  # floats are in it as their bits
        raise TypeError(
            f"numbers: expected what find_numbers returned, torch.int64, given {numbers.dtype}: leave it "
            "out where a batch is cast"
        )
    numbers = without_float64(numbers) if labels.device.type == "mps" else numbers
    return numbers.to(labels.device).reshape(-1, numbers.shape[-1])


def _divided_weights(
    weights: Tensor,
    is_number: Tensor,
    has_term: Tensor,
    factors: Tensor | None,
    num_items_in_batch: Tensor | float | None,
    reduction: str,
    mode: str,
    divides_by_numbers: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of positions, of their cross-entropy and of their number terms; divided for a mean.

    `weights` are those of the caller, 0 where a label is ignored; `factors` are the number weights, 0 at
    text. All are `[positions]`.
    """
    if reduction == "mean" and num_items_in_batch is not None:
        weights = _divide(weights, num_items_in_batch)
    elif reduction == "mean":  # if their sum is 0, so are the weights
        weights = weights / weights.sum().clamp(min=_TINY)
    of_terms = weights * (has_term if factors is None else has_term * factors)
    if reduction == "mean" and divides_by_numbers:
        of_terms = of_terms / of_terms.sum().clamp(min=_TINY)
        if num_items_in_batch is not None:
            of_terms = of_terms * weights.sum()  # this call's share of the items
    if mode == "add":
        return weights, weights, of_terms
    if factors is None:
        return weights, weights.masked_fill(is_number, 0), of_terms
    return weights, torch.where(is_number, weights * (1 - factors).clamp(min=0), weights), of_terms


def numbers_of(
    labels: Tensor,
    vocabulary: NumberVocabulary,
    sequence_ids: Tensor | None,
    decimals: bool,
    ignore_index: int,
    shift: bool,
) -> Tensor:
    """Find the numbers of labels, which a loss with `shift` shifts first.

    Raise a ValueError if it is unknown where sequences end.
    """
    if sequence_ids is None and labels.dim() < 2:
        raise ValueError(
            f"labels of shape {list(labels.shape)}, but the criterion looks at whole numbers and needs to "
            "know where sequences end: expected labels of shape [batch, seq], or sequence_ids of the labels' "
            "shape (all zeros for a single sequence), or numbers=loss_fn.find_numbers(labels)"
        )
    if shift:  # a position belongs to the sequence of its shifted label
        labels, sequence_ids = shift_left(labels, ignore_index), shift_left(sequence_ids, -1)
    find = _find_outside_graph if torch.compiler.is_compiling() else find_numbers
    return find(labels, vocabulary, sequence_ids, decimals=decimals, ignore_index=ignore_index)


@_disable_dynamo
def _find_outside_graph(*args: Any, **kwargs: Any) -> Tensor:
    """Find numbers with a break in the graph: compiled code cannot read labels."""
    return find_numbers(*args, **kwargs)


def _divide(weights: Tensor, count: Tensor | float) -> Tensor:
    """Divide weights by a count; if it is 0, return 0, so that the mean over nothing is 0."""
    if isinstance(count, Tensor):
        count = count.to(weights.dtype).sum()
        return torch.where(count > 0, weights / count.clamp(min=_TINY), 0)
    return weights / count if count > 0 else torch.zeros_like(weights)


def shift_left(given: _Given, fill: float = 0) -> _Given:
    """Shift a tensor `[..., seq]` by one position to the left, for causal models; None stays None.

    The last position gets `fill`, so the length stays that of the logits. Soft labels `[..., seq, K]` get
    zeros. Raise a ValueError for a tensor without a dimension.
    """
    if given is None:
        return None
    if isinstance(given, SoftTargets):
        return SoftTargets(*[F.pad(each, (0, 0, 0, 1))[..., 1:, :] for each in given])
    if given.dim() == 0:
        raise ValueError("shift=True with labels of shape []: expected [..., seq], to shift along seq")
    return F.pad(given, (0, 1), value=fill)[..., 1:]  # in this order, so that empty sequences stay empty


def given_type(given: object) -> object:
    """Name the type of an argument for an error message: of a tensor its dtype."""
    return given.dtype if isinstance(given, Tensor) else type(given).__name__


def reads_values(tensor: Tensor) -> bool:
    """Whether to check a tensor's values: on the CPU only, where it does not synchronize."""
    return tensor.device.type == "cpu" and not values_are_hidden()


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


def check_labels(labels: Tensor, inputs: Tensor, vocab_size: int, ignore_index: int) -> Tensor:
    """Return which labels are ignored, and check that they fit inputs `[..., width]`.

    Raise a TypeError for labels that are not integers, and a ValueError for all else, such as labels outside
    of the vocabulary if their values are read.
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
    ignored: Tensor = labels == ignore_index
    if reads_values(labels) and labels.numel():
        read = labels.masked_fill(ignored, 0)
        lowest, highest = map(int, read.aminmax())
        if lowest < 0 or highest >= vocab_size:
            outside = read[(read < 0) | (read >= vocab_size)][0]
            raise ValueError(
                f"label {int(outside)} lies outside the vocabulary: expected 0 to "
                f"{vocab_size - 1:,}, or ignore_index={ignore_index}. Are the labels from another tokenizer?"
            )
    return ignored


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError unless an option is one of several names."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name}={value!r}: expected {', '.join(others)} or {last}")


def _check_beside(name: str, given: Tensor, labels: Tensor, mode: str) -> None:
    """Raise a TypeError or ValueError unless something for each label has the labels' shape and valid values.

    Integers are expected of `sequence_ids`, and numbers of the others: finite and 0 or more, but for NaN in
    `number_sigma`, and at most 1 if a number's weight splits its label between two terms.
    """
    integers = name == "sequence_ids"
    if not isinstance(given, Tensor) or given.is_complex() or (integers and given.is_floating_point()):
        expected = "a tensor of integers" if integers else "a real tensor"
        raise TypeError(f"{name}: expected {expected}, given {given_type(given)}")
    if given.shape != labels.shape:
        found = f"{name} of shape {list(given.shape)}"
        raise ValueError(f"{found}: expected that of the labels, {list(labels.shape)}")
    if given.device != labels.device:
        found = f"{name} are on {given.device}, the logits on {labels.device}"
        raise ValueError(f"{found}: move one to the other")
    if integers or not reads_values(labels):
        return
    valid, expected = (given >= 0) & (given < torch.inf), "finite weights, 0 or more"  # NaN is neither
    if name == "number_sigma":
        valid, expected = valid | given.isnan(), "standard deviations; 0 or NaN for the criterion's own"
    elif name == "number_weights" and mode == "replace":
        valid, expected = valid & (given <= 1), "weights from 0 to 1 with mode='replace'"
    if not valid.all():
        raise ValueError(f"{name} of {given[~valid][0].item()}: expected {expected}")


def _check_count(count: Tensor | float, reduction: str) -> None:
    """Raise a ValueError if a count is negative, or given where nothing is divided by it."""
    if reduction != "mean":
        raise ValueError(
            f"num_items_in_batch is the divisor of reduction='mean': omit it with reduction={reduction!r}"
        )
    is_read = isinstance(count, (int, float)) or (isinstance(count, Tensor) and reads_values(count))
    if is_read and not torch.as_tensor(count).sum() >= 0:
        raise ValueError(f"num_items_in_batch={count}: expected 0 or more")


def check_weight(weight: object) -> None:
    """Raise a ValueError unless the number term's weight is a finite number, 0 or more, or a scalar tensor.

    A tensor is one of a floating dtype; its value is checked on the CPU only, and not under `torch.compile`.
    """
    given = weight
    if isinstance(weight, Tensor) and weight.dim() == 0 and weight.is_floating_point():
        if not reads_values(weight):
            return
        weight = weight.item()
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 <= weight < math.inf:
        raise ValueError(
            f"weight={given!r}: expected a finite number, 0 or more, or a scalar tensor of a floating dtype"
        )
