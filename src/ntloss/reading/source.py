"""Sources of next tokens that are asked about whole prefixes: engines in this process, and servers.

    source = from_function(log_probs)  # log_probs(prompts, token_ids) -> [prompts, tokens]
    read_number(source, tokenizer, "How many legs does a spider have?")

Continuations of a model of transformers have a cache instead (`ntloss.reading.torch_model`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Prefix = tuple[int, ...] | str
LogProbs = Callable[[list[list[int]], list[int]], Any]
_LARGEST_SUM = 1.01  # of the probabilities of some tokens, with rounding


class Asker(ABC):
    """Is asked about the tokens after prefixes, and counts how often."""

    def __init__(self) -> None:
        self.passes = self.rows = 0

    @abstractmethod
    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int], known: dict[Prefix, Any]) -> Tensor:
        """Return the log-probabilities of tokens after prefixes, `[prefixes, tokens]`, float64.

        `known` keeps what was answered about these prefixes until they are longer.
        """

    def likeliest(self, prefix: Prefix, known: Mapping[Prefix, Any]) -> int | str | None:
        """Return the likeliest token after a prefix, or its text; None if it is unknown."""
        return None

    def longer(self, prefix: Prefix, token_ids: Sequence[int]) -> Prefix:
        """Return a prefix with further tokens."""
        return (*prefix, *token_ids)


class Prefixes:
    """Continuations of prompts that an engine or a server is asked about; see `Continuations`."""

    device = torch.device("cpu")

    def __init__(self, asker: Asker, rows: Sequence[Prefix]) -> None:
        self._asker, self._rows, self._known = asker, rows, dict[Prefix, Any]()

    @property
    def counts(self) -> tuple[int, int]:
        """How often it was asked, and about how many prefixes."""
        return self._asker.passes, self._asker.rows

    def __len__(self) -> int:
        return len(self._rows)

    def next_tokens(self, token_ids: Tensor) -> Tensor:
        """Ask about these tokens after each row, and about equal rows once."""
        places = {row: i for i, row in enumerate(dict.fromkeys(self._rows))}
        found = self._asker.ask([*places], token_ids.tolist(), self._known)
        return found[[places[row] for row in self._rows]]

    def likeliest(self, row: int) -> int | str | None:
        """Return the likeliest token after a row, or its text; None if it is unknown."""
        return self._asker.likeliest(self._rows[row], self._known)

    def select(self, rows: Tensor | slice) -> Prefixes:
        """Copy some rows, in any order and number."""
        chosen = self._rows[rows] if isinstance(rows, slice) else [self._rows[i] for i in rows.tolist()]
        return Prefixes(self._asker, chosen)

    def extend(self, tokens: Tensor, lengths: Tensor | None = None) -> Prefixes:
        """Write `[rows, n]` tokens, or the first `lengths` of each row."""
        counts = [tokens.shape[-1]] * len(tokens) if lengths is None else lengths.tolist()
        rows = zip(self._rows, tokens.tolist(), counts, strict=True)
        return Prefixes(self._asker, [self._asker.longer(row, written[:n]) for row, written, n in rows])


class FunctionSource:
    """What may follow a text, as a function says; see `from_function`."""

    def __init__(self, log_probs: LogProbs) -> None:
        self.log_probs = log_probs

    def continuations(
        self, inputs: Any, texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Prefixes:
        """Return prompts, lists of token ids, to be continued."""
        prompts = as_prefixes(inputs)
        if isinstance(prompts[0], str):
            raise TypeError("inputs: expected lists of token ids, given texts: encode them")
        return Prefixes(_Calls(self.log_probs), [(*prompt, *prefix_ids) for prompt in prompts])


class _Calls(Asker):
    """Calls a function."""

    def __init__(self, log_probs: LogProbs) -> None:
        super().__init__()
        self.log_probs = log_probs

    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int], known: dict[Prefix, Any]) -> Tensor:
        """Call the function, and check the form of its result."""
        self.passes, self.rows = self.passes + 1, self.rows + len(prefixes)
        returned = self.log_probs([[*map(int, prefix)] for prefix in prefixes], token_ids)
        found = torch.as_tensor(returned, dtype=torch.float64).cpu()
        if found.shape != (len(prefixes), len(token_ids)):
            raise ValueError(
                f"log_probs: expected a row for each of {len(prefixes)} prompts, with a column for each of "
                f"{len(token_ids)} tokens, given the shape {list(found.shape)}"
            )
        if not bool((found.exp().sum(-1) <= _LARGEST_SUM).all()):
            raise ValueError(
                f"log_probs: expected log-probabilities, of which at most {_LARGEST_SUM} add up, given some "
                "that are NaN or add up to more: take the log-softmax of logits over the whole vocabulary"
            )
        return found


def from_function(log_probs: LogProbs) -> FunctionSource:
    """Return a source for `read_number` and the other readings, of an engine that runs in this process.

    Args:
        log_probs: `log_probs(prompts, token_ids)` is called with prompts, lists of token ids, and the ids of
            tokens, and returns the log-probability of each of these tokens after each prompt, `[prompts,
            tokens]`, as lists, an array or a tensor: those of the model, with the temperature 1, -inf for a
            token that it rules out. Prompts come again with one token more, so an engine that keeps
            beginnings in its cache is fast.

    Returns:
        The source, to be passed in place of a model.

    Raises:
        ValueError: when it is read, the function has returned another shape, or no log-probabilities.

    Example:
        >>> import math
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers import NumberFormat
        >>> from ntloss.reading import number_quantiles
        >>> digits = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=10)
        >>> likes_7 = [0.9 if d == 7 else 0.1 / 9 for d in range(10)]
        >>> def log_probs(prompts, token_ids):
        ...     return [[math.log(likes_7[i]) for i in token_ids] for _ in prompts]
        >>> read = number_quantiles(from_function(log_probs), [[1, 2]], digits, 0.5, NumberFormat(digits=3))
        >>> read.values.item()
        777.0
    """
    return FunctionSource(log_probs)


def as_prefixes(inputs: Any) -> list[Prefix]:
    """Return prompts as texts or as token ids."""
    if isinstance(inputs, Mapping) and isinstance(ids := inputs.get("input_ids"), Tensor):
        mask = inputs.get("attention_mask")
        masks = torch.ones_like(ids) if mask is None else mask
        inputs = [row[kept.bool()].tolist() for row, kept in zip(ids, masks, strict=True)]
    prompts = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else []
    texts = [isinstance(prompt, str) and bool(prompt) for prompt in prompts]
    tokens = [isinstance(p, Sequence) and bool(p) and all(isinstance(i, int) for i in p) for p in prompts]
    if not prompts or not (all(texts) or all(tokens)):
        raise TypeError(
            "inputs: expected prompts for a server or an engine, none of them empty: a list of texts or of "
            "lists of token ids, or what a tokenizer returns with return_tensors='pt'"
        )
    return prompts if all(texts) else [tuple(prompt) for prompt in prompts]
