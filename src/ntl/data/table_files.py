"""Read a table as texts: CSV, TSV, Parquet or JSON lines, by the ending of the file's name."""

import csv
import io
import json
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_object_dtype

from ntl.errors import UserError

FORMATS = "CSV (with a header), TSV, Parquet (.parquet) or JSON lines (.jsonl)"
UNNAMED = "Unnamed: "  # the beginning of a column's name that a table lacks, as in pandas


def read_table(file: str | Path | io.StringIO, key: str) -> pd.DataFrame:
    """Read a table, every value as a text and empty ones as NaN; `NA` and `null` are texts in a CSV file.

    The numbers of JSON lines are the file's own characters, so no digit changes.

    Args:
        file: Path of the file, or the content of a CSV file. Endings other than .tsv, .parquet and .jsonl are
            read as CSV.
        key: The user's name for this setting, used in error messages.

    Returns:
        The table. Empty fields after the last column of a CSV file are ignored. So are blank lines, except
        those between the rows of a single column, which are rows without a value.

    Raises:
        UserError: The file cannot be read, has no rows, a row has more fields than the header, or a quote
            is not closed at the end of its field.
    """
    path = Path("-" if isinstance(file, io.StringIO) else file).expanduser()
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            table = _with_index(pd.read_parquet(path, dtype_backend="numpy_nullable"))
        elif ending == ".jsonl":
            table = pd.DataFrame(_read_json_lines(path.read_text("utf-8-sig")), dtype=object)
        else:
            text = file.getvalue() if isinstance(file, io.StringIO) else path.read_bytes().decode("utf-8-sig")
            table = _read_csv(text, "\t" if ending == ".tsv" else ",")
    except (OSError, ValueError) as error:  # pandas' errors and UnicodeDecodeError are ValueErrors
        raise UserError(
            f"{key}={path} cannot be read ({error}); expected a table in UTF-8: {FORMATS}. Correct the file "
            "or the path, which is relative to the working directory."
        ) from None
    if not len(table):
        raise UserError(f"{key}={path} has no rows; expected a table with a header and rows: {FORMATS}.")
    return as_texts(table)


def as_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Write the values of a table as texts, as if they had been read from a CSV file.

    Names and texts lose their leading blanks, and empty texts are missing values. Whole numbers of a column
    with gaps have no point. A column of truth values, such as `TRUE` and `FALSE`, holds `True` and `False`.
    Lists are written as in Python.
    Columns without a name are named by their place, such as `Unnamed: 0`, or left out if they are empty.

    Raises:
        UserError: Two columns have the same name.
    """
    table = table.set_axis(_column_names(table), axis=1)
    if len(twice := table.columns[table.columns.duplicated()]):
        raise UserError(
            f"the table has two columns {twice[0]!r}; expected one of each. Rename or remove one."
        )
    for name in filter(lambda name: is_object_dtype(table[name]), table):
        # `convert_dtypes` would round whole numbers beside gaps.
        values = [str(_plain(value)) if _is_nested(value) else value for value in table[name]]
        table[name] = pd.Series(pd.array(values), table.index)
    table = table.convert_dtypes()
    table = pd.DataFrame({name: _column_texts(table[name]) for name in table}, table.index)
    return table.drop(columns=[n for n in table if n.startswith(UNNAMED) and table[n].isna().all()])


def _column_names(table: pd.DataFrame) -> list[str]:
    """Return the names of the columns as texts; those without one are named as pandas names them."""
    names = [str(name).lstrip(" ") for name in table.columns]
    for i, name in enumerate(names):
        if not name:
            tried = chain([f"{UNNAMED}{i}"], (f"{UNNAMED}{i}.{n}" for n in count(1)))
            names[i] = next(free for free in tried if free not in names)
    return names


def _column_texts(column: pd.Series) -> pd.Series:
    texts = column.astype("string").str.lstrip(" ").astype(object)
    texts = texts.where(texts.notna() & (texts != ""), float("nan"))
    if texts.dropna().str.lower().isin(["true", "false"]).all():
        texts = texts.str.capitalize().astype(object)
    return texts


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | tuple | set | dict | np.ndarray)


def _plain(value: Any) -> Any:
    """Return a value with lists in place of arrays, as which a Parquet file's lists are read."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _with_index(table: pd.DataFrame) -> pd.DataFrame:
    """Make columns of the named levels of an index, which are columns of the file."""
    named = [name for name in table.index.names if name is not None and name not in table]
    return (table.reset_index(named) if named else table).reset_index(drop=True)


def _read_json_lines(text: str) -> list[dict[str, str | None]]:
    """Read the object on each line, its values as texts; blank lines are skipped."""
    as_given = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), str)
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, **as_given)
            if not isinstance(row, dict) or any(isinstance(value, list | dict) for value in row.values()):
                raise ValueError('it is not an object of texts and numbers, such as {"a": 1}')
            rows.append({key: value if value is None else str(value) for key, value in row.items()})
            "".join(filter(None, rows[-1].values())).encode()  # raises if a text holds half of a character
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return rows


def _read_csv(text: str, separator: str) -> pd.DataFrame:
    """Read the rows below a header. A blank line between rows of a single value is one without a value."""
    rows = _csv_rows(text.rstrip("\r\n"), separator)
    header = next((row for _, row in rows if row), [])
    values = []
    for line, row in rows:
        if any(row[len(header) :]):
            raise ValueError(
                f"line {line}: the row has {len(row)} fields; expected {len(header)}, as in the "
                "header; a field that holds a separator needs double quotes"
            )
        if row or len(header) == 1:
            padded = row[: len(header)] + [""] * (len(header) - len(row))
            values.append([field or None for field in padded])
    return pd.DataFrame(values, columns=header, dtype=object)


def _csv_rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row after the number of its last line; a ValueError if a quote is not closed where it ends.

    A loose quote would swallow the rows up to the next one, so only quotes around whole fields are read.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    first = 1
    try:
        for row in rows:
            yield rows.line_num, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"line {first}: the row that begins here cannot be read to its end ({error}); expected a closing "
            "quote at the end of each field that begins with a double quote, and two double quotes for one "
            f"inside it. A file without quoting is read by pandas.read_csv(file, sep={separator!r}, "
            "quoting=3)"
        ) from None
