"""The options of the plug-ins for other trainers: one list, and the loss or the trainer that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from ntloss.losses import NTLCrossEntropyLoss
from ntloss.numbers import NumberVocabulary
from ntloss.trainers.number_aware import make_number_aware

PREFIX = "ntl_"  # of options among the keys of a trainer's own configuration


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a number-aware loss in a plug-in, with the meanings and defaults of `make_number_aware`.

    `vocabulary` may also be `"module:function"`, a function that makes it from the tokenizer; `chunked` has
    no effect in plug-ins that get no `Trainer`. An invalid option is an error before a model is loaded.
    """

    criterion: Any = "ntl_was"
    weight: float | None = None
    mode: Any = None
    label_smoothing: float = 0.0
    thousands: str | None = None
    vocabulary: Any = None
    chunked: bool | None = None

    def __post_init__(self) -> None:
        if self.thousands is not None and self.vocabulary is not None:
            raise ValueError(f"thousands={self.thousands!r}: omit it beside a vocabulary, which has its own")
        self.loss()

    @classmethod
    def of_keys(cls, configuration: Mapping[str, Any]) -> Options:
        """Return the options among a configuration's keys, `ntl_weight` and so on; None is the default."""
        given = {key: value for key, value in configuration.items() if value is not None}
        return cls(**{key.removeprefix(PREFIX): given[key] for key in given if key.startswith(PREFIX)})

    def apply(self, trainer: Any) -> Any:
        """Make a trainer of transformers number-aware, and return it."""
        make_number_aware(trainer, **vars(self) | {"vocabulary": self._numbers(trainer.processing_class)})
        return trainer

    def loss(self, tokenizer: Any = None, vocab_size: int | None = None, **given: Any) -> NTLCrossEntropyLoss:
        """Make a loss of logits of this width; without a tokenizer, one on digits, to check the options."""
        numbers = self._numbers(tokenizer)
        if numbers is None and tokenizer is None:
            numbers = NumberVocabulary.from_mapping({d: d for d in range(10)}, 10, thousands=self.thousands)
        elif numbers is None:
            numbers = NumberVocabulary.from_tokenizer(tokenizer, None, vocab_size, thousands=self.thousands)
        given |= {"mode": self.mode, "label_smoothing": self.label_smoothing}
        return NTLCrossEntropyLoss(numbers, self.criterion, self.weight, **given)

    def _numbers(self, tokenizer: Any) -> Any:
        if not isinstance(self.vocabulary, str):
            return self.vocabulary
        make = resolve_name(self.vocabulary)
        return None if tokenizer is None else make(tokenizer)
