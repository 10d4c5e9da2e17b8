"""Read tables as people have them, for `ntloss fit` and `ntloss predict`: as texts, with what was assumed."""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pandas.io.common import get_handle

from ntloss.regression.columns import PLAIN
from ntloss.regression.rows import column_name, without_surrogates

_PACKED = {".gz", ".bz2", ".zip", ".xz", ".zst"}
_SEPARATORS = ("\t", "|", ";", "~", ",")
_BLANKS = " "  # as a separator: any number of them
_LINES = 50  # from which the separator is found
_ROWS = 20  # of these lines, as many
_MOST_TITLES = 10  # rows in front of the names
_SHOWN = 60  # characters of a line
_CLEAN = 0.9  # share of the cells that a table after a title leaves without another separator
_SEPARATING_COMMA = re.compile(r",(?!\s|$)(?!(?<=[0-9],)[0-9])")  # of neither prose nor a number
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')


class Table(NamedTuple):
    """A table of texts, None where there is nothing, and sentences about how it was read."""

    rows: pd.DataFrame
    notes: list[str]


class _RaggedError(ValueError):
    """Rows have different numbers of fields, maybe because another separator divides them."""


def read_table(
    file: str | Path, separator: str | None = None, option: str | None = None, header: bool = True
) -> Table:
    """Read a table: CSV with any separator, JSON (an array, or an object a line), Parquet or Excel.

    CSV and JSON may be compressed, as `.csv.gz`, or with another ending that pandas knows.

    Args:
        file: its path.
        separator: of the fields of a CSV file, one character; a blank stands for any number of them, and
            `\\t` for a tab. Default: found.
        option: what names another separator, for the error. Default: nothing does.
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
            table = _read_parquet(path)
        elif ending in (".json", ".jsonl", ".ndjson"):
            table = _read_json(path, notes)
        elif ending in (".xlsx", ".xls", ".ods"):
            table = make_frame(_read_excel(path, notes), notes, header)
        else:
            table = make_frame(_read_csv(path, separator, notes, header), notes, header)
    except UnicodeError as error:
        raise ValueError(
            f"{path} is neither UTF-8 nor UTF-16 with a byte order mark ({error}). Read it in Python, and "
            f'fit the frame: pd.read_csv("{path.name}", encoding="latin-1"), or the encoding that it has'
        ) from None
    except Exception as error:  # each format has other errors for damaged files
        if isinstance(error, OSError) and error.filename is not None:
            raise
        hint = f"; {option} names another separator" if option and isinstance(error, _RaggedError) else ""
        raise ValueError(f"{path}: {str(error) or repr(error)}{hint}") from error
    table.columns = pd.Index(_name_columns([*table.columns], notes))
    if not len(table.columns):
        raise ValueError("; ".join([f"{path} has no columns", *notes]))
    return Table(table.reset_index(drop=True).apply(_as_texts), notes)


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
    hint = f" Did you mean {close[0]!r}?" if close and len(columns) > 1 else ""
    if len(columns) == 1 and option in ("--target", "--truth"):
        tried = ", ".join(map(repr, _SEPARATORS))
        hint += f" If the file has more, --separator says what separates them: {tried} and blanks were tried."
    if _has_number(columns):
        hint = " The first row looks like data: --no-header if it is."
    if len(table) and name.strip() in {str(value).strip() for value in table.iloc[0]}:
        hint = " It stands in the row after these: if they are a title, delete its line."
    if left_out := [note for note in notes if repr(name.strip()) in note]:
        hint = f" The file was read as follows: {left_out[0]}."
    shown = ", ".join(map(repr, columns[:20])) + (", ..." if len(columns) > 20 else "")
    raise ValueError(f"{option} {name}: expected one of the columns {shown}.{hint}")


def _name_columns(names: Sequence[Any], notes: list[str]) -> list[str]:
    """Return the names of columns without blanks; a number follows those that several have."""
    names = [str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(names)]
    for twice in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        number = itertools.count(1)
        names = [f"{name}.{next(number)}" if name == twice else name for name in names]
        renamed = [name for name in names if name.startswith(f"{twice}.")]
        notes.append(f"several columns are called {twice!r}: here, they are {', '.join(map(repr, renamed))}")
    return names


def make_frame(rows: Sequence[Sequence[str]], notes: list[str], header: bool = True) -> pd.DataFrame:
    """Make a frame of rows, without titles, names that are repeated, and columns without a name and a value.

    Args:
        rows: the first one after the titles holds the names of the columns if there is a header.
        notes: where is added how they are read.
        header: whether there is one. Default: True.

    Raises:
        ValueError: there are no rows.

    Example:
        >>> make_frame([["Sales", ""], ["", ""], ["text", "price"], ["a", "3"]], []).to_dict("list")
        {'text': ['a'], 'price': ['3']}
    """
    if not rows:
        raise ValueError("the file is empty")
    if not header:
        return pd.DataFrame(rows, columns=[*map(column_name, range(len(rows[0])))], dtype=object)
    titles = _count_titles(rows)
    if title := "".join(itertools.chain(*rows[:titles])):
        notes.append(_left_out(titles, "row", title))
    names, *rows = rows[titles:]
    if len(names) > 1 and (repeated := rows.count(names)):
        notes.append(f"left out: {repeated:,} row{'s' * (repeated > 1)} with the names of the columns again")
        rows = [row for row in rows if row != names]
    table = pd.DataFrame(rows, columns=names, dtype=object)
    if likely := [name for i, name in enumerate(names) if _is_number(name) and _has_only_numbers(table, i)]:
        notes.append(
            f"the first row is taken for the names of columns, but {likely[0]!r} looks like data: "
            "--no-header if it is"
        )
    # Some programs end each line, or begin and end it, with a separator; and sheets may begin at B2.
    kept = [bool(name.strip()) or (table.iloc[:, i] != "").any() for i, name in enumerate(names)]
    return table.loc[:, kept]


def _count_titles(rows: Sequence[Sequence[str]]) -> int:
    """Count the rows in front of a table that have at most one cell."""
    count = len([*itertools.takewhile(lambda row: sum(cell.strip() != "" for cell in row) < 2, rows)])
    after = rows[count : count + 3]
    if not 0 < count <= _MOST_TITLES or len(after) < 2 or len({*map(len, after)}) > 1:
        return 0  # also if there are names alone, without a row
    return 0 if _has_number(after[0]) else count


def _has_only_numbers(table: pd.DataFrame, column: int) -> bool:
    cells = table.iloc[:, column]
    return bool(cells[cells != ""].map(_is_number).all())


def _left_out(count: int, what: str, first: str) -> str:
    return f"left out: {count} {what}{'s' * (count > 1)} in front of the names of columns, {first[:_SHOWN]!r}"


def _has_number(cells: Iterable[str]) -> bool:
    return any(map(_is_number, cells))


def _is_number(cell: str) -> bool:
    return PLAIN.fullmatch(cell.strip()) is not None


def _read_text(path: Path) -> str:
    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        content: bytes = opened.handle.read()
    if content.startswith(b"PK\x03\x04"):
        raise ValueError("it is an archive, as files of Excel are; end its name with .xlsx, or .zip")
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    if "\0" in text[:1000]:
        raise UnicodeError("it holds NUL characters, as UTF-16 and UTF-32 do")
    return text


def _read_csv(path: Path, separator: str | None, notes: list[str], header: bool) -> list[list[str]]:
    text = _read_text(path)
    if _JSON.match(text):
        raise ValueError("it looks like JSON; end its name with .jsonl, or .json")
    lines = [*io.StringIO(text, "")]
    count = len(lines)
    if declared := re.fullmatch(r"sep=(.)\r?\n", lines[0] if lines else ""):
        lines = lines[1:]
        separator = separator or declared[1]
    comments = [*itertools.takewhile(lambda line: re.match(r"#\s", line), lines)]
    lines = [*itertools.dropwhile(lambda line: not line.strip(), lines[len(comments) :])]
    limit = csv.field_size_limit(len(text) + 1)  # of the whole process, so it is restored
    try:
        found = separator or find_separator("".join(lines[: _LINES + 1]))
        separator = found or ","
        if header and comments and lines and (names := _names_in(comments[-1], lines[0], separator)):
            lines = [names, *lines]
            notes.append(f"the comment {comments.pop().strip()[:_SHOWN]!r} names the columns")
        skipped, reader = count - len(lines), _reader(lines, separator, strict=True)
        pairs = [(row, skipped + reader.line_num) for row in reader if row]
    except csv.Error as error:
        is_open = "unexpected end" in str(error)
        what = "a quote that is not closed, before" if is_open else "text beside a quoted field, in"
        raise ValueError(
            f"{what} line {skipped + reader.line_num} ({error}). A quote in a quoted text is doubled, as in "
            '"5"" pipe"'
        ) from None
    finally:
        csv.field_size_limit(limit)
    if separator != ",":
        notes.append(f"the separator is {_named(separator)}")
    if comments:
        notes.append(_left_out(len(comments), "line", comments[0].strip()))
    rows = _without_ends(row for row, _ in pairs)
    start = _count_titles(rows) if header and found else 0
    if header and _lacks_name(rows[start:], lines, separator):
        rows[start] = ["", *rows[start]]
        notes.append("the first column has no name, as R writes the names of rows")
    width = len(rows[start]) if rows else 0
    for row, (_, number) in zip(rows[start:], pairs[start:], strict=True):
        if len(row) != width:  # pandas would fill it with gaps, or take its first field for an index
            mark = _named(separator)
            raise _RaggedError(
                f"line {number} has {len(row)} field{'s' * (len(row) > 1)}, the header {width}, where "
                f"{mark} separates them: {row[0][:_SHOWN]!r}. A text that holds {mark} has to be in double "
                "quotes, and a title or note outside the table has to be deleted"
            )
    return rows


def _named(separator: str) -> str:
    return {_BLANKS: "blanks"}.get(separator, repr(separator))


def _names_in(comment: str, first: str, separator: str) -> str | None:
    """Return the names in a comment before the first line: of a column `#`, or of a row of numbers.

    The latter stand in the files of `numpy.savetxt`.
    """
    row, names = _fields(first, separator), _fields(comment, separator)
    if len(names) == len(row) > 1 and all(map(str.strip, names)) and separator != _BLANKS and names[0] == "#":
        return comment
    names = _fields(comment.lstrip("# \t"), separator)
    is_above = len(names) == len(row) > 1 and all(map(_is_number, row)) and not _has_number(names)
    return comment.lstrip("# \t") if is_above else None


def _without_ends(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return rows without fields after the last name and value: some programs end lines with a separator."""
    rows = [*rows]
    width = max((i + 1 for row in rows for i, cell in enumerate(row) if cell.strip()), default=0)
    return [[*row[:width]] for row in rows]


def _lacks_name(rows: Sequence[Sequence[str]], lines: Sequence[str], separator: str) -> bool:
    """Return whether there is a name less than fields: R writes none above names of rows, which it quotes."""
    if len(rows) < 2 or len(rows[0]) < 2 or {len(row) for row in rows[1:]} != {len(rows[0]) + 1}:
        return False
    firsts = {row[0] for row in rows[1:]}
    # Others are prose with commas.
    quoted = sum(line.lstrip().startswith('"') for line in lines) >= len(rows) - 1
    is_named = separator != "," or quoted or all(map(str.isdecimal, firsts))
    return is_named and len(firsts) == len(rows) - 1 and "" not in firsts


def _fields(line: str, separator: str) -> list[str]:
    fields: list[str] = next(_reader([line], separator), [])
    return fields


def _reader(lines: Sequence[str], separator: str, strict: bool = False) -> Any:
    """Return csv's reader of lines; blanks may stand several in a row, and at both ends.

    With other separators, blanks are left out before fields if some quoted field has one before it.
    """
    if separator != _BLANKS:
        mark = re.escape(separator)
        quoted = re.compile(rf'{mark} +"(?:[^"]|"")*"\s*(?:{mark}|$)')
        skips = any(map(quoted.search, lines))
        return csv.reader(lines, delimiter=separator, skipinitialspace=skips, strict=strict)
    return csv.reader(
        (line.strip() + "\n" for line in lines), delimiter=" ", skipinitialspace=True, strict=strict
    )


def find_separator(text: str) -> str | None:
    """Find the separator that gives the first rows equally many fields, and cells without another separator.

    Blanks separate fields where nothing else does and a column holds only numbers. None: there is no other
    separator, as in a table of one column.

    Example:
        >>> find_separator('title;price\\n"a, b";3\\nc, d, e;4\\n')
        ';'
    """
    lines = [*itertools.islice(io.StringIO(text, ""), _LINES + 1)]
    found: dict[str, tuple[float, int]] = {}
    for separator in _SEPARATORS:
        rows = _without_ends(_first_rows(lines, separator))
        titles = _count_titles(rows)
        counts = {len(row) for row in rows[titles + _lacks_name(rows[titles:], lines, separator) :]}
        if len(counts) == 1 and (count := counts.pop()) > 1:
            cells = [cell for row in rows[titles:] for cell in row]
            clean = round(sum(map(_is_clean, cells)) / len(cells), 1)
            # A title has as many fields if spreadsheets write it.
            if not titles or len(rows[0]) == count or clean > _CLEAN:
                found[separator] = (clean, count)
    if found:
        return max(found, key=lambda separator: found[separator])
    rows = _first_rows(lines, _BLANKS)
    rows = rows[1:] if _lacks_name(rows, lines, _BLANKS) else rows
    is_table = len({len(row) for row in rows}) == 1 and len(rows) > 2 and len(rows[0]) > 1
    return _BLANKS if is_table and any(all(map(_is_number, c)) for c in zip(*rows[1:], strict=True)) else None


def _first_rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the first rows of a table, and none if they are not in its format."""
    reader = _reader(lines[:_LINES], separator)
    try:
        rows = [*itertools.islice(reader, _ROWS)]
    except csv.Error:
        return []
    if reader.line_num == _LINES < len(lines):
        rows.pop()  # it may go on in further lines
    return [row for row in rows if row]


def _is_clean(cell: str) -> bool:
    """Return whether a cell holds nothing that is likely to separate fields."""
    if re.fullmatch(r"\s*[+-]?[0-9.,]+\s*", cell):
        return True
    return (
        not cell.startswith(" ")
        and not _SEPARATING_COMMA.search(cell)
        and not any(c in cell for c in "\t|;~")
    )


def _read_excel(path: Path, notes: list[str]) -> list[list[str]]:
    # Merged and hidden cells are known only if all of a book is read.
    options = {"read_only": False} if path.suffix.lower() == ".xlsx" else {}
    try:
        book = pd.ExcelFile(path, engine_kwargs=options)
    except ValueError as error:
        if "engine" in str(error):  # of which pandas speaks for a file of another format
            raise ValueError("it is no Excel file; if it is CSV, end its name with .csv") from None
        raise
    with book:
        if len(book.sheet_names) > 1:
            notes.append(f"the first of {len(book.sheet_names)} sheets, {book.sheet_names[0]!r}")
        # pandas would take titles for names, and rename columns of one name.
        table = pd.read_excel(book, header=None, dtype=str, keep_default_na=False).fillna("")
        if options and len(table):
            _show_cells(path, book.book.worksheets[0], table, notes)
    rows: list[list[str]] = table.to_numpy().tolist()
    return rows


def _show_cells(path: Path, sheet: Any, table: pd.DataFrame, notes: list[str]) -> None:
    """Fill merged cells with their value, count hidden rows and columns, and show formulas without values.

    Args:
        path: the book.
        sheet: of openpyxl.
        table: its cells, which are changed.
        notes: where is added what was done.
    """
    merged = [cells for cells in sheet.merged_cells.ranges if cells.min_row < cells.max_row <= len(table)]
    for cells in merged:
        table.iloc[cells.min_row : cells.max_row, cells.min_col - 1] = table.iat[
            cells.min_row - 1, cells.min_col - 1
        ]
    if merged:
        notes.append(f"merged cells: each row of {len(merged):,} merged cells has their value")
    for what, sizes in (("rows", sheet.row_dimensions), ("columns", sheet.column_dimensions)):
        if hidden := sum(size.hidden for size in sizes.values()):
            notes.append(f"hidden {what}: {hidden:,}, which are read, too: delete what should not be")
    if ((table != "").sum() < 2).any():  # a name above nothing
        for cell in itertools.chain(
            *pd.ExcelFile(path, engine_kwargs={"data_only": False}).book.worksheets[0]
        ):
            if cell.data_type == "f" and table.iat[cell.row - 1, cell.column - 1] == "":
                table.iat[cell.row - 1, cell.column - 1] = str(cell.value)


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
    if nested and not any(key not in nested for record in records for key in record):
        raise ValueError(
            "expected an array of objects, or one object a line, with numbers or texts; "
            f"{', '.join(map(repr, nested))} hold lists or objects"
        )
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


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):  # as some programs write texts to Parquet
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return str(without_surrogates(value))
    if isinstance(value, Iterable):
        return str(value)
    if pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
