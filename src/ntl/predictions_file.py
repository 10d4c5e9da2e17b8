"""Write the predictions of a table's rows, and continue the file of an interrupted command."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from ntl.data.files import write_atomically
from ntl.errors import UserError, writing_to

Answer = Callable[[pd.DataFrame], Iterable[pd.DataFrame]]


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"ntl predict: {line}", file=sys.stderr)


def write_predictions(table: pd.DataFrame, answer: Answer, path: Path | None) -> None:
    """Write the rows with their predictions, behind those that an interrupted call has written.

    Args:
        table: The rows, as texts.
        answer: Yields the predictions of rows, some rows at a time.
        path: The CSV file. None writes to standard output.

    Raises:
        UserError: The file cannot be written, or holds other rows or other predictions.
    """
    room = "a file in an existing folder, with room"
    explained = writing_to(f"output={path}", room, "Correct it; the same command continues.")
    with explained if path is not None else nullcontext():
        done = 0 if path is None else _finished_rows(table, answer, path)
        if done:
            say(f"{done:,} of {len(table):,} rows are in {path} already")
        rest, start = table.iloc[done:].reset_index(drop=True), 0
        opened = nullcontext(sys.stdout) if path is None else path.open("a", encoding="utf-8", newline="")
        with opened as file, tqdm(total=len(table), initial=done, unit=" rows", disable=None) as bar:
            for part in answer(rest) if len(rest) else ():
                rows = rest.iloc[start : start + len(part)].reset_index(drop=True)
                file.write(rows.join(part).to_csv(index=False, header=not done + start))
                file.flush()
                start += len(part)
                bar.update(len(part))
    if path is not None:
        say(f"{len(table):,} rows are in {path}")


def _finished_rows(table: pd.DataFrame, answer: Answer, path: Path) -> int:
    """Return how many rows an output file holds, and cut off a row that was not written to its end.

    Raises:
        UserError: The file holds other rows, or predictions of another model or with other options.
    """
    # The end of an interrupted row may be half a character.
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    header, *rows = csv.reader(io.StringIO(text, newline="")) if text else [[]]
    if rows and (len(rows[-1]) < len(header) or not text.endswith("\n")):
        rows.pop()
    names, count = [*table.columns], len(rows)
    expected = table.iloc[:count].fillna("").to_numpy().tolist()
    begin = table.iloc[:0].to_csv(index=False).rstrip("\n")
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
    kept = io.StringIO(newline="")
    csv.writer(kept, lineterminator="\n").writerows([header, *rows] if rows else [])
    if kept.getvalue() != text:
        write_atomically(path, kept.getvalue())
    return count


def _equal(before: Sequence[str], again: pd.Series) -> bool:
    """Return whether the predictions of a row are equal, but for rounding."""
    numbers = [isinstance(value, float) for value in again]
    texts = [*again[np.invert(numbers)]]
    there = pd.to_numeric(pd.Series(before)[numbers], errors="coerce").to_numpy(float)
    here = again[numbers].to_numpy(float)
    same = np.isclose(there, here, 1e-3, equal_nan=True).all()
    return bool(same) and texts == [*pd.Series(before)[np.invert(numbers)]]
