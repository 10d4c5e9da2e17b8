"""Adds what only the loss reads, weights and samples of numbers, to a batch: `NumberWeightsCollator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

NUMBER_WEIGHTS, NUMBER_SAMPLES = OF_NUMBERS = ("number_weights", "number_samples")
_FIRST_CODE = 1 << 40  # no token of a vocabulary, so that no collator takes a code for a special token


class NumberWeightsCollator:
    """A collator around yours that adds the columns `number_weights` and `number_samples` to the batch.

    It takes the columns out of the rows and calls your collator. Samples, a list of numbers in place of a
    row's own (`NTLCrossEntropyLoss.forward`), are padded with NaN to `[batch, samples]`; a row without them
    keeps its own number. For weights it calls your collator a second time with the position of each token in
    place of the labels, which tells where each weight belongs: padded, flattened into one row, truncated or
    moved like the labels. Padding and tokens that your collator adds get 0; a row without weights among
    others that have them gets 1. A batch without the columns stays as it is. `make_trainer_number_aware` and
    `make_sft_number_aware` wrap the trainer's collator in this one. If yours makes labels of its own, let it
    also make a column `number_weights`, `[batch, seq]`.

    Args:
        collator: function of a list of rows, dicts, that returns a batch with `labels`, `[batch, seq]`. Its
            other attributes remain accessible.

    Raises:
        TypeError: when called, a batch that is not a dict or, if there are weights, a row that is not one, or
            weights that are not numbers.
        ValueError: when called, weights whose length differs from that of the row's labels (or `input_ids`,
            if it has no labels), negative or infinite weights, a batch whose labels are not the rows', or a
            collator that fails without the rows' own tokens.

    Example:
        >>> import torch
        >>> def pad(rows):
        ...     longest = max(len(row["labels"]) for row in rows)
        ...     labels = [row["labels"] + [-100] * (longest - len(row["labels"])) for row in rows]
        ...     return {"labels": torch.tensor(labels)}
        >>> rows = [{"labels": [7, 3, 2], "number_weights": [1, 0, 1]}, {"labels": [5]}]
        >>> NumberWeightsCollator(pad)(rows)["number_weights"]
        tensor([[1., 0., 1.],
                [1., 0., 0.]])
    """

    def __init__(self, collator: Callable[[list[Any]], Any]) -> None:
        self.collator = collator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "collator":  # while it is copied, there is no collator yet
            raise AttributeError(name)
        return getattr(self.collator, name)

    def __call__(self, rows: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Return the collator's batch, with the columns that a row has: in float32."""
        samples = _samples_of(rows)
        batch = self._with_weights(rows, *args, **kwargs)
        if samples is not None and isinstance(batch, MutableMapping) and batch.get("labels") is not None:
            if len(batch["labels"]) != len(rows):
                raise ValueError(
                    f"the collator made {len(batch['labels'])} rows of {len(rows)}, so their number_samples "
                    "cannot be aligned: expected one row each, without packing"
                )
            batch[NUMBER_SAMPLES] = samples
        return batch

    def _with_weights(self, rows: list[Any], *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(row, Mapping) and row.get(NUMBER_WEIGHTS) is not None for row in rows):
            return self.collator([_without_columns(row) for row in rows], *args, **kwargs)
        weights, tokens = zip(*(_weights_of(row, i) for i, row in enumerate(rows)), strict=True)
        coded, first = [], _FIRST_CODE
        for row, own in zip(rows, tokens, strict=True):
            name = "input_ids" if row.get("labels") is None else "labels"
            codes = torch.arange(first, first := first + len(own))
            like = codes if isinstance(row[name], Tensor) else codes.tolist()
            coded.append({**_without_columns(row), name: like})
        random_state = torch.get_rng_state()
        batch = self.collator([_without_columns(row) for row in rows], *args, **kwargs)
        with torch.random.fork_rng(devices=[]):  # the same random masks in both batches
            torch.set_rng_state(random_state)
            codes = _collate_codes(self.collator, coded, args, kwargs)
        if not isinstance(batch, MutableMapping):
            raise TypeError(
                f"the collator returned a {type(batch).__name__}: expected a dict with labels, to which "
                "number_weights can be added"
            )
        if batch.get("labels") is not None:  # without them there is no loss to weigh
            labels, codes = torch.as_tensor(batch["labels"]), torch.as_tensor(codes["labels"])
            batch[NUMBER_WEIGHTS] = _aligned(torch.cat(weights), torch.cat(tokens), labels, codes)
        return batch


def _collate_codes(collator: Callable[..., Any], coded: list[Any], args: Any, kwargs: Any) -> Any:
    try:
        return collator(coded, *args, **kwargs)
    except Exception as failed:
        raise ValueError(
            "the collator fails with other ids in place of the tokens, perhaps because it looks for some of "
            "them, such as a marker of the answer, so number_weights cannot be aligned with its labels: give "
            "the rows labels, or let the collator make a column number_weights, [batch, seq], itself"
        ) from failed


def _without_columns(row: Any) -> Any:
    if not isinstance(row, Mapping) or not any(name in row for name in OF_NUMBERS):
        return row
    return {name: value for name, value in row.items() if name not in OF_NUMBERS}


def _samples_of(rows: list[Any]) -> Tensor | None:
    """Return the samples of all rows, padded with NaN, `[rows, samples]`; None if no row has any."""
    given = [row.get(NUMBER_SAMPLES) if isinstance(row, Mapping) else None for row in rows]
    if all(samples is None for samples in given):
        return None
    padded = []
    for i, samples in enumerate(given):
        try:
            row = torch.as_tensor([] if samples is None else samples, dtype=torch.float32)
        except (TypeError, ValueError) as unreadable:
            raise TypeError(
                f"row {i} of a batch has number_samples {samples!r}: expected a list of numbers"
            ) from unreadable
        if row.dim() != 1 or row.isinf().any():
            raise ValueError(f"row {i} of a batch has number_samples {samples!r}: expected a list of numbers")
        padded.append(row)
    return torch.nn.utils.rnn.pad_sequence(padded, batch_first=True, padding_value=torch.nan)


def _weights_of(row: Any, i: int) -> tuple[Tensor, Tensor]:
    """Return the weights of a row, and the tokens that they belong to."""
    where = f"row {i} of a batch with number_weights"
    if not isinstance(row, Mapping):
        raise TypeError(f"{where} is a {type(row).__name__}: expected a dict")
    own = row.get("input_ids") if row.get("labels") is None else row["labels"]
    if own is None:
        raise ValueError(
            f"{where} has neither labels nor input_ids, so its weights cannot be aligned; given "
            f"{sorted(row)}. Tokenize before the collator, or let it make a column number_weights, [batch, "
            "seq], itself."
        )
    own, given = torch.as_tensor(own), row.get(NUMBER_WEIGHTS)
    if given is None:
        return torch.ones(len(own)), own
    where = f"row {i} of a batch has number_weights"
    try:
        weights = torch.as_tensor(given, dtype=torch.float32)
    except (TypeError, ValueError) as unreadable:
        raise TypeError(f"{where} {given!r}: expected one number per label") from unreadable
    if weights.shape != own.shape:
        raise ValueError(
            f"{where} of shape {list(weights.shape)}, but labels of shape {list(own.shape)}: expected one "
            "weight per label. Were the labels truncated, or special tokens added, after the weights were "
            "made?"
        )
    fits = (weights >= 0) & (weights < torch.inf)  # NaN fails this, too
    if not fits.all():
        raise ValueError(f"{where} with {weights[~fits][0].item()}: expected finite weights, 0 or more")
    return weights, own


def _aligned(weights: Tensor, tokens: Tensor, labels: Tensor, codes: Tensor) -> Tensor:
    """Return the weight of each label, given the codes in its place; both sides have one entry a token."""
    index = codes.to(torch.int64) - _FIRST_CODE
    coded = (index >= 0) & (index < len(tokens))
    index = torch.where(coded, index, 0)
    fits = codes.shape == labels.shape and bool(coded.any())
    # Masked labels, the rows' own, and what the collator adds to any batch.
    if not fits or not ((labels < 0) | (coded & (tokens[index] == labels)) | (codes == labels)).all():
        raise ValueError(
            f"the collator's labels, of shape {list(labels.shape)}, are not those of its rows, so their "
            "number_weights cannot be aligned: expected the rows' own tokens and padding. If your collator "
            "makes other labels, let it make a column number_weights, [batch, seq], itself."
        )
    return torch.where(coded, weights[index], 0)
