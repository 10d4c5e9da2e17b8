"""Columns that only the loss reads, and the record that they are in a batch: weights, widths, soft labels."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset

from ntloss.criteria.soft import SoftTargets, pad_pairs
from ntloss.engine.targets import LabelReader, PreparedLabels
from ntloss.numbers import sequence_ids_of

# Columns of numbers, one for each label: what a row without the column has.
_DEFAULTS = {"loss_weights": 1.0, "number_weights": 1.0, "number_sigma": 0.0}
_WEIGHTS = ("loss_weights", "number_weights")
_SOFT = "soft_labels"  # a list of pairs of token and weight for each label
COLUMNS = (*_DEFAULTS, _SOFT)
# Their names as arguments of `NTLCrossEntropyLoss.prepare`.
_ARGUMENTS = dict(zip(COLUMNS, ("weights", "number_weights", "sigma", "soft"), strict=True))
PREPARED = "prepared_labels"  # the record in a batch, packed
_ALIKE = 0.85  # ratio of difflib: "number_weight" has 0.96


def record_of_batch(reader: LabelReader, batch: Mapping[str, Any]) -> PreparedLabels:
    """Return the record of a batch's labels and columns.

    Raises:
        ValueError: columns beside labels that are shifted already.
    """
    beside = {name: batch[name] for name in COLUMNS if batch.get(name) is not None}
    shifted = batch.get("shift_labels")
    if shifted is not None and beside:
        raise ValueError(
            f"{' and '.join(COLUMNS)} are aligned with labels, but the batch has shift_labels, as with "
            "context parallelism, which splits labels: omit the columns, or shift_labels"
        )
    labels = torch.as_tensor(batch["labels"] if shifted is None else shifted)
    ids, positions = None, batch.get("position_ids")  # one for each label, if rows are packed
    if positions is not None and torch.as_tensor(positions).shape == labels.shape:
        ids = sequence_ids_of(torch.as_tensor(positions))
    arguments = {_ARGUMENTS[name]: column for name, column in beside.items()}
    reader = reader._replace(shift=reader.shift and shifted is None)
    return reader.prepare(labels, **arguments, sequence_ids=ids)


def collate(reader: LabelReader, collator: Callable[[list[Any]], Any], rows: list[Any]) -> Any:
    """Return a collator's batch, with a record if rows have columns or the loss reads whole numbers.

    Columns are padded as the collator pads the labels. A row's columns belong to its labels or, without
    labels, to its `input_ids`. In the batch they stand where the row's tokens do: at the start or the end
    of a row of the batch, or after those of the row before if the collator joins rows. All other
    positions get 0. Rows without weights get 1, without a standard deviation 0, which is the criterion's
    own or that of the number's field, and without soft labels none.

    Raises:
        ValueError: columns do not fit the labels, or the labels are not those of the rows.
    """
    given, own = list[str](), rows
    if rows and isinstance(rows[0], Mapping):
        # Columns of weights are in each batch, also where none of its rows has a value: accelerate takes
        # the columns of the first process for those of all. The others may be empty beside a loss that
        # has no use for them.
        given = [
            name
            for name in COLUMNS
            if any(row.get(name) is not None or (name in row and name in _WEIGHTS) for row in rows)
        ]
        own = [{name: value for name, value in row.items() if name not in COLUMNS} for row in rows]
    batch = collator(own)
    if isinstance(batch, MutableMapping) and batch.get("labels") is not None:
        columns = {name: batch.pop(name) for name in COLUMNS if name in batch}  # of the caller's collator
        columns |= _columns(rows, given, torch.as_tensor(batch["labels"])) if given else {}
        if columns or reader.finds_numbers:
            batch[PREPARED] = record_of_batch(reader, {**batch, **columns}).pack()
    return batch


def check_names(names: Iterable[str]) -> None:
    """Raise a ValueError if a column's name is almost that of a column of the loss."""
    for name in set(names) - {*COLUMNS}:
        for meant in difflib.get_close_matches(name.lower(), COLUMNS, n=1, cutoff=_ALIKE):
            raise ValueError(
                f"the column {name!r} would be ignored: did you mean {meant!r}? If not, rename it."
            )


def has_rows(dataset: Any) -> bool:
    """Whether rows of a dataset can be asked for: not of a stream, although torch gives it the method."""
    return (
        not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
    )


def check_dataset(dataset: Any) -> None:
    """Check the names of a dataset's columns, or of its first row's, or those of a dictionary of datasets."""
    for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
        names = getattr(part, "column_names", None)
        if names is None and has_rows(part) and len(part):
            names = part[0] if isinstance(part[0], Mapping) else ()
        check_names(names or ())


def _columns(rows: list[Any], given: list[str], labels: Tensor) -> dict[str, Tensor | SoftTargets]:
    """Return the columns that some rows have, aligned with the labels of a batch."""
    tokens = [_tokens_of(row) for row in rows]
    places = _places(tokens, labels)
    columns: dict[str, Tensor | SoftTargets] = {}
    for name in given:
        if name == _SOFT:
            pairs = [pair for row, own in zip(rows, tokens, strict=True) for pair in _pairs_of(row, own)]
            inside = (places >= 0).unsqueeze(-1)
            columns[name] = SoftTargets(*[torch.where(inside, each[places], 0) for each in pad_pairs(pairs)])
        else:
            flat = torch.cat([_floats_of(row, name, own) for row, own in zip(rows, tokens, strict=True)])
            columns[name] = torch.where(places >= 0, flat[places], 0)
    return columns


def _tokens_of(row: Mapping[str, Any]) -> Tensor:
    tokens = row.get("input_ids") if row.get("labels") is None else row["labels"]
    if tokens is None:
        raise ValueError(
            f"rows with {' or '.join(COLUMNS)} need labels or input_ids, which tell where weights belong; "
            f"given {sorted(row)}"
        )
    return torch.as_tensor(tokens)


def _floats_of(row: Mapping[str, Any], name: str, tokens: Tensor) -> Tensor:
    given = row.get(name)
    if given is None:
        return torch.full((len(tokens),), _DEFAULTS[name])
    if name == "number_sigma" and isinstance(given, (list, tuple)):  # tables write NaN as None
        given = [math.nan if each is None else each for each in given]
    floats = torch.as_tensor(given, dtype=torch.float32)
    _check_length(name, floats.shape, tokens)
    is_right = (floats >= 0) & (floats < torch.inf)
    if name == "number_sigma":  # NaN is the width of the loss
        is_right |= floats.isnan()
    if not is_right.all():
        raise ValueError(f"{name} {row[name]!r}: expected finite numbers, 0 or more")
    return floats


def _pairs_of(row: Mapping[str, Any], tokens: Tensor) -> list[Any]:
    if row.get(_SOFT) is None:
        return [()] * len(tokens)
    # In tables with a format, the pairs of a label are tensors or arrays.
    given = [[_as_list(pair) for pair in _as_list(pairs) or ()] for pairs in row[_SOFT]]
    _check_length(_SOFT, (len(given),), tokens)
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pairs in given for pair in pairs):
        raise ValueError(
            f"{_SOFT} {row[_SOFT]!r}: expected a list of pairs of token id and weight for each label, "
            "[[], [[14, 0.67], [15, 0.33]]], as SoftTargets.pairs() returns it"
        )
    return given


def _as_list(given: Any) -> Any:
    return given.tolist() if hasattr(given, "tolist") else given


def _check_length(name: str, shape: Sequence[int], tokens: Tensor) -> None:
    if tuple(shape) != tuple(tokens.shape):
        raise ValueError(
            f"{name} of shape {list(shape)}, but labels of shape {list(tokens.shape)}: expected one entry "
            "per label. Were the labels truncated after the column was made?"
        )


def _places(tokens: list[Tensor], labels: Tensor) -> Tensor:
    """Return the index of each label among the rows' tokens, one after the other; -1 for padding."""
    lengths = [len(own) for own in tokens]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    index = [torch.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    flat, width = torch.cat(tokens), labels.shape[-1]
    layouts = []
    if len(labels) == len(tokens) and max(lengths) <= width:
        for left in (False, True):
            pads = [(width - n, 0) if left else (0, width - n) for n in lengths]
            layouts.append(
                torch.stack([F.pad(own, pad, value=-1) for own, pad in zip(index, pads, strict=True)])
            )
    if len(labels) == 1 and ends[-1] <= width:
        layouts.append(F.pad(torch.arange(ends[-1]), (0, width - ends[-1]), value=-1)[None])
    # A collator may ignore some of a row's labels. Most ignore padding, too; others pad labels with a token.
    for padded_with_tokens in (False, True):
        for places in layouts:
            fits = torch.where(places < 0, torch.tensor(padded_with_tokens), flat[places] == labels)
            if ((labels < 0) | fits).all():
                return places
    raise ValueError(
        f"the collator's labels, of shape {list(labels.shape)}, are not those of its rows, padded or joined: "
        f"weights cannot be aligned. Let your collator make {' or '.join(COLUMNS)}, [batch, seq], in place "
        "of the column."
    )
