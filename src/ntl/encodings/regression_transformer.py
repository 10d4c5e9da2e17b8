"""The Regression Transformer's encoding: each digit is a token that also encodes its place.

12.3 is encoded as `_1_1_ _2_0_ _3_-1_`, where digit d at place p stands for d·10^p. Signs are separate
tokens, and the decimal point is omitted. Places range from -12 to 19. A number with a digit outside this
range keeps its plain digits, so every text can be encoded and is restored exactly, including leading and
trailing zeros. A point is text unless there is a digit on both sides.

Source: Born & Manica, Nature Machine Intelligence 2023.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ntl.encodings.spelling import PLAIN, SpelledEncoding

LOWEST, HIGHEST = -12, 19
PLACES = range(LOWEST, HIGHEST + 1)
_LARGEST = 3e9  # embedded as 10; larger numbers exceed it


class PlacedDigit(NamedTuple):
    """A digit (0 to 9) at a place (a power of ten): the meaning of one token."""

    digit: int
    place: int


# In the order of their tokens.
PLACED_DIGITS = tuple(PlacedDigit(digit, place) for place in PLACES for digit in range(10))
TOKENS = tuple(f"_{digit}_{place}_" for digit, place in PLACED_DIGITS)


class RegressionTransformerEncoding(SpelledEncoding):
    """Encodes digits in texts as tokens of digit and place.

    Args:
        tokenizer: See `SpelledEncoding`. The 320 tokens are added to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        super().__init__(tokenizer, TOKENS)
        self._ids = dict(zip(PLACED_DIGITS, self.added_ids, strict=True))
        self._placed = {token: placed for placed, token in self._ids.items()}
        self.first_id = self.added_ids[0]
        self.ill_formed = 0
        """Number of malformed numbers that `decode` has decoded on a best-effort basis so far."""

    @property
    def numbers(self) -> dict[int, int]:
        """Maps each token id to its digit without its place, which the number token loss uses."""
        return {token: placed.digit for token, placed in self._placed.items()}

    def mark(self, text: str) -> tuple[str, list[Any]]:
        """Rewrite numbers without their point, except those with a digit outside of the range of places."""
        tokens: list[int | None] = []

        def without_point(match: re.Match[str]) -> str:
            whole, _, decimals = match[0].partition(".")
            if len(whole) - 1 > HIGHEST or len(decimals) > -LOWEST:
                tokens.extend([None] * len(whole + decimals))
                return match[0]
            highest = len(whole) - 1
            placed = (PlacedDigit(int(digit), highest - i) for i, digit in enumerate(whole + decimals))
            tokens.extend(self._ids[each] for each in placed)
            return whole + decimals

        return PLAIN.sub(without_point, text), tokens

    def spell(self, row: Sequence[int]) -> Iterator[int | str]:
        """Write the digits of each number in a row; see `format_placed_digits` for malformed ones."""
        number: list[PlacedDigit] = []
        for token in (*row, None):
            placed = self._placed.get(token)
            if number and (placed is None or placed.place >= number[-1].place):
                text, well_formed = format_placed_digits(number)
                self.ill_formed += not well_formed
                yield text if placed is None else f"{text} "  # which separates two numbers
                number = []
            if placed is not None:
                number.append(placed)
            elif token is not None:
                yield token


def format_placed_digits(number: Sequence[PlacedDigit]) -> tuple[str, bool]:
    """Format digits at given places as a number, exactly.

    Args:
        number: Digits with decreasing places, at least one.

    Returns:
        text: The number. Skipped places and missing places down to 0 are filled with zeros. Leading and
            trailing zeros are kept.
        well_formed: Whether the digits skip no place and reach place 0.

    Example:
        >>> format_placed_digits([PlacedDigit(1, 1), PlacedDigit(2, 0), PlacedDigit(3, -1)])
        ('12.3', True)
        >>> format_placed_digits([PlacedDigit(1, 2), PlacedDigit(2, 1)])
        ('120', False)
    """
    digits = {placed.place: str(placed.digit) for placed in number}
    first, last = number[0].place, number[-1].place
    whole = "".join(digits.get(place, "0") for place in range(max(first, 0), -1, -1))
    decimals = "".join(digits.get(place, "0") for place in range(-1, last - 1, -1))
    return (f"{whole}.{decimals}" if decimals else whole), last <= 0 and len(digits) == first - last + 1


def numerical_encodings(dimension: int, log_scale: bool) -> Tensor:
    """Compute the fixed vectors that are added to the embeddings of the tokens.

    For the token of v = d·10^p, entry i is v/(i + 1) if i is even, and the negative of the previous entry if
    i is odd. Entries are scaled so that 3·10⁹ becomes 10.

    Args:
        dimension: Width of the embeddings.
        log_scale: Whether to replace each entry e by sign(e)·log10(|e| + 1) before scaling.

    Returns:
        `[320, dimension]`, in the order of `TOKENS`.

    Source: Born & Manica, Nature Machine Intelligence 2023; log scale: "Regress, Don't Guess", ICML 2025.
    """
    values = torch.tensor([float(f"{digit}e{place}") for digit, place in PLACED_DIGITS], dtype=torch.float64)
    index = torch.arange(dimension, dtype=torch.float64)
    even = index - index % 2
    entries = values[:, None] / (even + 1) * (1 - 2 * (index % 2))
    if log_scale:
        entries = entries.sign() * torch.log10(entries.abs() + 1) / (math.log10(_LARGEST) / 10)
    else:
        entries = entries / (_LARGEST / 10)
    return entries.to(torch.float32)
