"""Rows and answers as users give them, what each row is used for, and the questions that a model reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers import parse_number
from ntloss.regression.columns import NUMBERS, Column, Numbers, as_floats
from ntloss.regression.suspects import find_useless

TEXT = "text"  # a single column without a name
FEWEST = 20  # rows
_HELD_OUT = 0.25  # share of the rows
_FEWEST_HELD_OUT, _MOST_HELD_OUT = 50, 1000
_FEWEST_CHOOSING = 15  # held-out rows below which none choose the epoch
_COLUMN = re.compile(r"\{([^{}]*)\}")
_ANSWER = "answer"  # what is asked for, unless y has a name


@dataclass(frozen=True)
class Questions:
    """How rows are written as questions.

    Args:
        columns: the columns of a question, in order, and how each was read when the model was fitted.
        prompt: the question, with names of columns in braces. None: all columns with their names.
        answer: the name of the number that is asked for.
        left_out: columns that no question holds, each with the reason.
        width: number of columns that the rows had, if these had no names, as those of arrays. None: they had.
    """

    columns: Mapping[str, Column]
    prompt: str | None
    answer: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    width: int | None = None

    @classmethod
    def choose(
        cls,
        table: pd.DataFrame,
        answers: Numbers,
        name: Any = None,
        prompt: str | None = None,
        is_named: bool = True,
    ) -> Questions:
        """Choose what questions hold.

        Args:
            table: the rows, of `as_table`.
            answers: `[rows]`.
            name: of the answers. Default: none.
            prompt: the question, with names of columns in braces. Default: all columns.
            is_named: whether the columns had names. Default: True.

        Raises:
            ValueError: the prompt names no column, or one that the table does not have.
        """
        answer = _ANSWER if name is None or name == "" else str(name)
        width = None if is_named else len(table.columns)
        if prompt is not None:
            names = [*dict.fromkeys(_COLUMN.findall(prompt))]
            if not names:
                raise ValueError(
                    f"prompt={prompt!r}: expected the name of a column in braces, such as {{text}}"
                )
            if width == 1 and len(names) == 1:
                names, prompt = [TEXT], _COLUMN.sub("{text}", prompt)
            if answer in names and answer not in table.columns:
                raise ValueError(f"prompt={prompt!r}: {{{answer}}} is what is predicted; leave it out")
            _check_columns(names, table, "prompt names")
            return cls({c: Column.learn(table[c]) for c in names}, prompt, answer, width=width)
        columns = {name: Column.learn(table[name]) for name in table.columns}
        numbers = {c: column.read(table[c]) for c, column in columns.items() if column.kind == NUMBERS}
        left_out = {} if len(columns) < 2 else find_useless(table, numbers, answers)
        kept = {name: column for name, column in columns.items() if name not in left_out}
        if not kept:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
            raise ValueError(
                f"X: no column is left to predict from ({reasons}); expected one that differs, or a prompt "
                "that names the columns"
            )
        return cls(kept, None, answer, left_out, width)

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
        table, is_named = as_table(X)
        if not len(table):
            return pd.DataFrame(columns=[*self.columns])
        if not is_named and self.width not in (None, len(table.columns)):
            raise ValueError(
                f"X has {len(table.columns)} columns, but the model was fitted with {self.width}: expected "
                "as many, because they have no names"
            )
        if len(self.columns) == len(table.columns) == 1:
            # A name says nothing beside texts that had none, unless it is that of a frame's column.
            is_texts = self.width == 1 and not hasattr(X, "columns")
            if is_texts or not is_named or table.columns[0] == column_name(0):
                table = table.set_axis([*self.columns], axis=1)
        _check_columns(self.columns, table, "the model was fitted with")
        return table[[*self.columns]]

    def find_empty(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Return which rows have nothing in any column of the question, `[rows]`."""
        table = self.table(X)
        empty: NDArray[np.bool_] = np.all([of.gaps(table[c]) for c, of in self.columns.items()], axis=0)
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
        texts = [column.write(table[name]) for name, column in self.columns.items()]
        rows = [dict(zip(self.columns, row, strict=True)) for row in zip(*texts, strict=True)]
        if self.prompt is not None:
            parts = _COLUMN.split(self.prompt)  # every other one is the name of a column
            return ["".join(row[part] if i % 2 else part for i, part in enumerate(parts)) for row in rows]
        if len(self.columns) == 1:
            return [f"{text}\n{self.answer}: " for text in texts[0]]
        return [", ".join([*(f"{c}: {text}" for c, text in row.items()), f"{self.answer}: "]) for row in rows]


def _check_columns(names: Iterable[str], table: pd.DataFrame, why: str) -> None:
    if missing := [name for name in names if name not in table.columns]:
        raise ValueError(
            f"X: {why} the column {missing[0]!r}; expected it among {', '.join(map(str, table.columns))}"
        )


def as_table(X: Any) -> tuple[pd.DataFrame, bool]:  # noqa: N803
    """Return rows as a table, and whether its columns have names.

    Raises:
        TypeError: X is neither a table nor a sequence.
        ValueError: several columns have one name, or X has more than two dimensions.
    """
    if hasattr(X, "to_pandas"):  # frames and series of polars, and tables of pyarrow and datasets
        X = X.to_pandas()  # noqa: N806
    if isinstance(X, pd.DataFrame):
        table = X.set_axis([*map(column_name, X.columns)], axis=1)
        if table.columns.has_duplicates:
            twice = table.columns[table.columns.duplicated()][0]
            raise ValueError(f"X: several columns are called {twice!r}; rename all but one")
        return table, True
    if isinstance(X, pd.Series):
        name = TEXT if X.name is None else column_name(X.name)
        return X.to_frame(name).reset_index(drop=True), X.name is not None
    is_array = hasattr(X, "__array__")
    is_other = isinstance(X, str | Mapping | Set) or hasattr(X, "toarray")
    if is_other or not (is_array or isinstance(X, Iterable)):
        raise TypeError(
            f"X: expected a list of texts or a DataFrame, given a {type(X).__name__}; put one row into a "
            "list, and make a sparse matrix dense"
        )
    rows = X if is_array else [*X]
    if not is_array and rows and all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(rows), True
    array = np.asarray(rows, dtype=object)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise ValueError(f"X: expected one or two dimensions, given the shape {array.shape}")
    width = array.shape[1]
    names = [TEXT] if width == 1 else [*map(column_name, range(width))]
    return pd.DataFrame(array, columns=names, dtype=object), False


def column_name(name: Any) -> str:
    """Return a column's name; of an array, and of a frame without names, they are x0, x1 and so on."""
    return f"x{name}" if isinstance(name, int) else str(name)


def as_answers(y: Any) -> Numbers:
    """Return answers as finite numbers, `[rows]`.

    Raises:
        ValueError: there are others, some of which are shown, or y has several columns.
        TypeError: y holds dates or durations, whose unit is unknown.
    """
    from sklearn.utils.validation import column_or_1d  # slow

    answers = column_or_1d(y, warn=True)
    kind = pd.api.types.infer_dtype(answers, skipna=True)
    if kind.startswith(("date", "period", "timedelta")):
        raise TypeError(f"y holds a {kind}: expected numbers, such as y.dt.year or y.dt.total_seconds()")
    numbers = as_floats(pd.Series(answers))
    if len(rows := np.flatnonzero(~np.isfinite(numbers))):
        shown = ", ".join(f"{answers[row]!s:.20} in row {row}" for row in rows[:3])
        advice = "Leave such rows out of X and y." if len(rows) < len(answers) else "Expected numbers."
        if parse_number(str(answers[rows[0]]), "whole") is not None:
            advice = 'ntloss.numbers.parse_number(text, "whole") reads such texts.'
        raise ValueError(
            f"y holds no finite number in {len(rows):,} of {len(answers):,} rows: {shown}. {advice}"
        )
    return numbers


def check_rows(table: pd.DataFrame, answers: Numbers, which: str = "rows") -> None:
    """Raise a ValueError unless there are enough rows, an answer for each, and columns.

    Args:
        table: the rows.
        answers: their answers.
        which: what the error says of the rows.
    """
    if len(table) != len(answers):
        raise ValueError(f"X has {len(table)} rows, y {len(answers)}: expected as many")
    if not len(table.columns):
        raise ValueError("X has no columns: expected texts, or a DataFrame with at least one column")
    if len(answers) < FEWEST:
        raise ValueError(f"X has {len(answers)} {which}: expected at least {FEWEST}")


def choose_rows(count: int, most: int, shuffle: bool, seed: int) -> NDArray[np.int64]:
    """Choose the rows that are used, in the order from whose end rows are held out.

    Args:
        count: number of rows.
        most: of them that are used.
        shuffle: whether the order is random; otherwise the last rows are used, in their order.
        seed: of the order.
    """
    if not shuffle:
        return np.arange(max(0, count - most), count)
    return np.random.default_rng(seed).permutation(count)[:most]


def divide(count: int) -> tuple[slice, slice, slice]:
    """Divide rows into those for training, for the choice of the epoch and for calibration, in this order."""
    size = min(_MOST_HELD_OUT, max(round(_HELD_OUT * count), min(_FEWEST_HELD_OUT, count // 3)))
    choosing = size // 3 if size // 3 >= _FEWEST_CHOOSING else 0
    held_out = count - size
    return slice(0, held_out), slice(held_out, held_out + choosing), slice(held_out + choosing, count)
