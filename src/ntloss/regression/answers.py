"""How answers are written: numbers of one width, as they are or as their logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
SCALES = ("plain", "log")
_DIGIT = "0123456789"
_DIGITS = 3  # of the answers' standard deviation that are written
_MOST_DIGITS = 15  # that a float64 tells apart
_FAR = 10  # interquartile ranges outside the quartiles from which an answer is far out


@dataclass(frozen=True)
class AnswerFormat:
    """The width, the decimals and the scale of all answers.

    Args:
        digits: digits before the point.
        decimals: digits after it.
        signed: whether each number has a sign.
        log: whether the logarithm to base 10 is written.
        whole: whether all answers are whole numbers.

    Example:
        >>> form = AnswerFormat.choose(np.array([1.5, -20, 30.0]))
        >>> form, form.write([1.5, -20])
        (AnswerFormat(digits=2, decimals=1, signed=True, log=False, whole=False), ['+01.5', '-20.0'])
    """

    digits: int
    decimals: int
    signed: bool
    log: bool = False
    whole: bool = False

    @classmethod
    def choose(cls, answers: Numbers, scale: str | None = None) -> AnswerFormat:
        """Choose the smallest format that keeps three digits of the answers' standard deviation.

        Answers that are far out, such as typing errors, do not take part in the standard deviation.

        Args:
            answers: `[rows]`, numbers that differ.
            scale: "plain" or "log". Default: logarithms if the answers are above 0, have a long tail and
                spread over two orders of magnitude or more.

        Raises:
            ValueError: the answers are all equal, have no logarithm, or need more than 15 digits.
        """
        if scale not in (None, *SCALES):
            raise ValueError(f"scale={scale!r}: expected one of {SCALES}, or None to choose by the answers")
        if answers.min() == answers.max():
            raise ValueError(
                f"y: all {len(answers)} answers are {answers[0]:g}; expected answers that differ"
            )
        with np.errstate(all="ignore"):  # powers of very large or small answers, which are refused below
            log = spreads_widely(answers) if scale is None else scale == "log"
        if log and answers.min() <= 0:
            raise ValueError(
                f"scale='log': the answer {answers.min():g} has no logarithm; expected numbers above 0, or "
                "scale='plain'"
            )
        written = np.log10(answers) if log else answers
        with np.errstate(all="ignore"):
            spread = written[~far_out(written)].std() or written.std()
        if not 0 < spread < math.inf:
            raise _too_long(answers, log)
        places = max(0, _DIGITS - 1 - math.floor(math.log10(spread)))
        needed = (d for d in range(places) if np.array_equal(written.round(d), written))
        places = next(needed, places)
        written = written.round(places)
        digits = max(1, len(f"{abs(written).max():.0f}"), len(f"{math.floor(abs(written).max())}"))
        if digits + places > _MOST_DIGITS:
            raise _too_long(answers, log)
        whole = bool(np.array_equal(answers.round(), answers))
        return cls(digits, places, bool((written < 0).any()), log, whole)

    @property
    def slots(self) -> tuple[str, ...]:
        """The characters that may be at each position, in the order of the numbers that they write."""
        fraction = (".", *(_DIGIT,) * self.decimals) if self.decimals else ()
        return ("-+",) * self.signed + (_DIGIT,) * self.digits + fraction

    def scaled(self, answers: Sequence[float] | Numbers) -> Numbers:
        """Return the numbers that are written for answers."""
        numbers = np.asarray(answers, dtype=float)
        return (np.log10(numbers) if self.log else numbers).round(self.decimals) + 0.0

    def write(self, answers: Sequence[float] | Numbers) -> list[str]:
        """Write answers as texts of one width."""
        width = self.digits + bool(self.decimals) + self.decimals + self.signed
        sign = "+" if self.signed else ""
        return [f"{number:{sign}0{width}.{self.decimals}f}" for number in self.scaled(answers)]

    def unscaled(self, numbers: Numbers) -> Numbers:
        """Return the answers that written numbers stand for; of logarithms, with four significant digits."""
        if not self.log:
            return numbers
        answers = np.array([float(f"{10.0**number:.4g}") for number in numbers.flat]).reshape(numbers.shape)
        return answers.round() if self.whole else answers

    def __str__(self) -> str:
        text = f"{self.digits} digits" if self.digits > 1 else "1 digit"
        if self.decimals:
            text += f" and {self.decimals} decimal{'s' * (self.decimals > 1)}"
        return f"{'the logarithm to base 10, ' * self.log}{'a sign, ' * self.signed}{text}"


def _too_long(answers: Numbers, log: bool) -> ValueError:
    advice = "" if log or answers.min() <= 0 else ", or pass scale='log'"
    return ValueError(
        f"y: {'logarithms of ' * log}answers from {answers.min():g} to {answers.max():g} need more than "
        f"{_MOST_DIGITS} digits. Predict another unit, or the difference from a constant{advice}."
    )


def far_out(answers: Numbers) -> NDArray[np.bool_]:
    """Return which answers are so far from the others that they may be errors.

    They are more than ten interquartile ranges outside the quartiles.

    Example:
        >>> far_out(np.array([2.4, 2.6, 3.0, 3.1, 3.5, 1e7]))
        array([False, False, False, False, False,  True])
    """
    low, high = np.quantile(answers, [0.25, 0.75])
    margin = _FAR * (high - low)
    found: NDArray[np.bool_] = (answers < low - margin) | (answers > high + margin)
    return found & (margin > 0)


def spreads_widely(answers: Numbers) -> bool:
    """Return whether answers are positive, skewed to the right, and spread over two orders of magnitude.

    Example:
        >>> spreads_widely(np.array([1, 20, 30, 400, 50_000.0])), spreads_widely(np.array([1, 2, 3.0]))
        (True, False)
    """
    if answers.min() <= 0 or answers.max() < 100 * answers.min():
        return False
    low, high = np.quantile(answers, [0.01, 0.99])
    return bool(high > 100 * low and _skew(answers) > 1 and abs(_skew(np.log(answers))) < _skew(answers))


def _skew(numbers: Numbers) -> float:
    away = numbers - numbers.mean()
    return float((away**3).mean() / (away**2).mean() ** 1.5)
