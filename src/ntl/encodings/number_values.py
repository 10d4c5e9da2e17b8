"""xVal's encoding: among the tokens of a text, each number stands as its value, a float.

A number consists of ASCII digits, optionally with a decimal point between them. A minus sign belongs to the
number unless it follows a letter, a digit, a closing bracket, a percent sign or a point: `-3` and `2 * -3`
contain -3, but `5-3` contains 5 and 3. Numbers that overflow float64 keep their plain digits.

Decoding writes each value in its shortest form. This is lossy: leading zeros (007), trailing zeros of
decimals (1.50) and digits beyond the 17th are lost.

Source: Golkar et al. 2023.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ntl.data import format_number
from ntl.encodings.spelling import PLAIN, SpelledEncoding

NUM = "[NUM]"
LARGEST = 1e30  # larger magnitudes are clipped to this, because float32 overflows at 3e38
_NUMBER = re.compile(rf"(?:(?<![\w)\]%.])-)?{PLAIN.pattern}")
_EMBEDDED_AS_TEN = 3e9


class XvalEncoding(SpelledEncoding):
    """Encodes each number in a text as its value, for which a model reads and writes the token `[NUM]`.

    Args:
        tokenizer: See `SpelledEncoding`. `[NUM]` is added to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        super().__init__(tokenizer, [NUM])
        (self.number_id,) = self.added_ids

    def mark(self, text: str) -> tuple[str, list[Any]]:
        """Rewrite each number as one digit, except those that overflow float64."""
        values: list[float | None] = []

        def one_digit(match: re.Match[str]) -> str:
            value = float(match[0])
            if math.isinf(value):
                values.extend(None for c in match[0] if c.isdigit())
                return match[0]
            values.append(value)
            return "0"

        return _NUMBER.sub(one_digit, text), values

    def spell(self, row: Sequence[Any]) -> Iterator[int | str]:
        """Write the values."""
        before: Any = 0
        for each in row:
            space = "" if isinstance(before, int) else " "  # only a model writes two adjacent numbers
            yield each if isinstance(each, int) else space + format_number(each)
            before = each


def find_values(text: str) -> list[float]:
    """Return the values of the numbers in a text, as `XvalEncoding` encodes them; digits must be ASCII.

    Example:
        >>> find_values("5-3 = 2.50, not -2")
        [5.0, 3.0, 2.5, -2.0]
    """
    return [value for number in _NUMBER.findall(text) if math.isfinite(value := float(number))]


def embedding_scale(values: Tensor, log_scale: bool) -> Tensor:
    """Compute the factors that multiply the embedding of `[NUM]`.

    Args:
        values: Values of any shape, float64.
        log_scale: Whether a factor is sign(v)·log10(|v| + 1), scaled so that 3·10⁹ becomes 10 (0 gives a zero
            embedding). Otherwise it is v + 1 (-1 gives a zero embedding).

    Returns:
        A tensor of the same shape.
    """
    values = values.clamp(-LARGEST, LARGEST)
    if log_scale:
        return values.sign() * torch.log10(values.abs() + 1) / (math.log10(_EMBEDDED_AS_TEN) / 10)
    return values + 1
