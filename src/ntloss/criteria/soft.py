"""Labels that are distributions: `SoftTargets`, and how raters' numbers become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.parsing import as_float
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.scores.ratings import counted, rows_of

# How far the sum of probabilities may be from 1: bfloat16 rounds each to 1/256 of itself.
_ROUNDING = 2.0**-7


class SoftTargets(NamedTuple):
    """A distribution over a few tokens at each position, or the weighted tokens that make up a loss.

    Args:
        token_ids: `[..., K]`, token ids. A place that is not needed has any id, and the weight 0.
        weights: `[..., K]`, 0 or more. As a label they add up to 1 at each position; where all are 0, the
            label is a single token as usual.

    Example:
        >>> from ntloss import NumberVocabulary, soft_labels_of
        >>> digits = NumberVocabulary.from_mapping({10 + d: d for d in range(10)}, vocab_size=20)
        >>> soft = soft_labels_of([[4, 4, 5]], digits)
        >>> soft.token_ids, soft.weights
        (tensor([[14, 15]]), tensor([[0.6667, 0.3333]]))
        >>> [[(token, round(share, 2)) for token, share in row] for row in soft.pairs()]
        [[(14, 0.67), (15, 0.33)]]
    """

    token_ids: Tensor
    weights: Tensor

    def pairs(self) -> list[list[tuple[int, float]]]:
        """Return the tokens and weights of each position, for a dataset's column `soft_labels`.

        Returns:
            A list for each position, of pairs of a token id and its weight, without weights of 0.
        """
        width = self.token_ids.shape[-1]
        rows = zip(
            self.token_ids.reshape(-1, width).tolist(), self.weights.reshape(-1, width).tolist(), strict=True
        )
        return [[(i, w) for i, w in zip(ids, weights, strict=True) if w > 0] for ids, weights in rows]


def soft_labels_of(
    ratings: Iterable[Iterable[float] | Mapping[float, float]],
    vocabulary: NumberVocabulary,
    dtype: torch.dtype = torch.float32,
) -> SoftTargets:
    """Make a soft label of the ratings that each item got: the share of raters who gave each.

    Args:
        ratings: the ratings of each item, such as `[[4, 4, 5], [1, 2]]`, or how many raters gave each,
            `[{4: 2, 5: 1}, {1: 1, 2: 1}]`; items may have different numbers of raters. A table of pandas has
            a row for each item. Counts of pandas are a dict: `item.value_counts().to_dict()`.
        vocabulary: has one token for each rating that was given.
        dtype: of the weights. Default: float32.

    Returns:
        `[items, K]`, K the largest number of different ratings of an item. Tokens stand in the order of their
        weights, and tokens of one weight in that of their values, so the first is the rating given most
        often.

    Raises:
        TypeError: the ratings of an item are no list and no mapping.
        ValueError: an item has no rating, its counts are not finite, or no token, or more than one, has one
            of its ratings as its value.

    Example:
        >>> from ntloss import NumberVocabulary
        >>> levels = NumberVocabulary.from_mapping({7: 1, 8: 2, 9: 3}, vocab_size=10)
        >>> soft_labels_of([[3, 3, 1, 2], [2]], levels).token_ids
        tensor([[9, 7, 8],
                [8, 0, 0]])
    """
    tokens: dict[float, list[int]] = {}
    for token in vocabulary.tokens:
        tokens.setdefault(token.value, []).append(token.token_id)
    rows: list[list[tuple[int, float]]] = []
    for item, given in enumerate(rows_of(ratings)):
        counts: dict[float, float] = {}
        for rating, count in counted(given, f"ratings: item {item}"):
            counts[as_float(rating)] = counts.get(as_float(rating), 0) + count
        for rating in counts:
            if len(tokens.get(rating, ())) != 1:
                known = ", ".join(f"{value:g}" for value in vocabulary.distinct_values[:12])
                found = len(tokens.get(rating, ()))
                raise ValueError(
                    f"ratings: item {item} was rated {rating:g}, of which the vocabulary has {found} tokens: "
                    f"expected values of one token each, here among {known}. Make a vocabulary of the "
                    "levels: NumberVocabulary.from_mapping({token_id: level}, vocab_size)"
                )
        total = sum(counts.values())
        order = sorted(counts, key=lambda rating: (-counts[rating], rating))
        rows.append([(tokens[rating][0], counts[rating] / total) for rating in order])
    return pad_pairs(rows, dtype)


def pad_pairs(rows: Sequence[Sequence[tuple[int, float]]], dtype: torch.dtype = torch.float32) -> SoftTargets:
    """Make `[rows, K]` of the tokens and weights of each row; K is at least 1, padding has the weight 0."""
    width = max([1, *map(len, rows)])
    ids = [[int(token) for token, _ in row] + [0] * (width - len(row)) for row in rows]
    weights = [[float(weight) for _, weight in row] + [0.0] * (width - len(row)) for row in rows]
    return SoftTargets(
        torch.tensor(ids, dtype=torch.int64, device="cpu").reshape(-1, width),
        torch.tensor(weights, dtype=dtype, device="cpu").reshape(-1, width),
    )


def check_probabilities(name: str, weights: Tensor, may_be_zero: bool = False) -> None:
    """Raise a ValueError unless weights `[..., K]` are 0 or more and add up to 1, or to 0 if they may."""
    if not (weights >= 0).all():  # NaN fails this, too
        raise ValueError(f"{name} contain {weights[~(weights >= 0)][0].item()}: expected probabilities")
    total = weights.double().sum(-1)
    wrong = ~((total - 1).abs() <= _ROUNDING)
    if may_be_zero:
        wrong &= total != 0
    if wrong.any():
        raise ValueError(f"{name} add up to {total[wrong][0].item():.4g} at a position: expected 1")
