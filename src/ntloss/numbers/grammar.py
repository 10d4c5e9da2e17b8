"""How numbers are written: the characters that they are made of, and the patterns of these.

Parsing, vocabularies, formats and decoding all ask here.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

DIGITS = "0123456789"
SIGNS = {"-": -1, "+": 1, "\u2212": -1}
"""Signs with their factors; U+2212 is the minus sign of typography."""
POINT = "."
EXPONENTS = "eE"
SEPARATORS = (",", " ", ".", "")
"""Separators of thousands, or none. With "." the decimal point is a comma."""
THOUSANDS = ","
"""The default separator of thousands: in texts, in metrics and rewards, and in what a model writes."""
CURRENCIES = "$€£¥"
MARKS = (POINT, *SIGNS, *(f" {sign}" for sign in SIGNS), ",", *EXPONENTS, " ", *CURRENCIES)
"""What may stand in a number or before it, besides digits."""

_SIGN = f"[{re.escape(''.join(SIGNS))}]"
_EXPONENT = f"[{EXPONENTS}]{_SIGN}?"
# What may stand before a number that a model writes: spaces and a sign of a currency.
_LEAD = rf"\s{{0,2}}[{CURRENCIES}]?\s?"
PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits, without its sign."""
SIGNED = re.compile(rf"[+-]?{PLAIN.pattern}")
"""A number in plain digits, as `float` reads it."""
PIECE = re.compile(rf"(?:{_LEAD}{_SIGN}?[.,]?|{_EXPONENT})(?:[0-9].*)?", re.DOTALL)
"""A token that can begin a number or continue one: a mark, or digits and whatever follows them."""


class Grammar(NamedTuple):
    """The patterns of written numbers with one separator of thousands.

    Args:
        number: a number in a text.
        whole: a text that is a number; the point may be its last character.
        begun: a text that is a number or that more characters can make one, possibly another one. What
            follows any other text does not change the number that it begins with.
        leading: a number at the beginning of a text, with spaces and a sign of a currency before it.
        thousands: the separator of thousands, or "".
    """

    number: re.Pattern[str]
    whole: re.Pattern[str]
    begun: re.Pattern[str]
    leading: re.Pattern[str]
    thousands: str

    def plain(self, number: str) -> str:
        """Return a number as a string that `float` accepts."""
        number = number.replace(self.thousands, "") if self.thousands else number
        return with_ascii_sign(number.replace(",", POINT))

    def first_text(self, text: str) -> str | None:
        """Return the number that a text begins with, behind spaces and a sign of a currency, as written."""
        match = self.leading.match(text)
        return None if match is None else match["number"]

    def first(self, text: str) -> float | None:
        """Return the value of the number that a text begins with."""
        number = self.first_text(text)
        return None if number is None else as_value(self.plain(number))


@functools.cache
def grammar(thousands: str = THOUSANDS) -> Grammar:
    """Make the patterns of written numbers; see `parse_numbers` for the rule and the errors."""
    if thousands not in SEPARATORS:
        raise ValueError(f"thousands={thousands!r}: expected ',', ' ', '.' or '' for no separator")
    point, s = "," if thousands == POINT else re.escape(POINT), re.escape(thousands)
    groups = rf"[1-9][0-9]{{0,2}}(?:{s}[0-9]{{3}})"
    in_groups = rf"(?<![0-9]{s}){groups}+(?!{s}?[0-9])|" if thousands else ""
    sign = rf"(?:(?<![\w)\]%]){_SIGN})?"
    exponent = rf"(?:{_EXPONENT}[0-9]+(?![0-9A-Za-z]))?"
    leading_point = rf"(?<![\w{point}]){point}[0-9]+"
    number, whole = (
        rf"{sign}(?:(?:{in_groups}[0-9]+)(?:{point}[0-9]{count})?|{leading_point}){exponent}"
        for count in "+*"
    )
    digits = rf"(?:{groups}+|[0-9]+)" if thousands else "[0-9]+"
    # A group of more than three digits is none, and its number ends before the separator.
    group = rf"{groups}*{s}[0-9]{{0,3}}|" if thousands else ""
    begun = (
        rf"{_LEAD}{_SIGN}?(?:{group}[0-9]*|{digits}?{point}[0-9]*|"
        rf"(?:{digits}(?:{point}[0-9]+)?|{point}[0-9]+){_EXPONENT}[0-9]*)"
    )
    leading = rf"{_LEAD}(?P<number>{number})"
    compiled = re.compile
    return Grammar(compiled(number), compiled(whole), compiled(begun), compiled(leading), thousands)


def count_digits(text: str) -> int:
    """Count the digits of a text."""
    return sum(map(text.count, DIGITS))


def with_ascii_sign(text: str) -> str:
    """Write a minus sign of typography as `-`."""
    return text.replace("\u2212", "-")


def as_value(number: str) -> float:
    """Return the value of a number that `float` accepts, with one zero."""
    return float(number) + 0.0  # turns -0.0 into 0.0
