"""Read files of tables for `ntloss fit` and `ntloss predict`: as they stand, as texts."""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pandas.io.common import get_handle

from ntloss.regression.columns import PLAIN
from ntloss.regression.questions import column_name

_PACKED = {".gz", ".bz2", ".zip", ".xz", ".zst"}
_SEPARATORS = "\t|;,"
_BLANKS = " "  # as a separator: any number of them
_LINES = 4  # from which the separator is found
_COLUMNS = 20  # of an error
_SHOWN = 60  # characters of a cell


class Table(NamedTuple):
    """A table of texts, None where there is nothing, and sentences about how it was read."""

    rows: pd.DataFrame
    notes: list[str]


def read_table(file: str | Path, separator: str | None = None, header: bool = True) -> Table:
    """Read a table as it stands: CSV, JSON (an array, or an object a line), Parquet or Excel.

    CSV and JSON may be compressed, as `.csv.gz`, or with another ending that pandas knows. Columns of one
    name are numbered, merged cells of Excel have their value in each row, and a column without a name and
    without a value is left out.

    Args:
        file: its path.
        separator: of the fields of a CSV file, one character; a blank stands for any number of them, and
            `\\t` for a tab. Default: that of tab, `|`, `;` and comma which divides the first line into most
            fields; blanks if none does, and the next lines have as many fields.
        header: whether the first row of CSV or Excel holds the names of the columns, which are x0, x1 and so
            on otherwise. Default: True.

    Raises:
        OSError: there is no such file, or it may not be read.
        ValueError: the file holds no such table, or is damaged.
    """
    path, notes = Path(file).expanduser(), list[str]()
    if separator is not None and len(separator := separator.replace("\\t", "\t")) != 1:
        raise ValueError(f"--separator {separator}: expected one character, such as ; or \\t for a tab")
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in _PACKED]
    ending = endings[-1] if endings else ""
    try:
        if ending in (".parquet", ".pq"):
            table = pd.read_parquet(path, dtype_backend="numpy_nullable")  # whole numbers beside gaps stay it
            table = table.reset_index([name for name in table.index.names if name not in (None, *table)])
        elif ending in (".json", ".jsonl", ".ndjson"):
            table = _read_json(_read_text(path))
        elif ending in (".xlsx", ".xls", ".ods"):
            table = _read_excel(path, notes, header)
        else:
            table = _read_csv(_read_text(path), separator, notes, header)
    except UnicodeError as error:
        raise ValueError(
            f"{path} is neither UTF-8 nor UTF-16 with a byte order mark ({error}). If it is CSV, read it in "
            f'Python, and fit the frame: pd.read_csv("{path.name}", encoding="latin-1")'
        ) from None
    except Exception as error:  # each format has other errors for damaged files
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(f"{path} cannot be read as a table: {str(error).strip() or repr(error)}") from error
    if header:
        kept = [bool(str(name).strip()) or _has_value(table.iloc[:, i]) for i, name in enumerate(table)]
        table = table.loc[:, kept]
        table.columns = pd.Index(_name_columns([*table.columns], notes))
    if not len(table.columns):
        raise ValueError(f"{path} has no columns")
    texts = {name: [*map(_as_text, table[name])] for name in table.columns}
    return Table(pd.DataFrame(texts, index=range(len(table)), dtype=object), notes)


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
    columns = [*table.columns]
    if name.strip() in columns:
        return name.strip()
    if reasons := [note for note in notes if repr(name.strip()) in note]:
        hint = f"The file was read as follows: {reasons[0]}"
    elif close := difflib.get_close_matches(name, columns, 1):
        hint = f"Did you mean {close[0]!r}?"
    else:
        hint = (
            "The first line has to hold the names of the columns, with no title above them; pass --no-header "
            "if it holds data, and --separator if another mark divides it"
        )
    shown = ", ".join(map(repr, columns[:_COLUMNS])) + (", ..." if len(columns) > _COLUMNS else "")
    raise ValueError(f"{option} {name}: expected one of the columns {shown}. {hint}")


def _name_columns(names: Sequence[Any], notes: list[str]) -> list[str]:
    """Return the names of columns without blanks; a number follows those that several have."""
    names = [str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(names)]
    for twice in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        number = itertools.count(1)
        names = [f"{name}.{next(number)}" if name == twice else name for name in names]
        renamed = [name for name in names if name.startswith(f"{twice}.")]
        notes.append(f"several columns are called {twice!r}: here, they are {', '.join(map(repr, renamed))}")
    if likely := [name for name in names if PLAIN.fullmatch(name)]:
        notes.append(f"a column is called {likely[0]!r}: if the first row holds data, pass --no-header")
    return names


def _has_value(cells: pd.Series) -> bool:
    return bool((cells.notna() & (cells != "")).any())


def _read_text(path: Path) -> str:
    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        content: bytes = opened.handle.read()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    if "\0" in text[:1000]:
        raise UnicodeError("it holds NUL characters, as UTF-16 and UTF-32 do")
    return text


def _read_csv(text: str, separator: str | None, notes: list[str], header: bool) -> pd.DataFrame:
    # pandas fills short rows with gaps, and takes the first fields of long ones for an index.
    text = text.lstrip(" \r\n")
    separator = separator or _find_separator(text)
    if separator != ",":
        notes.append(f"the separator is {'blanks' if separator == _BLANKS else repr(separator)}")
    limit = csv.field_size_limit(len(text) + 1)  # of the whole process, so it is restored
    reader = _reader(io.StringIO(text, ""), separator, strict=True)
    try:
        found = [(row, reader.line_num) for row in reader if any(row)]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)
    # Some programs end each line with a separator.
    width = max((i + 1 for row, _ in found for i, cell in enumerate(row) if cell.strip()), default=0)
    rows = [row[:width] for row, _ in found]
    if header and _lacks_name(rows, separator != "," or text.startswith('"')):
        notes.append("the first column has no name, as R writes the names of rows")
        rows[0] = ["", *rows[0]]
    for row, (_, line) in zip(rows, found, strict=True):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"line {line} has {len(row)} fields, the first one {len(rows[0])}: {row[0][:_SHOWN]!r}. A "
                f"text that holds {separator!r} has to be in double quotes, and a title or note outside the "
                "table has to be deleted"
            )
    return _with_names(pd.DataFrame(rows, dtype=object), header)


def _lacks_name(rows: Sequence[Sequence[str]], is_quoted: bool) -> bool:
    """Return whether there is a name less than fields: R writes none above names of rows."""
    firsts = [row[0] for row in rows[1:]]
    if not firsts or {len(row) for row in rows[1:]} != {len(rows[0]) + 1} or len({*firsts}) < len(firsts):
        return False
    return is_quoted or firsts == [str(i + 1) for i in range(len(firsts))]  # others are prose with commas


def _with_names(cells: pd.DataFrame, header: bool) -> pd.DataFrame:
    """Return rows under the names that the first one holds, or without a header under x0, x1 and so on."""
    if not header or not len(cells):
        return cells.set_axis([*map(column_name, cells.columns)], axis=1)
    return cells.iloc[1:].set_axis([*cells.iloc[0]], axis=1)


def _find_separator(text: str) -> str:
    """Return the mark that divides the first line into most fields; blanks if they divide all lines alike.

    Example:
        >>> _find_separator('title;price, EUR\\n"a, b";3\\n'), _find_separator('"size" "y"\\n"1" 5 7\\n')
        (';', ' ')
    """
    lines = [*itertools.islice((line for line in io.StringIO(text, "") if line.strip()), _LINES)]
    counts = {mark: len(next(_reader(lines, mark), [])) for mark in _SEPARATORS}
    best = max(counts, key=lambda mark: counts[mark])
    if counts[best] > 1:
        return best
    names, *widths = [len(row) for row in _reader(lines, _BLANKS)] or [0]
    return _BLANKS if names > 1 and {*widths} in ({names}, {names + 1}) else ","


def _reader(lines: Iterable[str], separator: str, strict: bool = False) -> Any:
    lines = (line.strip() + "\n" for line in lines) if separator == _BLANKS else lines
    return csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)


def _read_json(text: str) -> pd.DataFrame:
    is_array = text.lstrip().startswith("[")
    parts = [text] if is_array else [line for line in text.split("\n") if line.strip()]
    rows = [json.loads(part) for part in parts]
    records = rows[0] if is_array else rows
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("expected an array of objects, or one object a line")
    return pd.DataFrame(records, dtype=object)  # `pd.read_json` takes texts for dates


def _read_excel(path: Path, notes: list[str], header: bool) -> pd.DataFrame:
    # Merged and hidden cells are known only if all of a book is read.
    options = {"read_only": False} if path.suffix.lower() == ".xlsx" else {}
    with pd.ExcelFile(path, engine_kwargs=options) as book:
        if len(book.sheet_names) > 1:
            notes.append(f"the first of {len(book.sheet_names)} sheets, {book.sheet_names[0]!r}")
        # Without names, pandas would number columns of one name.
        cells = pd.read_excel(book, header=None, dtype=str, keep_default_na=False).fillna("")
        if options and len(cells):
            _show_cells(path, book.book.worksheets[0], cells, notes)
        elif not options:
            notes.append(
                "merged cells and hidden rows are found in .xlsx only: if it has any, save it as .xlsx"
            )
    return _with_names(cells[(cells != "").any(axis=1)], header)


def _show_cells(path: Path, sheet: Any, cells: pd.DataFrame, notes: list[str]) -> None:
    """Fill merged cells with their value, count hidden rows and columns, and show formulas without values.

    Args:
        path: the book.
        sheet: of openpyxl.
        cells: its cells, which are changed.
        notes: where is added what was done.
    """
    merged = [each for each in sheet.merged_cells.ranges if each.min_row < each.max_row <= len(cells)]
    for each in merged:
        value = cells.iat[each.min_row - 1, each.min_col - 1]
        cells.iloc[each.min_row : each.max_row, each.min_col - 1] = value
    if merged:
        notes.append(f"merged cells: each row of {len(merged):,} merged cells has their value")
    hidden = {"rows": sum(row.hidden for row in sheet.row_dimensions.values())}
    sides = [part for part in sheet.column_dimensions.values() if part.hidden]  # several columns side by side
    hidden["columns"] = sum(side.max - side.min + 1 for side in sides)
    for what, count in hidden.items():
        if count:
            notes.append(f"hidden {what}: {count:,}, which are read, too: delete what should not be")
    if ((cells != "").sum() < 2).any():  # a name above nothing
        with pd.ExcelFile(path, engine_kwargs={"data_only": False}) as book:
            for cell in itertools.chain(*book.book.worksheets[0]):
                if cell.data_type == "f" and cells.iat[cell.row - 1, cell.column - 1] == "":
                    cells.iat[cell.row - 1, cell.column - 1] = str(cell.value)


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):  # as some programs write texts to Parquet
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return str(value)
    if pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
