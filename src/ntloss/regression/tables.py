"""Read tables as people have them, for `ntloss fit` and `ntloss predict`: as texts, with what was assumed."""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.io.common import get_handle

from ntloss.regression.questions import without_surrogates

_PACKED = {".gz", ".bz2", ".zip", ".xz", ".zst"}
_SEPARATORS = (",", ";", "\t", "|")
_LINES = 50  # from which the separator is found
_GAPS = {"", "-", "--", "?", ".", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "unknown"}
_PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WITH_UNIT = re.compile(r"([+-]?)([^\d+\-.,()]*)([+-]?\d[\d.,]*|[+-]?\.\d+)([^\d+\-.,()]*)")
_GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+") for mark in ",."}
_EXAMPLES = 3


class Table(NamedTuple):
    """A table of texts, None where there is nothing, and sentences about how it was read."""

    rows: pd.DataFrame
    notes: list[str]


class Answers(NamedTuple):
    """Numbers of a column, NaN where there is nothing, and sentences about how they were read."""

    numbers: NDArray[np.float64]
    notes: list[str]


def read_table(file: str | Path) -> Table:
    """Read a table: CSV with any separator, JSON (an array, or an object a line), Parquet or Excel.

    CSV and JSON may be compressed, as `.csv.gz`, or with another ending that pandas knows.

    Raises:
        OSError: there is no such file, or it may not be read.
        ValueError: the file holds no such table, or is damaged.
    """
    path, notes = Path(file).expanduser(), list[str]()
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in _PACKED]
    ending = endings[-1] if endings else ""
    try:
        if ending in (".parquet", ".pq"):
            table = _read_parquet(path)
        elif ending in (".xlsx", ".xls", ".ods"):
            table = pd.read_excel(path, dtype=str, keep_default_na=False)
        elif ending in (".json", ".jsonl", ".ndjson"):
            table = _read_json(path, notes)
        else:
            table = _read_csv(path, notes)
    except UnicodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}). Read it in Python, and fit the frame: "
            f'pd.read_csv("{path.name}", encoding="latin-1"), or encoding="utf-16"'
        ) from None
    except Exception as error:  # each format has other errors for damaged files
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(f"{path}: {str(error) or repr(error)}") from error
    table.columns = pd.Index([str(name).strip() for name in table.columns])
    if twice := [*dict.fromkeys(table.columns[table.columns.duplicated()])]:
        raise ValueError(
            f"{path}: several columns are called {', '.join(map(repr, twice))}; rename all but one"
        )
    if not len(table.columns):
        raise ValueError("; ".join([f"{path} has no columns", *notes]))
    return Table(table.reset_index(drop=True).apply(_as_texts), notes)


def mark_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose columns of numbers have None in place of NA, ? and the like."""
    return rows.apply(_mark_gaps)


def find_column(table: pd.DataFrame, name: str, option: str, notes: Sequence[str] = ()) -> str:
    """Return the name of a column.

    Args:
        table: the columns.
        name: the name, which may have blanks at its ends.
        option: what names it, for the error.
        notes: how the table was read, which may be why it has no such column.

    Raises:
        ValueError: the table has no such column.
    """
    if name.strip() in table.columns:
        return name.strip()
    columns = [*table.columns]
    close = difflib.get_close_matches(name, columns, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    if any(_PLAIN.fullmatch(column) for column in columns):
        hint = " The first row looks like data: has the file a header?"
    if left_out := [note for note in notes if repr(name.strip()) in note]:
        hint = f" The file was read as follows: {left_out[0]}."
    shown = ", ".join(map(repr, columns[:20])) + (", ..." if len(columns) > 20 else "")
    raise ValueError(f"{option} {name}: expected one of the columns {shown}.{hint}")


def read_answers(column: pd.Series, decimal: str | None = None) -> Answers:
    """Read the numbers of a column of texts.

    Currencies and units that all rows share are left out, True and False are 1 and 0, and notes say so.

    Args:
        column: texts.
        decimal: "." or ",", the mark before decimals; the other one then separates thousands. Default: a
            point, and numbers that may be meant in either way are an error.

    Raises:
        ValueError: some rows hold something else, or may be read in two ways.

    Example:
        >>> read_answers(pd.Series(["$5", "$7.50", "?"], name="y"))
        Answers(numbers=array([5. , 7.5, nan]), notes=["1 row has no 'y' ('?')", "every 'y' has '$'"])
        >>> read_answers(pd.Series(["12.345", "523"]), decimal=",").numbers
        array([12345.,   523.])
    """
    name = "answer" if column.name is None else str(column.name)
    texts = column.fillna("").map(lambda text: str(text).replace("\u2212", "-").replace("\xa0", " ").strip())
    given, notes = texts[~texts.str.lower().isin(_GAPS)], list[str]()
    if gaps := len(texts) - len(given):
        marks = sorted({mark for mark in texts if mark.lower() in _GAPS and mark})
        meant = f" ({', '.join(map(repr, marks))})" if marks else ""
        notes.append(f"{gaps:,} row{'s have' if gaps > 1 else ' has'} no {name!r}{meant}")
    if not len(given):
        raise ValueError(f"the column {name!r} holds no number")
    if given.str.lower().isin(["true", "false"]).all():
        notes.append(f"{name!r}: True is 1, False is 0")
        given = (given.str.lower() == "true").map({True: "1", False: "0"})
    given = _without_unit(given, name, notes)
    if decimal is not None:
        given = given.map(lambda text: _with_point(text, decimal))
    elif _may_be_thousands(given):
        pointed = given.str.contains(".", regex=False)
        examples = [given[pointed].iloc[0], given[~pointed].iloc[0]]
        raise ValueError(
            f"the column {name!r} may be read in two ways: {' and '.join(map(repr, examples))} are thousands "
            "separated by points, or have decimals. Pass --decimal , for thousands, --decimal . for decimals."
        )
    elif _grouped(given).all():
        notes.append(
            f"the points in {name!r} are read as decimals ({given.iloc[0]!r}); if they separate thousands, "
            "pass --decimal ,"
        )
    wrong = given[~given.map(lambda text: _PLAIN.fullmatch(text) is not None)]
    if len(wrong):
        rows = wrong.index[:_EXAMPLES]
        shown = ", ".join(f"{texts[row]!r} in row {texts.index.get_loc(row) + 1:,}" for row in rows)
        raise ValueError(
            f"the column {name!r} holds no plain number in {len(wrong):,} of {len(texts):,} rows: {shown}. "
            f"{_advice(wrong, decimal)}"
        )
    numbers = pd.to_numeric(given).reindex(texts.index).to_numpy(float)
    return Answers(numbers, notes)


def _advice(wrong: pd.Series, decimal: str | None) -> str:
    if decimal == "," and (wrong == "").any():
        return "With --decimal , points separate thousands, as in 1.234,5."
    if decimal is None and _grouped(wrong).any():
        return "If points separate thousands, pass --decimal ,"
    if decimal is None and wrong.str.contains(",", regex=False).any():
        return "If commas separate thousands, pass --decimal . and if decimals follow them, --decimal ,"
    return "Correct them, or leave them empty: rows without an answer are left out."


def _without_unit(texts: pd.Series, name: str, notes: list[str]) -> pd.Series:
    """Leave out the currency or unit that all rows share."""
    matches = [_WITH_UNIT.fullmatch(text) for text in texts]
    units = {(m[2].strip(), m[4].strip()) if m else None for m in matches}
    if len(units) != 1 or units & {None, ("", "")}:
        return texts
    (unit,) = units
    assert unit is not None
    notes.append(f"every {name!r} has {' and '.join(repr(part) for part in unit if part)}")
    return pd.Series([f"{m[1]}{m[3]}" for m in matches if m], texts.index)


def _with_point(text: str, decimal: str) -> str:
    """Write a number with a point, and without separators of thousands; elsewhere they make it no number."""
    mark = "." if decimal == "," else ","
    whole, found, fraction = text.partition(decimal)
    if _GROUPED[mark].fullmatch(whole):
        whole = whole.replace(mark, "")
    if mark in whole + fraction:
        return ""
    return f"{whole}.{fraction}" if found else whole


def _may_be_thousands(texts: pd.Series) -> bool:
    """Return whether all points may separate thousands, beside numbers without one: 12.345 and 523."""
    pointed = texts.str.contains(".", regex=False)
    if not pointed.any() or pointed.all():
        return False
    return bool(_grouped(texts[pointed]).all())


def _grouped(texts: pd.Series) -> pd.Series:
    """Return which texts may be whole numbers whose thousands are separated by points."""
    return texts.map(lambda text: _GROUPED["."].fullmatch(text) is not None)


def _read_text(path: Path) -> str:
    with get_handle(path, "r", encoding="utf-8-sig", compression="infer") as opened:
        text: str = opened.handle.read()
    return text


def _read_csv(path: Path, notes: list[str]) -> pd.DataFrame:
    text = _read_text(path)
    limit = csv.field_size_limit(len(text) + 1)  # of the whole process, so it is restored
    try:
        rows = _read_rows(text, notes)
    finally:
        csv.field_size_limit(limit)
    if not rows:
        raise ValueError("the file is empty")
    return pd.DataFrame(rows[1:], columns=rows[0], dtype=object)


def _read_rows(text: str, notes: list[str]) -> list[list[str]]:
    if declared := re.match(r"sep=(.)\r?\n", text):
        text = text[declared.end() :]
    separator = declared[1] if declared else find_separator(text)
    if separator != ",":
        notes.append(f"the separator is {separator!r}")
    reader = csv.reader(io.StringIO(text, ""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if row and rows and len(row) != len(rows[0]):
                # pandas would fill such a row with gaps, or take its first field for an index.
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} fields, the header {len(rows[0])}. A text that "
                    f"holds {separator!r} has to be in double quotes."
                )
            rows += [row] if row else []
    except csv.Error as error:
        raise ValueError(f"a quote that is not closed, before line {reader.line_num} ({error})") from None
    return rows


def find_separator(text: str) -> str:
    """Find the separator that gives the first rows of a text the most fields, and equally many in each.

    Example:
        >>> find_separator('title;price\\n"a, b";3\\nc, d, e;4\\n')
        ';'
    """
    lines = [*itertools.islice(io.StringIO(text, ""), _LINES + 1)]
    best, most = ",", 1
    for separator in _SEPARATORS:
        reader = csv.reader(lines[:_LINES], delimiter=separator)
        try:
            rows = [*itertools.islice(reader, 20)]
        except csv.Error:
            continue
        if reader.line_num == _LINES < len(lines):
            rows.pop()  # it may go on in further lines
        counts = {len(row) for row in rows if row}
        if len(counts) == 1 and (count := counts.pop()) > most:
            best, most = separator, count
    return best


def _read_parquet(path: Path) -> pd.DataFrame:
    """Read whole numbers with all their digits, also beside gaps; named levels of the index are columns."""
    table = pd.read_parquet(path, dtype_backend="numpy_nullable")
    named = [name for name in table.index.names if name is not None and name not in table]
    return table.reset_index(named) if named else table


def _read_json(path: Path, notes: list[str]) -> pd.DataFrame:
    text = _read_text(path)
    records = json.loads(text) if text.lstrip().startswith("[") else _parse_lines(text)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("expected an array of objects, or one object a line")
    nested = dict.fromkeys(k for record in records for k, v in record.items() if isinstance(v, dict | list))
    if nested:
        notes.append(f"left out: {', '.join(map(repr, nested))}, which hold lists or objects")
    return pd.DataFrame([{k: v for k, v in r.items() if k not in nested} for r in records], dtype=object)


def _parse_lines(text: str) -> list[Any]:
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from None
    return records


def _as_texts(column: pd.Series) -> pd.Series:
    return pd.Series([_as_text(value) for value in column], column.index, dtype=object)


def _mark_gaps(texts: pd.Series) -> pd.Series:
    gaps = texts.map(_is_gap)
    given = texts[~gaps]
    is_numeric = len(given) and pd.to_numeric(given, errors="coerce").notna().all()
    return texts.where(~gaps, None) if is_numeric else texts


def _is_gap(text: str | None) -> bool:
    return text is None or text.strip().lower() in _GAPS


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return str(without_surrogates(value))
    if isinstance(value, Iterable):
        return str(value)
    if pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
