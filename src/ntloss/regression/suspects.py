"""What is likely to be wrong with a table: columns that hold the answer, marks of gaps, rows of sums."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers import parse_number
from ntloss.regression.columns import Answers
from ntloss.regression.rows import FEWEST, Numbers

# A column numbers the rows if it begins at 0 to 2 and ends at this many times their number: some may be
# left out.
_MOST_PER_ROW = 1.5
_MOST_GAPS = 0.1  # share of the rows in a column that is the answer in another form
_UNNAMED = re.compile(r"|Unnamed: [0-9]+")  # the index of a frame in a CSV file, and as it is read
_FEWEST_LEVELS = 5  # of a column that rises with the answer by more than chance
_MOST_COLUMNS = 50  # of which sums are looked for
_FAR = 10  # interquartile ranges outside the quartiles from which a number is far out
_MARK = re.compile("-1|-?9+")  # of gaps
_SUMMARY = re.compile(r"(?:(?:grand|sub)[ -]?)?total|sum|average|mean", re.IGNORECASE)
_NEAR = 0.01  # how far a sum or mean may be from that of the numbers as they are written, relative
_ENOUGH = 20  # rows of which no last one is the sum of the others by chance
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
        cells = table[name].map(str)
        if cells.nunique() == 1:
            found[name] = "it is the same in all rows"
        elif name not in numbers:
            if _is_copy(cells, answers):
                found[name] = "it equals the answer"
        elif times := _ratio(numbers[name], answers):
            found[name] = "it equals the answer" if times == 1 else f"it is {times:.6g} times the answer"
        elif _are_labels(column := numbers[name]):
            if column.min() <= 2 and column.max() <= _MOST_PER_ROW * len(column):
                found[name] = "it numbers the rows"
            elif _UNNAMED.fullmatch(name):
                found[name] = "it has no name, and different whole numbers as an index has"
    return found


def find_leaks(numbers: Mapping[str, Numbers], answers: Numbers) -> list[str]:
    """Find columns from which the answer follows exactly, and say what to do.

    They rise or fall with the answer in all rows, as its logarithm, its rank or the rounded answer does; or
    the answer is a sum of multiples of several columns, or a product of their powers.

    Args:
        numbers: `[rows]` of each column of numbers, NaN for gaps.
        answers: `[rows]`.

    Example:
        >>> answers = np.arange(1.0, 31) ** 2 % 17
        >>> find_leaks({"log": np.log(answers + 1), "day": np.arange(30.0)}, answers)[0].partition(":")[0]
        "'log' rises exactly with the answer"
    """
    found, others = list[str](), dict[str, Numbers]()
    for name, column in numbers.items():
        known = ~np.isnan(column)
        levels, levels_of_answers = (len(np.unique(each[known])) for each in (column, answers))
        ways = {"rises": column[known], "falls": -column[known]}
        exact = [way for way, values in ways.items() if _ascends(values, answers[known])]
        if known.sum() >= FEWEST and levels >= _FEWEST_LEVELS and levels_of_answers > 2 and exact:
            advice = (
                f"{_UNKNOWN}, leave it out: --drop {shlex.quote(name)}, in Python X.drop(columns={name!r})"
            )
            found.append(f"{name!r} {exact[0]} exactly with the answer: {advice}")
        elif levels > 1:
            others[name] = column
    if names := _sum_of(others, answers) or _sum_of(others, answers, np.log):
        found.append(
            f"the answer follows exactly from {' and '.join(map(repr, names))}: {_UNKNOWN}, leave one out"
        )
    return found


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
    if len(truths) < max(FEWEST, 3 * len(columns)):
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


def find_errors(answers: Numbers, scaled: Numbers) -> NDArray[np.bool_]:
    """Return which answers may be errors or marks of gaps.

    They are far from the others on the scale on which they are written; or they are the only negative number
    in several rows; or the largest number, which is the commonest one, and made of nines. A 0 in several rows
    is none: counts and amounts are often 0. The other answers are compared without it.

    Args:
        answers: `[rows]`.
        scaled: `[rows]`, as they are written.

    Example:
        >>> answers = np.array([0, 0, 0, 10_000, 10_010, 10_020, 10_030, -999])
        >>> answers[find_errors(answers, answers)]
        array([-999])
    """
    compared = (answers != 0) | (np.count_nonzero(answers) == len(answers) - 1)
    found = np.zeros(len(answers), bool)
    found[compared] = far_out(scaled[compared])
    values, counts = np.unique(answers, return_counts=True)
    if len(values) < 3:
        return found
    if values[0] < 0 <= values[1] and (counts[0] > 1 or _MARK.fullmatch(f"{values[0]:g}")):
        found |= answers == values[0]
    if 1 < counts[-1] == counts.max() and re.fullmatch("99+", f"{values[-1]:.15g}"):
        found |= answers == values[-1]
    return found


def far_out(answers: Numbers) -> NDArray[np.bool_]:
    """Return which answers are so far from the others that they may be errors.

    They are more than ten interquartile ranges outside the quartiles, or the smallest or largest number, in
    several rows, is as far from the quartiles of the other ones, such as -999 in each third row.

    Example:
        >>> far_out(np.array([2.4, 2.6, 3.0, 3.1, 3.5, 1e7]))
        array([False, False, False, False, False,  True])
    """
    found = _far_from(answers, answers)
    for end in (answers.min(), answers.max()):
        others = answers[answers != end]
        if 0 < len(others) < len(answers) - 1:
            found |= (answers == end) & _far_from(others, answers)
    return found


def _far_from(others: Numbers, answers: Numbers) -> NDArray[np.bool_]:
    low, high = np.quantile(others, [0.25, 0.75])
    margin = _FAR * (high - low)
    found: NDArray[np.bool_] = ((answers < low - margin) | (answers > high + margin)) & (margin > 0)
    return found


def _ratio(numbers: Numbers, answers: Numbers) -> float:
    """Return how many times the answers a column is, in all rows but a few gaps; 0 if it is no multiple."""
    known = ~np.isnan(numbers)
    if (~known).sum() > _MOST_GAPS * len(known):
        return 0.0
    numbers, answers = numbers[known], answers[known]
    if np.array_equal(numbers, answers):
        return 1.0
    with np.errstate(all="ignore"):  # answers of 0 alone, or too large ones, are refused later
        times = float(numbers @ answers / (answers @ answers))
        return times if np.allclose(numbers, times * answers, rtol=1e-9, atol=0) else 0.0


def _is_copy(cells: Iterable[str], answers: Numbers) -> bool:
    """Return whether texts hold the answers, in all rows but a few without a number."""
    spare = _MOST_GAPS * len(answers)
    for cell, answer in zip(cells, answers, strict=True):
        number = parse_number(cell, "whole")
        spare -= number is None
        if spare < 0 or number not in (None, answer):
            return False
    return True


def _are_labels(numbers: Numbers) -> bool:
    """Return whether numbers are whole, 0 or more, and differ from each other."""
    is_whole = np.array_equal(numbers, np.floor(numbers))
    return is_whole and numbers.min() >= 0 and len(np.unique(numbers)) == len(numbers)


def leave_out_summary(rows: pd.DataFrame, answers: Answers) -> Answers:
    """Return answers without those of last rows that sum up the others, as below a table of a spreadsheet.

    Such rows are called "Total", "Average" or the like, and their answers are near the sum or the mean of the
    others. If a row has only the name, a note asks for a decision. A row without such a name is left out if
    its answer is the sum of at least 20 others, of which none is negative.

    Args:
        rows: the table, of texts.
        answers: those of the rows.

    Example:
        >>> rows = pd.DataFrame({"text": ["a", "b", "Total", "Mean"], "y": ["3", "4", "7", "3.5"]})
        >>> leave_out_summary(rows, Answers(np.array([3, 4, 7, 3.5]), [])).numbers
        array([ 3.,  4., nan, nan])
    """
    known = [*np.flatnonzero(np.isfinite(answers.numbers))]
    named: dict[int, str] = {}
    while len(known) > 2 and (name := _name_of_summary(rows, known[-1])):
        named[known.pop()] = name
    numbers, notes = answers.numbers.copy(), [*answers.notes]
    others = numbers[known]
    for row, name in named.items():
        shown = f"row {row + 1}, {name!r},"
        if np.isclose(numbers[row], [others.sum(), others.mean()], rtol=_NEAR, atol=0).any():
            notes.append(f"left out: {shown} with {numbers[row]:.15g}, which sums up the others")
            numbers[row] = np.nan
        else:
            notes.append(f"{shown} may sum up the others; if so, delete it")
    if not named and np.count_nonzero(others[:-1]) >= _ENOUGH and (others >= 0).all():
        last = known[-1]
        if np.isclose(numbers[last], others[:-1].sum(), rtol=1e-9, atol=0):
            notes.append(f"left out: row {last + 1} with {numbers[last]:.15g}, the sum of the others")
            numbers[last] = np.nan
    return answers._replace(numbers=numbers, notes=notes)


def _name_of_summary(rows: pd.DataFrame, row: int) -> str | None:
    """Return what says that a row sums up others, if no other row has that text in the same column."""
    for name, cell in rows.iloc[row].items():
        if cell is not None and _SUMMARY.fullmatch(cell.strip(": ")) and (rows[name] == cell).sum() == 1:
            return str(cell)
    return None
