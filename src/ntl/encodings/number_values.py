"""xVal's encoding: each number is one `[NUM]` token, and its value is stored next to the tokens.

A number consists of ASCII digits, optionally with a decimal point between them. A minus sign belongs to the
number unless it follows a letter, a digit, a closing bracket, a percent sign or a point: `-3` and `2 * -3`
contain -3, but `5-3` contains 5 and 3. Numbers that overflow float64 keep their plain digits.

Decoding writes each value in its shortest form. This is lossy: leading zeros (007), trailing zeros of
decimals (1.50) and digits beyond the 17th are lost.

Source: Golkar et al. 2023.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ntl.data import format_number
from ntl.encodings.spelling import PLAIN, Marked, SpelledEncoding

NUM = "[NUM]"
LARGEST = 1e30  # larger magnitudes are clipped to this, because float32 overflows at 3e38
_NUMBER = re.compile(rf"(?:(?<![\w)\]%.])-)?{PLAIN.pattern}")
_EMBEDDED_AS_TEN = 3e9


class XvalEncoding(SpelledEncoding):
    """Encodes each number in a text as one token and a value.

    Args:
        tokenizer: See `SpelledEncoding`. `[NUM]` is added to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        super().__init__(tokenizer, [NUM])
        (self.number_id,) = self.added_ids

    def encode(
        self, texts: Sequence[str], special_tokens: bool = True
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Turn texts into token ids, by default with special tokens such as the end token, and values.

        Returns:
            ids: One list per text.
            values: Lists of the same lengths, with the value at each `[NUM]` and 0 elsewhere.
        """
        rows, marked = self.encode_marked(texts, special_tokens)
        values = []
        for row, (*_, numbers) in zip(rows, marked, strict=True):
            following = iter(numbers)
            values.append([next(following) if token == self.number_id else 0.0 for token in row])
        return rows, values

    def decode(self, rows: Sequence[Sequence[int]], values: Iterable[Iterable[float]]) -> list[str]:
        """Turn token ids and the values at `[NUM]`, in lists of the same lengths, into texts."""
        return self.decode_spelled(map(self._spell, rows, values))

    def _spell(self, row: Sequence[int], values: Iterable[float]) -> Iterator[int | str]:
        before = None
        for token, value in zip(row, values, strict=True):
            space = " " if before == self.number_id else ""  # only a model writes two adjacent numbers
            yield space + format_number(value) if token == self.number_id else token
            before = token

    def mark(self, text: str) -> Marked:
        """Rewrite each number as one digit, except those that overflow float64."""
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

        return Marked(_NUMBER.sub(one_digit, text), tokens, values)


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
