"""Answers of a fixed width as a tree of their prefixes, and what is read from a distribution over them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

ROUNDING = 1e-6  # sums of probabilities are compared with a level up to this


class Readings(NamedTuple):
    """What is read from the distribution of each row's answer, `[rows]` each."""

    greedy: Tensor
    median: Tensor
    mean: Tensor
    lower: Tensor
    upper: Tensor


class AnswerTree:
    """All numbers of a fixed number of digits, as a tree of their prefixes.

    Node 0 is the prompt; each further node is a prefix that does not end an answer.

    Args:
        tokenizer: Writes each digit and sign as a token.
        digits: Number of digits of each answer.
        signed: Whether each answer begins with a sign.
        largest: Largest answer. None: the largest of the width.

    Attributes:
        values: The numbers in increasing order, `[answers]`.
        tokens: Last token of each node but the prompt, `[nodes - 1]`.
        depths: Number of tokens below the prompt, `[nodes - 1]`.
        above: Whether node j is on the path to node i, or is node i, `[nodes - 1, nodes - 1]`.
        columns: Tokens that answers consist of, `[columns]`.

    Raises:
        ValueError: A digit or a sign is not one token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        digits: int,
        signed: bool = False,
        largest: int | None = None,
    ):
        self._format = f"{'+' if signed else ''}0{digits + signed}d"
        largest = 10**digits - 1 if largest is None else largest
        self.values = torch.arange(-largest if signed else 0, largest + 1, dtype=torch.float64)
        texts = [self.write(int(value)) for value in self.values]
        characters = sorted(set("".join(texts)))
        ids = tokenizer.convert_tokens_to_ids(characters)
        if unknown := [
            c for c, i in zip(characters, ids, strict=True) if i in (None, tokenizer.unk_token_id)
        ]:
            raise ValueError(
                f"the tokenizer has no token {unknown[0]!r}; expected one for each of {characters}"
            )
        self.columns = torch.tensor(ids)
        self._column = {character: place for place, character in enumerate(characters)}
        prefixes = sorted(
            {text[:end] for text in texts for end in range(len(text))}, key=lambda p: (len(p), p)
        )
        self._node = {prefix: place for place, prefix in enumerate(prefixes)}
        below = prefixes[1:]
        self.tokens = torch.tensor([ids[self._column[prefix[-1]]] for prefix in below])
        self.depths = torch.tensor([len(prefix) for prefix in below])
        self.above = torch.tensor([[long.startswith(short) for short in below] for long in below])
        self._paths = torch.tensor(
            [self._path(text) for text in texts]
        )  # [answers, width], of [nodes, columns]
        allowed = torch.zeros(len(prefixes) * len(ids), dtype=torch.bool)
        allowed[self._paths.flatten()] = True
        self._allowed = allowed.view(len(prefixes), len(ids))

    def write(self, number: int) -> str:
        """Write a number as an answer."""
        return format(number, self._format)

    def _path(self, text: str) -> list[int]:
        size = len(self._column)
        return [self._node[text[:k]] * size + self._column[c] for k, c in enumerate(text)]

    @cached_property
    def all_nodes(self) -> Tensor:
        """All nodes but the prompt, counted from 0, `[nodes - 1]`."""
        return torch.arange(len(self.tokens))

    def chain(self, number: int) -> tuple[list[int], list[int]]:
        """Return the nodes on the path to an answer, without the prompt, and the answer's tokens."""
        text = self.write(number)
        nodes = [self._node[text[:end]] - 1 for end in range(1, len(text))]
        return nodes, [int(self.columns[self._column[character]]) for character in text]

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities of all answers.

        Args:
            logits: Of the columns at each node, `[rows, nodes, columns]`. Others are not answers.

        Returns:
            `[rows, answers]`.
        """
        steps = self.step_log_probs(logits).flatten(1)
        return steps[:, self._paths].sum(-1)

    def step_log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities of the next token at each node, `[rows, nodes, columns]`."""
        return logits.masked_fill(~self._allowed, -torch.inf).log_softmax(-1)

    def read(self, logits: Tensor) -> Readings:
        """Read greedy answers, medians, means and central 90 % intervals; see `log_probs`."""
        probs = self.log_probs(logits).double().exp()
        lower, median, upper = (self.quantile(probs, level) for level in (0.05, 0.5, 0.95))
        return Readings(self.greedy(logits), median, probs @ self.values, lower, upper)

    def greedy(self, logits: Tensor) -> Tensor:
        """Return the answers of greedy decoding, `[rows]`."""
        chosen = self.step_log_probs(logits).argmax(-1)  # [rows, nodes]
        size = len(self._column)
        agrees = chosen[:, self._paths // size] == self._paths % size
        return self.values[agrees.all(-1).double().argmax(-1)]

    def quantile(self, probs: Tensor, level: float) -> Tensor:
        """Return the smallest answer below or at which a share of the probability lies, `[rows]`."""
        below = probs.cumsum(-1) >= level - ROUNDING
        return self.values[below.double().argmax(-1)]

    def crps(self, probs: Tensor, answers: Tensor) -> Tensor:
        """Return the continuous ranked probability score of distributions, in units of the answers.

        Args:
            probs: `[rows, answers]`.
            answers: The right answers, `[rows]` or `[rows, 1]`.

        Returns:
            `[rows]`. Source: Gneiting and Raftery, JASA 2007, equation 20.
        """
        right = (answers.view(-1, 1) <= self.values).double()
        return (probs.cumsum(-1) - right).square().sum(-1)

    def rater_crps(self, probs: Tensor, raters: Tensor) -> Tensor:
        """Return the mean score of distributions for the answers of several people; see `crps`.

        Args:
            probs: `[rows, answers]`.
            raters: The share of people whose answer is at most each value, `[rows, answers]`.

        Returns:
            `[rows]`.
        """
        below = probs.cumsum(-1)
        return (below.square() - 2 * below * raters + raters).sum(-1)
