"""The numbers of texts.

Python's `float` is not suitable: it accepts `nan`, `1_000` and the digits of other scripts, and rejects
sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from ntloss.numbers.grammar import THOUSANDS, as_value, grammar

Which = str | Callable[[str], float | None]


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
    - `e` or `E` and an integer, with or without a sign, form an exponent, unless a letter or digit follows:
      `1.5e3`, `2E-1`.
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
    return [as_value(number) for number in number_texts(text, thousands)]


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
    return None if number is None else as_value(number)


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
