"""Numbers padded to one length, so that each decimal place has a fixed position.

Leading zeros, a sign and decimals are added as needed.

In a format of three digits with a sign and one decimal, 7 is written `+007.0` and -12.5 is written `-012.5`.
Numbers are handled as `Decimal`, so no digit is rounded.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from ntl.data import format_number
from ntl.errors import UserError, not_a_number

_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True)
class NumberFormat:
    """A format in which all numbers have the same length.

    Args:
        width: Digits before the point, at least 1.
        decimals: Digits after the point. 0 writes no point.
        signed: Whether numbers start with `+` or `-`. Without signs, no number is negative.

    Example:
        >>> number_format = NumberFormat(width=3, decimals=1, signed=True)
        >>> number_format.write("-12.5"), number_format.write("7"), number_format.read("+007.0")
        ('-012.5', '+007.0', '7')
    """

    width: int
    decimals: int = 0
    signed: bool = False

    @classmethod
    def of_answers(
        cls, answers: Iterable[str], width: int | None = None, decimals: int | None = None
    ) -> NumberFormat:
        """Choose the smallest format that fits all answers. It has signs if any answer is negative.

        Args:
            answers: Numbers in plain text; at least one.
            width: Digits before the point. None: as many as the answers need.
            decimals: Digits after the point. None: as many as the answers need.

        Returns:
            The format.

        Raises:
            UserError: There are no answers, an answer is not a single number, or one does not fit the given
                width or decimals.

        Example:
            >>> NumberFormat.of_answers(["7", "-12.5", "120"])
            NumberFormat(width=3, decimals=1, signed=True)
        """
        largest = finest = None
        signed = False
        for answer in answers:
            number = _parse(answer)
            signed |= number < 0
            if largest is None or _digits(number)[0] > _digits(largest)[0]:
                largest = number
            if finest is None or _digits(number)[1] > _digits(finest)[1]:
                finest = number
        if largest is None or finest is None:
            raise UserError(
                "number_format=padded is taken from the training answers, and there are none; expected at "
                "least one. Check the dataset."
            )
        found = cls(
            width or _digits(largest)[0], _digits(finest)[1] if decimals is None else decimals, signed
        )
        for number in (largest, finest):
            found.write(format_number(number))
        return found

    @property
    def length(self) -> int:
        """The number of characters of every number."""
        return self.signed + self.width + (self.decimals + 1 if self.decimals else 0)

    def allowed(self, position: int) -> str:
        """Return the characters that may be at a position.

        Args:
            position: Number of characters before it.

        Returns:
            The characters; "" after the last one, where the number ends.

        Example:
            >>> number_format = NumberFormat(width=1, decimals=1, signed=True)
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
        return f"{number:{'+' if self.signed else ''}0{self.length}.{self.decimals}f}"

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
                f"{text[:80]!r} is not in the number format; expected a text as {self!r} writes it"
            )
        return format_number(_parse(text))

    def _misfit(self, number: Decimal) -> str | None:
        """Return why a number does not fit, or None if it fits."""
        width, decimals = _digits(number)
        if width > self.width:
            return f"it has {width} digits before the point; expected at most {self.width}"
        if decimals > self.decimals:
            return f"it has {decimals} digits after the point; expected at most {self.decimals}"
        if number < 0 and not self.signed:
            return "it is negative; expected no negative number, because no training answer is one"
        return None


def _parse(answer: str) -> Decimal:
    """Parse a number in plain text.

    Raises:
        UserError: The answer is not a single number.
    """
    if _NUMBER.fullmatch(answer.strip()) is None:
        raise not_a_number(answer, "model_args.number_format=padded", "pass model_args.number_format=plain")
    return Decimal(answer.strip()) or Decimal(0)  # one zero, without a sign


def _digits(number: Decimal) -> tuple[int, int]:
    """Return how many digits a number needs before the point, at least one, and after it."""
    whole, _, decimals = f"{number.copy_abs():f}".partition(".")
    return len(whole), len(decimals.rstrip("0"))
