"""Labels that are distributions over number tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.soft import SoftTargets, check_probabilities
from ntloss.engine.tables import NumberTables

_TINY = torch.finfo(torch.float32).tiny  # a divisor in place of 0


def check_soft_labels(soft: SoftTargets, labels: Tensor, vocab_size: int, reads_values: bool) -> None:
    """Raise a TypeError or ValueError unless soft labels `[..., K]` fit labels `[...]`.

    Values are checked only if they are read.
    """
    if not (isinstance(soft, tuple) and len(soft) == 2 and all(isinstance(each, Tensor) for each in soft)):
        raise TypeError(f"soft: expected SoftTargets(token_ids, weights), given {type(soft).__name__}")
    ids, weights = soft
    if ids.dtype not in (torch.int64, torch.int32) or not weights.is_floating_point():
        raise TypeError(
            f"soft: expected token ids, torch.int64, and weights of a floating dtype, given "
            f"{ids.dtype} and {weights.dtype}"
        )
    if ids.shape != weights.shape or ids.shape[:-1] != labels.shape or ids.dim() != labels.dim() + 1:
        raise ValueError(
            f"soft of shapes {list(ids.shape)} and {list(weights.shape)}: expected K tokens for each "
            f"label, {[*labels.shape, 'K']}"
        )
    if not (ids.device == weights.device == labels.device):
        raise ValueError(
            f"soft is on {ids.device} and {weights.device}, the labels on {labels.device}: move one "
            "to the other"
        )
    if not reads_values:
        return
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        raise ValueError(
            f"soft has the token {int(ids[outside][0])}: expected 0 to {vocab_size - 1:,}, with a "
            "weight of 0 where a place is not needed"
        )
    check_probabilities("weights of soft", weights, may_be_zero=True)


def soft_weights(soft: SoftTargets, labels: Tensor, tables: NumberTables, reads_values: bool) -> Tensor:
    """Write soft labels `[..., K]` as weights of the number tokens, `[positions, number tokens]`.

    `labels` are flat, -1 where ignored. Rows add up to 1 where the label is a number token, which has all
    weight where the label is not soft; rows of text are 0. Raise a ValueError if values are read and a label
    of text is another token's, or that of a number also text's.
    """
    width = soft.token_ids.shape[-1]
    ids, given = soft.token_ids.reshape(-1, width).long(), soft.weights.reshape(-1, width)
    given = given.to(tables.values_in_float32 if given.dtype != torch.float64 else given)
    count = len(tables.token_ids)
    column_of = torch.full((tables.vocabulary.vocab_size + 1,), -1, device=labels.device)
    column_of = column_of.scatter(0, tables.token_ids, torch.arange(count, device=labels.device))
    columns, own = column_of[ids], column_of[labels]  # label -1 is the last entry, which is none
    is_number = own >= 0
    if reads_values:
        strange = (given > 0) & torch.where(
            is_number.unsqueeze(-1), columns < 0, (ids != labels.unsqueeze(-1)) & (labels >= 0).unsqueeze(-1)
        )
        if strange.any():
            row, place = strange.nonzero()[0].tolist()
            raise ValueError(
                f"soft has token {int(ids[row, place])} where the label is {int(labels[row])}, "
                f"{'a number token' if is_number[row] else 'no number token'}: expected number tokens where "
                "labels are number tokens, and weights of 0 or the label itself elsewhere"
            )
    weights = given.new_zeros(len(labels), count).scatter_add(
        -1, columns.clamp(min=0), torch.where(columns >= 0, given, 0)
    )
    hard = F.one_hot(own.clamp(min=0), count).to(weights)
    total = weights.sum(-1, keepdim=True)
    weights = torch.where(total > 0, weights / total.clamp(min=_TINY), hard)
    return weights * is_number.unsqueeze(-1)


def soft_difference(number_logits: Tensor, weights: Tensor) -> Tensor:
    """Compute what cross-entropy with soft labels adds to that of their likeliest token: `[positions]`.

    Infinite where a token with weight has the probability 0.
    """
    likeliest = number_logits.gather(-1, weights.argmax(-1, keepdim=True))
    apart = torch.where(weights > 0, weights * (likeliest - number_logits), 0).sum(-1)
    impossible = ((weights > 0) & (number_logits == -torch.inf)).any(-1)
    return torch.where(impossible, torch.inf, apart)


def by_value(weights: Tensor, tables: NumberTables) -> Tensor:
    """Add up the weights `[positions, number tokens]` of the forms of each value: `[positions, values]`."""
    values = tables.value_of_label[tables.token_ids]
    return weights.new_zeros(len(weights), len(tables.values)).index_add(-1, values, weights)


def form_share(number_logits: Tensor, logits: Tensor, weights: Tensor, tables: NumberTables) -> Tensor:
    """Average the log of a token's share of its value over soft labels: `form_log_probs`, `[positions]`."""
    share = number_logits.to(logits) - logits.index_select(-1, tables.value_of_label[tables.token_ids])
    return torch.where(weights > 0, weights * share, 0).sum(-1)
