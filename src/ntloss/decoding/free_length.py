"""Quantiles of numbers of any length, by a best-first search.

Digits do not order numbers of different lengths (`9` < `10`), so no walk finds a quantile. But all numbers
that begin with a prefix lie in a known range, and together have at most its probability. The search expands
the heaviest prefixes until the quantiles are known, whatever the others turn out to be
(`ntloss.decoding.brackets`). `ntloss.decoding.grammar` defines what counts as a number; the
distribution is the model's, given that it writes one.

The search proceeds in rounds. Which prefixes a question expands in a round depends on that question alone, so
its quantiles do not depend on the batch, beyond the rounding of the model's logits. A round of many questions
takes several passes of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.decoding import grammar
from ntloss.decoding.brackets import Known, brackets, modes
from ntloss.decoding.formats import MOST_DIGITS
from ntloss.decoding.models import Prompt
from ntloss.engine.readout import compute_dtype
from ntloss.numbers.vocabulary import NumberVocabulary

# A question expands 16 prefixes in a round, later a sixteenth of its rows so far. Larger rounds need fewer
# passes, but spend the rows on breadth, and a number of 12 digits is 12 rounds deep.
_ROUND = 16


@dataclass(frozen=True)
class Limits:
    """How long numbers may be, and when the search ends.

    Args:
        max_digits: most digits of a number.
        rtol: relative width of a bracket that is narrow enough.
        atol: absolute width.
        rows_per_pass: most prefixes of one pass, and of a question's round.
        max_rows: rows of each question, its prompt included; None for no limit.

    Raises:
        ValueError: `max_digits` is not from 1 to 18, or a width is negative.
    """

    max_digits: int
    rtol: float
    atol: float
    rows_per_pass: int
    max_rows: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.max_digits <= MOST_DIGITS:
            raise ValueError(f"max_digits={self.max_digits}: expected 1 to {MOST_DIGITS}")
        if not (self.rtol >= 0 and self.atol >= 0):
            raise ValueError(f"rtol={self.rtol}, atol={self.atol}: expected 0 or more")


class _Found(NamedTuple):
    """The results of `number_quantiles`, in its order; on the CPU."""

    values: Tensor
    lower: Tensor
    upper: Tensor
    exact: Tensor
    mass: Tensor
    mode: Tensor
    mode_exact: Tensor


class _Frontier(NamedTuple):
    """Prefixes that were not expanded; all `[prefixes]`.

    Args:
        question: the prompt that each continues.
        mass: its probability.
        parent: row of `tokens` that holds all but its last token.
        token: its last token.
        prefix: the number so far.
    """

    question: Tensor
    mass: Tensor
    parent: Tensor
    token: Tensor
    prefix: grammar.Prefixes

    def select(self, index: Tensor) -> _Frontier:
        """Select rows by index."""
        question, mass, parent, token = (column[index] for column in self[:4])
        return _Frontier(question, mass, parent, token, self.prefix.select(index))


def search(prompt: Prompt, vocabulary: NumberVocabulary, quantiles: Tensor, limits: Limits) -> _Found:
    """Search for the quantiles of all prompts.

    Args:
        prompt: the prompts, already run.
        vocabulary: the number tokens.
        quantiles: `[quantiles]`, float64, on the CPU.
        limits: limits of the search.

    Returns:
        The quantiles and what else was found.
    """
    return _Search(prompt, vocabulary, quantiles, limits).run()


class _Search:
    def __init__(self, prompt: Prompt, vocabulary: NumberVocabulary, quantiles: Tensor, limits: Limits):
        self.prompt, self.quantiles, self.limits = prompt, quantiles, limits
        self.tables = grammar.continuations(vocabulary)
        count = len(prompt)
        everything, ones = torch.arange(count), torch.ones(count, dtype=torch.float64)
        # Texts of the prompts and of the expanded prefixes, -1 after the last token.
        self.tokens = everything[:, None][:, :0]
        # Complete numbers.
        self.question, self.value, self.mass = everything[:0], ones[:0], ones[:0]
        self.open = torch.ones(count, dtype=torch.bool)
        # Rows that each question has taken: its prompt and its expanded prefixes.
        self.rows = torch.ones(count, dtype=torch.int64)
        # Mass of the prefixes of questions that are closed.
        self.unexpanded = torch.zeros(count, dtype=torch.float64)
        root = _Frontier(everything, ones, everything, everything, grammar.start(count))
        self.frontier = self._expand(root, everything, prompt.logits)

    def run(self) -> _Found:
        count = len(self.prompt)
        values, lower, upper = torch.full((3, count, len(self.quantiles)), torch.nan, dtype=torch.float64)
        while True:
            found = brackets(self._known(), self.quantiles, count)
            for table, new in zip((values, lower, upper), found, strict=True):
                table[self.open] = new[self.open]
            wide = upper - lower > self.limits.atol + self.limits.rtol * values.abs()
            self.open &= wide.any(-1)
            if self.limits.max_rows is not None:
                self.open &= self.rows < self.limits.max_rows
            chosen = self._best()
            if not len(chosen):
                break
            self._expand_best(chosen)
        unexpanded = self.unexpanded.index_add(0, self.frontier.question, self.frontier.mass)
        mass = unexpanded.index_add(0, self.question, self.mass)
        found_modes = modes(self.question, self.value, self.mass, unexpanded)
        return _Found(values, lower, upper, lower == upper, mass, *found_modes)

    def _known(self) -> Known:
        """Return the complete numbers and the frontier of the open questions."""
        done = self.open[self.question]
        values = self.value[done]
        front = self.frontier.select(self.open[self.frontier.question])
        low, high = front.prefix.bounds(self.limits.max_digits)
        return Known(
            torch.cat([self.question[done], front.question]),
            torch.cat([self.mass[done], front.mass]),
            torch.cat([values, low]),
            torch.cat([values, high]),
            torch.cat([values, front.prefix.numbers()]),
            torch.cat([torch.ones_like(values), torch.zeros_like(low)]).bool(),
        )

    def _best(self) -> Tensor:
        """Return the indices of the heaviest prefixes of each open question.

        As many as its next round expands.
        """
        limits = self.limits
        count = (self.rows // 16).clamp(min=_ROUND).clamp(max=limits.rows_per_pass)
        if limits.max_rows is not None:
            count = count.minimum(limits.max_rows - self.rows)
        index = self.open[self.frontier.question].nonzero().squeeze(-1)
        order = index[self.frontier.mass[index].argsort(descending=True, stable=True)]
        order = order[self.frontier.question[order].argsort(stable=True)]
        question = self.frontier.question[order]
        sizes = torch.bincount(question, minlength=len(self.prompt))
        rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[question]
        return order[rank < count[question]]

    def _expand_best(self, chosen: Tensor) -> None:
        """Replace the chosen prefixes by their continuations, and drop those of closed questions."""
        size, kept = self.limits.rows_per_pass, self.open[self.frontier.question]
        closed = self.frontier.select(~kept)
        self.unexpanded.index_add_(0, closed.question, closed.mass)
        self.rows += torch.bincount(self.frontier.question[chosen], minlength=len(self.prompt))
        kept[chosen] = False
        passes = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        made = [self._run_pass(self.frontier.select(index)) for index in passes]
        self.frontier = _concatenate([self.frontier.select(kept), *made])

    def _run_pass(self, best: _Frontier) -> _Frontier:
        """Run the model on these prefixes, and return their continuations."""
        device = self.prompt.logits.device
        texts = torch.cat([self.tokens[best.parent], best.token[:, None]], dim=-1)
        texts = texts.gather(-1, (texts < 0).int().argsort(dim=-1, stable=True))  # padding goes to the end
        lengths = (texts >= 0).sum(-1)
        texts = texts[:, : int(lengths.max())]
        branch = self.prompt.root.select(best.question.to(device))
        logits = branch.run(texts.clamp(min=0).to(device), lengths)
        parents = len(self.tokens) + torch.arange(len(texts))
        width = max(texts.shape[-1], self.tokens.shape[-1])
        self.tokens = torch.cat(
            [F.pad(rows, (0, width - rows.shape[-1]), value=-1) for rows in (self.tokens, texts)]
        )
        return self._expand(best, parents, logits)

    def _expand(self, front: _Frontier, parents: Tensor, logits: Tensor) -> _Frontier:
        """Store the numbers that end after these prefixes, and return the prefixes' continuations.

        Row i of the logits belongs to prefix i.
        """
        made = []
        for state in sorted(set(front.prefix.state.tolist())):
            rows = (front.prefix.state == state).nonzero().squeeze(-1)
            table, mass = self.tables[state], front.mass[rows]
            continuing, end = _next_token(logits[rows.to(logits.device)], table.token_ids)
            if state in grammar.COMPLETE:
                self.question = torch.cat([self.question, front.question[rows]])
                self.value = torch.cat([self.value, front.prefix.select(rows).numbers()])
                self.mass = torch.cat([self.mass, mass * end])
            masses = mass[:, None] * continuing
            fits = front.prefix.digits[rows][:, None] + table.digits <= self.limits.max_digits
            index, token = (fits & (masses > 0)).nonzero(as_tuple=True)
            tokens = grammar.Continuations(*(column[token] for column in table))
            prefix = grammar.extend(front.prefix.select(rows[index]), tokens)
            columns = (
                front.question[rows[index]],
                masses[index, token],
                parents[rows[index]],
                tokens.token_ids,
            )
            made.append(_Frontier(*columns, prefix))
        return _concatenate(made)


def _next_token(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of each of these tokens, `[rows, tokens]`, and of all others, `[rows]`.

    Both are on the CPU.
    """
    logits = logits.to(compute_dtype(logits.dtype))
    token_ids = token_ids.to(logits.device)
    chosen = logits[:, token_ids].double()
    # Summed separately: as 1 minus the rest, a small probability of ending would be lost to rounding.
    others = logits.index_fill(1, token_ids, -torch.inf).logsumexp(-1).double()
    normalizer = torch.logaddexp(chosen.logsumexp(-1), others)
    return (chosen - normalizer[:, None]).exp().cpu(), (others - normalizer).exp().cpu()


def _concatenate(parts: list[_Frontier]) -> _Frontier:
    prefixes = zip(*(part.prefix for part in parts), strict=True)
    question, mass, parent, token = map(torch.cat, zip(*(part[:4] for part in parts), strict=True))
    return _Frontier(question, mass, parent, token, grammar.Prefixes(*map(torch.cat, prefixes)))
