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
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.decoding.models import Branch, Prompt
from ntloss.numbers.format import CODES, DIGIT, MINUS, SIGN, NumberFormat, SlotTokens
from ntloss.numbers.vocabulary import NumberVocabulary

# Rows with equal texts are merged only if less than this share of the rows remains, because selecting rows
# copies their caches.
_WORTH_SHARING = 0.5
# A point or a comma with this probability is followed, to see whether it continues the number.
_LOOK_AHEAD = 0.02


class _Spellings(NamedTuple):
    """Token sequences that spell what the rows have written up to one slot.

    Args:
        rows: `[spellings]`, the row that each belongs to.
        tokens: `[spellings, written]`, -1 after the last.
        log_weights: `[spellings]`, float64, log-probability given the row's digits so far.
        log_masses: `[spellings]`, float64, log of the allowed probability along it.
        nodes: `[spellings]`, row of the model's pass over all but the last token.
    """

    rows: Tensor
    tokens: Tensor
    log_weights: Tensor
    log_masses: Tensor
    nodes: Tensor


@dataclass
class Level:
    """The spellings that end before a slot, and the tokens that may follow.

    Args:
        slot: the slot.
        entries: the tokens that may begin at the slot.
        spellings: the spellings.
        log_joint: `[spellings, allowed]`, float64, log-probability of each spelling and token, given the
            row's digits so far; -inf for tokens that have ended or do not match what was written.
    """

    slot: int
    entries: SlotTokens
    spellings: _Spellings
    log_joint: Tensor


class Walked(NamedTuple):
    """The numbers of some walks; all `[walks]`, float64.

    Args:
        numbers: NaN if the model rules out every number.
        starts: the probability that the format keeps along the digits; NaN where it was not asked for.
        ends: the probability that the number ends after them; likewise.
    """

    numbers: Tensor
    starts: Tensor
    ends: Tensor


def walk(
    prompt: Prompt,
    vocabulary: NumberVocabulary,
    numbers: NumberFormat,
    questions: Tensor,
    points: Tensor,
    rated: Tensor,
) -> Walked:
    """Walk to one quantile in each row.

    Args:
        prompt: the prompts, already run.
        vocabulary: the number tokens.
        numbers: a format of fixed width.
        questions: `[walks]`, the prompt that each walk continues.
        points: `[walks]`, float64, the quantiles.
        rated: `[walks]`, bool, whether to compute `starts` and `ends`.

    Returns:
        The numbers and the probabilities around them.
    """
    tables = numbers.tables(vocabulary, prompt.logits.device)
    return _Walk(prompt, numbers, tables, questions, points, rated).run(vocabulary)


class _Walk:
    def __init__(
        self,
        prompt: Prompt,
        numbers: NumberFormat,
        tables: list[SlotTokens | None],
        questions: Tensor,
        points: Tensor,
        rated: Tensor,
    ):
        self.prompt, self.numbers, self.slots, self.tables = prompt, numbers, numbers.slots, tables
        self.questions, self.remaining, self.rated = questions, points, rated
        self.negative = torch.zeros_like(rated)
        self.dead = torch.zeros_like(rated)
        self.mantissa = torch.zeros_like(questions)
        # The last pass; None once some spelling does not extend it by exactly one token.
        self.branch: Branch | None = prompt.root
        rows, zeros = torch.arange(len(points), device=points.device), torch.zeros_like(points)
        nothing = _Spellings(rows, rows[:, None][:, :0], zeros, zeros, questions)
        self.levels = [self._level(0, nothing, prompt.logits)]

    def run(self, vocabulary: NumberVocabulary) -> Walked:
        for slot in range(len(self.slots)):
            written = self._write(slot, *self._choose(slot))
            if not len(written.rows) and not self.levels:
                break  # no row has a number to write
            if slot + 1 < len(self.slots) and len(written.rows):
                logits, nodes = self._evaluate(written)
                self.levels.append(self._level(slot + 1, written._replace(nodes=nodes), logits))
        values = self.mantissa.double() / 10**self.numbers.decimals
        values = torch.where(self.negative, -values, values) + 0.0  # -0.0 is 0.0
        values = torch.where(self.dead, math.nan, values)
        return Walked(values, *self._rate(written, vocabulary))

    def _level(self, slot: int, spellings: _Spellings, logits: Tensor) -> Level:
        entries = self.tables[slot]
        assert entries is not None, "the tables hold only tokens that lead to a complete number"
        log_probs, log_allowed = mask_logits(logits, entries.token_ids)
        # The normalizer is a pass over the whole vocabulary.
        rated = self.rated[spellings.rows]
        nodes = spellings.nodes[rated]
        masses = spellings.log_masses.clone()
        masses[rated] += log_allowed[nodes] - log_total(logits[nodes])
        log_joint = spellings.log_weights[:, None] + log_probs[spellings.nodes]
        return Level(slot, entries, spellings._replace(log_masses=masses), log_joint)

    def _choose(self, slot: int) -> tuple[Tensor, Tensor]:
        """Return the code that each row writes into the slot, and the log of its weight; both `[rows]`."""
        weights = torch.zeros(len(self.dead), CODES, dtype=torch.float64, device=self.dead.device)
        for level in self.levels:
            by_code = level.log_joint.exp() @ level.entries.one_hot[slot - level.slot]
            weights.index_add_(0, level.spellings.rows, by_code)
        kind = self.slots[slot]
        negative = self.negative if self.slots[0] == SIGN else None
        chosen, self.remaining, weight = choose(weights, self.remaining, negative)
        self.dead |= weight == 0
        if kind == SIGN:
            self.negative = chosen == MINUS
        elif kind == DIGIT:
            self.mantissa = 10 * self.mantissa + chosen
        return chosen, torch.where(self.dead, 0, weight.log())

    def _write(self, slot: int, chosen: Tensor, log_weight: Tensor) -> _Spellings:
        """Keep the tokens that match the choice; return the spellings that reach the next slot."""
        made = []
        for level in self.levels:
            old, entries = level.spellings, level.entries
            fits = entries.codes[:, slot - level.slot] == chosen[old.rows][:, None]
            log_joint = torch.where(fits, level.log_joint - log_weight[old.rows][:, None], -math.inf)
            ended = entries.lengths == slot + 1 - level.slot
            level.log_joint = log_joint.masked_fill(ended, -math.inf)
            index, token = (ended & (log_joint > -math.inf)).nonzero(as_tuple=True)
            tokens = torch.cat([old.tokens[index], entries.token_ids[token][:, None]], dim=-1)
            new = (old.rows[index], tokens, log_joint[index, token], old.log_masses[index], old.nodes[index])
            made.append(_Spellings(*new))
            if level.slot < slot and len(index):
                self.branch = None
        self.levels = [level for level in self.levels if bool((level.log_joint > -math.inf).any())]
        return _join(made)

    def _evaluate(self, written: _Spellings) -> tuple[Tensor, Tensor]:
        """Run the model on the texts; return logits `[nodes, vocab]` and the node of each spelling."""
        if self.branch is not None:
            self.branch, logits, nodes = advance(
                self.branch, self.prompt.root, written.nodes, written.tokens[:, -1]
            )
            return logits, nodes
        keys, nodes = _share(torch.cat([self.questions[written.rows][:, None], written.tokens], dim=-1))
        questions, tokens = keys[:, 0], keys[:, 1:]
        lengths = (tokens >= 0).sum(-1)
        branch = self.prompt.root.select(questions)
        return branch.run(tokens[:, : int(lengths.max())].clamp(min=0), lengths), nodes

    def _rate(self, written: _Spellings, vocabulary: NumberVocabulary) -> tuple[Tensor, Tensor]:
        """Return the probabilities that such a number starts, and that it ends here, `[walks]` each."""
        starts, ends = torch.zeros(2, len(self.rated), dtype=torch.float64, device=self.rated.device)
        index = self.rated[written.rows].nonzero().squeeze(-1)
        rated = _Spellings(*(column[index] for column in written))
        if len(index):
            logits, nodes = self._evaluate(rated)
            rated = rated._replace(nodes=nodes)
            shares = rated.log_weights.exp()
            starts.index_add_(0, rated.rows, (rated.log_weights + rated.log_masses).exp())
            ends.index_add_(0, rated.rows, shares * (1 - self._continuing(rated, logits, vocabulary)))
        return torch.where(self.rated, starts, math.nan), torch.where(self.rated, ends, math.nan)

    def _continuing(self, written: _Spellings, logits: Tensor, vocabulary: NumberVocabulary) -> Tensor:
        """Return the probability that more digits follow, after a point or a comma too, `[spellings]`."""
        pieces = vocabulary.pieces.items()
        digits = torch.tensor([i for i, text in pieces if text[0] in DIGIT], device=logits.device)
        share = (mask_logits(logits, digits)[1] - log_total(logits)).exp()[written.nodes]
        for mark in [i for i, text in pieces if text in ("" if self.numbers.decimals else ".,")]:
            marked = (logits[:, mark].double() - log_total(logits)).exp()[written.nodes]
            if bool((marked > _LOOK_AHEAD).any()):
                tokens = F.pad(written.tokens, (0, 1), value=-1)
                lengths = (tokens >= 0).sum(-1, keepdim=True)
                tokens = tokens.scatter(1, lengths, mark)
                branch = self.prompt.root.select(self.questions[written.rows])
                after = branch.run(tokens.clamp(min=0), lengths.squeeze(-1) + 1)
                marked = torch.where(marked > _LOOK_AHEAD, marked, 0)  # whatever else is in the batch
                share = share + marked * (mask_logits(after, digits)[1] - log_total(after)).exp()
        return share.clamp(max=1)


def advance(branch: Branch, root: Branch, parents: Tensor, tokens: Tensor) -> tuple[Branch, Tensor, Tensor]:
    """Extend texts by one token each; equal ones share a row if that saves many.

    Args:
        branch: the last pass, or `root`; do not use it afterwards, unless it is `root`.
        root: the prompts.
        parents: `[texts]`, row of the last pass that each text continues.
        tokens: `[texts]`, its next token.

    Returns:
        The branch, its logits `[rows, vocab]`, and the row of each text.
    """
    width = int(tokens.max()) + 1
    keys, nodes = _share(parents * width + tokens)
    parents, tokens = keys // width, keys % width
    if branch is root or not torch.equal(parents, torch.arange(len(parents), device=parents.device)):
        branch = branch.select(parents)
    elif len(parents) < len(branch.mask):
        branch = branch.first(len(parents))
    return branch, branch.extend(tokens[:, None])[:, -1], nodes


def _share(texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct texts and each text's index among them.

    All texts if few are equal, to keep their caches.
    """
    dim = None if texts.dim() == 1 else 0
    distinct, index = torch.unique(texts, dim=dim, return_inverse=True)
    if len(distinct) < _WORTH_SHARING * len(texts):
        return distinct, index
    return texts, torch.arange(len(texts), device=texts.device)


def _join(parts: list[_Spellings]) -> _Spellings:
    """Concatenate spellings, padded after each one's last token."""
    longest = max(part.tokens.shape[-1] for part in parts)
    parts = [
        part._replace(tokens=F.pad(part.tokens, (longest - part.tokens.shape[-1], 0), value=-1))
        for part in parts
    ]
    joined = _Spellings(*(torch.cat(column) for column in zip(*parts, strict=True)))
    order = (joined.tokens < 0).int().argsort(dim=-1, stable=True)
    return joined._replace(tokens=joined.tokens.gather(-1, order))


def mask_logits(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Restrict logits to some tokens.

    Args:
        logits: `[rows, vocab]`.
        token_ids: `[allowed]`.

    Returns:
        Log-probabilities of these tokens among themselves, `[rows, allowed]`, and their `logsumexp`,
        `[rows]`; float64, -inf if a row rules all of them out.
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
    """Choose the code at which the cumulative probability crosses the remaining quantile.

    Args:
        weights: `[rows, codes]`, up to a factor for each row.
        remaining: `[rows]`, the quantile among these.
        descending: `[rows]`, whether the largest code means the smallest number. Default: no row.

    Returns:
        The codes, the quantile that remains within each, and its weight, 0 if all weights of the row are 0;
        each `[rows]`.
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
