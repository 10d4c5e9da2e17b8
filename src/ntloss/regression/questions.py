"""Rows as texts: what a language model reads before it writes the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.regression.columns import NUMBERS, PLAIN, TEXTS, Column, is_gap_mark
from ntloss.regression.rows import TEXT, Numbers, as_table, column_name, is_gap
from ntloss.regression.suspects import find_useless

_COLUMN = re.compile(r"\{([^{}]*)\}")
_ANSWER = "answer"  # what is asked for, unless y has a name
_GAP = "unknown"
_SIGNIFICANT = 9  # digits of a number with decimals; whole numbers and codes are written as they are
_EXACT = 2.0**53  # from which a float may stand for several whole numbers
_WHOLE = re.compile(r"[+-]?[0-9]+")
_PLAIN = (1e-9, 1e16)  # numbers from and up to which all zeros are written
_MIDNIGHT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00:00")


@dataclass(frozen=True)
class Questions:
    """How rows are written as questions.

    Args:
        columns: the columns of a question, in order, and how each was read when the model was fitted.
        prompt: the question, with names of columns in braces. None: all columns with their names.
        answer: the name of the number that is asked for.
        plain: whether rows are texts without a name.
        left_out: columns that no question holds, each with the reason.
        width: number of columns that the rows had, if they had no names, as those of arrays. Columns of
            another number of them may be others. None: the columns had names.
    """

    columns: Mapping[str, Column]
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
        width = len(table.columns) if _are_numbered(table) else None
        if prompt is not None:
            names = [*dict.fromkeys(_COLUMN.findall(prompt))]
            if not names:
                raise ValueError(
                    f"prompt={prompt!r}: expected the name of a column in braces, such as {{text}}"
                )
            if plain and len(names) == 1:
                names = [TEXT]
                prompt = _COLUMN.sub("{text}", prompt)
            if answer in names and answer not in table.columns:
                raise ValueError(f"prompt={prompt!r}: {{{answer}}} is what is predicted; leave it out")
            _check_columns(names, table, "prompt names")
            return cls({c: Column.learn(table[c]) for c in names}, prompt, answer, plain, width=width)
        columns = {name: Column.learn(table[name]) for name in table.columns}
        numbers = {
            name: column.read(table[name]) for name, column in columns.items() if column.kind == NUMBERS
        }
        left_out = {} if len(columns) < 2 else find_useless(table, numbers, answers)
        kept = {name: column for name, column in columns.items() if name not in left_out}
        if not kept:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
            raise ValueError(
                f"X: no column is left to predict from ({reasons}); expected one that differs, or a prompt "
                "that names the columns"
            )
        return cls(kept, None, answer, plain, left_out, width)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Questions:
        """Make an object of the fields that were saved as JSON."""
        return cls(**{**fields, "columns": {c: Column(**of) for c, of in fields["columns"].items()}})

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
            table.columns = pd.Index([*self.columns])
        _check_columns(self.columns, table, "the model was fitted with")
        return table[[*self.columns]]

    def find_empty(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Return which rows have nothing in any column of the question, `[rows]`."""
        table = self.table(X)
        empty: NDArray[np.bool_] = np.ones(len(table), bool)
        for name, column in self.columns.items():
            empty &= (table[name].map(is_gap).to_numpy(bool)) | _gaps(table[name], column)
        return empty

    def numbers(self, X: Any) -> dict[str, Numbers]:  # noqa: N803
        """Return the columns that hold numbers, `[rows]` each, NaN for gaps."""
        table = self.table(X)
        return {c: column.read(table[c]) for c, column in self.columns.items() if column.kind == NUMBERS}

    def notes(self, X: Any) -> list[str]:  # noqa: N803
        """Say which cells are not read as those that the model was fitted to."""
        table = self.table(X)
        return [note for c, column in self.columns.items() for note in column.notes(table[c])]

    def write(self, X: Any) -> list[str]:  # noqa: N803
        """Write each row as a question."""
        table = self.table(X)
        texts = {}
        for name, column in self.columns.items():
            is_plain = column.kind == NUMBERS and column.plain
            cells = zip(_cells(table[name]), _gaps(table[name], column), strict=True)
            texts[name] = [_GAP if gap else _text(value, is_plain) for value, gap in cells]
        rows = [dict(zip(texts, values, strict=True)) for values in zip(*texts.values(), strict=True)]
        if self.prompt is not None:
            parts = _COLUMN.split(self.prompt)  # every other one is the name of a column
            return ["".join(row[part] if i % 2 else part for i, part in enumerate(parts)) for row in rows]
        if len(self.columns) == 1:
            return [f"{next(iter(row.values()))}\n{self.answer}: " for row in rows]
        return [", ".join([*(f"{c}: {text}" for c, text in row.items()), f"{self.answer}: "]) for row in rows]


def _gaps(cells: pd.Series, column: Column) -> NDArray[np.bool_]:
    """Return which cells are marks of gaps, which are texts in a column of texts."""
    if column.kind == TEXTS or pd.api.types.is_numeric_dtype(cells):
        return np.zeros(len(cells), bool)
    marks: NDArray[np.bool_] = is_gap_mark(cells).to_numpy(bool)
    return marks


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
    is_number = isinstance(value, float | np.floating) or (numeric and PLAIN.fullmatch(text))
    if not is_number or _WHOLE.fullmatch(text):
        return text
    number = float(text)
    if not np.isfinite(number):
        return _GAP
    if number.is_integer() and abs(number) < _EXACT:
        return str(int(number))
    if not _PLAIN[0] <= abs(number) < _PLAIN[1]:
        return f"{number:.{_SIGNIFICANT}g}"
    return np.format_float_positional(number, _SIGNIFICANT, unique=False, fractional=False, trim="-")
