"""What may follow a text, as all readings ask for it; and engines in this process, asked by a function.

    source = from_function(log_probs)  # log_probs(prompts, token_ids) -> [prompts, tokens]
    read_number(source, tokenizer, "How many legs does a spider have?")

Models of transformers keep the texts in a cache (`ntloss.reading.torch_model`), servers are in
`ntloss.reading.served`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Text = tuple[int, tuple[int, ...]]
"""A text that continues a prompt: the prompt's row, and the tokens that are written after it."""
Prefix = tuple[int, ...] | str
LogProbs = Callable[[list[list[int]], list[int]], Any]
_LARGEST_SUM = 1.01  # of the probabilities of some tokens, with rounding


class Continuations(Protocol):
    """Prompts, one a row, and what may follow the texts that continue them."""

    device: torch.device
    counts: list[int]  # how often the model was called so far, and with how many rows

    def __len__(self) -> int: ...

    def next_tokens(self, texts: Sequence[Text], token_ids: Tensor) -> Tensor:
        """Return the log-probabilities of these tokens after each text, `[texts, tokens]`, float64.

        Before a text of several tokens, the text without its last one has been asked about. Equal texts are
        run once.
        """

    def likeliest(self, row: int) -> int | str | None:
        """Return the likeliest token after a prompt, or its text; None if it is unknown."""

    def select(self, rows: Tensor) -> Continuations:
        """Return some of the prompts."""


class Source(ABC):
    """What may follow a text: of a model of transformers, of a server, or of an engine in this process."""

    has_decoder = False  # whether a decoder of its own reads the answer, which is not after the prompt
    is_chat = False  # whether prompts are conversations, which a server writes as texts

    @abstractmethod
    def continuations(
        self, inputs: Any, texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Continuations:
        """Return prompts to be continued with tokens of these ids and texts, after the tokens of a prefix."""

    def for_images(self) -> Source:
        """Return what reads prompts with images."""
        return self


class Prefixes:
    """Prompts whose continuations a source is asked about as whole prefixes."""

    device = torch.device("cpu")

    def __init__(self, source: Any, prompts: Sequence[Prefix]) -> None:
        self.source, self.prompts, self.counts = source, [*prompts], [0, 0]

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, rows: Tensor) -> Prefixes:
        """Return some of the prompts, which are counted together."""
        chosen = copy.copy(self)
        chosen.prompts = [self.prompts[row] for row in rows.tolist()]
        return chosen

    def next_tokens(self, texts: Sequence[Text], token_ids: Tensor) -> Tensor:
        """Ask about tokens after each text, and about equal ones once."""
        prefixes = [self.longer(self.prompts[row], tokens) for row, tokens in texts]
        places = {prefix: i for i, prefix in enumerate(dict.fromkeys(prefixes))}
        return self.ask([*places], token_ids.tolist())[[places[prefix] for prefix in prefixes]]

    def likeliest(self, row: int) -> int | str | None:
        """Return the likeliest token after a prompt, or its text; None if it is unknown."""
        return None

    def longer(self, prefix: Prefix, token_ids: Sequence[int]) -> Prefix:
        """Return a prefix with further tokens."""
        return (*prefix, *token_ids)

    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int]) -> Tensor:
        """Return the log-probabilities of tokens after prefixes, `[prefixes, tokens]`, float64."""
        self.counts[0] += 1
        self.counts[1] += len(prefixes)
        found: Tensor = self.source.ask(prefixes, token_ids)
        return found


class FunctionSource(Source):
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
        return Prefixes(self, [(*prompt, *prefix_ids) for prompt in prompts])

    def ask(self, prefixes: Sequence[Prefix], token_ids: list[int]) -> Tensor:
        """Call the function, and check the form of its result."""
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
