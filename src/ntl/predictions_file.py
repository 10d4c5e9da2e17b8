"""Write the predictions of a table's rows, and continue the file of an interrupted command."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from ntl.data import format_number
from ntl.data.files import LOCK, only_writer, write_atomically
from ntl.errors import UserError, writing_to

Answer = Callable[[pd.DataFrame], Iterable[pd.DataFrame]]


LARGEST = 1e15  # from which on numbers have an exponent: pandas reads more than 18 digits as a text


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"ntl predict: {line}", file=sys.stderr)


def write_predictions(table: pd.DataFrame, answer: Answer, path: Path | None) -> None:
    """Write the rows with their predictions, after those that an interrupted call has written.

    Args:
        table: The rows, as texts.
        answer: Yields the predictions of rows, some rows at a time.
        path: The CSV file, or a device or a pipe, which is written from the start. None writes to standard
            output.

    Raises:
        UserError: The file cannot be written, another process writes it, or it holds other rows or other
            predictions.
    """
    if path is None:
        _write_rows(table, answer, 0, sys.stdout)
        return
    room = "a file in an existing folder, with room"
    with writing_to(f"output={path}", room, "Correct it; the same command continues."):
        if path.exists() and not path.is_file():  # a device or a pipe, which reading would wait for
            with path.open("w", encoding="utf-8", newline="") as file:
                _write_rows(table, answer, 0, file)
            return
        target = path.resolve()
        with only_writer(target.with_name(f".{target.name}{LOCK}"), f"output={path}"):
            if done := _finished_rows(table, answer, path):
                say(f"{done:,} of {len(table):,} rows are in {path} already")
            with target.open("a", encoding="utf-8", newline="") as file:
                _write_rows(table, answer, done, file)
    say(f"{len(table):,} rows are in {path}")


def _write_rows(table: pd.DataFrame, answer: Answer, done: int, file: TextIO) -> None:
    """Write the rows of a table after the first `done`, with their predictions."""
    rest, start = table.iloc[done:].reset_index(drop=True), 0
    with tqdm(total=len(table), initial=done, unit=" rows", disable=None) as bar:
        for part in answer(rest) if len(rest) else ():
            rows = rest.iloc[start : start + len(part)].reset_index(drop=True).join(part)
            header = [] if done + start else [[*rows]]
            cells = rows.astype(object).where(rows.notna(), "").to_numpy().tolist()
            file.write(_csv([*header, *([*map(_plain, row)] for row in cells)]))
            file.flush()
            start += len(part)
            bar.update(len(part))


def _plain(value: Any) -> Any:
    """Write a number without an exponent, and a whole one without a point, if readers know it."""
    return format_number(value) if isinstance(value, float) and abs(value) < LARGEST else value


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    r"""Write rows that end in a line feed; fields with `\r` are quoted, because readers end a row there."""
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(f"{line[:-2]}\n" for line in lines)


def _finished_rows(table: pd.DataFrame, answer: Answer, path: Path) -> int:
    """Return how many rows an output file holds, and cut off a row that was not written to its end.

    Raises:
        UserError: The file holds other rows, or predictions of another model or with other options.
    """
    # The end of an interrupted row may be half a character.
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    limit = csv.field_size_limit(len(text) + 1)  # texts of JSON lines and Parquet files have any length
    try:
        header, *rows = csv.reader(io.StringIO(text, newline="")) if text else [[]]
    finally:
        csv.field_size_limit(limit)
    if rows and (len(rows[-1]) < len(header) or not text.endswith("\n")):
        rows.pop()
    names, count = [*table.columns], len(rows)
    expected = table.iloc[:count].fillna("").to_numpy().tolist()
    begin = _csv([names]).rstrip("\n")
    if text[: len(begin)] != begin[: len(text)] or [row[: len(names)] for row in rows] != expected:
        raise UserError(
            f"output={path} holds other rows than these; expected a new file, or one that was begun with the "
            "same rows. Choose another file, or remove this one."
        )
    if rows:
        (again,) = answer(table.iloc[count - 1 : count])
        if header[len(names) :] != [*again] or not _equal(rows[-1][len(names) :], again.iloc[0]):
            raise UserError(
                f"output={path} holds predictions of another model, or with another level or calibration; "
                "expected the command that it was begun with. Choose another file, or remove this one."
            )
    kept = _csv([header, *rows]) if rows else ""
    if kept != text:
        write_atomically(path.resolve(), kept)
    return count


def _equal(before: Sequence[str], again: pd.Series) -> bool:
    """Return whether the predictions of a row are equal, but for rounding."""
    numbers = [isinstance(value, float) for value in again]
    texts = [*again[np.invert(numbers)]]
    there = pd.to_numeric(pd.Series(before)[numbers], errors="coerce").to_numpy(float)
    here = again[numbers].to_numpy(float)
    same = np.isclose(there, here, 1e-3, equal_nan=True).all()
    return bool(same) and texts == [*pd.Series(before)[np.invert(numbers)]]
