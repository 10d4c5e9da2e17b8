"""Read a table as texts: CSV, TSV, Parquet or JSON lines, by the ending of the file's name."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_object_dtype

from ntl.errors import UserError

_SEPARATORS = {".tsv": "\t", ".tab": "\t"}
FORMATS = "CSV (with a header), TSV, Parquet (.parquet) or JSON lines (.jsonl)"


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
        UserError: The file cannot be read, has no rows, or a row has more fields than the header.
    """
    content = file.getvalue() if isinstance(file, io.StringIO) else None
    file = file if isinstance(file, (str, Path)) else "-"
    path = Path(file).expanduser()
    try:
        ending = path.suffix.lower()
        if ending == ".parquet":
            table = as_texts(pd.read_parquet(path, dtype_backend="numpy_nullable"))
        elif ending in (".jsonl", ".ndjson"):
            table = as_texts(pd.DataFrame(_read_json_lines(path.read_text("utf-8-sig")), dtype=object))
        else:
            content = path.read_bytes().decode("utf-8-sig") if content is None else content
            table = _read_csv(content, _SEPARATORS.get(ending, ","), f"{key}={file}")
    except (OSError, ValueError, csv.Error) as error:  # pandas' errors and UnicodeDecodeError are ValueErrors
        raise UserError(
            f"{key}={file} cannot be read ({error}); expected a table in UTF-8: {FORMATS}. Correct the file "
            "or the path, which is relative to the working directory."
        ) from None
    if not len(table):
        raise UserError(f"{key}={file} has no rows; expected a table with a header and rows: {FORMATS}.")
    return table


def as_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Write typed values as texts: whole numbers of a column with gaps without a point.

    Raises:
        UserError: Two columns have the same name.
    """
    table = table.rename(columns=str)
    if len(twice := table.columns[table.columns.duplicated()]):
        raise UserError(
            f"the table has two columns {twice[0]!r}; expected one of each. Rename or remove one."
        )
    for name in filter(lambda name: is_object_dtype(table[name]), table):
        # `convert_dtypes` would round whole numbers beside gaps.
        table[name] = pd.Series(pd.array(table[name].tolist()), table.index)
    table = table.convert_dtypes()
    return pd.DataFrame({name: table[name].astype("string").astype(object) for name in table}).where(
        table.notna().to_numpy(), float("nan")
    )


def _read_json_lines(text: str) -> list[dict[str, str | None]]:
    """Read the object on each line, its values as texts; blank lines are skipped.

    Raises:
        ValueError: A line is not an object of texts, numbers, true, false and null with distinct keys.
    """
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                rows.append(_json_row(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return rows


def _json_row(line: str) -> dict[str, str | None]:
    as_given = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), str)
    row = json.loads(line, object_pairs_hook=_distinct, **as_given)
    if not isinstance(row, dict):
        raise ValueError('it is not an object such as {"a": 1}')
    for key, value in row.items():
        if isinstance(value, list | dict):
            raise ValueError(f"{key!r} is a list or an object, expected a text or a number")
        f"{key}{value}".encode()  # raises if a text holds half of a surrogate pair
    return {key: value if value is None else str(value) for key, value in row.items()}


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"it has a key twice, among {', '.join(key for key, _ in pairs)}")
    return row


def _read_csv(text: str, separator: str, given: str) -> pd.DataFrame:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    header = [name or f"Unnamed: {i}" for i, name in enumerate(next(filter(None, rows), []))]
    fields = len(header)
    for row in rows:
        fields = max(fields, len(row))
        if any(row[len(header) :]):
            raise UserError(
                f"{given}, line {rows.line_num}: the row has {len(row)} fields; expected {len(header)}, as "
                "in the header. Correct the line, or put a field that holds a separator in double quotes."
            )
    # With names for all fields, pandas does not take the first column for row names.
    names = [*header, *(f"Unnamed: {i}" for i in range(len(header), fields))]
    options = {"dtype": str, "skipinitialspace": True, "header": None, "index_col": False}
    # A blank line between others is a row without a value, if rows have one.
    options |= {"keep_default_na": False, "na_values": [""], "skip_blank_lines": len(names) > 1}
    table = pd.read_csv(io.StringIO(text.strip("\r\n"), newline=""), sep=separator, names=names, **options)
    table = table.iloc[1:].reset_index(drop=True)
    return table.drop(columns=[n for n in names if n.startswith("Unnamed: ") and table[n].isna().all()])
