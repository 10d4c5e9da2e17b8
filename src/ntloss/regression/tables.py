"""Read files of tables for `ntloss fit` and `ntloss predict`: as they stand, as texts, and the answers."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.io.common import get_handle

from ntloss.regression.questions import (
    NUMBERS,
    ONE_GROUP,
    PLAIN,
    Column,
    Numbers,
    as_floats,
    as_text,
    column_name,
    find_decimal_mark,
    find_gaps,
    read_cells,
    singular,
)

_PACKED = {".gz", ".bz2", ".zip", ".xz", ".zst"}
_SEPARATORS = "\t|;,"
_BLANKS = " "  # as a separator: any number of them
_LINES = 4  # from which the separator is found
_COLUMNS = 20  # of an error
_SHOWN = 60  # characters of a cell
_EXAMPLES = 3  # cells that are shown


class Table(NamedTuple):
    """A table of texts, None where there is nothing, and sentences about how it was read."""

    rows: pd.DataFrame
    notes: list[str]


def read_table(file: str | Path, separator: str | None = None, header: bool = True) -> Table:
    """Read a table as it stands: CSV, JSON (an array, or an object a line), Parquet or Excel's .xlsx.

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
        elif ending in (".xls", ".ods"):
            raise ValueError("save it as .xlsx")
        elif ending == ".xlsx":
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
    """Return the name of a column, which is given without blanks at its ends.

    Raises:
        ValueError: the table has no such column; the notes on how it was read may say why, and the option
            that names it is named.
    """
    columns = [*table.columns]
    if name.strip() in columns:
        return name.strip()
    hint = (
        "The first line has to hold the names of the columns, with no title above them; pass --no-header if "
        "it holds data, and --separator if another mark divides it"
    )
    if reasons := [note for note in notes if repr(name.strip()) in note]:
        hint = f"The file was read as follows: {reasons[0]}"
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
    with pd.ExcelFile(path, "openpyxl", engine_kwargs={"read_only": False}) as book:
        if len(book.sheet_names) > 1:
            notes.append(f"the first of {len(book.sheet_names)} sheets, {book.sheet_names[0]!r}")
        # Without names, pandas would number columns of one name.
        cells = pd.read_excel(book, header=None, dtype=str, keep_default_na=False).fillna("")
        if len(cells):
            _show_cells(path, book.book.worksheets[0], cells, notes)
    return _with_names(cells[(cells != "").any(axis=1)], header)


def _show_cells(path: Path, sheet: Any, cells: pd.DataFrame, notes: list[str]) -> None:
    """Fill merged cells with their value, show formulas without values, and say what is merged and hidden."""
    merged = [each for each in sheet.merged_cells.ranges if each.min_row < each.max_row <= len(cells)]
    for each in merged:
        value = cells.iat[each.min_row - 1, each.min_col - 1]
        cells.iloc[each.min_row : each.max_row, each.min_col - 1] = value
    if merged:
        notes.append(f"merged cells: each row of {len(merged):,} merged cells has their value")
    if hidden := sum(row.hidden for row in sheet.row_dimensions.values()):
        notes.append(f"hidden rows: {hidden:,}, which are read, too: delete what should not be")
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


def read_answers(
    cells: pd.Series,
    decimal: str | None = None,
    missing: Iterable[str] = (),
    fitted: Column | None = None,
) -> tuple[Numbers, list[str], Column]:
    """Read a column of numbers with at most one currency or unit, the same in all rows.

    Args:
        cells: texts.
        decimal: "." or ",", the mark before decimals; the other one then separates thousands. Default: that
            of the fitted answers, or the answers decide; numbers that may still be meant in two ways are an
            error.
        missing: what stands for no answer, in addition to `?`, `n/a` and the like.
        fitted: how the answers were read that a model was fitted to. Default: there is none.

    Returns:
        The numbers, `[rows]`, NaN where there is none; sentences about how they were read; and the record of
        this.

    Raises:
        ValueError: some rows hold something else, may be read in two ways, or have another unit than the
            fitted ones.

    Example:
        >>> numbers, notes, column = read_answers(pd.Series(["$5", "$1,750.50", "?"], name="y"))
        >>> numbers, column.unit
        (array([   5. , 1750.5,    nan]), '$')
        >>> notes
        ["1 row has no 'y' ('?')", "in 'y', '$5' is read as 5, '$1,750.50' as 1750.5"]
    """
    name = "answer" if cells.name is None else str(cells.name)
    is_gap = find_gaps(cells) | find_gaps(cells, missing)
    shown, notes = [as_text(cell) for cell in cells[~is_gap]], list[str]()
    if absent := int(is_gap.sum()):
        marks = ", ".join(map(repr, sorted({as_text(cell) for cell in cells[is_gap].dropna()} - {""})))
        rows = f"{absent:,} row{'s have' if absent > 1 else ' has'}"
        notes.append(f"{rows} no {name!r}{f' ({marks})' if marks else ''}")
    if not shown:
        raise ValueError(f"the column {name!r} holds no number")
    is_truth = {text.lower() for text in shown} <= {"true", "false"}
    texts = [str(int(text.lower() == "true")) for text in shown] if is_truth else shown
    mark = decimal or (find_decimal_mark(texts, name) if fitted is None else fitted.decimal)
    numbers, units = read_cells(texts, mark)
    wrong, kinds = np.isnan(numbers), {*map(singular, units)}
    if not wrong.any() and len(kinds) > 1:
        wrong = np.array([unit != "" for unit in units])
    if wrong.any():
        mark_of_gap = shlex.quote(np.array(shown)[wrong][0][:_SHOWN])
        advice = f"Correct them, or leave them out as gaps: --missing={mark_of_gap}"
        if not np.isnan(numbers).any():
            advice = f"There are several units: {', '.join(map(repr, sorted(kinds)[:_EXAMPLES]))}."
        elif any(text.startswith("=") for text in shown):
            advice = "Formulas have no values here: open the file in a spreadsheet program, and save it."
        places = np.flatnonzero(~is_gap)[wrong][:_EXAMPLES]
        listed = ", ".join(f"{as_text(cells.iloc[row])[:_SHOWN]!r} in row {row + 1:,}" for row in places)
        raise ValueError(
            f"the column {name!r} holds no plain number in {wrong.sum():,} of {len(cells):,} rows: {listed}. "
            f"{advice}"
        )
    notes += _show_readings(shown, numbers, name)
    if mark == "." and decimal is None and all("." in text and ONE_GROUP.search(text) for text in shown):
        notes.append(f"the points in {name!r} are decimals; if they separate thousands, pass --decimal ,")
    is_plain = mark == "." and all(map(PLAIN.fullmatch, shown))
    column = Column(NUMBERS, is_plain, mark, max(units, key=len)).with_range(numbers)
    if fitted is not None and singular(column.unit) != singular(fitted.unit):
        here, there = column.unit or "no unit", fitted.unit or "no unit"
        if column.unit and fitted.unit:
            raise ValueError(f"{name!r} has {here!r}, but {there!r} in the fitted table: convert the numbers")
        notes.append(f"{name!r} has {here}, and {there} in the fitted table: taken for the same")
    found = np.full(len(cells), np.nan)
    found[~is_gap] = numbers
    if fitted is not None:
        notes += fitted.count(fitted.are_far(found), cells)
    return found, notes, column


def mark_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of texts with None in place of `NA`, `?` and the like in columns of numbers.

    Example:
        >>> mark_gaps(pd.DataFrame({"size": ["3", "NA"], "country": ["NA", "NO"]})).to_dict("list")
        {'size': ['3', None], 'country': ['NA', 'NO']}
    """
    gaps = {name: find_gaps(rows[name]) for name in rows.columns}
    numeric = [c for c, gap in gaps.items() if not gap.all() and not np.isnan(as_floats(rows[c][~gap])).any()]
    return rows.assign(**{name: rows[name].astype(object).mask(gaps[name], None) for name in numeric})


def _show_readings(texts: Sequence[str], numbers: Numbers, name: str) -> list[str]:
    """Show how numbers were read that `float` does not read, one of each kind."""
    shapes = dict[str, tuple[str, float]]()
    for text, number in zip(texts, numbers, strict=True):
        if not PLAIN.fullmatch(text) or float(text) != number:
            shapes.setdefault(re.sub("[0-9]+", "0", text), (text, number))
    shown = [
        f"{text!r} {'as' if i else 'is read as'} {number:.15g}"
        for i, (text, number) in enumerate([*shapes.values()][:_EXAMPLES])
    ]
    return [f"in {name!r}, {', '.join(shown)}"] if shown else []
