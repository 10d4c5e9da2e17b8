"""Numbers of one length: leading zeros, a sign and decimals, so that digits of one place are at one position.

In a format of three digits with a sign and one decimal, 7 is written `+007.0` and -12.5 is written `-012.5`.
All operations are on text, so no digit is rounded.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ntl.errors import UserError

_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?")


class _Number(NamedTuple):
    """The digits of a number, without leading zeros before the point and trailing zeros after it."""

    is_negative: bool
    whole: str
    decimals: str

    @property
    def text(self) -> str:
        sign, point = "-" if self.is_negative else "", "." if self.decimals else ""
        return f"{sign}{self.whole or '0'}{point}{self.decimals}"


@dataclass(frozen=True)
class NumberFormat:
    """A format in which all numbers have the same length.

    Args:
        width: Digits before the point, at least 1.
        places: Digits after the point. 0 writes no point.
        signed: Whether numbers start with `+` or `-`. Without signs, no number is negative.

    Example:
        >>> number_format = NumberFormat(width=3, places=1, signed=True)
        >>> number_format.write("-12.5"), number_format.write("7"), number_format.read("+007.0")
        ('-012.5', '+007.0', '7')
    """

    width: int
    places: int = 0
    signed: bool = False

    @classmethod
    def of_answers(
        cls, answers: Iterable[str], width: int | None = None, places: int | None = None
    ) -> NumberFormat:
        """Choose the smallest format that fits all answers. It has signs if any answer is negative.

        Args:
            answers: Numbers in plain text; at least one.
            width: Digits before the point. None is as many as the answers need.
            places: Digits after the point. None is as many as the answers need.

        Returns:
            The format.

        Raises:
            UserError: There are no answers, an answer is not a single number, or one does not fit the given
                width or places.

        Example:
            >>> NumberFormat.of_answers(["7", "-12.5", "120"])
            NumberFormat(width=3, places=1, signed=True)
        """
        largest = finest = None
        signed = False
        for answer in answers:
            number = _parse(answer)
            signed |= number.is_negative
            if largest is None or len(number.whole) > len(largest.whole):
                largest = number
            if finest is None or len(number.decimals) > len(finest.decimals):
                finest = number
        if largest is None or finest is None:
            raise UserError(
                "number_format=padded is taken from the training answers, and there are none; expected at "
                "least one. Check the dataset."
            )
        width = max(len(largest.whole), 1) if width is None else width
        found = cls(width, len(finest.decimals) if places is None else places, signed)
        for number in (largest, finest):
            found.write(number.text)
        return found

    @property
    def length(self) -> int:
        """The number of characters of every number."""
        return self.signed + self.width + (self.places + 1 if self.places else 0)

    def allowed(self, position: int) -> str:
        """Return the characters that may be at a position.

        Args:
            position: Number of characters before it.

        Returns:
            The characters; "" after the last one, where the number ends.

        Example:
            >>> number_format = NumberFormat(width=1, places=1, signed=True)
            >>> [number_format.allowed(position) for position in range(5)]
            ['+-', '0123456789', '.', '0123456789', '']
        """
        if position >= self.length:
            return ""
        if self.signed and position == 0:
            return "+-"
        return "." if position == self.signed + self.width else string.digits

    def write(self, answer: str) -> str:
        """Write a number in this format.

        Args:
            answer: The number in plain text, such as `-12.5`. White space around it is ignored.

        Returns:
            The number, with `length` characters.

        Raises:
            UserError: The answer is not a single number, or does not fit.
        """
        number = _parse(answer)
        if reason := self._misfit(number):
            raise UserError(
                f"the answer {answer.strip()[:80]!r} does not fit the number format: {reason}. Pass a larger "
                "model_args.number_width or model_args.number_places, null to take them from the training "
                "answers, or model_args.number_format=plain."
            )
        sign = ("-" if number.is_negative else "+") if self.signed else ""
        point = "." if self.places else ""
        return f"{sign}{number.whole.zfill(self.width)}{point}{number.decimals.ljust(self.places, '0')}"

    def fits(self, answer: str) -> bool:
        """Return whether an answer is a single number that this format can write."""
        return _NUMBER.fullmatch(answer.strip()) is not None and self._misfit(_parse(answer)) is None

    def read(self, text: str) -> str:
        """Read a number in this format.

        Args:
            text: The number as `write` returns it.

        Returns:
            The number in plain text: without `+`, without leading zeros, and without trailing zeros after the
            point. Both zeros, `+000` and `-000`, are `0`.

        Raises:
            ValueError: The text is not in this format.
        """
        if len(text) != self.length or any(c not in self.allowed(i) for i, c in enumerate(text)):
            raise ValueError(
                f"{text[:80]!r} is not in the number format; expected a text like {self!r} writes"
            )
        return _parse(text).text

    def _misfit(self, number: _Number) -> str | None:
        """Return why a number does not fit, or None if it fits."""
        if len(number.whole) > self.width:
            return f"it has {len(number.whole)} digits before the point; expected at most {self.width}"
        if len(number.decimals) > self.places:
            return f"it has {len(number.decimals)} digits after the point; expected at most {self.places}"
        if number.is_negative and not self.signed:
            return "it is negative; expected no negative number, because no training answer is one"
        return None


def _parse(answer: str) -> _Number:
    """Parse a number in plain text.

    Raises:
        UserError: The answer is not a single number.
    """
    match = _NUMBER.fullmatch(answer.strip())
    if match is None:
        raise UserError(
            f"the answer {answer[:80]!r} is not a single number such as -12.5; number_format=padded writes "
            "nothing else. Pass model_args.number_format=plain, or choose a dataset whose answers are single "
            "numbers."
        )
    whole, decimals = match[2].lstrip("0"), (match[3] or "").rstrip("0")
    return _Number(match[1] == "-" and bool(whole or decimals), whole, decimals)
