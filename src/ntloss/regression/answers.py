"""The answers of a table: how a model writes them, which may be errors, and what gives them away."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import skew

from ntloss.numbers import NumberFormat
from ntloss.regression.questions import Numbers, as_times

SCALES = ("plain", "log")
_MOST_DIGITS = 15  # that a float64 tells apart
_FAR = 10  # interquartile ranges outside the quartiles from which a number is far out
_APART = 10  # times the largest other answer, from which large ones are errors and no tail
_FEWEST = 20  # rows from which an exact relation is more than chance
_FEWEST_LEVELS = 5  # of a column that rises with the answer by more than chance
_ROWS_OF_A_TEXT = 4  # in the mean, from which texts are compared
_MOST_COLUMNS = 50  # of which sums are looked for
_UNKNOWN = "if it is not known before the answer"


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


def spreads_widely(answers: Numbers) -> bool:
    """Return whether answers above 0 are skewed to the right, and spread over two orders of magnitude.

    Example:
        >>> spreads_widely(np.array([1, 20, 30, 400, 50_000.0])), spreads_widely(np.array([1, 2, 3.0]))
        (True, False)
    """
    low, high = np.quantile(answers, [0.01, 0.99], method="nearest")
    if high <= 100 * low:
        return False
    with np.errstate(all="ignore"):  # powers of very large or small numbers
        of_answers, of_logarithms = skew(answers), skew(np.log(answers))
    return bool(of_answers > 1 and abs(of_logarithms) < of_answers)


def _too_long(answers: Numbers, log: bool) -> ValueError:
    advice = "" if log or answers.min() <= 0 else ", or pass scale='log'"
    return ValueError(
        f"y: {'logarithms of ' * log}answers from {answers.min():g} to {answers.max():g} need more than "
        f"{_MOST_DIGITS} digits. Predict another unit, or the difference from a constant{advice}."
    )


def find_errors(answers: Numbers) -> NDArray[np.bool_]:
    """Return which answers may be errors or marks of gaps.

    They are more than ten interquartile ranges outside the quartiles, and if all answers are above 0, also
    ten times as large as all others, because the large ones of a long tail have neighbors; or they are the
    only negative number, in several rows or made of nines; or the largest number, which is the commonest one,
    and made of nines. A 0 in several rows is none, because counts and amounts are often 0, and no answer
    that most rows have is one. The other answers are compared without these.

    Example:
        >>> answers = np.array([0, 0, 0, 10_000, 10_010, 10_020, 10_030, -999])
        >>> answers[find_errors(answers)]
        array([-999])
    """
    values, counts = np.unique(answers, return_counts=True)
    found = np.zeros(len(answers), bool)
    if len(values) < 3:
        return found
    if values[0] < 0 <= values[1] and (counts[0] > 1 or re.fullmatch("-9+", f"{values[0]:g}")):
        found |= answers == values[0]
    if 1 < counts[-1] == counts.max() and re.fullmatch("99+", f"{values[-1]:.15g}"):
        found |= answers == values[-1]
    compared = ~found & ((answers != 0) | (np.count_nonzero(answers) == len(answers) - 1))
    if 2 * counts.max() > len(answers):
        compared &= answers != values[counts.argmax()]
    low, high = np.quantile(answers[compared], [0.25, 0.75]) if compared.any() else (0, 0)
    margin = _FAR * (high - low)
    if margin > 0:
        found |= compared & (answers < low - margin)
        far = compared & (answers > high + margin)
        is_near = (answers[far] < _APART * answers[compared & ~far].max()).any()
        found |= far & ~(is_near and answers[compared].min() >= 0)
    return found


def find_leaks(table: pd.DataFrame, numbers: Mapping[str, Numbers], answers: Numbers) -> list[str]:
    """Find columns from which the answer follows exactly, and say what to do.

    They rise or fall with the answer in all rows, as its logarithm, its rank or the rounded answer does; or
    the answer is a sum of multiples of several columns, or a product of their powers. Dates count as days,
    and texts that several rows have as the mean answer of these. `numbers` are those of columns of
    numbers, NaN for gaps.

    Example:
        >>> answers = np.arange(1.0, 31) ** 2 % 17
        >>> numbers = {"log": np.log(answers + 1), "day": np.arange(30.0)}
        >>> find_leaks(pd.DataFrame(numbers), numbers, answers)[0].partition(":")[0]
        "'log' rises exactly with the answer"
    """
    found, others = list[str](), dict[str, Numbers]()
    for name in table.columns:
        column = numbers[name] if name in numbers else _as_numbers(table[name], answers)
        known = ~np.isnan(column)
        levels, levels_of_answers = (len(np.unique(each[known])) for each in (column, answers))
        ways = {"rises": column[known], "falls": -column[known]}
        exact = [way for way, values in ways.items() if _ascends(values, answers[known])]
        if known.sum() >= _FEWEST and levels >= _FEWEST_LEVELS and levels_of_answers > 2 and exact:
            advice = (
                f"{_UNKNOWN}, leave it out: --drop {shlex.quote(name)}, in Python X.drop(columns={name!r})"
            )
            found.append(f"{name!r} {exact[0]} exactly with the answer: {advice}")
        elif levels > 1 and (name in numbers or known.all()):  # gaps in dates or texts would leave few rows
            others[name] = column
    if names := _sum_of(others, answers) or _sum_of(others, answers, np.log):
        found.append(
            f"the answer follows exactly from {' and '.join(map(repr, names))}: {_UNKNOWN}, leave one out"
        )
    return found


def _as_numbers(cells: pd.Series, answers: Numbers) -> Numbers:
    """Return dates as days, and texts of several rows as the mean answer of these; NaN for any other."""
    if (times := as_times(cells)) is not None:
        days: Numbers = ((times - times.min()) / pd.Timedelta(days=1)).to_numpy(float)
        return days
    texts = np.array([str(cell) for cell in cells], dtype=object)
    levels, codes = np.unique(texts, return_inverse=True)
    if _ROWS_OF_A_TEXT * len(levels) > len(answers):
        return np.full(len(answers), np.nan)
    means = np.bincount(codes, answers) / np.bincount(codes)
    return np.where(cells.isna(), np.nan, means[codes])


def _ascends(column: Numbers, answers: Numbers) -> bool:
    return bool((np.diff(column[np.lexsort((column, answers))]) >= 0).all())


def _sum_of(columns: Mapping[str, Numbers], answers: Numbers, scale: np.ufunc = np.positive) -> list[str]:
    """Return the fewest columns of which the answers are a sum of multiples, on a scale; else nothing."""
    if scale is np.log:
        columns = {name: column for name, column in columns.items() if not (column <= 0).any()}
    if not 1 < len(columns) <= _MOST_COLUMNS or (scale is np.log and answers.min() <= 0):
        return []
    known = ~np.isnan([*columns.values()]).any(0)
    truths = answers[known]
    if len(truths) < max(_FEWEST, 3 * len(columns)):
        return []
    decimals = next((d for d in range(6) if np.array_equal(truths.round(d), truths)), 15)
    most = min(10.0**-decimals + 1e-9 * abs(truths).max(), 0.01 * truths.std())

    def are_enough(names: Sequence[str]) -> bool:
        given = np.column_stack([np.ones(len(truths)), *(scale(columns[name][known]) for name in names)])
        given = given / np.maximum(abs(given).max(0), 1e-300)
        found = given @ np.linalg.lstsq(given, scale(truths), rcond=None)[0]
        return bool((abs((np.exp(found) if scale is np.log else found) - truths) <= most).all())

    names = [*columns]
    if not are_enough(names):
        return []
    for name in columns:
        if len(names) > 1 and are_enough(fewer := [each for each in names if each != name]):
            names = fewer
    return names
