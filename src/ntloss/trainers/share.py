"""What the plug-ins share: their options, and whether a loss sees numbers among the first labels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ntloss.callers import warn_caller
from ntloss.engine.targets import IGNORED
from ntloss.losses import NTLCrossEntropyLoss
from ntloss.numbers import NumberVocabulary

_BATCHES = 10  # after which the absence of numbers is a warning


def check_options(
    thousands: str | None = None, vocabulary: NumberVocabulary | str | None = None, **options: Any
) -> None:
    """Raise the errors of a loss with these options, long before a framework makes it for its model."""
    if thousands is not None and vocabulary is not None:
        raise ValueError(
            f"thousands={thousands!r}: omit it beside vocabulary, which has a separator of its own"
        )
    if isinstance(vocabulary, str):
        _function(vocabulary)
    if not isinstance(vocabulary, NumberVocabulary):
        digits = {digit: digit for digit in range(10)}
        vocabulary = NumberVocabulary.from_mapping(digits, 10, thousands=thousands)
    NTLCrossEntropyLoss(vocabulary, **options)


def given_vocabulary(given: NumberVocabulary | str | None, tokenizer: Any) -> NumberVocabulary | None:
    """Return the vocabulary that a user gave, for configuration files as `"module:function"`.

    The function gets the tokenizer and returns its vocabulary.
    """
    return _function(given)(tokenizer) if isinstance(given, str) else given


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"vocabulary={name!r}: expected 'module:function', a function of the tokenizer")
    return getattr(import_module(module), attribute)


def progress_of(state: Any) -> float:
    """Return the share of a trainer's steps that are done, 0 before the number of steps is known."""
    return float(state.global_step / state.max_steps) if state.max_steps > 0 else 0.0


class NumberLabelsMissingWarning(UserWarning):
    """The labels that were looked at first hold no number tokens, or no number of a field."""


def number_share(labels: Tensor, vocabulary: NumberVocabulary) -> float:
    """Return the share of number tokens among the labels that count, 0 if there are none."""
    kept = labels[labels != IGNORED]
    ids = torch.tensor(vocabulary.token_ids, device=kept.device)
    return float(torch.isin(kept, ids).sum()) / max(len(kept), 1)


def warn_without_numbers(what: str) -> None:
    """Warn that labels hold no number tokens; `what` names the labels."""
    warn_caller(
        f"none of {what} is a number token, so the number term is 0: inspect_tokenizer(tokenizer) shows how "
        "numbers are written. If they are written in other tokens, pass vocabulary="
        "NumberVocabulary.from_tokenizer(tokenizer, ...).",
        NumberLabelsMissingWarning,
    )


class FirstBatches:
    """Looks at the labels of the first batches, for a loss that knows no data set."""

    def __init__(self) -> None:
        self._left: int | None = _BATCHES  # None when numbers were found, or their absence was said

    def look(self, labels: Tensor, vocabulary: NumberVocabulary) -> float | None:
        """Return the share of the first batch with numbers, else None; warn if ten batches have none."""
        if self._left is None:
            return None
        self._left -= 1
        if share := number_share(labels, vocabulary):
            self._left = None
            return share
        if not self._left:
            self._left = None
            warn_without_numbers(f"the labels of the first {_BATCHES} batches")
        return None
