"""First stage: labels and what a loss reads beside them in one record, and the weight of each position."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet
from torch.utils._pytree import tree_map_only

from ntloss.criteria.soft import SoftTargets, check_probabilities
from ntloss.engine.readout import COMPUTED_IN, given_type
from ntloss.engine.shards import Shard, check_same_labels
from ntloss.numbers.fields import Finder, sigma_of_labels
from ntloss.numbers.labels import LabelNumbers, find_numbers, first_tokens, without_float64
from ntloss.numbers.vocabulary import VALUE, NumberVocabulary

IGNORED = -100  # label of positions without a loss, the default of torch
Mode = Literal["add", "replace"]
Reduction = Literal["mean", "sum", "none"]
# What a criterion reads of the whole number that a label belongs to.
OF_NUMBERS = frozenset({"place", "digits_after", "numbers", "digits", "number_sigma"})
INTEGERS = (torch.int64, torch.int32)
TINY = torch.finfo(torch.float32).tiny  # a divisor in place of 0


class PreparedLabels(NamedTuple):
    """Labels and what a loss reads beside them, checked and shifted; `NTLCrossEntropyLoss.prepare` makes it.

    All but `made_for` are tensors with a row for each label, so they are moved, split and gathered together.

    Args:
        labels: `[...]`, int64, the token that each position is compared with, -1 where it is ignored.
        weights: `[...]`, weight of each position; None for 1.
        number_weights: `[...]`, factor of the number term; None for 1.
        sigma: `[...]`, standard deviation of each number, 0 or NaN for the criterion's own; None for that of
            all.
        soft: `[..., K]`, distributions over tokens; None if no label is soft.
        numbers: `[..., columns]`, int64, packed `LabelNumbers`; None for a criterion that reads none.
        made_for: what the loss reads of labels. Another loss refuses the record, unless it is cross-entropy
            alone with the same `ignore_index` and `shift`.
    """

    labels: Tensor
    weights: Tensor | None = None
    number_weights: Tensor | None = None
    sigma: Tensor | None = None
    soft: SoftTargets | None = None
    numbers: Tensor | None = None
    made_for: str = ""

    def map(self, function: Callable[[Tensor], Tensor]) -> PreparedLabels:
        """Apply a function to each tensor, such as `lambda each: each[:2]`."""
        mapped: PreparedLabels = tree_map_only(Tensor, function, self)
        return mapped

    def to(self, device: torch.device | str) -> PreparedLabels:
        """Move the record to a device."""
        record = self
        if torch.device(device).type == "mps" and self.numbers is not None:
            record = self._replace(numbers=without_float64(self.numbers))
        return record.map(lambda each: each.to(device))

    def pack(self) -> Tensor:
        """Write the record into one tensor, `[..., columns]`, int64, with floats as their bits.

        So it can be an entry of a trainer's batch, which is moved, split and gathered as labels are, and is
        never cast to half precision.
        """
        columns = [self.labels]
        for given, default in ((self.weights, 1.0), (self.number_weights, 1.0), (self.sigma, torch.nan)):
            made = torch.full_like(self.labels, default, dtype=torch.float64) if given is None else given
            columns.append(made.double().view(torch.int64))
        parts = [torch.stack(columns, -1), *([] if self.numbers is None else [self.numbers])]
        if self.soft is not None:
            parts += [self.soft.token_ids.long(), self.soft.weights.double().view(torch.int64)]
        return torch.cat(parts, -1)

    @classmethod
    def unpack(cls, packed: Tensor, reader: LabelReader) -> PreparedLabels:
        """Read what `pack` wrote of a record that this reader made."""
        here = packed.cpu() if packed.device.type == "mps" else packed  # which has no float64
        labels, *floats = here[..., :4].unbind(-1)
        weights, number_weights, sigma = (each.view(torch.float64) for each in floats)
        width = 4 + (len(LabelNumbers._fields) if reader.finds_numbers else 0)
        numbers, rest = here[..., 4:width] if reader.finds_numbers else None, here[..., width:]
        soft, half = None, rest.shape[-1] // 2
        if half:
            soft = SoftTargets(rest[..., :half], rest[..., half:].contiguous().view(torch.float64))
        given = None if "number_sigma" not in reader.reads else sigma
        return cls(labels, weights, number_weights, given, soft, numbers, reader.made_for).to(packed.device)


class LabelReader(NamedTuple):
    """What has to be known of a loss to prepare its labels; unlike the loss, it is light and can be pickled.

    `ignore_index`, `shift` and `mode` are those of `NTLCrossEntropyLoss`.
    """

    vocabulary: NumberVocabulary
    reads: tuple[str, ...] = ()  # what the criterion reads; nothing without a criterion
    decimals: bool = True  # whether a point between two digits belongs to their number
    # Standard deviations of `HLGauss.for_fields`, and how their numbers are found.
    fields: tuple[dict[str, float], Finder] | None = None
    ignore_index: int = IGNORED
    shift: bool = False
    mode: Mode = "add"
    made_for: str = ""  # `PreparedLabels.made_for` of its records

    @property
    def finds_numbers(self) -> bool:
        """Whether the criterion reads which numbers labels form."""
        return not OF_NUMBERS.isdisjoint(self.reads)

    def prepare(
        self,
        labels: Tensor,
        weights: Tensor | None = None,
        number_weights: Tensor | None = None,
        sigma: Tensor | None = None,
        soft: SoftTargets | None = None,
        sequence_ids: Tensor | None = None,
    ) -> PreparedLabels:
        """Check labels and what is given beside them, shift them, and find their numbers.

        See `NTLCrossEntropyLoss.prepare`. Raise a TypeError or ValueError that names what does not fit.
        """
        if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
            raise TypeError(
                f"labels: expected a tensor of token ids, torch.int64, or what loss.prepare returned, given "
                f"{given_type(labels)}"
            )
        if self.shift and labels.dim() == 0:
            raise ValueError("shift=True with labels of shape []: expected [..., seq], to shift along seq")
        ignored, reads = labels == self.ignore_index, not values_are_hidden(labels)
        if reads and labels.numel():
            lowest, highest = map(int, labels.masked_fill(ignored, 0).aminmax())
            if lowest < 0 or highest >= self.vocabulary.vocab_size:
                raise ValueError(
                    f"label {lowest if lowest < 0 else highest} lies outside the vocabulary: expected 0 to "
                    f"{self.vocabulary.vocab_size - 1:,}, or ignore_index={self.ignore_index}. Are the "
                    "labels from another tokenizer?"
                )
        # `gather` accepts int32 only since torch 2.8.
        record = PreparedLabels(labels.long().masked_fill(ignored, -1), weights, number_weights, sigma, soft)
        given = weights, number_weights, sigma, soft, sequence_ids
        if [each for each in given if each is not None]:
            self._check(record, sequence_ids, reads)
        if self.fields is not None:
            own = sigma_of_labels(record.labels, self.vocabulary, *self.fields, sequence_ids, -1)
            own = own.to(labels.device)
            record = record._replace(sigma=own if sigma is None else torch.where(sigma > 0, sigma, own))
        if self.shift:  # by one position to the left; the length stays that of the logits
            soft = None if soft is None else SoftTargets(*[_shifted(each, 0, -2) for each in soft])
            beside = weights, number_weights, record.sigma
            moved = [None if each is None else _shifted(each) for each in beside]
            record = PreparedLabels(_shifted(record.labels, -1), *moved, soft)  # type: ignore[arg-type,call-arg]
            sequence_ids = None if sequence_ids is None else _shifted(sequence_ids, -1)
        if not OF_NUMBERS.isdisjoint(self.reads):
            # In eager mode, the compiler need not be imported.
            find = _find_outside_graphs if torch.compiler.is_compiling() else _find_numbers
            record = record._replace(numbers=find(self, record.labels, sequence_ids))
        return record._replace(made_for=self.made_for)

    def _check(self, record: PreparedLabels, sequence_ids: Tensor | None, reads: bool) -> None:
        """Raise a TypeError or ValueError unless what stands beside labels fits them and the criterion.

        Values are checked only if they are read: finite and 0 or more, but for NaN in `sigma`, and at most 1
        if a number's weight splits its label between two terms.
        """
        shape, soft = record.labels.shape, record.soft
        beside = {"weights": record.weights, "number_weights": record.number_weights, "sigma": record.sigma}
        for name, given in {**beside, "sequence_ids": sequence_ids}.items():
            if given is None:
                continue
            if not isinstance(given, Tensor) or given.is_complex():
                raise TypeError(f"{name}: expected a tensor of numbers, given {given_type(given)}")
            if given.shape != shape or given.device != record.labels.device:
                raise ValueError(
                    f"{name} of shape {list(given.shape)} on {given.device}: expected those of the labels, "
                    f"{list(shape)} on {record.labels.device}"
                )
            if not reads or name == "sequence_ids":
                continue
            valid, expected = (given >= 0) & (given < torch.inf), "finite weights, 0 or more"
            if name == "sigma":
                valid, expected = valid | given.isnan(), "standard deviations; 0 or NaN for the criterion's"
            elif name == "number_weights" and self.mode == "replace":
                valid, expected = valid & (given <= 1), "weights from 0 to 1 with mode='replace'"
            if not valid.all():
                raise ValueError(f"{name} of {given[~valid][0].item()}: expected {expected}")
        for name, read, like in (
            ("sigma", "number_sigma", "HLGauss"),
            ("soft", "target_probs", "crps or gaussian_smoothing"),
        ):
            if getattr(record, name) is not None and self.reads and read not in self.reads:
                raise ValueError(
                    f"{name} is given, but the criterion reads {', '.join(self.reads)}: expected one that "
                    f"reads {read}, such as {like}"
                )
        if soft is None:
            return
        if not isinstance(soft, SoftTargets):
            raise TypeError(f"soft: expected SoftTargets(token_ids, weights), given {type(soft).__name__}")
        ids, weights = soft
        if ids.dtype not in INTEGERS or not weights.is_floating_point():
            raise TypeError(
                f"soft: expected ids, torch.int64, and floating weights, given {ids.dtype}, {weights.dtype}"
            )
        if not (ids.shape == weights.shape == (*shape, *ids.shape[-1:])):
            raise ValueError(
                f"soft of shapes {list(ids.shape)} and {list(weights.shape)}: expected K tokens for each "
                f"label, {[*shape, 'K']}"
            )
        if reads:
            outside = (ids < 0) | (ids >= self.vocabulary.vocab_size)
            if outside.any():
                raise ValueError(
                    f"soft has the token {int(ids[outside][0])}: expected 0 to "
                    f"{self.vocabulary.vocab_size - 1:,}, with a weight of 0 where a place is not needed"
                )
            check_probabilities("weights of soft", weights, may_be_zero=True)


def _find_numbers(reader: LabelReader, labels: Tensor, sequence_ids: Tensor | None) -> Tensor:
    """Find the numbers of labels, and raise a ValueError if it is unknown where sequences end."""
    if sequence_ids is None and labels.dim() < 2:
        raise ValueError(
            f"labels of shape {list(labels.shape)}, but the criterion looks at whole numbers and needs "
            "to know where sequences end: expected labels of shape [batch, seq], or loss.prepare(labels, "
            "sequence_ids=...) with ids of the labels' shape, all zeros for a single sequence"
        )
    numbers = find_numbers(labels, reader.vocabulary, sequence_ids, decimals=reader.decimals, ignore_index=-1)
    return (without_float64(numbers) if labels.device.type == "mps" else numbers).to(labels.device)


_find_outside_graphs = _disable_dynamo(_find_numbers)  # compiled code cannot read labels


def _shifted(given: Tensor, fill: float = 0, dim: int = -1) -> Tensor:
    """Shift along a sequence, whose last position gets `fill`, padding first, so that it may be empty."""
    padded = F.pad(given, (0, 1) if dim == -1 else (0, 0, 0, 1), value=fill)
    return padded.narrow(dim, 1, given.shape[dim])


class NumberTables(nn.Module):
    """Tensors of a vocabulary that losses need, as non-persistent buffers.

    They are built once per device and keep their dtype under `.half()`, because bfloat16 would round 257 to
    256.

    Args:
        vocabulary: the number tokens.
        cells: also build `cells`. Default: False.
    """

    # `[number tokens]`, one token of each distinct value by ascending value, then further forms of these.
    token_ids: Tensor
    # `[values]`, the distinct values, ascending, float64 (float32 on devices without float64). A value that
    # tokens both write and are given by stands there twice.
    values: Tensor
    values_in_float32: Tensor
    # `[vocab + 1]`, index into `values` of each number token, -1 for text and, at the end (index -1), for
    # labels that are ignored.
    value_of_label: Tensor
    cells: Tensor | None  # `[2, kinds, values]`, see `criteria.READABLE`, or None
    own_values: Tensor | None  # `[values]`, bool, see `criteria.READABLE`, or None
    has_several_forms: bool  # whether some value has more than one token

    def __init__(self, vocabulary: NumberVocabulary, cells: bool = False) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("cells", None)
        self.register_buffer("own_values", None)
        self._has_cells = cells
        self._build(torch.device("cpu"))

    def _build(self, device: torch.device) -> None:
        tokens = self.vocabulary.tokens
        distinct = sorted({(token.value, token.is_value) for token in tokens})
        index = {each: i for i, each in enumerate(distinct)}
        forms: list[list[int]] = [[] for _ in distinct]
        value_of_label = [-1] * (self.vocabulary.vocab_size + 1)
        for token in tokens:
            i = index[token.value, token.is_value]
            forms[i].append(token.token_id)
            value_of_label[token.token_id] = i
        # Level 0 holds one form of every value, level 1 a second form of the values that have one, and so on.
        # Merging then takes one operation per level, with static shapes.
        levels = [
            [i for i, ids in enumerate(forms) if len(ids) > level]
            for level in range(max(len(ids) for ids in forms))
        ]
        ids = [forms[i][level] for level, members in enumerate(levels) for i in members]
        floats = torch.float32 if device.type == "mps" else torch.float64
        # Ignore a surrounding `with torch.device("meta")` or inference mode.
        with torch.device("cpu"), torch.inference_mode(False):
            values = torch.tensor([value for value, _ in distinct], dtype=torch.float64)
            tables = {
                "token_ids": torch.tensor(ids),
                "values": values.to(floats),
                "values_in_float32": values.to(torch.float32),
                "value_of_label": torch.tensor(value_of_label),
            }
            for level, members in enumerate(levels[1:], start=1):
                tables[f"level_{level}"] = torch.tensor(members)
            are_own = [is_value for _, is_value in distinct]
            if self._has_cells and not all(are_own):
                tables["cells"] = self._cells_of(index)
            if any(are_own):
                tables["own_values"] = torch.tensor(are_own)
            for name, table in tables.items():
                self.register_buffer(name, table.to(device), persistent=False)
        self._levels = len(levels)
        self.has_several_forms = len(levels) > 1

    def _cells_of(self, index: dict[tuple[float, bool], int]) -> Tensor:
        tokens = [token for token in self.vocabulary.tokens if token.kind > VALUE]  # whole numbers
        kinds_of_all = max((token.kind for token in tokens), default=0) // 2 * 2 + 2
        table = torch.zeros(2, kinds_of_all, len(index), dtype=torch.bool)
        for token in tokens:
            kinds = [2 * token.digits, 2 * token.digits + 1] if token.value == 0 else [token.kind]
            i = index[token.value, False]
            table[0, kinds, i] = True
            table[1, kinds, i] = abs(token.value) >= 10 ** (token.digits - 1)
        return table

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NumberTables:
        # Of .half(), .to(device) and .to_empty(...), only the device takes effect; applying `fn` to an empty
        # tensor reveals it. That tensor is on the CPU if the tables are on meta, because meta tensors cannot
        # be moved.
        here = self.values.device if self.values.device.type != "meta" else "cpu"
        device = fn(torch.empty(0, device=here)).device
        if device != self.values.device:
            self._build(device)
        return self

    def merge_forms(self, number_logits: Tensor) -> Tensor:
        """Merge the logits `[..., number tokens]` of all forms of a value by logsumexp: `[..., values]`."""
        start = len(self.values)
        merged = number_logits[..., :start]
        for level in range(1, self._levels):
            members: Tensor = getattr(self, f"level_{level}")
            further = number_logits[..., start : start + len(members)]
            both = torch.logaddexp(merged.index_select(-1, members), further)
            merged = merged.index_copy(-1, members, both)
            start += len(members)
        return merged


class Targets(NamedTuple):
    """Targets and weights of each position, `[positions]`, and what all positions have in common.

    For a mean, weights are divided by their total.
    """

    labels: Tensor  # token ids, -1 where ignored
    target: Tensor  # index of the label's value, -1 where the label is not a number
    ce_weights: Tensor  # weight of its cross-entropy
    number_weights: Tensor  # weight of its number term, 0 where it has none
    numbers: Tensor | None  # `[positions, columns]`, packed `LabelNumbers`, if the criterion reads them
    # `[positions, number tokens]`, the distribution of each label that is a number token, 0 elsewhere; None
    # if no label is soft. `labels` are then the likeliest tokens.
    soft: Tensor | None
    sigma: Tensor | None  # standard deviation that is given for each label's number, if any
    # bool, for a criterion that looks at several positions: True where neither the position nor its number
    # has a weight, so that a NaN there does not reach the loss; None if the caller gave no weights.
    left_out: Tensor | None
    # `[number terms]`, indices of the positions whose number term has weight. None if the term of every
    # position is computed: where shapes must be static (on accelerators, under `torch.compile` and
    # `torch.func`), and for criteria that look at several positions.
    number_rows: Tensor | None
    token_ids: Tensor  # tokens whose logits are read at each position: the number tokens, or none
    replaces: bool  # whether the number term replaces cross-entropy
    is_sum: bool  # whether the losses are summed
    shape: torch.Size  # that of the labels

    def select(self, rows: Tensor) -> Targets:
        """Select some positions."""
        fields: tuple[Any, ...] = self
        columns: list[Any] = [None if each is None else each[rows] for each in fields[:_OF_POSITIONS]]
        targets = Targets(*columns, *fields[_OF_POSITIONS:])
        if self.number_rows is None:
            return targets
        return targets._replace(number_rows=targets.number_weights.nonzero().squeeze(-1))


_OF_POSITIONS = Targets._fields.index("number_rows")  # number of the fields that have a row a position


class Term(Protocol):
    """What targets depend on: a `NumberTerm`."""

    tables: NumberTables
    reader: LabelReader

    def move_to(self, device: torch.device) -> None:
        """Move the tables to a device."""
        ...


def make_targets(
    term: Term,
    labels: Tensor | PreparedLabels,
    inputs: Tensor | None,
    reduction: str,
    count: Tensor | float | None = None,
    shard: Shard | None = None,
    *,
    are_logits: bool = False,
) -> Targets:
    """Prepare labels unless they are, and compute the weight of each position, and what is compared with it.

    Raise a TypeError or ValueError that names what does not fit.

    Args:
        term: a `NumberTerm`, whose tables are moved to the inputs' device.
        labels, reduction, count: see `NTLCrossEntropyLoss`.
        inputs: logits or hidden states `[..., width]`, which are asked for their shape, device and dtype;
            None for weights in the dtype of the tables, on the labels' device.
        shard: this rank's part of the vocabulary, if it is sharded.
        are_logits: whether to check the width and dtype of the inputs as those of logits.
    """
    tables, reader = term.tables, term.reader
    reads = reader.reads
    if are_logits and (not isinstance(inputs, Tensor) or inputs.dtype not in COMPUTED_IN):
        raise TypeError(
            f"logits: expected a floating-point tensor [..., vocab], given {given_type(inputs)}: cast float8 "
            "logits to bfloat16 or float32"
        )
    width = reader.vocabulary.vocab_size if shard is None else shard.size
    if are_logits and inputs is not None and inputs.shape[-1:] != (width,):
        raise ValueError(
            f"logits of shape {list(inputs.shape)} do not end in the vocabulary's size, {width:,}. "
            "Models often pad their embeddings: NumberVocabulary.from_tokenizer(tokenizer, vocab_size="
            "model.config.vocab_size), or NTLoss(tokenizer, vocab_size=...)."
        )
    record = labels if isinstance(labels, PreparedLabels) else reader.prepare(labels)
    if inputs is None:
        inputs = tables.values.new_empty(*record.labels.shape, 0, device=record.labels.device)
    if not record.made_for.startswith(reader.made_for):
        raise ValueError(
            f"the labels were prepared for another loss ({record.made_for or 'by hand'}) than this one "
            f"({reader.made_for}): expected what prepare(labels) of this loss returns"
        )
    if record.labels.shape != inputs.shape[:-1] or record.labels.device != inputs.device:
        raise ValueError(
            f"labels of shape {list(record.labels.shape)} on {record.labels.device} do not fit: expected "
            f"{list(inputs.shape[:-1])} on {inputs.device}, the logits or hidden states without their last "
            "dimension. To shift a causal model's labels, shift its logits: logits[:, :-1], labels[:, 1:]."
        )
    if shard is not None:
        check_same_labels(record.labels, shard.group)
    if inputs.device != tables.values.device:
        term.move_to(inputs.device)
    labels = record.labels.reshape(-1)
    counted, target = labels >= 0, tables.value_of_label[labels]
    reads_them, is_replaced = not values_are_hidden(labels), reader.mode == "replace"
    soft = None
    if record.soft is not None:
        soft = soft_weights(record.soft, labels, tables, reads_them)
        labels = torch.where(target >= 0, tables.token_ids[soft.argmax(-1)], labels)
    has_term = is_number = target >= 0
    of_numbers = "numbers" in reads  # one term for each number, at its first token
    numbers = sigma = None
    if record.numbers is not None and not OF_NUMBERS.isdisjoint(reads):
        numbers = record.numbers.reshape(-1, record.numbers.shape[-1])
        found = LabelNumbers.unpack(numbers)
        is_number = is_number & (found.length > 0)  # the 2 of CO2 is no quantity
        has_term = is_number & (found.starts > 0) if of_numbers else is_number
        if record.sigma is not None:
            sigma = record.sigma.reshape(-1)[first_tokens(found)]
    weights = counted.to(COMPUTED_IN[inputs.dtype])
    if record.weights is not None:
        weights = torch.where(counted, record.weights.reshape(-1).to(weights), 0)
    factors = None
    if record.number_weights is not None:
        factors = torch.where(is_number, record.number_weights.reshape(-1).to(weights), 0)
        factors = factors[first_tokens(found)] if of_numbers else factors
    if count is not None:
        weights = _divided(weights, count, reduction)
    elif reduction == "mean":  # if their sum is 0, so are the weights
        weights = weights / weights.sum().clamp(min=TINY)
    term_weights = weights * (has_term if factors is None else has_term * factors)
    ce_weights = weights
    if is_replaced and factors is None:
        ce_weights = weights.masked_fill(is_number, 0)
    elif is_replaced and factors is not None:
        ce_weights = torch.where(is_number, weights * (1 - factors).clamp(min=0), weights)
    left_out = None
    if of_numbers and record.weights is not None:
        left_out = (weights == 0) & (term_weights == 0)[first_tokens(found)]
    return Targets(
        *(labels, target, ce_weights, term_weights, numbers, soft, sigma, left_out),
        number_rows=None if of_numbers or not reads_them else term_weights.nonzero().squeeze(-1),
        token_ids=tables.token_ids if reads or soft is not None else tables.token_ids[:0],
        replaces=is_replaced,
        is_sum=reduction != "none",
        shape=record.labels.shape,
    )


def _divided(weights: Tensor, count: Tensor | float, reduction: str) -> Tensor:
    """Divide weights by a count; if it is 0, return 0, so that the mean over nothing is 0.

    Raise a ValueError if the count is negative, or if nothing is divided by it.
    """
    if reduction != "mean":
        raise ValueError(f"count is the divisor of reduction='mean': omit it with reduction={reduction!r}")
    is_known = not isinstance(count, Tensor) or not values_are_hidden(count)
    if is_known and not torch.as_tensor(count).sum() >= 0:
        raise ValueError(f"count={count}: expected 0 or more")
    if isinstance(count, Tensor):
        count = count.to(weights.dtype).sum()
        return torch.where(count > 0, weights / count.clamp(min=TINY), 0)
    return weights / count if count > 0 else torch.zeros_like(weights)


def soft_weights(soft: SoftTargets, labels: Tensor, tables: NumberTables, reads: bool) -> Tensor:
    """Write soft labels `[..., K]` as weights of the number tokens, `[positions, number tokens]`.

    `labels` are flat, -1 where ignored. Rows add up to 1 where the label is a number token, which has all
    weight where the label is not soft; rows of text are 0. Raise a ValueError if values are read and a label
    of text is another token's, or that of a number also text's.
    """
    width, count = soft.token_ids.shape[-1], len(tables.token_ids)
    ids, given = soft.token_ids.reshape(-1, width).long(), soft.weights.reshape(-1, width)
    given = given.to(tables.values_in_float32 if given.dtype != torch.float64 else given)
    column_of = torch.full((tables.vocabulary.vocab_size + 1,), -1, device=labels.device)
    column_of = column_of.scatter(0, tables.token_ids, torch.arange(count, device=labels.device))
    columns, own = column_of[ids], column_of[labels]  # label -1 is the last entry, which is none
    is_number = (own >= 0).unsqueeze(-1)
    if reads:
        on_text = (ids != labels.unsqueeze(-1)) & (labels >= 0).unsqueeze(-1)
        strange = (given > 0) & torch.where(is_number, columns < 0, on_text)
        if strange.any():
            row, place = strange.nonzero()[0].tolist()
            raise ValueError(
                f"soft has token {int(ids[row, place])} where the label is {int(labels[row])}, "
                f"{'a number token' if is_number[row] else 'no number token'}: expected number tokens where "
                "labels are number tokens, and weights of 0 or the label itself elsewhere"
            )
    of_tokens = torch.where(columns >= 0, given, 0)
    weights = given.new_zeros(len(labels), count).scatter_add(-1, columns.clamp(min=0), of_tokens)
    total = weights.sum(-1, keepdim=True)
    hard = F.one_hot(own.clamp(min=0), count).to(weights)
    return torch.where(total > 0, weights / total.clamp(min=TINY), hard) * is_number


def values_are_hidden(tensor: Tensor | None = None) -> bool:
    """Whether Python cannot read values: under `torch.compile` and `torch.func`, and of a tensor elsewhere.

    Reading those of a tensor on another device than the CPU would synchronize.
    """
    is_elsewhere = tensor is not None and tensor.device.type != "cpu"
    return is_elsewhere or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError unless an option is one of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r}: expected {' or '.join(map(repr, get_args(choices)))}")


def check_weight(weight: object) -> None:
    """Raise a ValueError unless the number term's weight is a finite number, 0 or more, or a scalar tensor.

    A tensor is one of a floating dtype; its value is checked on the CPU only, and not under `torch.compile`.
    """
    given = weight
    if isinstance(weight, Tensor) and weight.dim() == 0 and weight.is_floating_point():
        if values_are_hidden(weight):
            return
        weight = weight.item()
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 <= weight < math.inf:
        raise ValueError(
            f"weight={given!r}: expected a finite number, 0 or more, or a scalar tensor of a floating dtype"
        )
