"""Columns of a batch that only the loss reads: weights of the dataset, and the numbers of the labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset

COLUMNS = ("loss_weights", "number_weights")
NUMBERS = "label_numbers"  # what `find_numbers` found in a batch's labels
_ALIKE = 0.85  # ratio of difflib: "number_weight" has 0.96


def check_names(names: Iterable[str]) -> None:
    """Raise a ValueError if a column's name is almost that of a column of weights."""
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


class WithColumns:
    """A collator around the caller's collator, which adds the columns that the loss reads.

    It pads columns of weights as the caller's collator pads the labels. A row's weights belong to its labels
    or, without labels, to its `input_ids`. In the batch they stand where the row's tokens do: at the start or
    the end of a row of the batch, or after those of the row before if the collator joins rows. All other
    positions get 0; rows without weights get 1.

    Args:
        collator: the caller's.
        find_numbers: finds the numbers of a batch's labels, in the processes of a data loader; None if the
            loss does not read them.
    """

    def __init__(
        self,
        collator: Callable[[list[Any]], Any],
        find_numbers: Callable[[Mapping[str, Any]], Tensor] | None = None,
    ) -> None:
        self.collator, self.find_numbers = collator, find_numbers

    def __call__(self, rows: list[Any]) -> Any:
        """Return the collator's batch, with `[batch, seq]` weights in float32 for the columns that rows have.

        Raises:
            ValueError: weights do not fit the labels, or the labels are not those of the rows.
        """
        batch = self._with_weights(rows)
        if (
            self.find_numbers is not None
            and isinstance(batch, MutableMapping)
            and batch.get("labels") is not None
        ):
            batch[NUMBERS] = self.find_numbers(batch)
        return batch

    def _with_weights(self, rows: list[Any]) -> Any:
        if not rows or not isinstance(rows[0], Mapping):
            return self.collator(rows)
        given = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
        batch = self.collator([{k: v for k, v in row.items() if k not in COLUMNS} for row in rows])
        if given and batch.get("labels") is not None:
            tokens = [_tokens_of(row) for row in rows]
            places = _places(tokens, torch.as_tensor(batch["labels"]))
            for name in given:
                flat = torch.cat([_weights_of(row, name, own) for row, own in zip(rows, tokens, strict=True)])
                batch[name] = torch.where(places >= 0, flat[places], 0)
        return batch


def _tokens_of(row: Mapping[str, Any]) -> Tensor:
    tokens = row.get("input_ids") if row.get("labels") is None else row["labels"]
    if tokens is None:
        raise ValueError(
            f"rows with {' or '.join(COLUMNS)} need labels or input_ids, which tell where weights belong; "
            f"given {sorted(row)}"
        )
    return torch.as_tensor(tokens)


def _weights_of(row: Mapping[str, Any], name: str, tokens: Tensor) -> Tensor:
    if row.get(name) is None:
        return torch.ones(len(tokens))
    weights = torch.as_tensor(row[name], dtype=torch.float32)
    if weights.shape != tokens.shape:
        raise ValueError(
            f"{name} of shape {list(weights.shape)}, but labels of shape {list(tokens.shape)}: expected one "
            "weight per label. Were the labels truncated after the weights were made?"
        )
    if not ((weights >= 0) & (weights < torch.inf)).all():  # NaN fails this, too
        raise ValueError(f"{name} {row[name]!r}: expected finite weights, 0 or more")
    return weights


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
