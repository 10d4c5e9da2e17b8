"""Rows and answers as users give them: as a table and numbers, checked, and what each row is used for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers import parse_number
from ntloss.regression.columns import Numbers, as_floats

TEXT = "text"  # a single column without a name
FEWEST = 20  # rows
_HELD_OUT = 0.25  # share of the rows
_FEWEST_HELD_OUT, _MOST_HELD_OUT = 50, 1000
_FEWEST_CHOOSING = 15  # held-out rows below which none choose the epoch


class Parts(NamedTuple):
    """Rows for training, for choosing the epoch, and for calibrating the intervals."""

    training: slice
    choosing: slice
    calibrating: slice


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


def divide(count: int) -> Parts:
    """Divide rows, of which the last ones are held out."""
    size = min(_MOST_HELD_OUT, max(round(_HELD_OUT * count), min(_FEWEST_HELD_OUT, count // 3)))
    choosing = size // 3 if size // 3 >= _FEWEST_CHOOSING else 0
    ends = itertools.pairwise((0, count - size, count - size + choosing, count))
    return Parts(*itertools.starmap(slice, ends))
