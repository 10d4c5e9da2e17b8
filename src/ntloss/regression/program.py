"""`ntloss fit` and `ntloss predict`: files in and out of `NumberRegressor`."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ntloss.regression.printing import say
from ntloss.regression.questions import Column, as_times, find_gaps
from ntloss.regression.tables import Table, find_column, read_answers, read_table

if TYPE_CHECKING:
    from ntloss.regression.answers import AnswerFormat

# What needs torch is imported when the tables have been read: errors in them are said at once.

COMMAND = "command.json"  # how the answers were read, and what stands for a gap
PICTURE = "predictions.png"
PREDICTED = ("prediction", "lower", "upper")  # the columns that predict adds
_SHOWN = 3  # rows


def fit(given: argparse.Namespace) -> int:
    """Fit a table's column, save the model in a folder, and print what it can do."""
    table = read_table(given.table, given.separator, not given.no_header)
    target = find_column(table.rows, given.target, "--target", table.notes)
    folder = Path(given.output or f"{Path(given.table).name.partition('.')[0]}-{target}").expanduser()
    rows, answers, record = _rows(table, target, given)
    from ntloss.regression.estimator import CHECKPOINT, REFIT, NumberRegressor

    _check_is_ours(folder, CHECKPOINT)
    model = NumberRegressor(
        given.model,
        prompt=None if given.prompt is None else given.prompt.replace("\\n", "\n"),
        scale=given.scale,
        epochs=given.epochs,
        train=given.train,
        refit=given.refit,
        compare=given.compare or True,
        shuffle=given.sort_by is None,
        checkpoint=folder,
    )
    try:
        model.fit(rows, answers)
    except KeyboardInterrupt:
        print(f"\nInterrupted. The same command goes on where {folder} has been left.", file=sys.stderr)
        return 130
    (folder / COMMAND).write_text(json.dumps({"answer": asdict(record), "missing": given.missing}), "utf-8")
    model.save(folder)
    for name in (CHECKPOINT, REFIT):
        (folder / name).unlink(missing_ok=True)
    found = model.held_out_[["lower", "prediction", "upper"]].to_numpy()
    say(f"\n{_picture(folder / PICTURE, model.held_out_['answer'].to_numpy(), found, model, target)}")
    quoted = shlex.quote(str(folder))
    say(f"Saved. To predict new rows: ntloss predict {quoted} NEW.csv > predictions.csv")
    return 0


def predict(given: argparse.Namespace) -> int:
    """Write the rows of a table with predictions as CSV; with true answers, print their errors."""
    if not 0 < given.level < 1:
        raise ValueError(f"--level {given.level}: expected a number above 0 and below 1")
    if given.plot is not None and given.truth is None:
        raise ValueError("--plot: the picture needs true answers; name their column by --truth")
    table = read_table(given.table, given.separator, not given.no_header)
    _check_names(table.rows, given.table)
    file, notes = Path(given.folder).expanduser() / COMMAND, [*table.notes]
    held = json.loads(file.read_text("utf-8")) if file.is_file() else {}  # not of a model of `save`
    missing = [*given.missing, *held.get("missing", [])]
    truths = np.zeros(0)
    if given.truth is not None and len(table.rows):
        column = table.rows[find_column(table.rows, given.truth, "--truth", table.notes)]
        fitted = Column(**held["answer"]) if held else None
        truths, found_notes, _ = read_answers(column, given.decimal, missing, fitted)
        notes += found_notes
    from ntloss.regression.estimator import NumberRegressor

    model = NumberRegressor.load(given.folder)
    questions = model.questions_
    rows = _without(table.rows, missing)
    for note in (*notes, *questions.notes(rows)):
        print(note, file=sys.stderr)
    model.verbose = sys.stderr.isatty()
    asked = ~questions.find_empty(rows)
    found = np.full((len(rows), 3), np.nan)
    found[asked] = model._read_ends(questions.write(rows[asked]), given.level)
    columns = dict(zip(("lower", "prediction", "upper"), found.T, strict=True))
    written = table.rows.assign(**{name: columns[name] for name in PREDICTED})
    say(written.to_csv(index=False, lineterminator="\n"), end="")
    if not asked.all():
        shown = ", ".join(map(str, 1 + np.flatnonzero(~asked)[:_SHOWN]))
        names = ", ".join(map(repr, questions.columns))
        print(
            f"{(~asked).sum():,} rows have no prediction, because nothing is given in {names}: rows {shown}",
            file=sys.stderr,
        )
    if not model.calibration_.covers(given.level):
        few = f"{len(model.calibration_)} held-out rows cannot calibrate intervals of {given.level:.0%}"
        print(f"lower and upper are empty: {few}", file=sys.stderr)
    known = np.isfinite(truths) & asked if len(truths) else ~asked & False
    if known.any():
        print(_errors(truths[known], found[known], given.level, model.format_), file=sys.stderr)
        if given.plot is not None:
            name = given.truth.strip()
            print(_picture(Path(given.plot), truths[known], found[known], model, name), file=sys.stderr)
    return 0


def _picture(file: Path, answers: np.ndarray, found: np.ndarray, model: Any, name: str) -> str:
    """Save a picture of predictions, and say where."""
    from ntloss.regression.plots import plot_predictions

    axes = plot_predictions(answers, found, model.format_.log, name)
    axes.get_figure(root=True).savefig(file, dpi=150)
    return f"{file} shows predictions and true answers."


def _check_names(rows: pd.DataFrame, table: str) -> None:
    """Raise an error if a column has the name of one that predict adds."""
    if taken := [name for name in PREDICTED if name in rows.columns]:
        raise ValueError(
            f"{table} has a column {taken[0]!r}, which is one of those that ntloss predict adds; rename it"
        )


def _check_is_ours(folder: Path, checkpoint: str) -> None:
    """Raise an error if a folder holds other files than an interrupted fit leaves."""
    if folder.is_file():
        raise ValueError(f"--output {folder}: expected a folder, but it is a file")
    if not folder.is_dir() or (folder / checkpoint).exists():
        return
    if (folder / COMMAND).exists():
        raise ValueError(
            f"--output {folder} holds a fitted model: use ntloss predict, pass another --output, or delete it"
        )
    if others := sorted(file.name for file in folder.iterdir() if not file.name.startswith("checkpoint")):
        raise ValueError(
            f"--output {folder}: expected a new folder or an empty one, but it holds {others[0]} "
            f"({len(others):,} file{'s' * (len(others) > 1)}), which saving might replace"
        )


def _without(rows: pd.DataFrame, missing: Sequence[str]) -> pd.DataFrame:
    """Return rows with None in place of what stands for a gap in any column."""
    return rows.mask(rows.apply(find_gaps, marks=missing), None) if missing and len(rows) else rows


def _rows(table: Table, target: str, given: argparse.Namespace) -> tuple[pd.DataFrame, pd.Series, Column]:
    """Return the rows with an answer, the answers, and how these were read, all of which is printed."""
    answers, notes, record = read_answers(table.rows[target], given.decimal, given.missing)
    for note in (*table.notes, *notes):
        say(f"read            {note}")
    dropped = [find_column(table.rows, name, "--drop") for name in given.drop]
    rows = _without(table.rows.drop(columns=target), given.missing)
    numbers, kept = pd.Series(answers, name=target), [c for c in rows.columns if c not in dropped]
    _check_names(rows[kept], given.table)
    for name in kept:
        if count := int((rows[name].isna() & table.rows[name].notna()).sum()):
            say(f"read            --missing leaves {count:,} row{'s' * (count > 1)} without {name!r}")
    if given.sort_by is not None:
        by = find_column(rows, given.sort_by, "--sort-by")
        times = as_times(rows[by])
        column = pd.to_numeric(rows[by], errors="coerce") if times is None else times
        if column.isna().all():
            raise ValueError(
                f"--sort-by {by}: expected a column of numbers, or of dates such as 2026-11-21 (04/11/2026 "
                "may be in April or in November)"
            )
        if lacking := int(column.isna().sum()):
            say(f"read            {lacking:,} rows without a number or date in {by!r} are sorted first")
        order = column.sort_values(kind="stable", na_position="first").index
        rows, numbers = rows.loc[order], numbers.loc[order]
    elif name := next((name for name in kept if as_times(rows[name]) is not None), None):
        say(f"hint            {name!r} holds dates: --sort-by {shlex.quote(name)} holds out the latest rows")
    known = numbers.notna()
    rows, numbers = (part[known].reset_index(drop=True) for part in (rows[kept], numbers))
    return rows, numbers, record


def _errors(answers: np.ndarray, found: np.ndarray, level: float, form: AnswerFormat) -> str:
    """Say how far predictions are from true answers, each with its 95 % interval."""
    from scipy.stats import binomtest  # slow

    low, middle, high = found.T
    errors = abs(middle - answers)
    margin = 1.96 * errors.std() / math.sqrt(len(errors))
    count = "1 row with a true answer" if len(errors) == 1 else f"{len(answers):,} rows with true answers"
    text = f"{count}: mean absolute error {errors.mean():.3g}{f' (± {margin:.3g})' * (len(errors) > 1)}"
    if form.log and (answers > 0).all():
        text += f", mean factor between prediction and answer {10 ** form.errors(middle, answers).mean():.3g}"
    if np.isnan(low).any():
        return text
    inside = int(((low <= answers) & (answers <= high)).sum())
    least, most = binomtest(inside, len(answers)).proportion_ci(method="wilson")
    return (
        f"{text}; intervals of {level:.0%} hold {inside / len(answers):.0%} of them (95 % interval: "
        f"{100 * least:.0f} to {100 * most:.0f} %), their mean width is {(high - low).mean():.3g}"
    )
