"""Rows as texts: what a language model reads before it writes the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers import parse_number
from ntloss.regression.rows import TEXT, Numbers, as_floats, as_table, column_name, is_gap, is_numeric

_COLUMN = re.compile(r"\{([^{}]*)\}")
_ANSWER = "answer"  # what is asked for, unless y has a name
_GAP = "unknown"
_SIGNIFICANT = 9  # digits of a number with decimals; whole numbers and codes are written as they are
_EXACT = 2.0**53  # from which a float may stand for several whole numbers
_WHOLE = re.compile(r"[+-]?[0-9]+")
_PLAIN = (1e-9, 1e16)  # numbers from and up to which all zeros are written
_MIDNIGHT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00:00")
# A column numbers the rows if it begins at 0 to 2 and ends at this many times their number: some may be
# left out.
_MOST_PER_ROW = 1.5
_MOST_GAPS = 0.1  # share of the rows in a column that is the answer in another form
_UNNAMED = ("", "Unnamed: 0")  # the index of a frame in a CSV file, and as pandas reads it


@dataclass(frozen=True)
class Questions:
    """How rows are written as questions.

    Args:
        columns: the columns of a question, in order.
        numeric: those that held only numbers when the model was fitted.
        prompt: the question, with names of columns in braces. None: all columns with their names.
        answer: the name of the number that is asked for.
        plain: whether rows are texts without a name.
        left_out: columns that no question holds, each with the reason.
        width: number of columns that the rows had, if they had no names, as those of arrays. Columns of
            another number of them may be others. None: the columns had names.
    """

    columns: tuple[str, ...]
    numeric: tuple[str, ...]
    prompt: str | None
    answer: str
    plain: bool
    left_out: Mapping[str, str] = field(default_factory=dict)
    width: int | None = None

    @classmethod
    def choose(
        cls,
        table: pd.DataFrame,
        answers: Numbers,
        name: Any = None,
        prompt: str | None = None,
        plain: bool = False,
    ) -> Questions:
        """Choose what questions hold.

        Args:
            table: the rows, of `as_table`.
            answers: `[rows]`.
            name: of the answers. Default: none.
            prompt: the question, with names of columns in braces. Default: all columns.
            plain: whether the rows are texts without a name.

        Raises:
            ValueError: the prompt names no column, or one that the table does not have.
        """
        answer = _ANSWER if name is None or name == "" else str(name)
        numeric = tuple(c for c in table.columns if is_numeric(table[c]))
        width = len(table.columns) if _are_numbered(table) else None
        if prompt is not None:
            columns = tuple(dict.fromkeys(_COLUMN.findall(prompt)))
            if not columns:
                raise ValueError(
                    f"prompt={prompt!r}: expected the name of a column in braces, such as {{text}}"
                )
            if plain and len(columns) == 1:
                columns = (TEXT,)
                prompt = _COLUMN.sub("{text}", prompt)
            if answer in columns and answer not in table.columns:
                raise ValueError(f"prompt={prompt!r}: {{{answer}}} is what is predicted; leave it out")
            _check_columns(columns, table, "prompt names")
            named = tuple(c for c in numeric if c in columns)
            return cls(columns, named, prompt, answer, plain, width=width)
        left_out = {} if len(table.columns) < 2 else _useless(table, numeric, answers)
        kept = tuple(c for c in table.columns if c not in left_out)
        if not kept:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
            raise ValueError(
                f"X: no column is left to predict from ({reasons}); expected one that differs, or a prompt "
                "that names the columns"
            )
        return cls(kept, tuple(c for c in numeric if c in kept), None, answer, plain, left_out, width)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Questions:
        """Make an object of the fields that were saved as JSON."""
        return cls(**{**fields, "columns": (*fields["columns"],), "numeric": (*fields["numeric"],)})

    def table(self, X: Any) -> pd.DataFrame:  # noqa: N803
        """Return the columns of the question as a table.

        Raises:
            ValueError: a column is missing, or X has no names and another number of columns.
            TypeError: X is neither a table nor texts.
        """
        table, plain = as_table(X)
        if not len(table):
            return pd.DataFrame(columns=[*self.columns])
        if self.width not in (None, len(table.columns)) and _are_numbered(table) and not _is_frame(X):
            raise ValueError(
                f"X has {len(table.columns)} columns, but the model was fitted with {self.width}: expected "
                "as many, because they have no names"
            )
        if len(self.columns) == len(table.columns) == 1 and (
            plain or (self.plain and _is_series(X)) or table.columns[0] == column_name(0)
        ):
            table.columns = pd.Index(self.columns)
        _check_columns(self.columns, table, "the model was fitted with")
        return table[[*self.columns]]

    def find_empty(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Return which rows have nothing in any column of the question, `[rows]`."""
        empty: NDArray[np.bool_] = self.table(X).map(is_gap).to_numpy(bool).all(1)
        return empty

    def write(self, X: Any) -> list[str]:  # noqa: N803
        """Write each row as a question."""
        table = self.table(X)
        texts = {c: [_text(value, c in self.numeric) for value in _cells(table[c])] for c in self.columns}
        rows = [dict(zip(texts, values, strict=True)) for values in zip(*texts.values(), strict=True)]
        if self.prompt is not None:
            parts = _COLUMN.split(self.prompt)  # every other one is the name of a column
            return ["".join(row[part] if i % 2 else part for i, part in enumerate(parts)) for row in rows]
        if len(self.columns) == 1:
            return [f"{next(iter(row.values()))}\n{self.answer}: " for row in rows]
        return [", ".join([*(f"{c}: {text}" for c, text in row.items()), f"{self.answer}: "]) for row in rows]


def _is_series(X: Any) -> bool:  # noqa: N803
    """Return whether X is one column, also of polars or Arrow."""
    return isinstance(X, pd.Series) or (hasattr(X, "to_pandas") and not hasattr(X, "columns"))


def _is_frame(X: Any) -> bool:  # noqa: N803
    """Return whether X has names of columns, also of polars, Arrow or datasets."""
    return hasattr(X, "columns") or hasattr(X, "column_names")


def _are_numbered(table: pd.DataFrame) -> bool:
    """Return whether columns have the names that those of an array get."""
    return [*table.columns] == [*map(column_name, range(len(table.columns)))]


def _check_columns(names: Iterable[str], table: pd.DataFrame, why: str) -> None:
    if missing := [name for name in names if name not in table.columns]:
        raise ValueError(
            f"X: {why} the column {missing[0]!r}; expected it among {', '.join(map(str, table.columns))}"
        )


def _useless(table: pd.DataFrame, numeric: Iterable[str], answers: Numbers) -> dict[str, str]:
    """Find columns that no question should hold, and say why."""
    found = {}
    for name in table.columns:
        column = table[name].map(str)
        if column.nunique() == 1:
            found[name] = "it is the same in all rows"
        elif name in numeric:
            numbers = as_floats(table[name])
            times = _ratio(numbers, answers)
            if times == 1:
                found[name] = "it equals the answer"
            elif times:
                found[name] = f"it is {times:.6g} times the answer"
            elif (
                _are_labels(numbers) and numbers.min() <= 2 and numbers.max() <= _MOST_PER_ROW * len(numbers)
            ):
                found[name] = "it numbers the rows"
            elif _are_labels(numbers) and name in _UNNAMED:
                found[name] = "it has no name, and different whole numbers as an index has"
        elif _is_copy(column, answers):
            found[name] = "it equals the answer"
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


def _cells(column: pd.Series) -> Iterable[Any]:
    """Return the values of a column; floats of 32 bits keep their type, and so their shortest digits."""
    cells: Iterable[Any] = column.to_numpy() if column.dtype.kind == "f" else column
    return cells


def _text(value: Any, numeric: bool) -> str:
    """Write a value of a row: whole numbers with all their digits, others with nine, and midnights as dates.

    Example:
        >>> [_text(value, True) for value in (0.1 + 0.2, "3.00", 4006381333931.0, None, "n/a")]
        ['0.3', '3', '4006381333931', 'unknown', 'n/a']
        >>> _text(np.float32(0.1), True), _text(6.02e23, True), _text("2026-11-27 00:00:00", False)
        ('0.1', '6.02e+23', '2026-11-27')
    """
    if is_gap(value):
        return _GAP
    text = str(value).strip()
    if midnight := _MIDNIGHT.fullmatch(text):
        return midnight[1]
    is_number = numeric or isinstance(value, float | np.floating)
    if not is_number or _WHOLE.fullmatch(text):
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    if not np.isfinite(number):
        return _GAP
    if number.is_integer() and abs(number) < _EXACT:
        return str(int(number))
    if not _PLAIN[0] <= abs(number) < _PLAIN[1]:
        return f"{number:.{_SIGNIFICANT}g}"
    return np.format_float_positional(number, _SIGNIFICANT, unique=False, fractional=False, trim="-")
