"""What is likely to be wrong with a table: columns that hold the answer, and marks of gaps among answers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.regression.columns import Numbers, as_times

# A column numbers the rows if it begins at 0 to 2 and ends at this many times their number: some may be
# left out.
_MOST_PER_ROW = 1.5
_MOST_GAPS = 0.1  # share of the rows in a column that is a multiple of the answer
_UNNAMED = re.compile(r"|Unnamed: [0-9]+")  # the index of a frame in a CSV file, and as it is read
_FEWEST = 20  # rows from which an exact relation is more than chance
_FEWEST_LEVELS = 5  # of a column that rises with the answer by more than chance
_ROWS_OF_A_TEXT = 4  # in the mean, from which texts are ranked
_MOST_COLUMNS = 50  # of which sums are looked for
_FAR = 10  # interquartile ranges outside the quartiles from which a number is far out
_APART = 10  # times the largest other answer, from which large ones are errors and no tail
_UNKNOWN = "if it is not known before the answer"


def find_useless(table: pd.DataFrame, numbers: Mapping[str, Numbers], answers: Numbers) -> dict[str, str]:
    """Find columns that no question should hold, and say why.

    Args:
        table: the rows.
        numbers: `[rows]` of each column of numbers.
        answers: `[rows]`.
    """
    found = {}
    for name in table.columns:
        column = numbers.get(name)
        if table[name].map(str).nunique() == 1:
            found[name] = "it is the same in all rows"
        elif column is None:
            continue
        elif times := _ratio(column, answers):
            found[name] = "it equals the answer" if times == 1 else f"it is {times:.6g} times the answer"
        elif np.array_equal(column, abs(np.floor(column))) and len(np.unique(column)) == len(column):
            if column.min() <= 2 and column.max() <= _MOST_PER_ROW * len(column):
                found[name] = "it numbers the rows"
            elif _UNNAMED.fullmatch(name):
                found[name] = "it has no name, and different whole numbers as an index has"
    return found


def find_leaks(table: pd.DataFrame, numbers: Mapping[str, Numbers], answers: Numbers) -> list[str]:
    """Find columns from which the answer follows exactly, and say what to do.

    They rise or fall with the answer in all rows, as its logarithm, its rank or the rounded answer does; or
    the answer is a sum of multiples of several columns, or a product of their powers. Dates count as days,
    and texts that several rows have as the rank of their mean answer.

    Args:
        table: the rows.
        numbers: `[rows]` of each column of numbers, NaN for gaps.
        answers: `[rows]`.

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


def find_errors(answers: Numbers) -> NDArray[np.bool_]:
    """Return which answers may be errors or marks of gaps.

    They are more than ten interquartile ranges outside the quartiles, and if all answers are above 0, also
    ten times as large as all others, because the large ones of a long tail have neighbors; or they are the
    only negative number, in several rows or made of nines; or the largest number, which is the commonest one,
    and made of nines. A 0 in several rows is none, because counts and amounts are often 0, and no answer
    that most rows have is one. The other answers are compared without these.

    Args:
        answers: `[rows]`.

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


def _as_numbers(cells: pd.Series, answers: Numbers) -> Numbers:
    """Return dates as days, and texts of several rows as the rank of their mean answer; NaN for any other."""
    if (times := as_times(cells)) is not None:
        days: Numbers = ((times - times.min()) / pd.Timedelta(days=1)).to_numpy(float)
        return days
    texts = [str(cell) for cell in cells]
    code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    if _ROWS_OF_A_TEXT * len(code_of) > len(answers):
        return np.full(len(answers), np.nan)
    codes = [code_of[text] for text in texts]
    means = np.bincount(codes, answers) / np.bincount(codes)
    return np.where(cells.isna(), np.nan, means.argsort().argsort()[codes])


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


def _ratio(numbers: Numbers, answers: Numbers) -> float:
    """Return how many times the answers a column is, in all rows but a few gaps; 0 if it is no multiple."""
    known = ~np.isnan(numbers)
    if (~known).sum() > _MOST_GAPS * len(known):
        return 0.0
    numbers, answers = numbers[known], answers[known]
    with np.errstate(all="ignore"):  # answers of 0 alone, or too large ones, are refused later
        times = float(numbers @ answers / (answers @ answers))
        return round(times, 9) if np.allclose(numbers, times * answers, rtol=1e-9, atol=0) else 0.0
