r"""Quantiles of fixed-width numbers: one digit-by-digit walk for each, all in parallel.

At each slot, the digit is chosen at which the cumulative probability crosses the remaining quantile,
$q \leftarrow (q - F_{before}) / p$. Digits of one place are ordered like the numbers, so this is exact for
the model masked at each step to the tokens that the format allows. After a minus sign the order is reversed.

A number can be spelled with different tokens: `12` or `1`, `2`; ` 4` or `4`. All spellings of the digits so
far are followed in parallel, and their probabilities are added. Prefixes that quantiles share are evaluated
once.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.format import CODES, MINUS, SIGN, NumberFormat, SlotTokens
from ntloss.numbers.grammar import DIGITS
from ntloss.reading.any_length import Options
from ntloss.reading.source import Continuations, Text

# An option with this probability that may continue the number is followed, to see whether it does.
_LOOK_AHEAD = 0.1
_LEAST_SPACE = 1e-3  # a space before a sign that is less likely is not followed
_LEAST_SPELLING = math.log(
    1e-6
)  # a rarer spelling of what was written is not followed: it is lost in rounding


class _Spellings(NamedTuple):
    """Token sequences that spell what the rows have written up to one slot."""

    rows: Tensor  # `[spellings]`, the row that each belongs to
    log_weights: Tensor  # `[spellings]`, float64, log-probability given the row's digits so far
    # `[spellings]`, float64, sum over its steps of log P(next token is one that the format allows)
    log_masses: Tensor
    texts: list[Text]

    def take(self, index: Tensor) -> _Spellings:
        """Return some of them."""
        texts = [self.texts[i] for i in index.tolist()]
        return _Spellings(self.rows[index], self.log_weights[index], self.log_masses[index], texts)


class _Depth(NamedTuple):
    """The spellings that end before a slot, and the tokens that may follow."""

    slot: int
    entries: SlotTokens  # the tokens that may begin at the slot
    spellings: _Spellings
    # `[spellings, allowed]`, float64, log-probability of each spelling and token, given the row's digits so
    # far; -inf for tokens that have ended or do not match what was written.
    log_joint: Tensor


class Walked(NamedTuple):
    """The quantiles after each prompt, and probabilities around its median; float64."""

    numbers: Tensor  # `[prompts, points]`, NaN if the model rules out every number
    starts: Tensor  # `[prompts]`, the probability that a number of the format begins
    fits: Tensor  # `[prompts]`, the probability that one that has begun has as many digits
    continues: Tensor  # `[prompts]`, the probability that it goes on after them
    upto: Tensor  # `[prompts * points]`, that of a forced number and smaller ones; 1 without


def walk(
    root: Continuations,
    options: Options,
    format: NumberFormat,
    points: Tensor,
    is_median: Tensor,
    forced: Tensor | None = None,
) -> Walked:
    """Walk to the quantiles `points`, `[prompts, points]`, of which `is_median`, `[points]`, says the median.

    With `forced`, the codes of `[slots]`, each walk goes along them.
    """
    shape = count, each = points.shape
    prompts = torch.arange(count, device=root.device).repeat_interleave(each)
    rated, points = is_median.repeat(count), points.flatten()
    slots, tables = format.slots, options.tables(format)
    written, tokens, starts = _begin(root, options, format, tables[0], prompts)
    depths = list[_Depth]()
    remaining, mantissa = points, torch.zeros_like(prompts)
    negative = dead = torch.zeros_like(rated)
    below, at = torch.zeros_like(points), torch.ones_like(points)  # the numbers below, and those walked along
    for slot, (kind, entries) in enumerate(zip(slots, tables, strict=True)):
        if written.texts:
            assert entries is not None, "the tables hold only tokens that lead to a complete number"
            if slot:
                tokens = root.next_tokens(written.texts, entries.token_ids)
            log_total = tokens.logsumexp(-1)
            log_joint = (written.log_weights - log_total)[:, None] + tokens
            log_joint = torch.where(log_total[:, None] > -math.inf, log_joint, -math.inf)
            if slot:
                written = written._replace(log_masses=written.log_masses + log_total)
            depths.append(_Depth(slot, entries, written, log_joint))
        if not depths:
            break  # no row has a number to write
        weights = torch.zeros(len(points), CODES, dtype=torch.float64, device=points.device)
        for depth in depths:
            by_code = depth.log_joint.exp() @ depth.entries.one_hot[slot - depth.slot]
            weights.index_add_(0, depth.spellings.rows, by_code)
        descending = negative if slots[0] == SIGN else None
        chosen, remaining, weight, smaller = choose(
            weights, remaining, descending, None if forced is None else forced[slot]
        )
        if forced is not None:
            total = weights.sum(-1).clamp(min=1e-300)
            below, at = below + at * smaller / total, at * weight / total
        dead = dead | (weight == 0)
        if kind == SIGN:
            negative = chosen == MINUS
        elif kind == DIGITS:
            mantissa = 10 * mantissa + chosen
        depths, written = _write(depths, slot, chosen, torch.where(dead, 0, weight.log()))
    values = mantissa.double() / 10**format.decimals
    values = torch.where(negative, -values, values) + 0.0  # -0.0 is 0.0
    values = torch.where(dead, math.nan, values)
    fits, continues = torch.zeros(2, len(points), dtype=torch.float64, device=points.device)
    written = written.take(rated[written.rows].nonzero().squeeze(-1))
    if written.texts:
        fits.index_add_(0, written.rows, (written.log_weights + written.log_masses).exp())
        numbers = [f"{value:.{format.decimals}f}" for value in values[written.rows].tolist()]
        further = _continuing(root, options, written.texts, numbers)
        continues.index_add_(0, written.rows, written.log_weights.exp() * further)
    starts, fits, continues = (found[rated] for found in (starts, fits, continues))
    return Walked(values.view(shape), starts, fits, continues, (below + at).clamp(max=1))


def share_upto(
    root: Continuations, options: Options, format: NumberFormat, bound: float, included: bool = True
) -> Tensor:
    """Return the probability of all numbers up to a bound, `[prompts]`; below it unless it is `included`."""
    whole = torch.ones(len(root), dtype=torch.float64, device=root.device)
    if math.isinf(bound):
        return whole * float(bound > 0)
    step = Decimal(1).scaleb(-format.decimals)
    rounded = Decimal(repr(bound)).quantize(step, ROUND_FLOOR if included else ROUND_CEILING)
    number, largest = rounded if included else rounded - step, 10**format.digits - step
    if not (-largest if format.signed else 0) <= number < largest:
        return whole * float(number >= largest)
    text = format.write(f"{number:f}")
    codes = [slot.index(character) for slot, character in zip(format.slots, text, strict=True)]
    forced = torch.tensor(codes, device=root.device)
    none = torch.zeros(1, dtype=torch.bool, device=root.device)
    return walk(root, options, format, whole[:, None], none, forced).upto


def _begin(
    root: Continuations, options: Options, format: NumberFormat, entries: SlotTokens | None, owners: Tensor
) -> tuple[_Spellings, Tensor, Tensor]:
    """Begin each walk at the end of its prompt, and for numbers with a sign also after a space.

    Many tokenizers join a space and a minus sign, but no space and digit, so a prompt that either can follow
    ends before the space. Return the spellings, the log-probabilities of the first slot's tokens after each,
    and the probability that a number begins, `[walks]`; `owners` are the walks' prompts.
    """
    assert entries is not None
    rows = torch.arange(len(owners), device=owners.device)
    zeros = torch.zeros(len(owners), dtype=torch.float64, device=owners.device)
    written = _Spellings(rows, zeros, zeros, [(row, ()) for row in owners.tolist()])
    spaces = [i for i, text in options.pieces.items() if text == " "] if format.signed else []
    asked = torch.cat([entries.token_ids, entries.token_ids.new_tensor(spaces)])
    following = root.next_tokens([(row, ()) for row in range(len(root))], asked)
    tokens, after = following[:, : len(entries.token_ids)], following[:, len(entries.token_ids) :]
    begins = tokens.exp().sum(-1)
    prompts, space = (after.exp() > _LEAST_SPACE).nonzero(as_tuple=True)
    if not len(prompts):
        return written, tokens[owners], begins[owners]
    texts: list[Text] = [(row, (spaces[i],)) for row, i in zip(prompts.tolist(), space.tolist(), strict=True)]
    after_space = root.next_tokens(texts, entries.token_ids)
    spaced = after[prompts, space].exp()
    total = begins.index_add(0, prompts, spaced)
    walks, index = (owners[:, None] == prompts).nonzero(as_tuple=True)
    log_weights = [(begins / total).log()[owners], (spaced / total[prompts]).log()[index]]
    written = _Spellings(
        torch.cat([rows, walks]),
        torch.cat(log_weights),
        torch.cat([zeros, zeros[walks]]),
        [*written.texts, *(texts[i] for i in index.tolist())],
    )
    begins = begins.index_add(0, prompts, spaced * after_space.exp().sum(-1))
    return written, torch.cat([tokens[owners], after_space[index]]), begins[owners]


def _write(
    depths: list[_Depth], slot: int, chosen: Tensor, log_weight: Tensor
) -> tuple[list[_Depth], _Spellings]:
    """Keep the tokens that match the choice: the depths that reach beyond the slot, and what ends there."""
    kept, made = list[_Depth](), list[_Spellings]()
    for start, entries, old, log_joint in depths:
        fits = entries.codes[:, slot - start] == chosen[old.rows][:, None]
        log_joint = torch.where(fits, log_joint - log_weight[old.rows][:, None], -math.inf)
        ended = entries.lengths == slot + 1 - start
        index, token = (ended & (log_joint > _LEAST_SPELLING)).nonzero(as_tuple=True)
        ended_there = old.take(index)
        pairs = zip(ended_there.texts, entries.token_ids[token].tolist(), strict=True)
        texts: list[Text] = [(row, (*tokens, last)) for (row, tokens), last in pairs]
        made.append(ended_there._replace(log_weights=log_joint[index, token], texts=texts))
        going_on = log_joint.masked_fill(ended, -math.inf)
        if bool((going_on > -math.inf).any()):
            kept.append(_Depth(start, entries, old, going_on))
    rows, log_weights, log_masses, texts_of = zip(*made, strict=True)
    texts = [text for each in texts_of for text in each]
    return kept, _Spellings(torch.cat(rows), torch.cat(log_weights), torch.cat(log_masses), texts)


def _continuing(root: Continuations, options: Options, texts: list[Text], numbers: list[str]) -> Tensor:
    """Return the probability that numbers, spelled by these texts, go on, `[texts]`."""
    changed, open_still = options.further(root, texts, numbers)
    further = changed.sum(-1)
    index, option = (open_still > _LOOK_AHEAD).nonzero(as_tuple=True)
    if len(index):
        longer = [*zip(index.tolist(), option.tolist(), strict=True)]
        ids = options.token_ids.tolist()
        changed, _ = options.further(
            root,
            [(texts[i][0], (*texts[i][1], ids[chosen])) for i, chosen in longer],
            [numbers[i] + options.texts[chosen] for i, chosen in longer],
        )
        further = further.index_add(0, index, open_still[index, option] * changed.sum(-1))
    return further.clamp(max=1)


def choose(
    weights: Tensor, remaining: Tensor, descending: Tensor | None = None, forced: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the code at which the cumulative probability of `weights` crosses the remaining quantile.

    `weights`, `[rows, codes]`, need not add up to 1; in `descending` rows the largest code means the smallest
    number. A code that is `forced` is chosen in all rows. Return the codes, the quantile that remains within
    each, its weight, 0 if all of the row are 0, and that of codes of smaller numbers; each `[rows]`.
    """
    last = weights.shape[-1] - 1
    if descending is not None:
        weights = torch.where(descending[:, None], weights.flip(-1), weights)
    cumulative = weights.cumsum(-1)
    target = (remaining * cumulative[:, -1])[:, None]
    index = ((cumulative < target) | (cumulative == 0)).sum(-1, keepdim=True).clamp(max=last)
    if forced is not None:
        flipped = forced if descending is None else torch.where(descending, last - forced, forced)
        index = flipped.expand(len(weights))[:, None]
    weight = weights.gather(-1, index)
    before = cumulative.gather(-1, index) - weight
    rest = torch.where(weight > 0, (target - before) / weight, 0).clamp(0, 1)
    index = index.squeeze(-1)
    chosen = index if descending is None else torch.where(descending, last - index, index)
    return chosen, rest.squeeze(-1), weight.squeeze(-1), before.squeeze(-1)
