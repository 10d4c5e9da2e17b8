"""The numbers of texts, by the grammar of `ntloss.numbers.grammar`.

Python's `float` is not suitable: it accepts `nan`, `1_000` and the digits of other scripts, and rejects
sentences.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from ntloss.numbers.alphabet import APOSTROPHES, MAGNITUDE_WORDS, SPACE, SPACES, as_value
from ntloss.numbers.grammar import find_in_text, find_whole
from ntloss.numbers.scales import FRACTION_BARS, OF, POINT_SCALE

Which = str | Callable[[str], float | None]
WHICH = ("last", "first", "after", "whole")
# What models are taught to write before their answer.
_MARK = re.compile(
    r"####|\\(?:boxed|fbox)\s*\{|<(?:final_)?answer>|\b(?i:answer)(?:\W{0,3}\b(?i:is|was)\b|\W{0,2}[:=])"
)


def parse_numbers(text: str, thousands: str | None = None) -> list[float]:
    """Find all numbers of a text, from left to right, as people and models write them.

    `docs/numbers.md` has a table of what is read and how. Numbers of a fraction, a date or a range are
    numbers here, each by itself; `parse_number` returns none of them, because a part of something else is no
    answer.

    Args:
        text: any text.
        thousands: the separator of thousands: None (default) if each number decides it, `","`, `" "` (any
            space), `"."` (the decimal point is then a comma), `"'"`, or `""` for none. A given separator is
            the only one, and decimal commas are read only with `"."`, `" "` and `"'"`.

    Returns:
        The numbers; infinite if too large for float64.

    Raises:
        ValueError: another separator.

    Example:
        >>> parse_numbers("From -$1,234.5 to 67 million: 7-3, .5 and 10%.")
        [-1234.5, 67000000.0, 7.0, 3.0, 0.5, 10.0]
        >>> parse_numbers("1 200 300", thousands="")
        [1.0, 200.0, 300.0]
    """
    return [as_value(number) for number in number_texts(text, thousands)]


def number_texts(text: str, thousands: str | None = None) -> list[str]:
    """Find all numbers of a text as strings, with every digit.

    Args:
        text: any text.
        thousands: see `parse_numbers`.

    Returns:
        The numbers of `parse_numbers` as strings that `float` and `decimal.Decimal` accept.

    Example:
        >>> number_texts("1,000,000 and 1000001.0, not 1e400")
        ['1000000', '1000001.0', '1e400']
    """
    return [number.plain for number in find_in_text(text, thousands)]


def parse_number(
    text: str, which: Which = "last", thousands: str | None = None, *, of: float | None = None
) -> float | None:
    r"""Find one number of a text, by the grammar of `parse_numbers`.

    Args:
        text: any text.
        which: "last" (default; the paper's protocol), "first", "after" (the first number after the last mark
            of an answer: `####`, `\boxed{`, `<answer>`, "answer is" or "answer:"), "whole" (the text is a
            single number; white space, a currency, `%` and a point may stand around it), or a function of
            the text.
        thousands: see `parse_numbers`; no effect on a function.
        of: the largest score of a scale: `8/10`, `8 (out of 10)` and `\frac{8}{10}` are then 8 with `of=10`,
            and so is `(8)`, unless `which="whole"`. Default: None, a ratio is no number, and `(8)` is -8. No
            effect on a function.

    Returns:
        The number. None if there is none, or if it is a part of something else: of `1/2`, `2019-05-01`,
        `3-5`, `10^6`.

    Raises:
        ValueError: an unknown `which` or separator, or `of` is not a finite number above 0.

    Source: "Regress, Don't Guess", ICML 2025 (the last number of the decoded text).

    Example:
        >>> parse_number("2 + 3 = 5."), parse_number("2 + 3 = 5.", "first"), parse_number("so 5", "whole")
        (5.0, 2.0, None)
        >>> parse_number("the answer is 1/2") is None
        True
        >>> parse_number("#### 42 Question: 3 + 4?", "after"), parse_number("Score: 8/10", of=10)
        (42.0, 8.0)
    """
    if callable(which):
        return which(text)
    if of is not None:
        if isinstance(of, bool | str) or not 0 < as_float(of) < math.inf:
            raise ValueError(f"of={of!r}: expected a finite number above 0, the largest score of a scale")
        if isinstance(text, str):
            text = _IN_PARENTHESES.sub(r"\1 ", _scale_ending_at(float(of)).sub(_without_scale, text))
    number = _find_number(text, which, thousands)
    return None if number is None else as_value(number)


def _find_number(text: str, which: str, thousands: str | None) -> str | None:
    check_which(which)
    if which == "whole":
        return find_whole(text, thousands)
    numbers = find_in_text(text, thousands)
    if which == "after":
        ends = [mark.end() for mark in _MARK.finditer(text)]
        numbers = [number for number in numbers if ends and number.start >= ends[-1]]
    number = numbers[-1 if which == "last" else 0] if numbers else None
    return number.plain if number is not None and number.alone else None


def check_which(which: Which) -> None:
    """Raise a ValueError unless it says which number of a text is meant."""
    if not callable(which) and which not in WHICH:
        raise ValueError(f"which={which!r}: expected one of {', '.join(WHICH)}, or a function of the text")


# A space makes `(8)` a plain 8: accountants write -8 like that, and no score is an amount.
_IN_PARENTHESES = re.compile(r"((?<![\w.])\([0-9]+(?:\.[0-9]+)?)(?=\))")
_MARKUP = r"(?:[*_`$]{1,3}|</?\w{1,8}>)?"
# What would make another number of a score if its scale did not stand between them.
_GOES_ON = re.compile(rf"[{SPACES}{APOSTROPHES}]?[0-9]|[{SPACES}-]?(?i:{'|'.join(MAGNITUDE_WORDS)})s?(?!\w)")
_FAR = 24  # characters before the end of a score in which the whole part of a mixed number is looked for
_MIXED = re.compile(rf"(?<![0-9.,{FRACTION_BARS}])[0-9]{{1,2}}{SPACE}[0-9]+[{FRACTION_BARS}]\Z")  # 1 3/4


@functools.lru_cache(maxsize=32)
def _scale_ending_at(largest: float) -> re.Pattern[str]:
    """Find what is written after a score of a scale, such as `/10`, or a score and its scale in LaTeX."""
    number = rf"(?:{re.escape(f'{largest:.15g}')}|{re.escape(f'{largest:,.15g}')})(?:\.0+)?"
    no_more = rf"(?![.,]?[0-9]|\s*[{FRACTION_BARS}]|[eE][0-9+-]|(?:th|rd)s?\b)"
    return re.compile(
        rf"(?<=[0-9]){_MARKUP}(?:\\[,;:])?(?:\s*(?i:stars?|points?|pts|marks?)\b)?(?:\s*(?P<open>\()?|-)"
        rf"(?:(?:[{FRACTION_BARS}]|\b(?i:{OF})(?:\b-?|(?<=[-\u2013]))){_MARKUP}(?:\\[,;:])?\s*{_MARKUP}{number}{no_more}"
        rf"|on an? {number}(?i:{POINT_SCALE}))(?(open)\)?)"
        rf"|(?<![0-9])\\[dt]?frac(?:\{{(?P<fraction>[0-9.]+)\}}|(?P<digit>[0-9]))\{{{number}\}}"
    )


def _without_scale(found: re.Match[str]) -> str:
    """Return the score of a fraction in LaTeX; of what follows a score, nothing, or the end of a line."""
    if fraction := found["fraction"] or found["digit"]:
        return fraction
    if _MIXED.search(found.string, max(0, found.start() - _FAR), found.start() + 1):
        return found[0]
    return "\n" if _GOES_ON.match(found.string, found.end()) else ""


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
