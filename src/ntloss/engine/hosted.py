"""The loss for other frameworks and APIs: as weighted tokens, as arrays, or from a few log-probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.criteria.signature import name_of
from ntloss.criteria.soft import SoftTargets
from ntloss.criteria.targets import fact
from ntloss.engine.readout import COMPUTED_IN, Readout
from ntloss.engine.targets import NumberTables, Targets
from ntloss.engine.terms import NumberTerm


class LossArrays(NamedTuple):
    """A loss as NumPy arrays, with which any framework computes it from log-probabilities.

    With p the probabilities of all tokens and q those among the number tokens, the loss is
    -sum(weights * log p[token_ids]) + sum(number * (q @ costs - q @ distances @ q / 2)).

    Args:
        token_ids: `[..., K]`, int64, tokens of cross-entropy and of fixed targets.
        weights: `[..., K]`, float64, their weights, divided by the count for a mean.
        number_ids: `[M]`, int64, the number tokens.
        number: `[...]`, float64, weight of the expected cost, 0 where the label is no number.
        costs: `[..., M]`, float64, cost of each number token.
        distances: `[M, M]`, float64, distance of each two of them, 0 for criteria without a spread.
    """

    token_ids: Any
    weights: Any
    number_ids: Any
    number: Any
    costs: Any
    distances: Any


def loss_arrays(
    targets: Targets, term: NumberTerm, weight: Tensor | float, label_smoothing: float
) -> LossArrays:
    """Write the loss of positions as arrays in the labels' shape.

    Raise a ValueError for a criterion with neither a fixed target nor an expected cost.
    """
    tables, criterion, nothing = term.tables, term.criterion, torch.zeros_like(targets.number_weights)
    costs, number = nothing.new_zeros(len(nothing), len(tables.token_ids)), nothing
    distances = costs.new_zeros(costs.shape[-1], costs.shape[-1])
    if criterion is None or not fact(criterion, "expected_cost"):
        tokens = weighted_tokens(targets, term.fixed_target(targets), tables, weight, label_smoothing)
    elif targets.soft is not None:
        raise ValueError(
            f"soft labels: {name_of(criterion)} of them is no expected cost; expected hard labels"
        )
    else:
        values, each = tables.values, torch.eye(len(tables.values), dtype=tables.values.dtype)
        of_token = tables.value_of_label[tables.token_ids]
        for label in torch.unique(targets.target[targets.target >= 0]):
            of_values = criterion(probs=each, values=values, target=label.expand(len(values)))
            costs[targets.target == label] = of_values[of_token].to(costs)
        if fact(criterion, "spread"):
            apart = values[of_token]
            distances = (apart - apart.unsqueeze(-1)).abs().to(costs)
        number, plain = weight * targets.number_weights, targets._replace(number_weights=nothing)
        unused = each.new_zeros(len(nothing), len(values))
        tokens = weighted_tokens(plain, unused, tables, weight, label_smoothing)
    shape = targets.shape
    ids, weights, cost = (each.reshape(*shape, each.shape[-1]).numpy() for each in (*tokens, costs))
    own, factor = tables.token_ids.numpy(), number.reshape(shape).numpy()
    return LossArrays(ids, weights, own, factor, cost, distances.numpy())


def weighted_tokens(
    targets: Targets, of_values: Tensor, tables: NumberTables, weight: Tensor | float, label_smoothing: float
) -> SoftTargets:
    """Write the loss of each position as tokens and their weights, `[positions, K]`, by descending weight.

    The loss is minus the sum of `weights * log_probs`; `of_values`, `[positions, values]`, is the fixed
    target of the number term.
    """
    weights_of_terms = targets.number_weights.unsqueeze(-1)
    terms = weights_of_terms * _token_weights(of_values, targets.labels, tables)
    of_numbers = weight * torch.where(weights_of_terms != 0, terms, 0)
    ids = tables.token_ids.expand(of_numbers.shape)
    ce_weights = (1 - label_smoothing) * targets.ce_weights
    if targets.soft is not None:
        of_numbers = of_numbers + ce_weights.unsqueeze(-1) * targets.soft
        ce_weights = ce_weights.masked_fill(targets.target >= 0, 0)
    # The label is one of the number tokens, or a further token.
    is_label = ids == targets.labels.unsqueeze(-1)
    of_numbers = of_numbers + ce_weights.unsqueeze(-1) * is_label
    further = ce_weights.masked_fill(is_label.any(-1), 0).unsqueeze(-1)
    ids = torch.cat([targets.labels.clamp(min=0).unsqueeze(-1), ids], -1)
    weights = torch.cat([further, of_numbers], -1)
    if label_smoothing:
        vocab_size = tables.vocabulary.vocab_size
        share = label_smoothing / vocab_size * targets.ce_weights
        weights = share.unsqueeze(-1).repeat(1, vocab_size).scatter_add(-1, ids, weights)
        ids = torch.arange(vocab_size, device=ids.device).expand(weights.shape)
    weights, order = weights.sort(stable=True, dim=-1, descending=True)
    width = max(1, int((weights != 0).sum(-1).max())) if len(weights) else 1  # places that a position needs
    return SoftTargets(ids.gather(-1, order)[:, :width], weights[:, :width])


def _token_weights(of_values: Tensor, labels: Tensor, tables: NumberTables) -> Tensor:
    """Give the weights of values `[positions, values]` to one token each: `[positions, number tokens]`.

    Of several forms of a value, it is the one written as the label is: with as many digits, and a space or
    none before it.
    """
    if not tables.has_several_forms:
        return of_values
    tokens = {token.token_id: token for token in tables.vocabulary.tokens}
    written = [(tokens[i].starts_number, tokens[i].digits) for i in tables.token_ids.tolist()]
    styles = torch.tensor([written.index(style) for style in written], device=labels.device)
    style_of = styles.new_full((tables.vocabulary.vocab_size + 1,), -1).scatter(0, tables.token_ids, styles)
    is_like = style_of[labels].unsqueeze(-1) == styles  # label -1 is the last entry, which is like none
    # Of the tokens of a value, the first one that is like the label has the highest rank, else the first one.
    rank = len(styles) * is_like - torch.arange(len(styles), device=labels.device)
    value_of = tables.value_of_label[tables.token_ids]
    lowest = rank.new_full(of_values.shape, -len(styles))
    highest = lowest.scatter_reduce(-1, value_of.expand(rank.shape), rank, "amax")
    return of_values[:, value_of] * (rank == highest[:, value_of])


def readout_of_candidates(log_probs: Tensor, targets: Targets, term: NumberTerm) -> Readout:
    """Read the log-probabilities of each position's candidates, `[..., K]`, as logits.

    Candidates are the number tokens by ascending id, or the label alone, which then is the first.
    """
    count = log_probs.shape[-1]
    flat = log_probs.reshape(-1, count).to(COMPUTED_IN[log_probs.dtype])
    ids = torch.tensor(term.tables.vocabulary.token_ids, device=flat.device)
    column = torch.searchsorted(ids, targets.labels.clamp(min=0)).clamp(max=count - 1)
    column = torch.where(ids[column] == targets.labels, column, 0)  # else the label is the only one
    label_logit = flat.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    nothing = flat.new_zeros(len(flat))  # log-probabilities have a log-sum-exp of 0
    return Readout(nothing, nothing, label_logit, flat[:, torch.searchsorted(ids, term.tables.token_ids)])
