"""The loss where a model is trained behind an API: as weighted tokens, or from a few log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from ntloss.criteria.soft import SoftTargets
from ntloss.engine.readout import COMPUTED_IN, Readout
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import Targets
from ntloss.engine.terms import NumberTerm


def weighted_tokens(
    targets: Targets, term: NumberTerm, weight: Tensor | float, label_smoothing: float
) -> SoftTargets:
    """Write the loss of each position as tokens and their weights, `[positions, K]`.

    The loss is minus the sum of `weights * log_probs`. Raise a ValueError if the criterion depends on the
    model's probabilities.
    """
    tables = term.tables
    of_values = term.fixed_target(targets)
    terms = targets.number_weights.unsqueeze(-1) * _token_weights(of_values, targets.labels, tables)
    of_numbers = weight * torch.where(targets.number_weights.unsqueeze(-1) != 0, terms, 0)
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
    return _sorted_tokens(ids, weights)


def _token_weights(of_values: Tensor, labels: Tensor, tables: NumberTables) -> Tensor:
    """Give the weights of values `[positions, values]` to one token each: `[positions, number tokens]`.

    Of several forms of a value, it is the one written as the label is: with as many digits, and a space or
    none before it.
    """
    if not tables.has_several_forms:
        return of_values
    tokens = {token.token_id: token for token in tables.vocabulary.tokens}
    ids = tables.token_ids.tolist()
    styles = [(tokens[i].starts_number, tokens[i].digits) for i in ids]
    value_of = tables.value_of_label[tables.token_ids].tolist()
    first = {value: column for column, value in reversed([*enumerate(value_of)])}
    columns = []
    for style in (known := sorted({*styles})):
        like = {value: c for c, (value, own) in enumerate(zip(value_of, styles, strict=True)) if own == style}
        columns.append([like.get(value, first[value]) for value in range(len(tables.values))])
    style_of = dict(zip(ids, map(known.index, styles), strict=True))
    rows = torch.tensor([style_of.get(label, 0) for label in labels.tolist()], device=labels.device)
    at = torch.tensor(columns, device=labels.device)[rows]
    return of_values.new_zeros(len(labels), len(ids)).scatter_add(-1, at, of_values)


def _sorted_tokens(token_ids: Tensor, weights: Tensor) -> SoftTargets:
    """Sort tokens `[positions, K]` by their weights, and leave out the places that no position needs."""
    weights, order = weights.sort(stable=True, dim=-1, descending=True)
    width = max(1, int((weights != 0).sum(-1).max())) if len(weights) else 1
    return SoftTargets(token_ids.gather(-1, order)[:, :width], weights[:, :width])


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
