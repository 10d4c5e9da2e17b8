r"""Quantiles of fixed-width numbers: one digit-by-digit walk for each, all in parallel.

At each slot, the digit is chosen at which the cumulative probability crosses the remaining quantile,
$q \leftarrow (q - F_{before}) / p$. Digits of one place are ordered like the numbers, so this is exact for
the model masked at each step to the tokens that the format allows. After a minus sign the order is reversed.

A number can be spelled with different tokens: `12` or `1`, `2`; ` 4` or `4`. All spellings of the digits so
far are followed in parallel, and their probabilities are added. Prefixes that quantiles share are evaluated
once.

A server may return its likeliest tokens only. Walks to a bound count what is missing as the smallest numbers
that continue the digits so far, or as the largest.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.decoding.models import Continuations, NextTokens, advance, share
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
    starts: Tensor  # the probability that the format keeps along the digits; NaN if not rated
    ends: Tensor  # the probability that the number ends after them; NaN if not rated
    empty: Tensor  # bool, whether a bound is due to what is missing among the first tokens


@functools.lru_cache(maxsize=8)
def _tables(
    numbers: NumberFormat, vocabulary: NumberVocabulary, device: torch.device
) -> tuple[tuple[str, ...], list[SlotTokens | None]]:
    return numbers.slots, numbers.tables(vocabulary, device)


def walk(
    root: Continuations,
    vocabulary: NumberVocabulary,
    numbers: NumberFormat,
    questions: Tensor,
    points: Tensor,
    bounds: Tensor,
) -> Walked:
    """Walk to each of the quantiles `points`, `[walks]`.

    `questions`, `[walks]`, are the rows of `root` that the walks continue. `bounds`, `[walks]`, are -1 for a
    lower bound of the quantile, 1 for an upper one, and 0 for what the known tokens say.
    """
    slots, tables = _tables(numbers, vocabulary, root.device)
    rated, zeros = (points == 0.5) & (bounds == 0), torch.zeros_like(points)
    rows = torch.arange(len(points), device=points.device)
    written = _Spellings(rows, rows[:, None][:, :0], zeros, zeros, questions)
    last: Continuations | None = root  # the last pass; None once a spelling is not one token longer
    current, levels, has_bounds = root, list[_Level](), bool(bounds.any())
    remaining, mantissa = points, torch.zeros_like(questions)
    negative = dead = outside = empty = torch.zeros_like(rated)
    for slot, (kind, entries) in enumerate(zip(slots, tables, strict=True)):
        missing = torch.zeros_like(points)
        if len(written.rows):
            if slot:
                last, current, written = _evaluate(root, last, questions, written)
            assert entries is not None, "the tables hold only tokens that lead to a complete number"
            level, lacking = _level(slot, entries, written, current.next_tokens(entries.token_ids), bounds)
            levels.append(level)
            missing.index_add_(0, written.rows, lacking)
        if not levels and not has_bounds:
            break  # no row has a number to write
        weights = torch.zeros(len(points), CODES, dtype=torch.float64, device=points.device)
        for level in levels:
            by_code = level.log_joint.exp() @ level.entries.one_hot[slot - level.slot]
            weights.index_add_(0, level.spellings.rows, by_code)
        if has_bounds:
            remaining, left = _pass_missing(remaining, weights.sum(-1), missing, bounds)
            outside, empty = outside | left, left if not slot else empty
        chosen, remaining, weight = choose(weights, remaining, negative if slots[0] == SIGN else None)
        chosen = torch.where(outside, _outermost(kind, bounds, negative), chosen)
        dead = dead | (weight == 0) & ~outside
        if kind == SIGN:
            negative = chosen == MINUS
        elif kind == DIGITS:
            mantissa = 10 * mantissa + chosen
        log_weight = torch.where(dead, 0, weight.log()).masked_fill(outside, math.inf)
        if levels:
            levels, written, one_longer = _write(levels, slot, chosen, log_weight)
            last = last if one_longer else None
    values = mantissa.double() / 10**numbers.decimals
    values = torch.where(negative, -values, values) + 0.0  # -0.0 is 0.0
    starts, ends = torch.zeros(2, len(points), dtype=torch.float64, device=points.device)
    index = rated[written.rows].nonzero().squeeze(-1)
    written = _Spellings(*(column[index] for column in written))
    if len(written.rows):
        _, current, written = _evaluate(root, last, questions, written)
        shares = written.log_weights.exp()
        starts.index_add_(0, written.rows, (written.log_weights + written.log_masses).exp())
        further = _continuing(root, numbers, vocabulary, questions, written, current)
        ends.index_add_(0, written.rows, shares * (1 - further))
    starts, ends = (torch.where(rated, found, math.nan) for found in (starts, ends))
    return Walked(torch.where(dead, math.nan, values), starts, ends, empty)


def _level(
    slot: int, entries: SlotTokens, spellings: _Spellings, tokens: NextTokens, bounds: Tensor
) -> tuple[_Level, Tensor]:
    """Return the tokens that may follow spellings, and the probability missing among them, `[spellings]`."""
    nodes, log_known = spellings.nodes, tokens.log_probs.logsumexp(-1)[spellings.nodes]
    missing = torch.where(bounds[spellings.rows] == 0, 0, tokens.missing(nodes))
    log_total = torch.logaddexp(log_known, missing.log())
    log_joint = (spellings.log_weights - log_total)[:, None] + tokens.log_probs[nodes]
    log_joint = torch.where(log_total[:, None] > -math.inf, log_joint, -math.inf)
    spellings = spellings._replace(log_masses=spellings.log_masses + log_known)
    lacking = (spellings.log_weights + missing.log() - log_total).exp().nan_to_num()
    return _Level(slot, entries, spellings, log_joint), lacking


def _pass_missing(remaining: Tensor, known: Tensor, missing: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Count what is missing before all known numbers, for lower bounds, or after them, for upper ones.

    Return the quantile that remains among the known numbers, and whether it lies outside of them; `[walks]`.
    """
    target = remaining * (known + missing) - torch.where(bounds < 0, missing, 0)
    outside = (missing > 0) & torch.where(bounds < 0, target <= 0, target > known)
    inside = torch.where(known > 0, target / known, remaining).clamp(0, 1)
    return torch.where(missing > 0, inside, remaining), outside


def _outermost(kind: str, bounds: Tensor, negative: Tensor) -> Tensor:
    """Return the code of a slot in the smallest number, for lower bounds, or the largest; `[walks]`."""
    if kind == SIGN:
        return (bounds > 0).long()  # minus comes first
    return torch.where((bounds < 0) == negative, len(kind) - 1, 0)


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
    root: Continuations, last: Continuations | None, questions: Tensor, written: _Spellings
) -> tuple[Continuations | None, Continuations, _Spellings]:
    """Run the model on the texts; return the pass if it can be extended, the pass, and the texts' nodes."""
    if last is not None:
        last, nodes = advance(last, root, written.nodes, written.tokens[:, -1])
        return last, last, written._replace(nodes=nodes)
    current, nodes = _run(root, questions[written.rows], written.tokens)
    return None, current, written._replace(nodes=nodes)


def _run(root: Continuations, questions: Tensor, tokens: Tensor) -> tuple[Continuations, Tensor]:
    """Run the model on texts `[texts, tokens]`, which may hold -1 anywhere; return it and each text's row."""
    order = (tokens < 0).int().argsort(dim=-1, stable=True)
    texts, nodes = share(torch.cat([questions[:, None], tokens.gather(-1, order)], dim=-1))
    lengths = (texts[:, 1:] >= 0).sum(-1)
    tokens = texts[:, 1 : int(lengths.max()) + 1].clamp(min=0)
    return root.select(texts[:, 0]).extend(tokens, lengths), nodes


def _continuing(
    root: Continuations,
    numbers: NumberFormat,
    vocabulary: NumberVocabulary,
    questions: Tensor,
    written: _Spellings,
    current: Continuations,
) -> Tensor:
    """Return the probability that more digits follow, after a point or a comma too, `[spellings]`."""
    pieces, marks = vocabulary.pieces.items(), "" if numbers.decimals else ".,"
    digits, digits_or_mark = (
        [i for i, text in pieces if text.lstrip(before)[:1] in tuple(DIGITS)] for before in ("", marks)
    )
    single = [i for i, text in pieces if text in marks]
    asked = torch.tensor([*digits_or_mark, *single], device=root.device)
    found = current.next_tokens(asked).log_probs.exp()[written.nodes]
    further = found[:, : len(digits_or_mark)].sum(-1)
    for mark, marked in zip(single, found[:, len(digits_or_mark) :].unbind(-1), strict=True):
        if bool((marked > _LOOK_AHEAD).any()):
            tokens = F.pad(written.tokens, (0, 1), value=mark)
            after, nodes = _run(root, questions[written.rows], tokens)
            marked = torch.where(marked > _LOOK_AHEAD, marked, 0)  # whatever else is in the batch
            further_digits = after.next_tokens(torch.tensor(digits, device=root.device)).log_probs.exp()
            further = further + marked * further_digits.sum(-1)[nodes]
    return further.clamp(max=1)


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
