"""Any table as text: the question is the columns of a row, the answer the number in the target column.

`0.23,Ideal,E,SI2,61.5,55,3.95,3.98,2.43` -> `326`. A row is written like a line of CSV, without the column
names: they would be the same in every question.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntl.data import Example, TaskData, format_number
from ntl.errors import UserError

SAMPLE = Path(__file__).parents[1] / "sample" / "tabular" / "diamonds.csv"
MISSING = "?"


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read a table and split its rows.

    Args:
        settings: `file` (a CSV file with a header, or `sample`), `target` (column to predict), `columns`
            (columns of the question, None for all others), `significant_digits` (numbers of the question are
            rounded to this many, None leaves them as they are written), `split_by` (None splits at random; a
            column puts its largest values into the test set and the next largest into the validation set),
            `train_size` (None for all rows that are left), `validation_size`, `test_size` and `data_seed`.

    Returns:
        Training, validation and one test set. Missing values are written as `?`. Rows without a target are
        left out, and so are training rows whose question is in the validation or test set.

    Raises:
        UserError: The file cannot be read, a column is missing, a target is not a finite number, or there are
            too few rows.
    """
    # The command line reads a column's name such as 2019 as a number.
    names = {key: str(settings[key]) for key in ("target", "split_by") if settings[key] is not None}
    settings = {**settings, **names}
    table, target = _read(settings["file"]), settings["target"]
    columns = settings["columns"] or [name for name in table.columns if name != target]
    _check_columns(table, columns, settings)
    table = table[table[target].notna()]
    _check_rows(table, settings)
    order = _order(table, settings)
    text = pd.DataFrame({name: _texts(table[name], settings["significant_digits"]) for name in columns})
    questions = [",".join(row) for row in text.itertuples(index=False)]
    answers = [_answer(value) for value in table[target]]
    rows = [Example(questions[i], answers[i]) for i in order]
    test, rest = rows[-settings["test_size"] :], rows[: -settings["test_size"]]
    validation, rest = rest[-settings["validation_size"] :], rest[: -settings["validation_size"]]
    seen = {example.question for example in (*validation, *test)}
    train = [example for example in rest if example.question not in seen]
    needed = settings["train_size"] or 1
    if len(train) < needed:
        raise UserError(
            f"{settings['file']} has {len(train)} training rows whose question is in neither the validation "
            f"nor the test set; expected at least {needed}. Lower dataset_args.train_size, validation_size "
            "or test_size, or add dataset_args.columns that distinguish the rows."
        )
    # The rows next to the held-out ones: those of a split by time are the latest.
    return TaskData(train[-(settings["train_size"] or len(train)) :], validation, {"test": test})


def _read(file: str) -> pd.DataFrame:
    """Read a CSV file as texts. Empty fields after the last column are ignored.

    Raises:
        UserError: The file cannot be read, or a row has more fields than the header.
    """
    path = SAMPLE if file == "sample" else Path(file).expanduser()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, skipinitialspace=True)
            header = [name or f"Unnamed: {i}" for i, name in enumerate(next(rows, []))]
            fields = len(header)
            for row in rows:
                fields = max(fields, len(row))
                if any(row[len(header) :]):
                    raise UserError(
                        f"dataset_args.file={file}, line {rows.line_num}: the row has {len(row)} fields; "
                        f"expected {len(header)}, as in the header. Correct the line, or put a field that "
                        "holds a comma in double quotes."
                    )
        # With names for all fields, pandas does not take the first column for row names.
        names = [*header, *(f"Unnamed: {i}" for i in range(len(header), fields))]
        table = pd.read_csv(path, dtype=str, skipinitialspace=True, header=None, names=names, index_col=False)
        table = table.iloc[1:].reset_index(drop=True)
        return table.drop(columns=[n for n in names if n.startswith("Unnamed: ") and table[n].isna().all()])
    except (OSError, ValueError, csv.Error) as error:  # pandas' errors and UnicodeDecodeError are ValueErrors
        raise UserError(
            f"dataset_args.file={file} cannot be read ({error}); expected a CSV file in UTF-8 with a header. "
            "Correct the file or the path, which is relative to the working directory."
        ) from None


def _check_columns(table: pd.DataFrame, columns: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Raise a UserError if a column that is named is missing, or the target is a column of the question."""
    named = [("target", settings["target"]), *(("columns", name) for name in columns)]
    if settings["split_by"] is not None:
        named.append(("split_by", settings["split_by"]))
    for key, name in named:
        if name not in table.columns:
            raise UserError(
                f"dataset_args.{key} names the column {name!r}; expected one of the columns of "
                f"{settings['file']}: {', '.join(table.columns)}. Name one of them."
            )
    if settings["target"] in columns:
        raise UserError(
            f"dataset_args.columns names the target {settings['target']!r}; expected the columns that it is "
            "predicted from. Remove it from them."
        )


def _check_rows(table: pd.DataFrame, settings: Mapping[str, Any]) -> None:
    """Raise a UserError if a target is not a finite number, or there are too few rows."""
    target = settings["target"]
    wrong = table[target][~np.isfinite(pd.to_numeric(table[target], errors="coerce"))]
    if len(wrong):
        raise UserError(
            f"{settings['file']}, row {wrong.index[0] + 1} below the header: {target!r} is "
            f"{wrong.iloc[0]!r}; expected a finite number, or nothing where it is missing. Correct the file, "
            "or choose another dataset_args.target."
        )
    needed = settings["validation_size"] + settings["test_size"] + (settings["train_size"] or 1)
    if len(table) < needed:
        raise UserError(
            f"{settings['file']} has {len(table)} rows with a value of {target!r}; expected at "
            f"least {needed}. Lower dataset_args.train_size, validation_size or test_size."
        )


def _order(table: pd.DataFrame, settings: Mapping[str, Any]) -> Sequence[int]:
    """Return the rows in random order or sorted by a column, rows without a value first.

    Raises:
        UserError: The column that sorts them holds neither numbers nor dates.
    """
    split_by = settings["split_by"]
    if split_by is None:
        return np.random.default_rng(settings["data_seed"]).permutation(len(table)).tolist()
    column = table[split_by].reset_index(drop=True)
    dates = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    for values in (pd.to_numeric(column, errors="coerce"), dates):
        if values.notna().sum() == column.notna().sum():
            return values.sort_values(kind="stable", na_position="first").index.tolist()
    raise UserError(
        f"dataset_args.split_by={split_by} names a column with the value {column[column.notna()].iloc[0]!r}; "
        "expected numbers, or dates such as 2026-11-21. Rewrite the column, or name another one."
    )


def _texts(column: pd.Series, digits: int | None) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    is_numeric = numbers.notna().sum() == column.notna().sum()
    if digits is not None and is_numeric:
        column = numbers.map(lambda x: _round(x, digits), na_action="ignore")
    return column.fillna(MISSING)


def _round(number: float, digits: int) -> str:
    """Write a number in plain decimals, with a given number of significant digits.

    Example:
        >>> _round(2000.0833, 4), _round(71400.0, 2), _round(0.00012345, 3), _round(0.5, 4)
        ('2000', '71000', '0.000123', '0.5')
    """
    if number == 0 or not math.isfinite(number):
        return "0" if number == 0 else str(number)
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return format_number(Decimal(f"{round(number, places):.{max(places, 0)}f}"))


def _answer(text: str) -> str:
    """Write a target in plain decimals. Targets that already are keep their digits.

    Example:
        >>> _answer("1.50"), _answer(" +1e3"), _answer(".5"), _answer("5.")
        ('1.50', '1000', '0.5', '5')
    """
    plain = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text.strip())
    return plain[0] if plain else format_number(float(text))
