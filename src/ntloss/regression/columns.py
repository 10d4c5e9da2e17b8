"""Read columns of texts: which cells are gaps, and the numbers of the answers."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers.alphabet import APOSTROPHES, POINT, POWERS, SIGNS, SPACES
from ntloss.numbers.parsing import parse_number

_GAPS = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "?", ".", "na", "n/a", "n.a.", "#n/a", "<na>", "nan"}
_GAPS |= {"null", "none", "unknown"}
_GAPS |= {"#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!"}  # a spreadsheet's errors
PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # a number as `float` reads it
_AROUND_DIGITS = re.compile(r"([^0-9]*)([0-9](?:.*[0-9])?)([^0-9]*)", re.DOTALL)
_ONE_GROUP = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_APOSTROPHE = re.compile(f"[0-9][{APOSTROPHES}][0-9]")
_SPACE = re.compile(f"[0-9][{SPACES}][0-9]")
_MARKS = f"(. {''.join(SIGNS)}"
_MINUSES = tuple(sign for sign, factor in SIGNS.items() if factor < 0)
_SCORE = r"([0-9][0-9.,]*)\s*(?:/|out of)\s*([0-9]+)"
_SUMMARY = re.compile(r"(?:(?:grand|sub)[ -]?)?total|sum|average|mean", re.IGNORECASE)
_NEAR = 0.01  # how far a sum or mean may be from that of the numbers as they are written, relative
_ENOUGH = 20  # rows of which no last one is the sum of the others by chance
_EXAMPLES = 3  # rows of an error
_SHOWN = 60  # characters of a cell


class Answers(NamedTuple):
    """Numbers of a column, NaN where there is nothing, and how they were read.

    Attributes:
        numbers: `[rows]`.
        notes: sentences about how they were read.
        decimal: the mark before decimals; None if no answer has one, or separators of thousands.
    """

    numbers: NDArray[np.float64]
    notes: list[str]
    decimal: str | None = None


def find_numeric(rows: pd.DataFrame, missing: Iterable[str] = ()) -> list[str]:
    """Return the names of columns that hold numbers, and gaps at most.

    Args:
        rows: texts.
        missing: what stands for a gap, in addition to `?`, `n/a` and the like.
    """
    gaps = _GAPS | {*map(_normal, missing)}
    return [name for name in rows.columns if _holds_numbers(rows[name], gaps)]


def mark_gaps(
    rows: pd.DataFrame, missing: Iterable[str] = (), numeric: Collection[str] | None = None
) -> pd.DataFrame:
    """Return rows with None in place of gaps.

    Args:
        rows: texts.
        missing: what stands for a gap in any column.
        numeric: columns in which NA, ? and the like stand for gaps, too. Default: those that hold numbers.
            Rows that a model reads are marked with the columns of the rows that it learned from, because
            which ones hold numbers may depend on a single row.
    """
    meant = {*map(_normal, missing)}
    numeric = find_numeric(rows, meant) if numeric is None else numeric
    return rows.apply(lambda texts: _without(texts, meant | _GAPS if texts.name in numeric else meant))


def _without(texts: pd.Series, gaps: set[str]) -> pd.Series:
    return texts.where(~texts.fillna("").map(_normal).isin(gaps), None)


def _holds_numbers(texts: pd.Series, gaps: set[str]) -> bool:
    given = texts[~texts.fillna("").map(_normal).isin(gaps)]
    return bool(len(given) and pd.to_numeric(given, errors="coerce").notna().all())


def _normal(text: str) -> str:
    """Return a text as marks of gaps are compared: without case, and numbers by their values."""
    text = text.strip().lower()
    return str(float(text)) if PLAIN.fullmatch(text) else text


def read_answers(
    column: pd.Series,
    decimal: str | None = None,
    missing: Iterable[str] = (),
    usual: str | None = None,
) -> Answers:
    """Read the numbers of a column of texts, each by the grammar of `parse_number`.

    What one answer leaves open, the other ones decide: `$1,234.50` says that commas separate thousands,
    `2,6` that they stand before decimals. A currency or unit that all rows share is left out, True and False
    are 1 and 0, and notes say so.

    Args:
        column: texts.
        decimal: "." or ",", the mark before decimals; the other one then separates thousands. Default: the
            answers decide; numbers that may still be meant in two ways are an error.
        missing: what stands for no answer, in addition to `?`, `n/a` and the like.
        usual: "." or ",", the mark before decimals of other answers of this kind, which decides what these
            answers leave open. Default: unknown.

    Raises:
        ValueError: some rows hold something else, or may be read in two ways.

    Example:
        >>> numbers, notes, _ = read_answers(pd.Series(["$5", "$7.50", "?"], name="y"))
        >>> numbers, notes
        (array([5. , 7.5, nan]), ["1 row has no 'y' ('?')", "every 'y' has '$'"])
        >>> read_answers(pd.Series(["12.345", "523"]), decimal=",").numbers
        array([12345.,   523.])
    """
    name = "answer" if column.name is None else str(column.name)
    texts = column.fillna("").map(lambda text: str(text).replace("\xa0", " ").strip())
    is_gap = texts.map(_normal).isin(_GAPS | {*map(_normal, missing)})
    given, notes = texts[~is_gap], list[str]()
    if absent := len(texts) - len(given):
        marks = sorted({*texts[is_gap]} - {""})
        meant = f" ({', '.join(map(repr, marks))})" if marks else ""
        notes.append(f"{absent:,} row{'s have' if absent > 1 else ' has'} no {name!r}{meant}")
    if not len(given):
        raise ValueError(f"the column {name!r} holds no number")
    if given.str.lower().isin(["true", "false"]).all():
        notes.append(f"{name!r}: True is 1, False is 0")
        given = (given.str.lower() == "true").map({True: "1", False: "0"})
    given = _without_scale(given, name, notes)
    found = given.map(_Cell.of)
    mark = _decimal_mark(found, name, usual, notes) if decimal is None else decimal
    read = [cell.read(mark) for cell in found]
    is_wrong = [math.isnan(number) for number, _ in read]
    measured = [unit for number, unit in read if not math.isnan(number)]
    units = {unit.removesuffix("s") if len(unit) > 2 else unit for unit in measured}
    if len(units) == 1 and (unit := max(measured, key=len)):
        notes.append(f"every {name!r} has {unit!r}")
    scaled = [
        (cell.text, number)
        for cell, (number, unit) in zip(found, read, strict=True)
        if cell.magnitudes and cell.magnitudes[0] not in unit.split()
    ]
    if scaled:
        notes.append(f"{scaled[0][0]!r} in {name!r} is read as {scaled[0][1]:.15g}")
    if len(units) > 1 and not any(is_wrong):
        is_wrong = [unit != "" for _, unit in read]
    wrong = given[is_wrong]
    if len(wrong):
        rows = wrong.index[:_EXAMPLES]
        shown = ", ".join(f"{texts[row]!r} in row {texts.index.get_loc(row) + 1:,}" for row in rows)
        raise ValueError(
            f"the column {name!r} holds no plain number in {len(wrong):,} of {len(texts):,} rows: {shown}. "
            f"{_advice(found[is_wrong], [number for number, _ in read], units, decimal)}"
        )
    numbers = pd.Series([number for number, _ in read], given.index)
    _note_parentheses(given, name, notes)
    return Answers(numbers.reindex(texts.index).to_numpy(float), notes, mark)


class _Cell(NamedTuple):
    """A text around one number: what stands before its first digit, up to the last one, and after that."""

    text: str
    before: str
    core: str
    after: str

    @classmethod
    def of(cls, text: str) -> _Cell:
        match = _AROUND_DIGITS.fullmatch(text)
        return cls(text, *(match.groups() if match else (text, "", "")))

    def read(self, decimal: str | None) -> tuple[float, str]:
        """Return the number, NaN if there is none, and its currency or unit."""
        number, unit = self._read(decimal)
        return (math.nan if number is None or math.isinf(number) else number), unit

    def _read(self, decimal: str | None) -> tuple[float | None, str]:
        if PLAIN.fullmatch(self.text) and (decimal != "," or POINT not in self.text):
            return float(self.text), ""
        if decimal is None and "," in self.core:
            return None, ""  # thousands, or decimals?
        thousands = self._thousands(decimal)
        before, after = self.before.lstrip(_MARKS).rstrip("(. "), self.after.strip(")(. ")
        number = parse_number(self.text, "whole", thousands)
        if number is not None:
            before = before.rstrip(_MARKS)
            after = " ".join(word for word in after.split() if word not in self.magnitudes)
        elif "(" not in self.before and parse_number(self.core, "whole", thousands) is not None:
            number = parse_number(self.text, "first", thousands)
        return number, f"{before} {after}".strip()

    @property
    def magnitudes(self) -> list[str]:
        """What may stand for thousands or millions after the number."""
        return [word for word in self.after.split() if word.lower().removesuffix("s") in POWERS]

    def _thousands(self, decimal: str | None) -> str | None:
        """Return the separator of thousands that the text has, or may have beside its mark of decimals."""
        for mark, pattern in (("'", _APOSTROPHE), (" ", _SPACE)):
            if pattern.search(self.core):
                return mark
        if decimal == ",":
            return POINT
        return None if decimal is None or self.core.count(",") > 1 else ","

    @property
    def mark(self) -> str | None:
        """The mark before decimals, if the text alone decides it."""
        points, commas = self.core.count(POINT), self.core.count(",")
        if points and commas:
            return max(",.", key=self.core.rindex) if min(points, commas) == 1 else None
        if points + commas == 1:
            return None if _ONE_GROUP.fullmatch(self.core) else POINT if points else ","
        return POINT if commas else "," if points else None


def _decimal_mark(cells: pd.Series, name: str, usual: str | None, notes: list[str]) -> str | None:
    """Return the mark before decimals that the answers of a column decide, or the usual one.

    None: they have neither decimals nor separators of thousands, or commas that may be one or the other.

    Raises:
        ValueError: points may be meant in two ways.
    """
    deciding = dict[str, str]()
    for cell in cells:
        if cell.mark is not None:
            deciding.setdefault(cell.mark, cell.text)
    if len(deciding) == 1:
        ((mark, example),) = deciding.items()
        other = {POINT: ",", ",": POINT}[mark]
        if mark == "," or any("," in cell.core for cell in cells):
            notes.append(
                f"in {name!r}, {mark!r} stands before decimals and {other!r} between thousands ({example!r})"
            )
        return mark
    if deciding:
        return POINT  # what has decimals after a comma will be named
    cells = cells[cells.map(lambda cell: cell.core != "")]
    pointed = cells.map(lambda cell: POINT in cell.core)
    if usual is not None:
        if is_open := [cell.text for cell in cells if POINT in cell.core or "," in cell.core]:
            notes.append(
                f"in {name!r}, {usual!r} stands before decimals, as in the fitted table ({is_open[0]!r})"
            )
        return usual
    if not pointed.any():
        return None
    if pointed.all():
        notes.append(
            f"the points in {name!r} are read as decimals ({cells.iloc[0].text!r}); if they separate "
            "thousands, pass --decimal ,"
        )
        return POINT
    examples = [cells[pointed].iloc[0].text, cells[~pointed].iloc[0].text]
    raise ValueError(
        f"the column {name!r} may be read in two ways: {' and '.join(map(repr, examples))} are thousands "
        "separated by points, or have decimals. Pass --decimal , for thousands, --decimal . for decimals."
    )


def _without_scale(texts: pd.Series, name: str, notes: list[str]) -> pd.Series:
    """Return scores of one scale, such as 4/5 and 3/5 in all rows, without it."""
    parts = texts.str.extract(rf"^{_SCORE}$")
    scores, scales = pd.to_numeric(parts[0].str.replace(",", POINT), errors="coerce"), pd.to_numeric(parts[1])
    if not (scores <= scales).all() or scales.nunique() > 1:
        return texts
    notes.append(f"every {name!r} is out of {scales.iloc[0]:g} ({texts.iloc[0]!r})")
    return parts[0]


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
        >>> leave_out_summary(rows, read_answers(rows["y"])).numbers
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


def _note_parentheses(texts: pd.Series, name: str, notes: list[str]) -> None:
    """Say that parentheses are read as a minus sign.

    Raises:
        ValueError: other answers have minus signs, so that parentheses may mean something else.
    """
    enclosed = texts.str.startswith("(") & texts.str.endswith(")")
    if not enclosed.any():
        return
    signed = texts[~enclosed & texts.str.startswith(_MINUSES)]
    if len(signed):
        raise ValueError(
            f"the column {name!r} may be read in two ways: {signed.iloc[0]!r} has a minus sign, so "
            f"{texts[enclosed].iloc[0]!r} in parentheses may be negative or not. Write one of the two."
        )
    count = int(enclosed.sum())
    rows = f"{count:,} row{'s' * (count > 1)}"
    notes.append(f"the parentheses around {name!r} in {rows} are read as negative numbers")


def _advice(wrong: pd.Series, numbers: Sequence[float], units: set[str], decimal: str | None) -> str:
    if not np.isnan(numbers).any():
        shown = ", ".join(map(repr, sorted(units - {""})[:_EXAMPLES]))
        others = ", and rows without one" if "" in units else ""
        return f"There are several units or marks: {shown}{others}. Write one, or none, in all rows."
    has_point, has_comma = (any(mark in cell.core for cell in wrong) for mark in ".,")
    if decimal == "," and has_point:
        return "With --decimal , points separate thousands, as in 1.234,5."
    if decimal is None and has_comma:
        return "Commas are thousands: --decimal . Commas are decimals: --decimal ,"
    if not any(cell.core for cell in wrong) and len(wrong) == len(numbers):
        return "Expected numbers. If these words have an order, write a number for each."
    advice = "Correct them, or leave them empty: rows without an answer are left out."
    if mark := next((cell.text for cell in wrong if not re.search("[0-9]", cell.text)), None):
        advice += f" If they stand for gaps, name them: --missing={shlex.quote(mark[:_SHOWN])}"
    return advice
