"""How a model writes padded answers: as texts of one length, of the numbers or of their logarithms.

The format of padded answers is stored in `config.ntl`, so that it is saved with the model.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ntl.data import format_number
from ntl.encodings.digits import TextEncoding
from ntl.errors import UserError
from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat, parse_number
from ntloss.regression import AnswerFormat

ENTRY = "answer_width"  # of `config.ntl`: the arguments of the number format, and whether answers are whole
PLAIN_SAMPLES = ("7", "-7", "12", "0.5")


class WrittenAnswers:
    """Writes padded answers in the format that a model is trained with, and reads the model's answers back.

    Args:
        model: The model, whose `config.ntl` holds the format.
        tokenizer: Its tokenizer.
        vocabulary: The number tokens.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vocabulary: NumberVocabulary
    ):
        self._config, self._tokenizer, self._vocabulary = model.config, tokenizer, vocabulary
        self._is_log = model.config.ntl["number_scale"] == "log"
        self._digits = model.config.ntl.get("number_digits")

    @cached_property
    def form(self) -> AnswerFormat:
        """The format."""
        if ENTRY not in self._config.ntl:
            raise UserError(
                "this model has no number format: it is taken from the training answers; expected a model "
                "trained with model_args.number_format=padded. Train it first, or choose another one."
            )
        *numbers, whole = self._config.ntl[ENTRY]
        return AnswerFormat(NumberFormat(*numbers), self._is_log, whole)

    @cached_property
    def mask(self) -> "FormatMask":
        """What keeps answers in the format."""
        return FormatMask(self.form.numbers, self._tokenizer, self._vocabulary)

    def fit(self, answers: Sequence[str]) -> None:
        """Choose the format of training answers, or check that that of an earlier run fits them."""
        try:
            if ENTRY not in self._config.ntl:
                # A new dictionary, because copies of the configuration share the old one.
                self._config.ntl = {**self._config.ntl, ENTRY: self._choose(answers)}
            for answer in answers:
                self._write(answer)
            self.mask  # noqa: B018, an error if the tokenizer cannot write the format
        except ValueError as error:
            raise UserError(
                f"number_format=padded does not fit the training answers: {error}. Pass "
                "model_args.number_format=plain."
            ) from error

    def _choose(self, answers: Sequence[str]) -> list[Any]:
        """Choose the format of training answers, as the entry of `config.ntl`."""
        texts, whole = answers, all("." not in answer for answer in answers)
        if self._is_log or self._digits is not None:
            numbers = np.array([self._number(answer) for answer in answers])
            rounded = AnswerFormat.choose(numbers, "log" if self._is_log else "plain", self._digits or 3)
            texts = rounded.write(numbers)
        found = NumberFormat.of(texts)
        return [found.digits, found.decimals, found.signed, whole]

    def _number(self, answer: str) -> float:
        """Return an answer, which has a logarithm if logarithms are written."""
        number = parse_number(answer, "whole")
        if number is None or (self._is_log and number <= 0):
            raise ValueError(f"{answer[:80]!r} is not a single number{' above 0' * self._is_log}")
        return number

    def _write(self, answer: str) -> str:
        """Write an answer in the format: with all of its digits, rounded, or as a logarithm."""
        if self._is_log or self._digits is not None:
            return self.form.write([self._number(answer)])[0]
        return self.form.numbers.write(answer)

    def write(self, answer: str) -> str | None:
        """Write an answer in the format; None if it does not fit, as one of a test set may."""
        try:
            return self._write(answer)
        except ValueError:
            return None

    def read(self, texts: Sequence[str]) -> list[str]:
        """Convert a model's answers to plain text."""
        numbers: list[Any] = [self.form.numbers.read(text.strip()) for text in texts]
        if self._is_log:
            numbers = self.form.unscaled(np.array(numbers, dtype=float)).tolist()
        return [*map(format_number, numbers)]


def start_ids(tokenizer: PreTrainedTokenizerFast, numbers: NumberFormat | None) -> list[int]:
    """Return the token without text that numbers start with, such as T5's `▁`, or nothing."""
    samples = PLAIN_SAMPLES if numbers is None else sample_numbers(numbers)
    encoding = TextEncoding(tokenizer)
    starts = [row[0] for row in encoding.encode(samples, special_tokens=False)]
    empty = [token for token in starts if not encoding.decode([[token]])[0]]
    if empty and {*starts} != {empty[0]}:
        raise UserError(
            f"the tokenizer starts the numbers {', '.join(samples)} with "
            f"{tokenizer.convert_ids_to_tokens(starts)}, so quantiles cannot be read; expected one token for "
            "all. Use another tokenizer, or pass evaluation.read=[greedy]."
        )
    return empty[:1]


class FormatMask:
    """Masks the logits of `generate` to tokens that continue a number in a format of fixed width.

    The end token may follow only the complete number.

    Raises:
        ValueError: The tokenizer writes such numbers with other tokens than those of the vocabulary.
    """

    def __init__(
        self, number_format: NumberFormat, tokenizer: PreTrainedTokenizerFast, vocabulary: NumberVocabulary
    ):
        self.longest = len(number_format.slots) + 2
        """The largest number of tokens of an answer, with the space that T5 starts with and the end token."""
        allowed, self._lengths = number_format.masks(vocabulary)
        # A row for what may follow each number of characters: for the whole number, the end.
        self._allowed = torch.cat([allowed, torch.zeros_like(allowed[:1])])
        self._end = tokenizer.eos_token_id
        self._allowed[-1, self._end] = True
        encoding, samples = TextEncoding(tokenizer), sample_numbers(number_format)
        rows = encoding.encode(samples, special_tokens=False)
        # An answer may start with a token without text, such as T5's `▁`, if the tokenizer writes it so.
        self._first = self._allowed[:1].clone()
        self._first[:, [row[0] for row in rows if not encoding.decode([row[:1]])[0]]] = True
        for text, row in zip(samples, rows, strict=True):
            written = [*row, self._end]
            before = (torch.tensor([written[:i]], dtype=torch.long) for i in range(len(written)))
            if not all(self.rows(ids)[0, token] for ids, token in zip(before, written, strict=True)):
                raise ValueError(
                    f"the tokenizer encodes {text!r} as {tokenizer.convert_ids_to_tokens(row)}; expected "
                    "tokens that spell it, one for each digit, sign and point, or another tokenizer"
                )

    def rows(self, tokens: Tensor) -> Tensor:
        """Return whether each token may follow each partial answer `[batch, seq]`, `[batch, vocab]`."""
        if tokens.device != self._allowed.device:  # once, on the first step on an accelerator
            tables = (self._allowed, self._first, self._lengths)
            self._allowed, self._first, self._lengths = (table.to(tokens.device) for table in tables)
        if tokens.shape[1] == 0:
            return self._first.expand(len(tokens), -1)
        return self._allowed[self._lengths[tokens].sum(-1).clamp(max=len(self._allowed) - 1)]

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Mask the scores `[batch, vocab]` of what follows partial answers `[batch, seq]`."""
        allowed = self.rows(tokens)
        # A model that has diverged gives NaN, which beam search would follow out of the format.
        masked = scores.nan_to_num().masked_fill(~allowed, -math.inf)
        # Beams are not ranked by the end, which is certain, and which decoders have not learned.
        masked[:, self._end] = masked[:, self._end].where(~allowed[:, self._end], 0)
        return masked


def sample_numbers(number_format: NumberFormat) -> list[str]:
    """Return numbers of fixed width that together have each of its characters at each position."""
    return ["".join(sorted(slot)[i % len(slot)] for slot in number_format.slots) for i in range(10)]
