"""How a model writes padded answers: as texts of one length, of the numbers or of their logarithms.

The format of padded answers is stored in `config.ntl`, so that it is saved with the model.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
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
        self._is_log = model.config.ntl.get("number_scale") == "log"
        self._mask: FormatProcessor | None = None

    @property
    def form(self) -> AnswerFormat:
        """The format."""
        if ENTRY not in self._config.ntl:
            raise UserError(
                "this model has no number format: it is taken from the training answers; expected a model "
                "trained with model_args.number_format=padded. Train it first, or choose another one."
            )
        *numbers, whole = self._config.ntl[ENTRY]
        return AnswerFormat(NumberFormat(*numbers), self._is_log, whole)

    def fit(self, answers: Sequence[str]) -> None:
        """Choose the format of training answers, or check that that of an earlier run fits them."""
        try:
            if ENTRY in self._config.ntl:
                numbers = self.form.numbers
                for answer in answers:
                    numbers.write(self._scaled(answer, numbers.decimals))
            else:
                # New dictionaries, because copies of the configuration share the old one.
                self._config.ntl = {**self._config.ntl, ENTRY: self._choose(answers)}
        except ValueError as error:
            raise UserError(
                f"number_format=padded does not fit the training answers: {error}. Pass "
                "model_args.number_format=plain."
            ) from error
        self.processor(0)

    def _choose(self, answers: Sequence[str]) -> list[Any]:
        """Choose the format of training answers, as the entry of `config.ntl`."""
        digits, texts = self._config.ntl.get("number_digits"), answers
        if self._is_log or digits is not None:
            numbers = np.array([self._number(answer) for answer in answers])
            scale = "log" if self._is_log else "plain"
            places = AnswerFormat.choose(numbers, scale, digits or 3).numbers.decimals
            texts = [self._scaled(answer, places) for answer in answers]
        found = NumberFormat.of(texts)
        return [found.digits, found.decimals, found.signed, all("." not in answer for answer in answers)]

    def _number(self, answer: str) -> float:
        """Return an answer, which has a logarithm if logarithms are written."""
        number = parse_number(answer, "whole")
        if number is None:
            raise ValueError(f"{answer[:80]!r} is not a single number")
        if self._is_log and number <= 0:
            raise UserError(
                f"model_args.number_scale=log: the answer {answer} has no logarithm; expected numbers above "
                "0. Omit it (and scale=log)."
            )
        return number

    def _scaled(self, answer: str, decimals: int) -> str:
        """Return the number that is written: with the digits that are kept, or as a logarithm."""
        if self._is_log:
            return f"{math.log10(self._number(answer)):.{decimals}f}"
        if self._config.ntl.get("number_digits") is None or parse_number(answer, "whole") is None:
            return answer
        return f"{Decimal(answer):.{decimals}f}"

    def write(self, answer: str) -> str | None:
        """Write an answer in the format; None if it does not fit, as one of a test set may."""
        numbers = self.form.numbers
        try:
            return numbers.write(self._scaled(answer, numbers.decimals))
        except (ValueError, UserError):
            return None

    def read(self, texts: Sequence[str]) -> list[str]:
        """Convert a model's answers to plain text."""
        form = self.form
        numbers: list[Any] = [form.numbers.read(text.strip()) for text in texts]
        if form.log:
            numbers = form.unscaled(np.array(numbers, dtype=float)).tolist()
        return [*map(format_number, numbers)]

    def unscaled(self, numbers: Tensor) -> Tensor:
        """Return the answers that written numbers stand for."""
        if not self._is_log:
            return numbers
        return torch.from_numpy(self.form.unscaled(numbers.cpu().numpy())).to(numbers)

    def processor(self, prompt_length: int) -> "FormatProcessor":
        """Make the logits processor that keeps answers in the format, after a prompt of so many tokens."""
        numbers = self.form.numbers
        if self._mask is None or self._mask.format != numbers:
            self._mask = FormatProcessor(numbers, self._tokenizer, self._vocabulary)
        self._mask.prompt_length = prompt_length
        return self._mask


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


class FormatProcessor:
    """Masks the logits of `generate` to tokens that continue a number in a format of fixed width.

    The end token may follow only the complete number.
    """

    def __init__(
        self, number_format: NumberFormat, tokenizer: PreTrainedTokenizerFast, vocabulary: NumberVocabulary
    ):
        self.format, self.prompt_length = number_format, 0
        self.longest = len(number_format.slots) + 2
        """The largest number of tokens of an answer, with the space that T5 starts with and the end token."""
        encoding, samples = TextEncoding(tokenizer), sample_numbers(number_format)
        rows = encoding.encode(samples, special_tokens=False)
        try:
            allowed, self._lengths = number_format.masks(vocabulary)
        except ValueError as error:
            raise _cannot_write(tokenizer, samples[0], rows[0]) from error
        # A row for what may follow each number of characters: for the whole number, the end.
        self._allowed = torch.cat([allowed, torch.zeros_like(allowed[:1])])
        self._end = tokenizer.eos_token_id
        self._allowed[-1, self._end] = True
        # An answer may start with a token without text, such as T5's `▁`, if the tokenizer writes it so.
        self._first = self._allowed[:1].clone()
        self._first[:, [row[0] for row in rows if not encoding.decode([row[:1]])[0]]] = True
        for text, row in zip(samples, rows, strict=True):
            steps = [self.rows(torch.tensor([row[:i]], dtype=torch.long))[0] for i in range(len(row) + 1)]
            written = all(bool(step[i]) for step, i in zip(steps, row, strict=False))
            if not written or steps[-1].sum() != 1 or encoding.decode([row]) != [text]:
                raise _cannot_write(tokenizer, text, row)

    def rows(self, tokens: Tensor) -> Tensor:
        """Return whether each token may follow each partial answer `[batch, seq]`, `[batch, vocab]`."""
        if tokens.device != self._allowed.device:  # once, on the first step on an accelerator
            tables = (self._allowed, self._first, self._lengths)
            self._allowed, self._first, self._lengths = (table.to(tokens.device) for table in tables)
        if tokens.shape[1] == 0:
            return self._first.expand(len(tokens), -1)
        return self._allowed[self._lengths[tokens].sum(-1).clamp(max=len(self._allowed) - 1)]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the scores, `[batch, vocab]`."""
        allowed = self.rows(input_ids[:, self.prompt_length :])
        # A model that has diverged gives NaN, which beam search would follow out of the format.
        masked = scores.nan_to_num().masked_fill(~allowed, -math.inf)
        # Beams are not ranked by the end, which is certain, and which decoders have not learned.
        masked[:, self._end] = masked[:, self._end].where(~allowed[:, self._end], 0)
        return masked


def sample_numbers(number_format: NumberFormat) -> list[str]:
    """Return numbers of fixed width that together have each of its characters at each position."""
    return ["".join(sorted(slot)[i % len(slot)] for slot in number_format.slots) for i in range(10)]


def _cannot_write(tokenizer: PreTrainedTokenizerFast, text: str, ids: list[int]) -> UserError:
    return UserError(
        f"the tokenizer encodes {text!r} as {tokenizer.convert_ids_to_tokens(ids)}, and its tokens do not "
        "spell it; expected tokens for the digits, the signs and the point. Use another tokenizer, or pass "
        "model_args.number_format=plain."
    )
