"""The grammar of written numbers, and the numbers of texts; all patterns of numbers are here.

Python's `float` is not suitable: it accepts `nan`, `1_000` and the digits of other scripts, and rejects
sentences.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

Which = str | Callable[[str], float | None]

THOUSANDS = ","
"""The default separator of thousands: in texts, in metrics and rewards, and in what a model writes."""
PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits, without its sign."""
SIGNED = re.compile(rf"[+-]?{PLAIN.pattern}")
"""A number in plain digits."""
# What may stand before a number that a model writes: spaces and a sign of a currency.
_LEAD = r"\s{0,2}[$€£¥]?\s?"
PIECE = re.compile(rf"{_LEAD}[+\-\u2212]?(?:[0-9]*[.,]){{0,2}}[0-9]*(?:[eE][+\-]?[0-9]*)?")
"""What a token of a number may consist of: a part of a number, or of what stands before it."""


class Grammar(NamedTuple):
    """The patterns of written numbers with one separator of thousands.

    Args:
        number: a number in a text.
        whole: a text that is a number; the point may be its last character.
        begun: a text that is a number or that more characters can make one, possibly another one.
        thousands: the separator of thousands, or "".
    """

    number: re.Pattern[str]
    whole: re.Pattern[str]
    begun: re.Pattern[str]
    thousands: str

    def plain(self, number: str) -> str:
        """Return a number as a string that `float` accepts."""
        number = number.replace(self.thousands, "") if self.thousands else number
        return number.replace(",", ".").replace("\u2212", "-")

    def first(self, text: str) -> float | None:
        """Return the first number of a text."""
        match = self.number.search(text)
        return None if match is None else _value(self.plain(match.group()))


@functools.cache
def grammar(thousands: str = THOUSANDS) -> Grammar:
    """Make the patterns of written numbers, see `parse_numbers` for the rule and the errors."""
    if thousands not in ("", ",", " ", "."):
        raise ValueError(f"thousands={thousands!r}: expected ',', ' ', '.' or '' for no separator")
    point, s = "," if thousands == "." else r"\.", re.escape(thousands)
    groups = rf"[1-9][0-9]{{0,2}}(?:{s}[0-9]{{3}})"
    in_groups = rf"(?<![0-9]{s}){groups}+(?!{s}?[0-9])|" if thousands else ""
    sign = r"(?:(?<![\w)\]%])[+\-\u2212])?"
    exponent = r"(?:[eE][+\-]?[0-9]+(?![0-9A-Za-z]))?"
    leading_point = rf"(?<![\w{point}]){point}[0-9]+"
    number, whole = (
        re.compile(rf"{sign}(?:(?:{in_groups}[0-9]+)(?:{point}[0-9]{count})?|{leading_point}){exponent}")
        for count in "+*"
    )
    digits = rf"(?:{groups}+|[0-9]+)" if thousands else "[0-9]+"
    # A group of more than three digits is none, and its number ends before the separator.
    group = rf"{groups}*{s}[0-9]{{0,6}}|" if thousands else ""
    begun = re.compile(
        rf"{_LEAD}[+\-\u2212]?(?:{group}[0-9]*|{digits}?{point}[0-9]*|"
        rf"(?:{digits}(?:{point}[0-9]+)?|{point}[0-9]+)[eE][+\-]?[0-9]{{0,3}})"
    )
    return Grammar(number, whole, begun, thousands)


def parse_numbers(text: str, thousands: str = THOUSANDS) -> list[float]:
    """Find all numbers of a text in ASCII digits, from left to right.

    The rule:

    - A sign (`-`, `+`, or U+2212) directly before a number belongs to it, unless it follows a letter, a
      digit, a closing bracket or a percent sign: `-3` and `2 * -3` contain -3, `5-3` and `GPT-3` contain 3.
    - A point between digits, or before a digit and not after a digit or letter, is a decimal point; a point
      after the last digit ends the sentence: `3.14`, `.5`, and `It is 42.` contains 42.
    - Commas are thousands separators if groups of three digits follow one to three digits that do not start
      with 0: `1,234,567` is one number; `1,23`, `0,123` and `1234,567` are two. A list of three-digit numbers
      needs spaces: `1, 234`. With `thousands="."`, points are separators and commas decimal points.
    - `e` or `E` and an integer form an exponent, unless a letter or digit follows: `1.5e3`, `2E-1`.
    - Everything else is text: digits of other scripts, `nan`, `inf`, and spaces, `_` or `'` between digits.

    Args:
        text: any text.
        thousands: the separator of thousands: `","` (default), `" "`, `"."`, or `""` for none.

    Returns:
        The numbers; infinite if too large for float64.

    Raises:
        ValueError: another separator.

    Example:
        >>> parse_numbers("From -1,234.5 to 2e3: 7-3, .5 and 10%.")
        [-1234.5, 2000.0, 7.0, 3.0, 0.5, 10.0]
    """
    return [_value(number) for number in number_texts(text, thousands)]


def number_texts(text: str, thousands: str = THOUSANDS) -> list[str]:
    """Find all numbers of a text as strings, with every digit.

    Args:
        text: any text.
        thousands: see `parse_numbers`.

    Returns:
        The numbers of `parse_numbers` as strings that `float` and `decimal.Decimal` accept: without thousands
        separators, and with `-` for U+2212.

    Example:
        >>> number_texts("1,000,000 and 1000001.0, not 1e400")
        ['1000000', '1000001.0', '1e400']
    """
    rule = grammar(thousands)
    return [rule.plain(match.group()) for match in rule.number.finditer(text)]


def parse_number(text: str, which: Which = "last", thousands: str = THOUSANDS) -> float | None:
    """Find one number of a text, by the rule of `parse_numbers`.

    Args:
        text: any text.
        which: "last" (default; the paper's protocol), "first", "whole" (the text is a single number, with or
            without surrounding white space), or a function of the text.
        thousands: see `parse_numbers`; no effect on a function.

    Returns:
        The number, or None if there is none.

    Raises:
        ValueError: an unknown `which` or separator.

    Source: "Regress, Don't Guess", ICML 2025 (the last number of the decoded text).

    Example:
        >>> parse_number("2 + 3 = 5."), parse_number("2 + 3 = 5.", "first"), parse_number("so 5", "whole")
        (5.0, 2.0, None)
    """
    if callable(which):
        return which(text)
    number = _find_number(text, which, thousands)
    return None if number is None else _value(number)


def exact_number(given: Any, which: Which = "last") -> Any:
    """Return one number of a text so that `==` compares all of its digits, and all else as it is.

    It is a Decimal, or a text if its exponent is too large for one; see `parse_number` for `which`.

    Example:
        >>> exact_number("It is 1" + "0" * 400) == 10**400
        True
    """
    if not isinstance(given, str):
        return given
    if callable(which):
        return which(given)
    number = _find_number(given, which)
    try:
        return None if number is None else Decimal(number)
    except InvalidOperation:  # an exponent that Decimal cannot hold
        return number


def _find_number(text: str, which: str, thousands: str = THOUSANDS) -> str | None:
    rule = grammar(thousands)
    if which == "whole":
        match = rule.whole.fullmatch(text.strip())
        return rule.plain(match.group()) if match else None
    if which not in ("last", "first"):
        raise ValueError(f"which={which!r}: expected 'last', 'first', 'whole', or a function of the text")
    numbers = number_texts(text, thousands)
    return numbers[-1 if which == "last" else 0] if numbers else None


def _value(number: str) -> float:
    return float(number) + 0.0  # turns -0.0 into 0.0


def as_float(number: Any) -> float:
    """Return a number of any type as a float: NaN for None, an infinity if it is too large for float64."""
    if number is None:
        return math.nan
    try:
        if not isinstance(number, (str, bytes, bytearray)):  # which float() reads by rules of its own
            return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):  # lists; signalling NaNs; tensors of several numbers
        pass
    raise TypeError(f"expected a number or None, given {number!r}")
