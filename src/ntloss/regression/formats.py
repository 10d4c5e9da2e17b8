"""How a model writes the answers of a table: with how many digits, and as they are or as logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ntloss.numbers import NumberFormat
from ntloss.regression.columns import Numbers
from ntloss.regression.suspects import find_errors

SCALES = ("plain", "log")
_MOST_DIGITS = 15  # that a float64 tells apart


@dataclass(frozen=True)
class AnswerFormat:
    """How a model writes answers: as they are or as logarithms, rounded, with one width.

    Args:
        numbers: the format of the numbers that are written.
        log: whether these are logarithms of the answers, to base 10. Default: False.
        whole: with `log`, whether the answers themselves are whole. Default: False.

    Example:
        >>> AnswerFormat(NumberFormat(digits=1, decimals=2), log=True).write(np.array([1, 20, 300]))
        ['0.00', '1.30', '2.48']
    """

    numbers: NumberFormat
    log: bool = field(default=False, repr=False)
    whole: bool = field(default=False, repr=False)

    @classmethod
    def choose(cls, answers: Numbers, scale: str | None = None, significant: int = 3) -> AnswerFormat:
        """Choose the smallest format that keeps so many digits of the answers' standard deviation.

        Answers that may be errors or marks of gaps take no part in the standard deviation, and none in the
        choice of the scale.

        Args:
            answers: `[rows]`, float64, numbers that differ.
            scale: "plain" or "log". Default: logarithms if the answers are above 0, have a long tail and
                spread over two orders of magnitude or more.
            significant: digits of the standard deviation. Default: 3.

        Raises:
            ValueError: the answers are all equal, have no logarithm, or need more than 15 digits.

        Example:
            >>> form = AnswerFormat.choose(np.array([1.5, -20, 30.0]))
            >>> form.numbers, form.write(np.array([1.5, -20]))
            (NumberFormat(digits=2, decimals=1, signed=True), ['+01.5', '-20.0'])
        """
        if scale not in (None, *SCALES):
            raise ValueError(f"scale={scale!r}: expected one of {SCALES}, or None to choose by the answers")
        if answers.min() == answers.max():
            raise ValueError(
                f"y: all {len(answers)} answers are {answers[0]:g}; expected answers that differ"
            )
        usual = ~find_errors(answers)
        log = bool(answers.min() > 0) and spreads_widely(answers[usual]) if scale is None else scale == "log"
        if log and answers.min() <= 0:
            raise ValueError(
                f"scale='log': the answer {answers.min():g} has no logarithm; expected numbers above 0, or "
                "scale='plain'"
            )
        written = np.log10(answers) if log else answers
        with np.errstate(all="ignore"):  # powers of very large or small answers, which are refused below
            spread = written[usual].std() or written.std()
        if not 0 < spread < math.inf:
            raise _too_long(answers, log)
        places = max(0, significant - 1 - math.floor(math.log10(spread)))
        needed = (d for d in range(places) if np.array_equal(written.round(d), written))
        places = next(needed, places)
        written = written.round(places)
        digits = max(1, len(f"{abs(written).max():.0f}"), len(f"{math.floor(abs(written).max())}"))
        if digits + places > _MOST_DIGITS:
            raise _too_long(answers, log)
        whole = bool(np.array_equal(answers.round(), answers))
        return cls(NumberFormat(digits, places, bool((written < 0).any()), "written"), log, whole)

    def scaled(self, answers: Numbers | Sequence[float]) -> Numbers:
        """Return the numbers that are written for answers, rounded."""
        numbers = np.asarray(answers, dtype=float)
        return (np.log10(numbers) if self.log else numbers).round(self.numbers.decimals) + 0.0

    def write(self, answers: Numbers | Sequence[float]) -> list[str]:
        """Write answers as texts of one width, rounded.

        Raises:
            ValueError: one does not fit, even rounded, or is no finite number.
        """
        return [self.numbers.write(f"{number:.{self.numbers.decimals}f}") for number in self.scaled(answers)]

    def unscaled(self, numbers: Numbers) -> Numbers:
        """Return the answers that written numbers stand for; of logarithms, with four significant digits."""
        if not self.log:
            return numbers
        answers = np.array([float(f"{10.0**number:.4g}") for number in numbers.flat]).reshape(numbers.shape)
        return answers.round() if self.whole else answers

    def errors(self, predicted: Numbers, answers: Numbers) -> Numbers:
        """Return how far predictions are from answers, of logarithms as powers of ten: 1 for 30 and 300."""
        return abs(np.log10(predicted) - np.log10(answers)) if self.log else abs(predicted - answers)

    def describe(self) -> str:
        """Say in words how answers are written.

        Example:
            >>> AnswerFormat(NumberFormat(digits=2, decimals=1, signed=True)).describe()
            'a sign, 2 digits and 1 decimal'
        """
        form = self.numbers
        text = f"{form.digits} digits" if form.digits > 1 else "1 digit"
        if form.decimals:
            text += f" and {form.decimals} decimal{'s' * (form.decimals > 1)}"
        return f"{'the logarithm to base 10, ' * self.log}{'a sign, ' * form.signed}{text}"


def spreads_widely(answers: Numbers) -> bool:
    """Return whether answers above 0 are skewed to the right, and spread over two orders of magnitude.

    Example:
        >>> spreads_widely(np.array([1, 20, 30, 400, 50_000.0])), spreads_widely(np.array([1, 2, 3.0]))
        (True, False)
    """
    ordered = np.sort(answers)
    low, high = ordered[[round(share * (len(ordered) - 1)) for share in (0.01, 0.99)]]
    return bool(high > 100 * low and _skew(answers) > 1 and abs(_skew(np.log(answers))) < _skew(answers))


def _skew(numbers: Numbers) -> float:
    with np.errstate(all="ignore"):  # powers of very large or small numbers
        away = numbers - numbers.mean()
        return float((away**3).mean() / (away**2).mean() ** 1.5)


def _too_long(answers: Numbers, log: bool) -> ValueError:
    advice = "" if log or answers.min() <= 0 else ", or pass scale='log'"
    return ValueError(
        f"y: {'logarithms of ' * log}answers from {answers.min():g} to {answers.max():g} need more than "
        f"{_MOST_DIGITS} digits. Predict another unit, or the difference from a constant{advice}."
    )
