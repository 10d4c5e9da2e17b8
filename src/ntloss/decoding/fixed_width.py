r"""Quantiles of fixed-width numbers: one digit-by-digit walk for each, all in parallel.

At each slot, the digit is chosen at which the cumulative probability crosses the remaining quantile,
$q \leftarrow (q - F_{before}) / p$. Digits of one place are ordered like the numbers, so this is exact for
the model masked at each step to the tokens that the format allows. After a minus sign the order is reversed.

A number can be spelled with different tokens: `12` or `1`, `2`; ` 4` or `4`. All spellings of the digits so
far are followed in parallel, and their probabilities are added. Prefixes that quantiles share are evaluated
once.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.decoding.models import Branch, advance, share
from ntloss.numbers.format import CODES, MINUS, SIGN, NumberFormat, SlotTokens
from ntloss.numbers.grammar import DIGITS
from ntloss.numbers.vocabulary import NumberVocabulary

# A point or a comma with this probability is followed, to see whether it continues the number.
_LOOK_AHEAD = 0.02


class _Spellings(NamedTuple):
    """Token sequences that spell what the rows have written up to one slot; all `[spellings]`."""

    rows: Tensor  # the row that each belongs to
    tokens: Tensor  # `[spellings, written]`, -1 where there is none
    log_weights: Tensor  # float64, log-probability given the row's digits so far
    log_masses: Tensor  # float64, log of the allowed probability along it
    nodes: Tensor  # row of the model's pass over all but the last token


class _Level(NamedTuple):
    """The spellings that end before a slot, and the tokens that may follow."""

    slot: int
    entries: SlotTokens  # the tokens that may begin at the slot
    spellings: _Spellings
    # `[spellings, allowed]`, float64, log-probability of each spelling and token, given the row's digits so
    # far; -inf for tokens that have ended or do not match what was written.
    log_joint: Tensor


class Walked(NamedTuple):
    """The numbers of some walks, and probabilities around those that are medians; all `[walks]`, float64."""

    numbers: Tensor  # NaN if the model rules out every number
    starts: Tensor  # the probability that the format keeps along the digits; NaN if no median
    ends: Tensor  # the probability that the number ends after them; NaN if no median


@functools.lru_cache(maxsize=8)
def _tables(
    numbers: NumberFormat, vocabulary: NumberVocabulary, device: torch.device
) -> tuple[tuple[str, ...], list[SlotTokens | None]]:
    return numbers.slots, numbers.tables(vocabulary, device)


def walk(
    root: Branch, vocabulary: NumberVocabulary, numbers: NumberFormat, questions: Tensor, points: Tensor
) -> Walked:
    """Walk to each of the quantiles `points`, `[walks]`.

    `questions`, `[walks]`, are the rows of `root` that the walks continue.
    """
    slots, tables = _tables(numbers, vocabulary, root.logits.device)
    rated, zeros = points == 0.5, torch.zeros_like(points)
    rows = torch.arange(len(points), device=points.device)
    written = _Spellings(rows, rows[:, None][:, :0], zeros, zeros, questions)
    last: Branch | None = root  # the last pass; None once a spelling does not extend it by exactly one token
    logits, levels = root.logits, list[_Level]()
    remaining, mantissa = points, torch.zeros_like(questions)
    negative = dead = torch.zeros_like(rated)
    for slot, (kind, entries) in enumerate(zip(slots, tables, strict=True)):
        if len(written.rows):
            if slot:
                last, logits, written = _evaluate(root, last, questions, written)
            assert entries is not None, "the tables hold only tokens that lead to a complete number"
            levels.append(_level(slot, entries, written, logits, rated))
        if not levels:
            break  # no row has a number to write
        weights = torch.zeros(len(points), CODES, dtype=torch.float64, device=points.device)
        for level in levels:
            by_code = level.log_joint.exp() @ level.entries.one_hot[slot - level.slot]
            weights.index_add_(0, level.spellings.rows, by_code)
        chosen, remaining, weight = choose(weights, remaining, negative if slots[0] == SIGN else None)
        dead = dead | (weight == 0)
        if kind == SIGN:
            negative = chosen == MINUS
        elif kind == DIGITS:
            mantissa = 10 * mantissa + chosen
        levels, written, one_longer = _write(levels, slot, chosen, torch.where(dead, 0, weight.log()))
        last = last if one_longer else None
    values = mantissa.double() / 10**numbers.decimals
    values = torch.where(negative, -values, values) + 0.0  # -0.0 is 0.0
    starts, ends = torch.zeros(2, len(points), dtype=torch.float64, device=points.device)
    index = rated[written.rows].nonzero().squeeze(-1)
    written = _Spellings(*(column[index] for column in written))
    if len(written.rows):
        _, logits, written = _evaluate(root, last, questions, written)
        shares = written.log_weights.exp()
        starts.index_add_(0, written.rows, (written.log_weights + written.log_masses).exp())
        further = _continuing(root, numbers, vocabulary, questions, written, logits)
        ends.index_add_(0, written.rows, shares * (1 - further))
    starts, ends = (torch.where(rated, found, math.nan) for found in (starts, ends))
    return Walked(torch.where(dead, math.nan, values), starts, ends)


def _level(slot: int, entries: SlotTokens, spellings: _Spellings, logits: Tensor, rated: Tensor) -> _Level:
    log_probs, log_allowed = mask_logits(logits, entries.token_ids)
    # The normalizer is a pass over the whole vocabulary.
    counted = rated[spellings.rows]
    nodes = spellings.nodes[counted]
    masses = spellings.log_masses.clone()
    masses[counted] += log_allowed[nodes] - log_total(logits[nodes])
    log_joint = spellings.log_weights[:, None] + log_probs[spellings.nodes]
    return _Level(slot, entries, spellings._replace(log_masses=masses), log_joint)


def _write(
    levels: list[_Level], slot: int, chosen: Tensor, log_weight: Tensor
) -> tuple[list[_Level], _Spellings, bool]:
    """Keep the tokens that match the choice.

    Return the levels that reach beyond the slot, the spellings that end there, and whether each of these is
    one token longer than the last pass.
    """
    kept, made, one_longer = [], [], True
    for start, entries, old, log_joint in levels:
        fits = entries.codes[:, slot - start] == chosen[old.rows][:, None]
        log_joint = torch.where(fits, log_joint - log_weight[old.rows][:, None], -math.inf)
        ended = entries.lengths == slot + 1 - start
        index, token = (ended & (log_joint > -math.inf)).nonzero(as_tuple=True)
        tokens = torch.cat([old.tokens[index], entries.token_ids[token][:, None]], dim=-1)
        made.append(
            _Spellings(*(column[index] for column in old))._replace(
                tokens=tokens, log_weights=log_joint[index, token]
            )
        )
        one_longer &= start == slot or not len(index)
        going_on = log_joint.masked_fill(ended, -math.inf)
        if bool((going_on > -math.inf).any()):
            kept.append(_Level(start, entries, old, going_on))
    longest = max(part.tokens.shape[-1] for part in made)
    made = [
        part._replace(tokens=F.pad(part.tokens, (longest - part.tokens.shape[-1], 0), value=-1))
        for part in made
    ]
    return kept, _Spellings(*(torch.cat(column) for column in zip(*made, strict=True))), one_longer


def _evaluate(
    root: Branch, last: Branch | None, questions: Tensor, written: _Spellings
) -> tuple[Branch | None, Tensor, _Spellings]:
    """Run the model on the texts; return the pass, its logits, and the texts with its nodes."""
    if last is not None:
        last, nodes = advance(last, root, written.nodes, written.tokens[:, -1])
        return last, last.logits, written._replace(nodes=nodes)
    logits, nodes = _run(root, questions[written.rows], written.tokens)
    return None, logits, written._replace(nodes=nodes)


def _run(root: Branch, questions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits after texts `[texts, tokens]`, which may hold -1 anywhere, and each text's row."""
    order = (tokens < 0).int().argsort(dim=-1, stable=True)
    texts, nodes = share(torch.cat([questions[:, None], tokens.gather(-1, order)], dim=-1))
    lengths = (texts[:, 1:] >= 0).sum(-1)
    tokens = texts[:, 1 : int(lengths.max()) + 1].clamp(min=0)
    return root.select(texts[:, 0]).extend(tokens, lengths).logits, nodes


def _continuing(
    root: Branch,
    numbers: NumberFormat,
    vocabulary: NumberVocabulary,
    questions: Tensor,
    written: _Spellings,
    logits: Tensor,
) -> Tensor:
    """Return the probability that more digits follow, after a point or a comma too, `[spellings]`."""
    pieces, marks = vocabulary.pieces.items(), "" if numbers.decimals else ".,"
    digits, digits_or_mark = (
        torch.tensor(
            [i for i, text in pieces if text.lstrip(before)[:1] in tuple(DIGITS)], device=logits.device
        )
        for before in ("", marks)
    )
    total = log_total(logits)
    further = (mask_logits(logits, digits_or_mark)[1] - total).exp()[written.nodes]
    for mark in [i for i, text in pieces if text in marks]:
        marked = (logits[:, mark].double() - total).exp()[written.nodes]
        if bool((marked > _LOOK_AHEAD).any()):
            tokens = F.pad(written.tokens, (0, 1), value=mark)
            after, nodes = _run(root, questions[written.rows], tokens)
            marked = torch.where(marked > _LOOK_AHEAD, marked, 0)  # whatever else is in the batch
            further = further + marked * (mask_logits(after, digits)[1] - log_total(after)).exp()[nodes]
    return further.clamp(max=1)


def mask_logits(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of some tokens among themselves, `[rows, allowed]`, and their `logsumexp`.

    Both are float64, and -inf if a row of the logits rules all of these tokens out.
    """
    allowed = logits[:, token_ids].double()
    normalizer = allowed.logsumexp(-1, keepdim=True)
    log_probs = torch.where(normalizer > -math.inf, allowed - normalizer, -math.inf)
    return log_probs, normalizer.squeeze(-1)


def log_total(logits: Tensor) -> Tensor:
    """Return the `logsumexp` of all tokens, `[rows]`, float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1).double()


def choose(
    weights: Tensor, remaining: Tensor, descending: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the code at which the cumulative probability of `weights` crosses the remaining quantile.

    `weights`, `[rows, codes]`, need not add up to 1; in `descending` rows the largest code means the smallest
    number. Return the codes, the quantile that remains within each, and its weight, 0 if all of the row are
    0; each `[rows]`.
    """
    last = weights.shape[-1] - 1
    if descending is not None:
        weights = torch.where(descending[:, None], weights.flip(-1), weights)
    cumulative = weights.cumsum(-1)
    target = (remaining * cumulative[:, -1])[:, None]
    index = ((cumulative < target) | (cumulative == 0)).sum(-1, keepdim=True).clamp(max=last)
    weight = weights.gather(-1, index)
    before = cumulative.gather(-1, index) - weight
    rest = torch.where(weight > 0, (target - before) / weight, 0).clamp(0, 1)
    index = index.squeeze(-1)
    chosen = index if descending is None else torch.where(descending, last - index, index)
    return chosen, rest.squeeze(-1), weight.squeeze(-1)
