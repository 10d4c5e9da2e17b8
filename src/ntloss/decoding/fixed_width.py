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

from ntloss.decoding.formats import CODES, DIGIT, MINUS, SIGN, Entries, Format
from ntloss.decoding.models import Branch, Prompt
from ntloss.engine.readout import compute_dtype

# Rows with equal texts are merged only if less than this share of the rows remains, because selecting rows
# copies their caches.
_WORTH_SHARING = 0.5


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
    entries: Entries
    spellings: _Spellings
    log_joint: Tensor


def walk(prompt: Prompt, numbers: Format, ends: list[int], quantiles: Tensor) -> tuple[Tensor, Tensor]:
    """Walk to the quantiles of all prompts.

    Args:
        prompt: the prompts, already run.
        numbers: the format.
        ends: tokens that end a text.
        quantiles: `[walks]`, float64; the mass is that of the first walk's path.

    Returns:
        The numbers, `[batch, walks]`, float64, NaN if the model rules out every number; and the product of
        the probabilities of all allowed tokens along the first walk, end token included, `[batch]`.
    """
    return _Walk(prompt, numbers, quantiles).run(ends)


class _Walk:
    def __init__(self, prompt: Prompt, numbers: Format, quantiles: Tensor):
        device = prompt.logits.device
        count = len(prompt) * len(quantiles)
        self.prompt, self.numbers, self.batch = prompt, numbers, len(prompt)
        # Walk by walk, so that the first walk's rows come first.
        self.remaining = quantiles.to(device).repeat_interleave(len(prompt))
        self.negative = torch.zeros(count, dtype=torch.bool, device=device)
        self.dead = torch.zeros_like(self.negative)
        self.mantissa = torch.zeros(count, dtype=torch.int64, device=device)
        # The last pass; None once some spelling does not extend it by exactly one token.
        self.branch: Branch | None = prompt.root
        rows = torch.arange(count, device=device)
        zeros = torch.zeros(count, dtype=torch.float64, device=device)
        nothing = _Spellings(rows, rows[:, None][:, :0], zeros, zeros, rows % self.batch)
        self.levels = [self._level(0, nothing, prompt.logits)]

    def run(self, ends: list[int]) -> tuple[Tensor, Tensor]:
        slots = len(self.numbers.slots)
        for slot in range(slots):
            written = self._write(slot, *self._choose(slot))
            if not len(written.rows) and not self.levels:
                break  # no row has a number to write
            if slot + 1 < slots and len(written.rows):
                logits, nodes = self._evaluate(written)
                self.levels.append(self._level(slot + 1, written._replace(nodes=nodes), logits))
        values = self.numbers.numbers(self.mantissa, self.negative)
        values = torch.where(self.dead, math.nan, values).reshape(-1, self.batch).T
        return values, self._mass(written, ends)

    def _level(self, slot: int, spellings: _Spellings, logits: Tensor) -> Level:
        entries = self.numbers.entries[slot]
        assert entries is not None, "entries hold only tokens that lead to a complete number"
        log_probs, log_allowed = mask_logits(logits, entries.token_ids)
        # Only the first walk's mass is reported, and its normalizer is a pass over the whole vocabulary.
        first = spellings.rows < self.batch
        nodes = spellings.nodes[first]
        masses = spellings.log_masses.clone()
        masses[first] += log_allowed[nodes] - _log_total(logits[nodes])
        log_joint = spellings.log_weights[:, None] + log_probs[spellings.nodes]
        return Level(slot, entries, spellings._replace(log_masses=masses), log_joint)

    def _choose(self, slot: int) -> tuple[Tensor, Tensor]:
        """Return the code that each row writes into the slot, and the log of its weight; both `[rows]`."""
        weights = torch.zeros(len(self.dead), CODES, dtype=torch.float64, device=self.dead.device)
        for level in self.levels:
            by_code = level.log_joint.exp() @ level.entries.one_hot[slot - level.slot]
            weights.index_add_(0, level.spellings.rows, by_code)
        kind = self.numbers.slots[slot]
        negative = self.negative if self.numbers.slots[0] == SIGN else None
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
            width = self.prompt.logits.shape[-1]
            keys, nodes = _share(written.nodes * width + written.tokens[:, -1])
            parents, tokens = keys // width, keys % width
            in_order = torch.equal(parents, torch.arange(len(parents), device=parents.device))
            if self.branch is self.prompt.root or not in_order:
                self.branch = self.branch.select(parents)
            elif len(parents) < len(self.branch.mask):
                self.branch = self.branch.first(len(parents))
            return self.branch.extend(tokens[:, None])[:, -1], nodes
        keys, nodes = _share(torch.cat([(written.rows % self.batch)[:, None], written.tokens], dim=-1))
        questions, tokens = keys[:, 0], keys[:, 1:]
        lengths = (tokens >= 0).sum(-1)
        branch = self.prompt.root.select(questions)
        return branch.run(tokens[:, : int(lengths.max())].clamp(min=0), lengths), nodes

    def _mass(self, written: _Spellings, ends: list[int]) -> Tensor:
        """Return the probability of all allowed tokens along each prompt's first walk, end token included."""
        mass = torch.zeros(self.batch, dtype=torch.float64, device=self.dead.device)
        index = (written.rows < self.batch).nonzero().squeeze(-1)
        first = _Spellings(*(column[index] for column in written))
        if len(index):
            logits, nodes = self._evaluate(first)
            _, log_end = mask_logits(logits, torch.tensor(ends, device=logits.device))
            log_end = log_end - _log_total(logits)
            shares = (first.log_weights + first.log_masses + log_end[nodes]).exp()
            mass.index_add_(0, first.rows, shares)
        return mass


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


def _log_total(logits: Tensor) -> Tensor:
    """Return the `logsumexp` of all tokens, `[rows]`, float64."""
    return logits.to(compute_dtype(logits.dtype)).logsumexp(-1).double()


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
