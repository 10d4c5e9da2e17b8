"""Pads the weights of the number term to a batch's labels: `NumberWeightsCollator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

NUMBER_WEIGHTS = "number_weights"


class NumberWeightsCollator:
    """A collator around yours that adds the column `number_weights` to the batch.

    It takes the column out of the rows, calls your collator, and pads the weights like the labels: on the
    left or right, which is found by comparing the rows' tokens with the batch's. If your collator flattens
    the rows into one, their weights are concatenated. If it adds or moves tokens or rows, let it make a
    column `number_weights`, `[batch, seq]`, itself. The padding is 0; a row without weights among others that
    have them gets 1. A batch without the column stays as it is. `make_trainer_number_aware` and
    `make_sft_number_aware` wrap the trainer's collator in this one.

    Args:
        collator: function of a list of rows, dicts, that returns a batch with `labels`, `[batch, seq]`. Its
            other attributes remain accessible.

    Raises:
        TypeError: when called, a batch that is not a dict or, if there are weights, a row that is not one, or
            weights that are not numbers.
        ValueError: when called, weights whose length differs from that of the row's labels (or `input_ids`,
            if it has no labels), negative or infinite weights, or a batch whose tokens are not the rows'.

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
        """Return the collator's batch, with `number_weights` `[batch, seq]`, float32, if a row has them."""
        is_weighted = any(isinstance(row, Mapping) and row.get(NUMBER_WEIGHTS) is not None for row in rows)
        weights = [_weights_of(row, i) for i, row in enumerate(rows)] if is_weighted else []
        rows = [_without_column(row) for row in rows]
        batch = self.collator(rows, *args, **kwargs)
        if not is_weighted:
            return batch
        if not isinstance(batch, MutableMapping):
            raise TypeError(
                f"the collator returned a {type(batch).__name__}: expected a dict with labels, to which "
                "number_weights can be added"
            )
        if batch.get("labels") is not None:  # without them there is no loss to weigh
            batch[NUMBER_WEIGHTS] = _pad(weights, rows, batch)
        return batch


def _without_column(row: Any) -> Any:
    if not isinstance(row, Mapping) or NUMBER_WEIGHTS not in row:
        return row
    return {name: value for name, value in row.items() if name != NUMBER_WEIGHTS}


def _tokens_of(row: Any, name: str) -> Tensor | None:
    return None if row.get(name) is None else torch.as_tensor(row[name])


def _weights_of(row: Any, i: int) -> Tensor:
    if not isinstance(row, Mapping):
        raise TypeError(f"row {i} of a batch with number_weights is a {type(row).__name__}: expected a dict")
    own = _tokens_of(row, "labels")
    own = _tokens_of(row, "input_ids") if own is None else own
    if own is None:
        raise ValueError(
            f"row {i} of a batch with number_weights has neither labels nor input_ids, so its weights "
            f"cannot be aligned; given {sorted(row)}. Tokenize before the collator, or let it make a column "
            "number_weights, [batch, seq], itself."
        )
    if row.get(NUMBER_WEIGHTS) is None:
        return torch.ones(len(own))
    try:
        weights = torch.as_tensor(row[NUMBER_WEIGHTS], dtype=torch.float32)
    except (TypeError, ValueError) as unreadable:
        raise TypeError(
            f"row {i} of a batch has number_weights {row[NUMBER_WEIGHTS]!r}: expected one number per label"
        ) from unreadable
    if weights.shape != own.shape:
        raise ValueError(
            f"row {i} of a batch has number_weights of shape {list(weights.shape)}, but labels of shape "
            f"{list(own.shape)}: expected one weight per label. Were the labels truncated, or special tokens "
            "added, after the weights were made?"
        )
    fits = (weights >= 0) & (weights < torch.inf)  # NaN fails this, too
    if not fits.all():
        raise ValueError(
            f"row {i} of a batch has number_weights with {weights[~fits][0].item()}: expected finite "
            "weights, 0 or more"
        )
    return weights


def _pad(weights: list[Tensor], rows: list[Any], batch: Any) -> Tensor:
    labels = torch.as_tensor(batch["labels"])
    beside = {name: [_tokens_of(row, name) for row in rows] for name in ("labels", "input_ids")}
    if len(labels) == 1 and len(rows) > 1:  # flattened
        weights = [torch.cat(weights)]
        beside = {name: [_concatenated(tokens)] for name, tokens in beside.items()}
    width, longest = labels.shape[-1], max(map(len, weights))
    if len(labels) != len(weights) or longest > width:
        raise ValueError(
            f"the collator made labels of shape {list(labels.shape)} from {len(rows)} rows, the longest with "
            f"{longest} number_weights: expected a row for each, or one for all, without truncation"
        )

    def own_place(left_padded: bool, length: int) -> slice:
        start = width - length if left_padded else 0
        return slice(start, start + length)

    collated = {"input_ids": batch.get("input_ids"), "labels": labels}
    collated = {name: torch.as_tensor(given) for name, given in collated.items() if given is not None}

    def tokens_found(i: int, left_padded: bool) -> int:
        """Count the row's tokens at its place in the inputs or, if these are an encoder's, in the labels."""
        for name, tokens in collated.items():
            own = beside[name][i]
            # The inputs of an encoder are padded on the side of the labels, but to a length of their own.
            if own is not None and len(own) == len(weights[i]) and tokens.shape == labels.shape:
                return int((tokens[i, own_place(left_padded, len(own))] == own).sum())
        return 0

    found = {
        left_padded: [tokens_found(i, left_padded) for i in range(len(weights))]
        for left_padded in (False, True)
    }
    left_padded = sum(found[True]) > sum(found[False])
    padded = torch.zeros(labels.shape)
    for i, own_weights in enumerate(weights):
        # Collators may mask a few tokens.
        if 2 * found[left_padded][i] < len(own_weights):
            raise ValueError(
                f"the tokens of row {i} do not match those in the collator's batch, so its number_weights "
                "cannot be aligned: expected the row's own tokens, padded on one side. If your collator adds "
                "or moves tokens or rows, let it make a column number_weights, [batch, seq], itself."
            )
        padded[i, own_place(left_padded, len(own_weights))] = own_weights
    return padded


def _concatenated(tokens: list[Tensor | None]) -> Tensor | None:
    present = [own for own in tokens if own is not None]
    return torch.cat(present) if len(present) == len(tokens) else None
