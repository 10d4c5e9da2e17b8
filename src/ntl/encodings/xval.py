"""xVal's numbers: each is one `[NUM]` token, and its value goes beside the tokens.

A number is ASCII digits, perhaps with a point between them, and a minus sign in front that follows neither a
letter, a digit, a closing bracket, a percent sign nor a point (`-3` and `2 * -3` hold -3, `5-3` holds 5 and
3). What float64 cannot hold as finite keeps its plain digits.

Values come back in the shortest way to write them. That is lossy: leading zeros (007), trailing zeros of
decimals (1.50) and digits beyond the 17th are gone.

Source: Golkar et al. 2023.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ntl.encodings.spelling import Marked, Speller

NUM = "[NUM]"
LARGEST = 1e30  # magnitudes beyond are embedded and written as this: float32 ends at 3e38
_NUMBER = re.compile(r"(?:(?<![\w)\]%.])-)?[0-9]+(?:\.[0-9]+)?")
_EMBEDDED_AS_TEN = 3e9


class XvalEncoding:
    """Texts whose numbers are one token and a value.

    Args:
        tokenizer: One that splits digits; `[NUM]` is added to it, unless it has it already.

    Raises:
        UserError: It has no tokens for a decimal point, a sign or a space.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self._speller = Speller(tokenizer, [NUM])
        (self.number_id,) = self._speller.added_ids

    def encode(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[float]]]:
        """Turn texts into token ids and values.

        Args:
            texts: Any.

        Returns:
            ids: One list per text.
            values: Lists of the same lengths, with the value at each `[NUM]` and 0 elsewhere.

        Raises:
            UserError: A text holds `[NUM]` itself.
        """
        found: list[list[float]] = []

        def mark(text: str) -> Marked:
            marked, values = self._mark(text)
            found.append(values)
            return marked

        rows = self._speller.encode(texts, mark)
        values = []
        for row, numbers in zip(rows, found, strict=True):
            following = iter(numbers)
            values.append([next(following) if token == self.number_id else 0.0 for token in row])
        return rows, values

    def decode(self, rows: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> list[str]:
        """Turn token ids and values into texts.

        Args:
            rows: One list of ids per text.
            values: Of the same lengths; those at `[NUM]` are written.

        Returns:
            The texts.
        """
        # The speller sees the ids alone: the values come in the same order.
        ordered = (
            v
            for row, of in zip(rows, values, strict=True)
            for i, v in zip(row, of, strict=True)
            if i == self.number_id
        )

        def spell(row: Sequence[int]) -> Iterator[int | str]:
            before = None
            for token in row:
                if token != self.number_id:
                    yield token
                elif before == self.number_id:  # two numbers, not one; no text is encoded so
                    yield " " + format_number(next(ordered))
                else:
                    yield format_number(next(ordered))
                before = token

        return self._speller.decode(rows, spell)

    def _mark(self, text: str) -> tuple[Marked, list[float]]:
        tokens: list[int | None] = []
        values: list[float] = []

        def one_digit(match: re.Match[str]) -> str:
            value = float(match[0])
            if math.isinf(value):
                tokens.extend(None for c in match[0] if c.isdigit())
                return match[0]
            tokens.append(self.number_id)
            values.append(value)
            return "0"

        return Marked(_NUMBER.sub(one_digit, text), tokens), values


def find_values(text: str) -> list[float]:
    """The values that a text would have beside its tokens; its digits must be ASCII.

    Example:
        >>> find_values("5-3 = 2.50, not -2")
        [5.0, 3.0, 2.5, -2.0]
    """
    return [value for number in _NUMBER.findall(text) if math.isfinite(value := float(number))]


def format_number(value: float) -> str:
    """Write a number in the shortest way that is exact in its precision, without an exponent.

    Args:
        value: Finite; a numpy float32 is as exact as that.

    Returns:
        The text.

    Example:
        >>> format_number(42.0), format_number(-0.1), format_number(1e20)
        ('42', '-0.1', '100000000000000000000')
    """
    return np.format_float_positional(value, trim="-")


def embedding_scale(values: Tensor, log_scale: bool) -> Tensor:
    """What the embedding of `[NUM]` is multiplied with.

    Args:
        values: Of any shape, float64.
        log_scale: Whether it is sign(v)·log10(|v| + 1), scaled so that 3·10⁹ becomes 10 (0 vanishes); else it
            is v + 1 (-1 vanishes).

    Returns:
        The same shape.
    """
    values = values.clamp(-LARGEST, LARGEST)
    if log_scale:
        return values.sign() * torch.log10(values.abs() + 1) / (math.log10(_EMBEDDED_AS_TEN) / 10)
    return values + 1
