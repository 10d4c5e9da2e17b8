"""How a model writes answers as text: plainly, or padded to one length, as they are or their logarithms.

The format of padded answers is stored in `config.ntl`, so that it is saved with the model.
"""

import math
from collections.abc import Iterable, Sequence
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
    """Writes answers in the format that a model is trained with, and reads the model's answers back."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vocabulary: NumberVocabulary
    ):
        self._config = model.config
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._mask: FormatProcessor | None = None

    @property
    def form(self) -> AnswerFormat | None:
        """The format of padded answers, or None if answers are plain."""
        ntl = self._config.ntl
        if ntl["number_format"] == "plain":
            return None
        if ENTRY not in ntl:
            raise UserError(
                "this model has no number format: it is taken from the training answers; expected a model "
                "trained with model_args.number_format=padded. Train it first, or choose another one."
            )
        *numbers, whole = ntl[ENTRY]
        return AnswerFormat(NumberFormat(*numbers), self._is_log, whole)

    @property
    def _is_log(self) -> bool:
        return bool(self._config.ntl.get("number_scale") == "log")

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the format of padded training answers, or check that that of an earlier run fits them."""
        ntl, answers = self._config.ntl, [*answers]
        if ntl["number_format"] == "plain":
            return
        try:
            if ENTRY not in ntl:
                # New dictionaries, because copies of the configuration share the old one.
                self._config.ntl = {**ntl, ENTRY: self._choose(answers)}
            elif (form := self.form) is not None:
                for answer in answers:
                    form.numbers.write(self._scaled(answer, form.numbers.decimals))
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

    def write(self, answers: Sequence[str]) -> list[str]:
        """Write answers for labels. Those of test sets that do not fit the format are left as they are."""
        if self.form is None:
            return [*answers]
        return [self._written(answer) or answer for answer in answers]

    def fits(self, answer: str) -> bool:
        """Return whether the format can write an answer, rounded."""
        return self.form is None or self._written(answer) is not None

    def _written(self, answer: str) -> str | None:
        """Write an answer in the format; None if there is none, or the answer does not fit."""
        if (form := self.form) is None:
            return None
        try:
            return form.numbers.write(self._scaled(answer, form.numbers.decimals))
        except (ValueError, UserError):
            return None

    def read(self, texts: Sequence[str]) -> list[str]:
        """Convert a model's answers to plain text."""
        if (form := self.form) is None:
            return [*texts]
        numbers: list[Any] = [form.numbers.read(text.strip()) for text in texts]
        if form.log:
            numbers = form.unscaled(np.array(numbers, dtype=float)).tolist()
        return [*map(format_number, numbers)]

    def unscaled(self, numbers: Tensor) -> Tensor:
        """Return the answers that written numbers stand for."""
        if (form := self.form) is None or not form.log:
            return numbers
        return torch.from_numpy(form.unscaled(numbers.cpu().numpy())).to(numbers)

    def processor(self, prompt_length: int) -> "FormatProcessor | None":
        """Make the logits processor that keeps answers in the format, after a prompt of so many tokens."""
        if (form := self.form) is None:
            return None
        if self._mask is None or self._mask.format != form.numbers:
            self._mask = FormatProcessor(form.numbers, self._tokenizer, self._vocabulary)
        self._mask.prompt_length = prompt_length
        return self._mask

    def quantile_options(self) -> dict[str, Any]:
        """Return the arguments of `number_quantiles` for answers in this format."""
        numbers = None if (form := self.form) is None else form.numbers
        samples = PLAIN_SAMPLES if numbers is None else sample_numbers(numbers)
        # The same walks in every evaluation.
        generator = torch.Generator().manual_seed(0)
        return {"format": numbers, "prefix_ids": self._start_ids(samples), "generator": generator}

    def _start_ids(self, samples: Sequence[str]) -> list[int]:
        """Return the token without text that numbers start with, such as T5's `▁`, or nothing."""
        encoding = TextEncoding(self._tokenizer)
        starts = [row[0] for row in encoding.encode(samples, special_tokens=False)]
        empty = [token for token in starts if not encoding.decode([[token]])[0]]
        if empty and {*starts} != {empty[0]}:
            raise UserError(
                f"the tokenizer starts the numbers {', '.join(samples)} with "
                f"{self._tokenizer.convert_ids_to_tokens(starts)}, so quantiles cannot be read; expected one "
                "token for all. Use another tokenizer, or pass evaluation.read=[greedy]."
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
