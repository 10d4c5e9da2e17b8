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

from ntloss.numbers.grammar import CURRENCIES, as_value, find_numbers

Which = str | Callable[[str], float | None]
WHICH = ("last", "first", "after", "whole")
# What models are taught to write before their answer.
_MARK = re.compile(
    r"####|\\(?:boxed|fbox)\s*\{|<(?:final[_-]?)?answer>|\banswer(?:\W{0,3}\b(?:is|was)\b|\W{0,2}[:=\uff1a])"
    r"|(?:答案|答え|정답)\W{0,2}[:\uff1a是为は은]",
    re.IGNORECASE,
)
_THOUGHT = r"(?:think|thinking|thought|reasoning)"
_THOUGHTS = re.compile(
    rf"(?P<end></{_THOUGHT}>|\[/THINK\]|<\|channel\|>final<\|message\|>)|<{_THOUGHT}>|\[THINK\]",
    re.IGNORECASE,
)
_AROUND = re.compile(rf"\s*(?:\\?[{re.escape(CURRENCIES)}%]|[A-Z]{{3}}|percent)?\.?\s*")


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
    return [number.plain for number in find_numbers(text, thousands)]


def parse_number(
    text: str,
    which: Which = "last",
    thousands: str | None = None,
    *,
    of: float | None = None,
    after: str | None = None,
) -> float | None:
    r"""Find one number of a text, by the grammar of `parse_numbers`.

    Args:
        text: any text.
        which: "last" (default; the paper's protocol), "first", "after" (the first number of the answer, see
            `find_answer`), "whole" (the text is a single number; white space, a currency, `%` and a point may
            stand around it), or a function of the text.
        thousands: see `parse_numbers`; no effect on a function.
        of: the largest score of a scale: `8/10`, `8 out of 10` and `8 of 10` are then 8 with `of=10`.
            Default: None, a ratio is no number. No effect on a function.
        after: a regular expression of the mark before the answer, such as `r"Total:"`, in place of those of
            `find_answer`; with it, `which` is "after".

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
        >>> parse_number("Tax: 5. Total: 47", after="Tax:")
        5.0
    """
    if callable(which):
        return which(text)
    check_which(which)
    if of is not None and (isinstance(of, bool | str) or not 0 < as_float(of) < math.inf):
        raise ValueError(f"of={of!r}: expected a finite number above 0, the largest score of a scale")
    if of is not None:
        text = _scale_ending_at(float(of)).sub("\n", text)
    if after is not None or which == "after":
        found = find_answer(text, after)
        return None if found is None else parse_number(found, "first", thousands)
    numbers = find_numbers(text, thousands)
    if which == "whole" and not (
        len(numbers) == 1 and not text[: numbers[0].start].strip() and _AROUND.fullmatch(text, numbers[0].end)
    ):
        return None
    number = numbers[-1 if which == "last" else 0] if numbers else None
    return number.value if number is not None and number.alone else None


def find_answer(text: str, mark: str | None = None) -> str | None:
    r"""Return what follows the mark of the answer in a completion.

    That is the first mark behind the last thought that has ended (`</think>`); without a mark, it is what
    follows the thought. An unfinished thought is no answer. The mark is a regular expression, by default of
    `####`, `\boxed{`, `<answer>`, "answer is", "answer:" and the like, in any case.

    Returns:
        The rest of the text; None without a mark or a thought that has ended.

    Example:
        >>> find_answer("<think>41?</think> It is 42."), find_answer("<think>#### 41")
        (' It is 42.', None)
    """
    thoughts = [*_THOUGHTS.finditer(text)]
    if thoughts and thoughts[-1]["end"] is None:
        return None
    rest = text[thoughts[-1].end() :] if thoughts else text
    found = (_MARK if mark is None else re.compile(mark)).search(rest)
    if found is not None:
        return rest[found.end() :]
    return rest if thoughts and mark is None else None


def check_which(which: Which) -> None:
    """Raise a ValueError unless it says which number of a text is meant."""
    if not callable(which) and which not in WHICH:
        raise ValueError(f"which={which!r}: expected one of {', '.join(WHICH)}, or a function of the text")


@functools.lru_cache(maxsize=32)
def _scale_ending_at(largest: float) -> re.Pattern[str]:
    """Find what is written after a score of a scale, such as `/10`."""
    number = rf"(?:{re.escape(f'{largest:.15g}')}|{re.escape(f'{largest:,.15g}')})(?:\.0+)?"
    return re.compile(rf"(?<=[0-9])(?:\s?/\s?|\s(?:out\s)?of\s){number}(?![.,]?\w|\s?[/:^]|-[0-9])")


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
