"""What counts as a number of any length, token by token.

The rule for what a model writes after a prompt:

- An optional sign, digits, and optionally a point with digits after it: `-12.5`, `+3`, `007`, which is 7.
- The first token may begin with a space. A sign without a digit after it is no number, and neither is a point
  before the first digit.
- Any token that cannot continue the number ends it: text, the end of the text, a second point, a comma, an
  exponent, or a token that begins with a space or a sign.
- A point continues the number only if the next token begins with a digit. Otherwise it ends a sentence, and
  the number before it.
- A number of more than `max_digits` digits, leading zeros and decimals included, is not counted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from ntloss.decoding.formats import texts_in_numbers
from ntloss.numbers.vocabulary import NumberVocabulary

# What has been written: nothing, a sign, digits, digits and a point, or digits after the point too.
START, SIGN, WHOLE, POINT, FRACTION = range(5)
_STATES = range(5)
# From these, a token that does not continue the number ends it.
COMPLETE = (WHOLE, POINT, FRACTION)
_BARE = r"[0-9]+(?:\.[0-9]*)?"
_CONTINUES = {
    START: re.compile(rf"[+-]|[+-]?{_BARE}"),
    SIGN: re.compile(_BARE),
    WHOLE: re.compile(rf"\.[0-9]*|{_BARE}"),
    POINT: re.compile(r"[0-9]+"),
    FRACTION: re.compile(r"[0-9]+"),
}


class Continuations(NamedTuple):
    """The tokens that continue a number in one state; all `[tokens]`.

    Args:
        token_ids: the tokens.
        state: the state that each leads to.
        digits: number of its digits.
        value: these digits as one integer.
        decimals: number of these digits after the point.
        minus: whether it begins with a minus.
    """

    token_ids: Tensor
    state: Tensor
    digits: Tensor
    value: Tensor
    decimals: Tensor
    minus: Tensor


class Prefixes(NamedTuple):
    """Beginnings of numbers; all `[prefixes]`.

    Args:
        state: what has been written.
        digits: number of digits so far.
        mantissa: these digits as one integer.
        decimals: number of these digits after the point.
        negative: whether there is a minus.
    """

    state: Tensor
    digits: Tensor
    mantissa: Tensor
    decimals: Tensor
    negative: Tensor

    def select(self, index: Tensor) -> Prefixes:
        """Select rows by index."""
        return Prefixes(*(column[index] for column in self))

    def numbers(self) -> Tensor:
        """Return the numbers that end here, float64."""
        values = self.mantissa.double() / 10.0**self.decimals
        return torch.where(self.negative, -values, values) + 0.0  # -0.0 is 0.0

    def bounds(self, max_digits: int) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest number that begins with each prefix; float64."""
        left = 10.0 ** (max_digits - self.digits)
        value, unit = self.mantissa.double(), 10.0**self.decimals
        # Further digits lengthen a whole number; after a point they only add decimals.
        longest = torch.where(self.state <= WHOLE, (value + 1) * left - 1, (value + 1 - 1 / left) / unit)
        shortest = value / unit
        low = torch.where(self.negative, -longest, shortest)
        low = torch.where(self.state == START, -longest, low)
        return low + 0.0, torch.where(self.negative, -shortest, longest) + 0.0


def start(count: int) -> Prefixes:
    """Return `count` prefixes with nothing written."""
    zeros = torch.zeros(count, dtype=torch.int64)
    return Prefixes(zeros, zeros, zeros, zeros, zeros.bool())


def extend(prefixes: Prefixes, tokens: Continuations) -> Prefixes:
    """Return the prefixes with one more token each."""
    # A mantissa of too many digits may overflow: `select` those of max_digits first.
    return Prefixes(
        tokens.state,
        prefixes.digits + tokens.digits,
        prefixes.mantissa * 10**tokens.digits + tokens.value,
        prefixes.decimals + tokens.decimals,
        prefixes.negative | tokens.minus,
    )


def continuations(vocabulary: NumberVocabulary) -> list[Continuations]:
    """Find the tokens that continue a number, for each state.

    Args:
        vocabulary: its number tokens (including those left out), signs and points are used.

    Returns:
        One table for each state, on the CPU.
    """
    texts = texts_in_numbers(vocabulary, (*vocabulary.tokens, *vocabulary.left_out))
    tables = []
    for state in _STATES:
        rows = [
            (token, *_read(text, state))
            for token, text, starts in texts
            if (state == START or not starts) and _CONTINUES[state].fullmatch(text)
        ]
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 6)
        token_ids, state_after, digits, value, decimals, minus = table.unbind(-1)
        tables.append(Continuations(token_ids, state_after, digits, value, decimals, minus.bool()))
    return tables


def _read(text: str, state: int) -> tuple[int, int, int, int, int]:
    """Return the state reached, the number of digits, their value, decimals, and whether there is a minus."""
    bare = text.lstrip("+-")
    whole, point, fraction = bare.partition(".")
    digits = whole + fraction
    decimals = len(digits) if state in (POINT, FRACTION) else len(fraction)
    if not digits:
        reached = POINT if point else SIGN
    elif decimals:
        reached = FRACTION
    else:
        reached = POINT if point else WHOLE
    return reached, len(digits), int(digits or 0), decimals, int(text.startswith("-"))
