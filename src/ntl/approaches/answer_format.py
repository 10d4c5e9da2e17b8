"""How an approach writes answers as text: plainly, or padded to one length.

The format of padded answers is stored in `config.ntl`, so that it is saved with the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ntl.encodings.digits import TextEncoding
from ntl.encodings.format_mask import FormatMask, sample_numbers
from ntl.encodings.number_format import NumberFormat
from ntl.errors import UserError

# Entries of `config.ntl` that hold the format of padded answers.
FORMAT_KEYS = ("number_width", "number_places", "number_signed")
# Relative precision at which the search for quantiles of plain answers stops, unless it runs out of rows
# first.
PLAIN_PRECISION = 0.01
PLAIN_ROWS = 256  # rows of forward passes that the search may take for each question
PLAIN_SAMPLES = ("7", "-7", "12", "0.5")


class AnswerFormat:
    """Writes answers in the format that a model is trained with, and reads the model's answers back.

    Args:
        model: A model whose `config.ntl` has `number_format`.
        tokenizer: The tokenizer of the answers.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast):
        self._config = model.config
        self._tokenizer = tokenizer
        self._mask: FormatMask | None = None

    @property
    def number_format(self) -> NumberFormat | None:
        """The format of padded answers, or None if answers are plain.

        Raises:
            UserError: Answers are padded, but `fit` was not called yet.
        """
        ntl = self._config.ntl
        if ntl["number_format"] == "plain":
            return None
        if "number_signed" not in ntl:
            raise UserError(
                "this model has no number format: it is taken from the training answers; expected a model "
                "trained with model_args.number_format=padded. Train it first, or choose another one."
            )
        return NumberFormat(*(ntl[key] for key in FORMAT_KEYS))

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the format of padded answers, or check that a format from an earlier run fits them.

        Args:
            answers: The training answers. They are not read if answers are plain.

        Raises:
            UserError: An answer is not a single number or does not fit, or the tokenizer cannot write the
                format.
        """
        ntl = self._config.ntl
        if ntl["number_format"] == "plain":
            return
        if "number_signed" in ntl:
            number_format = NumberFormat(*(ntl[key] for key in FORMAT_KEYS))
            for answer in answers:
                number_format.write(answer)
        else:
            found = NumberFormat.of_answers(answers, ntl.get("number_width"), ntl.get("number_places"))
            fitted = zip(FORMAT_KEYS, (found.width, found.decimals, found.signed), strict=True)
            # A new dictionary, because copies of the configuration share the old one.
            self._config.ntl = {**ntl, **dict(fitted)}
        self.mask()

    def write(self, answers: Sequence[str]) -> list[str]:
        """Write answers for labels. Answers that do not fit the format are left as they are.

        Training answers all fit, because `fit` checks them.

        Raises:
            UserError: Answers are padded, but `fit` was not called.
        """
        number_format = self.number_format
        if number_format is None:
            return list(answers)
        return [number_format.write(a) if number_format.fits(a) else a for a in answers]

    def read(self, texts: Sequence[str]) -> list[str]:
        """Convert a model's answers to plain text.

        Raises:
            UserError: Answers are padded, but `fit` was not called.
            ValueError: A text is not in the format.
        """
        number_format = self.number_format
        return list(texts) if number_format is None else [number_format.read(text) for text in texts]

    def mask(self) -> FormatMask | None:
        """Return the tokens that padded answers may have, or None if answers are plain.

        Raises:
            UserError: Answers are padded, but `fit` was not called; or the tokenizer cannot write the format.
        """
        if (number_format := self.number_format) is None:
            return None
        if self._mask is None or self._mask.format != number_format:
            digits = self._config.ntl["encoding"] == "digits"
            self._mask = FormatMask(number_format, self._tokenizer, self._config.vocab_size, digits)
        return self._mask

    def quantile_options(self) -> dict[str, Any]:
        """Return the arguments of `number_quantiles` for answers in this format.

        Raises:
            UserError: Answers are padded, but `fit` was not called; or some numbers start with a token
                without text and others do not.
        """
        number_format = self.number_format
        options: dict[str, Any] = {"eos_token_id": self._tokenizer.eos_token_id}
        if number_format is None:
            samples: Sequence[str] = PLAIN_SAMPLES
            options |= {"rtol": PLAIN_PRECISION, "max_rows": PLAIN_ROWS}
        else:
            samples = sample_numbers(number_format)
            options |= {"digits": number_format.width, "decimals": number_format.decimals}
            options |= {"signed": number_format.signed}
        return {**options, "prefix_ids": self._start_ids(samples)}

    def _start_ids(self, samples: Sequence[str]) -> list[int]:
        """Return the token without text that numbers start with, such as T5's `▁`, or nothing.

        Raises:
            UserError: Some numbers start with such a token and others do not.
        """
        encoding = TextEncoding(self._tokenizer)
        rows = encoding.encode(samples, special_tokens=False)
        starts = {row[0]: text for row, text in zip(rows, samples, strict=True)}
        empty = [token for token in starts if not encoding.decode([[token]])[0]]
        if empty and len(starts) > 1:
            first, other = empty[0], next(token for token in starts if token != empty[0])
            raise UserError(
                f"the tokenizer starts {starts[first]} with {self._tokenizer.convert_ids_to_tokens(first)!r} "
                f"and {starts[other]} with {self._tokenizer.convert_ids_to_tokens(other)!r}, so quantiles "
                "cannot be read; expected every number to start with the same token. Use another tokenizer, "
                "or pass evaluation.read=[greedy]."
            )
        return empty
