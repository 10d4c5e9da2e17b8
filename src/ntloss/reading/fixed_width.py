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
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.format import CODES, MINUS, SIGN, NumberFormat, SlotTokens
from ntloss.numbers.grammar import DIGITS
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.torch_model import Branch, Continuations, Tree, advance, share
from ntloss.reading.writing import Options

# An option with this probability that may continue the number is followed, to see whether it does.
_LOOK_AHEAD = 0.1
_LEAST_SPACE = 1e-3  # a space before a sign that is less likely is not followed
_LEAST_SPELLING = math.log(
    1e-6
)  # a rarer spelling of what was written is not followed: it is lost in rounding


class _Spellings(NamedTuple):
    """Token sequences that spell what the rows have written up to one slot; all `[spellings]`."""

    rows: Tensor  # the row that each belongs to
    tokens: Tensor  # `[spellings, written]`, -1 where there is none
    log_weights: Tensor  # float64, log-probability given the row's digits so far
    log_masses: Tensor  # float64, log of the probability that the format keeps along it, once it has begun
    nodes: Tensor  # row, in what was run so far, of all but the last token


class _Depth(NamedTuple):
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
    starts: Tensor  # the probability that a number of the format begins
    fits: Tensor  # the probability that one that has begun has as many digits; NaN if not rated
    continues: Tensor  # the probability that it goes on after them; NaN if not rated


_made: WeakKeyDictionary[
    NumberVocabulary, dict[tuple[NumberFormat, torch.device], list[SlotTokens | None]]
] = WeakKeyDictionary()


def _tables(
    format: NumberFormat, vocabulary: NumberVocabulary, device: torch.device
) -> list[SlotTokens | None]:
    of_vocabulary = _made.setdefault(vocabulary, {})
    if (format, device) not in of_vocabulary:
        of_vocabulary[format, device] = format.tables(vocabulary, device)
    return of_vocabulary[format, device]


def walk(
    root: Continuations,
    vocabulary: NumberVocabulary,
    options: Options,
    format: NumberFormat,
    questions: Tensor,
    points: Tensor,
    rated: Tensor,
) -> Walked:
    """Walk to each of the quantiles `points`, `[walks]`.

    `questions`, `[walks]`, are the rows of `root` that the walks continue, and `rated`, `[walks]`, says along
    which it is measured whether the number has the format's digits.
    """
    return _walk(root, vocabulary, options, format, questions, points, rated)[0]


def share_below(
    root: Continuations,
    vocabulary: NumberVocabulary,
    options: Options,
    format: NumberFormat,
    questions: Tensor,
    bound: float | None,
    included: bool,
) -> Tensor:
    """Return the probability of all numbers of the format below a bound, or up to it if it is `included`.

    Without a bound, it is 1 if included and 0 otherwise.
    """
    whole = torch.full((len(questions),), float(included), dtype=torch.float64, device=questions.device)
    if bound is None or math.isinf(bound):
        return whole if bound is None or (bound > 0) == included else 1 - whole
    step = Decimal(1).scaleb(-format.decimals)
    number = Decimal(repr(bound)).quantize(step, ROUND_FLOOR if included else ROUND_CEILING)
    largest = 10**format.digits - step
    smallest = -largest if format.signed else Decimal(0)
    if not smallest <= number <= largest:
        return torch.full_like(whole, float(number > largest))
    text = format.write(f"{number:f}")
    if number == 0 and format.signed and not included:  # the first zero
        text = "-" + text[1:]
    codes = [slot.index(character) for slot, character in zip(format.slots, text, strict=True)]
    forced = torch.tensor(codes, device=questions.device)
    none = torch.zeros_like(questions, dtype=torch.bool)
    _, below, at = _walk(root, vocabulary, options, format, questions, whole, none, forced)
    return (below + at if included else below).clamp(max=1)


def _walk(
    root: Continuations,
    vocabulary: NumberVocabulary,
    options: Options,
    format: NumberFormat,
    questions: Tensor,
    points: Tensor,
    rated: Tensor,
    forced: Tensor | None = None,
) -> tuple[Walked, Tensor, Tensor]:
    """Walk to quantiles, or along the codes `forced`, `[slots]`.

    Return what `walk` does, and the probabilities of all numbers below the one that is walked to, and of that
    number.
    """
    slots, tables = format.slots, _tables(format, vocabulary, root.device)
    if isinstance(root, Branch):
        prompts, index = torch.unique(questions, return_inverse=True)
        if (tree := root.tree(prompts)) is not None:
            root, questions = tree, index
    written, tokens, starts, run = _begin(root, vocabulary, format, tables[0], questions)
    depths = list[_Depth]()
    remaining, mantissa = points, torch.zeros_like(questions)
    negative = dead = torch.zeros_like(rated)
    below, at = torch.zeros_like(points), torch.ones_like(points)
    for slot, (kind, entries) in enumerate(zip(slots, tables, strict=True)):
        if len(written.rows):
            assert entries is not None, "the tables hold only tokens that lead to a complete number"
            if slot:
                last, nodes, run, written = _evaluate(root, run, questions, written)
                tokens = last.next_tokens(entries.token_ids)[nodes]
            depths.append(_depth_of(slot, entries, written, tokens))
        if not depths:
            break  # no row has a number to write
        weights = torch.zeros(len(points), CODES, dtype=torch.float64, device=points.device)
        for depth in depths:
            by_code = depth.log_joint.exp() @ depth.entries.one_hot[slot - depth.slot]
            weights.index_add_(0, depth.spellings.rows, by_code)
        descending = negative if slots[0] == SIGN else None
        if forced is None:
            chosen, remaining, weight = choose(weights, remaining, descending)
        else:
            chosen = forced[slot].expand(len(points))
            weight, smaller = _share_of(weights, chosen, descending)
            below, at = below + at * smaller, at * weight / weights.sum(-1).clamp(min=1e-300)
        dead = dead | (weight == 0)
        if kind == SIGN:
            negative = chosen == MINUS
        elif kind == DIGITS:
            mantissa = 10 * mantissa + chosen
        depths, written, one_longer = _write(depths, slot, chosen, torch.where(dead, 0, weight.log()))
        if not one_longer and not isinstance(run, Tree):
            run = None
    values = mantissa.double() / 10**format.decimals
    values = torch.where(negative, -values, values) + 0.0  # -0.0 is 0.0
    values = torch.where(dead, math.nan, values)
    fits, continues = torch.zeros(2, len(points), dtype=torch.float64, device=points.device)
    index = rated[written.rows].nonzero().squeeze(-1)
    written = _Spellings(*(column[index] for column in written))
    if len(written.rows):
        last, nodes, run, written = _evaluate(root, run, questions, written)
        fits.index_add_(0, written.rows, (written.log_weights + written.log_masses).exp())
        texts = {row: f"{values[row]:.{format.decimals}f}" for row in written.rows.tolist()}
        further = _continuing(root, run, options, questions, written, last, nodes, texts)
        continues.index_add_(0, written.rows, written.log_weights.exp() * further)
    fits, continues = (torch.where(rated, found, math.nan) for found in (fits, continues))
    return Walked(values, starts, fits, continues), below, at


def _share_of(weights: Tensor, chosen: Tensor, descending: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weight of a code in each row, and the share of the codes that mean smaller numbers."""
    codes, index = torch.arange(weights.shape[-1], device=weights.device), chosen[:, None]
    smaller = codes < index
    if descending is not None:
        smaller = torch.where(descending[:, None], codes > index, smaller)
    share = (weights * smaller).sum(-1) / weights.sum(-1).clamp(min=1e-300)
    return weights.gather(-1, index).squeeze(-1), share


def _begin(
    root: Continuations,
    vocabulary: NumberVocabulary,
    format: NumberFormat,
    entries: SlotTokens | None,
    questions: Tensor,
) -> tuple[_Spellings, Tensor, Tensor, Continuations | None]:
    """Begin each walk at the end of its prompt, and for numbers with a sign also after a space.

    Many tokenizers join a space and a minus sign, but no space and digit, so a prompt that either can follow
    ends before the space. Return the spellings, the log-probabilities of the first slot's tokens after each,
    the probability that a number begins, `[walks]`, and what was run if all of it can be extended.
    """
    assert entries is not None
    rows = torch.arange(len(questions), device=questions.device)
    zeros = torch.zeros(len(questions), dtype=torch.float64, device=questions.device)
    written = _Spellings(rows, rows[:, None][:, :0], zeros, zeros, questions)
    tokens = root.next_tokens(entries.token_ids)
    begins = tokens.exp().sum(-1)
    spaces = [i for i, text in vocabulary.pieces.items() if text == " "] if format.signed else []
    if not spaces:
        return written, tokens[questions], begins[questions], root
    after = root.next_tokens(torch.tensor(spaces, device=root.device)).exp()
    prompts, space = (after > _LEAST_SPACE).nonzero(as_tuple=True)
    if not len(prompts):
        return written, tokens[questions], begins[questions], root
    ids = torch.tensor(spaces, device=root.device)[space]
    after_space = root.select(prompts).extend(ids[:, None])
    run = root.join(after_space) if isinstance(root, Tree) and isinstance(after_space, Tree) else None
    tokens = torch.cat([tokens, after_space.next_tokens(entries.token_ids)])
    spaced = after[prompts, space]
    total = begins.index_add(0, prompts, spaced)
    walks, index = (questions[:, None] == prompts).nonzero(as_tuple=True)
    parts = [
        written._replace(
            tokens=torch.full_like(rows[:, None], -1), log_weights=(begins / total).log()[questions]
        ),
        _Spellings(
            walks,
            ids[index][:, None],
            (spaced / total[prompts]).log()[index],
            zeros[walks],
            len(root) + index,
        ),
    ]
    written = _Spellings(*(torch.cat(column) for column in zip(*parts, strict=True)))
    begins = begins.index_add(0, prompts, spaced * tokens[len(root) :].exp().sum(-1))
    return written, tokens[written.nodes], begins[questions], run


def _depth_of(slot: int, entries: SlotTokens, spellings: _Spellings, tokens: Tensor) -> _Depth:
    """Return the tokens that may follow spellings, given their log-probabilities after each."""
    log_total = tokens.logsumexp(-1)
    log_joint = (spellings.log_weights - log_total)[:, None] + tokens
    log_joint = torch.where(log_total[:, None] > -math.inf, log_joint, -math.inf)
    if slot:
        spellings = spellings._replace(log_masses=spellings.log_masses + log_total)
    return _Depth(slot, entries, spellings, log_joint)


def _write(
    depths: list[_Depth], slot: int, chosen: Tensor, log_weight: Tensor
) -> tuple[list[_Depth], _Spellings, bool]:
    """Keep the tokens that match the choice.

    Return the depths that reach beyond the slot, the spellings that end there, and whether the last pass ran
    all but the last token of each of these.
    """
    kept, made, one_longer = [], [], True
    for start, entries, old, log_joint in depths:
        fits = entries.codes[:, slot - start] == chosen[old.rows][:, None]
        log_joint = torch.where(fits, log_joint - log_weight[old.rows][:, None], -math.inf)
        ended = entries.lengths == slot + 1 - start
        index, token = (ended & (log_joint > _LEAST_SPELLING)).nonzero(as_tuple=True)
        tokens = torch.cat([old.tokens[index], entries.token_ids[token][:, None]], dim=-1)
        made.append(
            _Spellings(*(column[index] for column in old))._replace(
                tokens=tokens, log_weights=log_joint[index, token]
            )
        )
        one_longer &= start == slot or not len(index)
        going_on = log_joint.masked_fill(ended, -math.inf)
        if bool((going_on > -math.inf).any()):
            kept.append(_Depth(start, entries, old, going_on))
    longest = max(part.tokens.shape[-1] for part in made)
    made = [
        part._replace(tokens=F.pad(part.tokens, (longest - part.tokens.shape[-1], 0), value=-1))
        for part in made
    ]
    return kept, _Spellings(*(torch.cat(column) for column in zip(*made, strict=True))), one_longer


def _evaluate(
    root: Continuations, run: Continuations | None, questions: Tensor, written: _Spellings
) -> tuple[Continuations, Tensor, Continuations | None, _Spellings]:
    """Run the model on the texts.

    `run` has the texts without their last tokens; None if it cannot be extended to all of them. Return the
    pass, each text's row in it, `run` with the pass (of a tree) or in place of it, and the texts with their
    rows in that.
    """
    if run is None:
        last, nodes = _run(root, questions[written.rows], written.tokens)
        return last, nodes, None, written._replace(nodes=nodes)
    last, nodes = advance(run, root, written.nodes, written.tokens[:, -1])
    if isinstance(run, Tree) and isinstance(last, Tree):
        return last, nodes, run.join(last), written._replace(nodes=len(run) + nodes)
    return last, nodes, last, written._replace(nodes=nodes)


def _run(root: Continuations, questions: Tensor, tokens: Tensor) -> tuple[Continuations, Tensor]:
    """Run the model on texts `[texts, tokens]`, which may hold -1 anywhere; return it and each text's row."""
    order = (tokens < 0).int().argsort(dim=-1, stable=True)
    texts, nodes = share(torch.cat([questions[:, None], tokens.gather(-1, order)], dim=-1))
    lengths = (texts[:, 1:] >= 0).sum(-1)
    tokens = texts[:, 1 : int(lengths.max()) + 1].clamp(min=0)
    return root.select(texts[:, 0]).extend(tokens, lengths), nodes


def _continuing(
    root: Continuations,
    run: Continuations | None,
    options: Options,
    questions: Tensor,
    written: _Spellings,
    last: Continuations,
    nodes: Tensor,
    texts: Mapping[int, str],
) -> Tensor:
    """Return the probability that the numbers of some rows, `texts`, go on, `[spellings]`.

    `run`, `last` and `nodes` are what `_evaluate` returned.
    """
    of_spellings = [texts[row] for row in written.rows.tolist()]
    further, maybe = options.further(last, nodes, of_spellings)
    further = further.sum(-1)
    index, option = (maybe > _LOOK_AHEAD).nonzero(as_tuple=True)
    if len(index):
        further_tokens = options.token_ids[option]
        if run is not None:
            after, nodes = advance(run, root, written.nodes[index], further_tokens)
        else:
            tokens = torch.cat([written.tokens[index], further_tokens[:, None]], dim=-1)
            after, nodes = _run(root, questions[written.rows[index]], tokens)
        longer = zip(index.tolist(), option.tolist(), strict=True)
        longer_texts = [of_spellings[i] + options.texts[chosen] for i, chosen in longer]
        changed, _ = options.further(after, nodes, longer_texts)
        further = further.index_add(0, index, maybe[index, option] * changed.sum(-1))
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
