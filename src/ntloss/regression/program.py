"""`ntloss fit` and `ntloss predict`: files in and out of `NumberRegressor`."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ntloss.regression.columns import Answers, find_numeric, leave_out_summary, mark_gaps, read_answers
from ntloss.regression.estimator import CHECKPOINT, RECORD, REFIT, NumberRegressor, check_level
from ntloss.regression.evaluation import show
from ntloss.regression.report import say
from ntloss.regression.tables import Table, find_column, read_table
from ntloss.writing.weights import digest_of_weights

_YEAR_LAST = r"^\s*(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:\s*|([T ]\d.*))$"
COMMAND = "command.json"  # what a folder was made from
FOUND = "found"  # in it: how the table was read
PREDICTED = ("prediction", "lower", "upper")  # the columns that predict adds
_SHOWN = 3  # rows
_OF_FIT = (
    "model",
    "prompt",
    "epochs",
    "train",
    "refit",
    "scale",
    "compare",
    "drop",
    "sort_by",
    "decimal",
    "missing",
    "target",
)


def fit(given: argparse.Namespace) -> int:
    """Fit a table's column, save the model in a folder, and print what it can do."""
    table = read_table(given.table, given.separator, "--separator")
    target = find_column(table.rows, given.target, "--target", table.notes)
    folder = Path(given.output or f"{Path(given.table).name.partition('.')[0]}-{target}").expanduser()
    made_from = _made_from(table.rows, given)
    if (folder / RECORD).exists():
        held = _held(folder)
        if not held or any(held.get(name, value) != value for name, value in made_from.items()):
            raise ValueError(
                f"{folder} holds a model of other rows, options or weights of --model; pass another "
                "--output, or delete it"
            )
        model = NumberRegressor.load(folder)
        say(f"{folder} holds this model already.\n\n{show(model.report_, model.summary_)}")
        return 0
    _check_is_ours(folder)
    rows, answers, found = _rows(table, target, given)
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
    (folder / COMMAND).write_text(json.dumps({**made_from, FOUND: found}), "utf-8")
    model.save(folder)
    for name in (CHECKPOINT, REFIT):
        (folder / name).unlink(missing_ok=True)
    quoted = shlex.quote(str(folder))
    say(f"\nSaved. To predict new rows: ntloss predict {quoted} NEW.csv > predictions.csv")
    return 0


def predict(given: argparse.Namespace) -> int:
    """Write the rows of a table with predictions as CSV; with true answers, print their errors."""
    check_level("--level", given.level)
    table = read_table(given.table, given.separator, "--separator")
    _check_names(table.rows, given.table)
    truth, fitted = Answers(np.zeros(0), []), _held(Path(given.folder).expanduser())
    in_fit = fitted.get(FOUND, {})
    missing = [*given.missing, *fitted.get("missing", [])]
    if given.truth is not None:
        column = table.rows[find_column(table.rows, given.truth, "--truth", table.notes)]
        if len(column):
            decimal = given.decimal or fitted.get("decimal")
            read = read_answers(column, decimal, missing, in_fit.get("decimal"))
            truth = leave_out_summary(table.rows, read)
    model = NumberRegressor.load(given.folder)
    if lacking := [name for name in model.questions_.columns if name not in table.rows.columns]:
        raise ValueError(
            f"{given.table} has no column {lacking[0]!r}, with which {given.folder} was fitted, but "
            f"{', '.join(map(repr, table.rows.columns))}. Has the file a header?"
        )
    for note in (*table.notes, *truth.notes):
        print(note, file=sys.stderr)
    model.verbose = sys.stderr.isatty()
    rows = mark_gaps(table.rows, missing, in_fit.get("numeric", model.questions_.numeric))
    calibrated = model.calibration_.covers(given.level)
    asked = ~model.questions_.find_empty(rows)
    levels = [(1 - given.level) / 2, 0.5, (1 + given.level) / 2]
    middle = slice(None) if calibrated else slice(1, 2)
    found = np.full((len(rows), 3), np.nan)
    found[asked, middle] = model.predict_quantiles(rows[asked], levels[middle])
    columns = dict(zip(("lower", "prediction", "upper"), found.T, strict=True))
    written = table.rows.assign(**{name: columns[name] for name in PREDICTED})
    say(written.to_csv(index=False, lineterminator="\n"), end="")
    if not asked.all():
        shown = ", ".join(map(str, 1 + np.flatnonzero(~asked)[:_SHOWN]))
        names = ", ".join(map(repr, model.questions_.columns))
        print(
            f"{(~asked).sum():,} rows have no prediction, because nothing is given in {names}: rows {shown}",
            file=sys.stderr,
        )
    if not calibrated:
        few = f"{len(model.calibration_)} held-out rows cannot calibrate intervals of {given.level:.0%}"
        print(f"lower and upper are empty: {few}", file=sys.stderr)
    if len(truth.numbers):
        known = np.isfinite(truth.numbers) & asked
        if known.any():
            print(_errors(truth.numbers[known], found[known], given.level), file=sys.stderr)
    return 0


def _check_names(rows: pd.DataFrame, table: str) -> None:
    """Raise an error if a column has the name of one that predict adds."""
    if taken := [name for name in PREDICTED if name in rows.columns]:
        raise ValueError(
            f"{table} has a column {taken[0]!r}, which is one of those that ntloss predict adds; rename it"
        )


def _made_from(rows: pd.DataFrame, given: argparse.Namespace) -> dict[str, Any]:
    """Return what tells two fits apart."""
    # The file is not read again: a pipe would be empty.
    content = json.dumps([rows.columns.tolist(), rows.to_numpy().tolist()])
    table = hashlib.sha256(content.encode()).hexdigest()
    made_from = {"table": table, **{name: getattr(given, name) for name in _OF_FIT}}
    weights = digest_of_weights(given.model)
    return made_from if weights is None else {**made_from, "weights": weights}


def _held(folder: Path) -> dict[str, Any]:
    """Return what the model in a folder was made from; nothing if no fit of this command says so."""
    try:
        held: dict[str, Any] = json.loads((folder / COMMAND).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return held


def _check_is_ours(folder: Path) -> None:
    """Raise an error if a folder is a file, or holds other files than an interrupted fit leaves."""
    if folder.is_file():
        raise ValueError(f"--output {folder}: expected a folder, but it is a file")
    if not folder.is_dir() or (folder / CHECKPOINT).exists():
        return
    if others := sorted(file.name for file in folder.iterdir() if not file.name.startswith("checkpoint")):
        raise ValueError(
            f"--output {folder}: expected a new folder or an empty one, but it holds {others[0]} "
            f"({len(others):,} file{'s' * (len(others) > 1)}), which saving might replace"
        )


def _rows(
    table: Table, target: str, given: argparse.Namespace
) -> tuple[pd.DataFrame, pd.Series, dict[str, Any]]:
    """Return the rows with an answer, the answers, and what predict needs to read rows like these.

    How they were read is printed.
    """
    answers = leave_out_summary(table.rows, read_answers(table.rows[target], given.decimal, given.missing))
    for note in (*table.notes, *answers.notes):
        say(f"read            {note}")
    dropped = [find_column(table.rows, name, "--drop") for name in given.drop]
    texts = table.rows.drop(columns=target)
    numeric = find_numeric(texts, given.missing)
    rows = mark_gaps(texts, given.missing, numeric)
    named = rows.isna() & mark_gaps(texts, numeric=numeric).notna()
    numbers, kept = pd.Series(answers.numbers, name=target), [c for c in rows.columns if c not in dropped]
    if not kept:
        raise ValueError(f"{given.table} has no column beside {', '.join(map(repr, [target, *dropped]))}")
    _check_names(rows[kept], given.table)
    for name, count in named[kept].sum().items():
        if count:
            say(f"read            --missing leaves {count:,} row{'s' * (count > 1)} without {name!r}")
    found = {name: _as_times(rows[name]) for name in rows.columns}
    times = {name: column for name, column in found.items() if column is not None}
    if given.sort_by is not None:
        by = find_column(rows, given.sort_by, "--sort-by")
        column = times[by] if by in times else pd.to_numeric(rows[by], errors="coerce")
        if column.isna().all():
            raise ValueError(
                f"--sort-by {by}: expected a column of numbers, or of dates such as 2026-11-21 (04/11/2026 "
                "may be in April or in November)"
            )
        if lacking := int(column.isna().sum()):
            say(f"read            {lacking:,} rows without a number or date in {by!r} are sorted first")
        order = column.sort_values(kind="stable", na_position="first").index
        rows, numbers = rows.iloc[order].reset_index(drop=True), numbers.iloc[order].reset_index(drop=True)
    elif name := next((name for name in kept if name in times), None):
        say(f"hint            {name!r} holds dates: --sort-by {name} holds out the latest rows")
    known = numbers.notna()
    rows, numbers = rows.loc[known, kept].reset_index(drop=True), numbers[known].reset_index(drop=True)
    return rows, numbers, {"numeric": numeric, "decimal": answers.decimal}


def _as_times(column: pd.Series) -> pd.Series | None:
    """Return a column of dates as times, and None for any other column."""
    given = column.dropna()
    if not given.str.contains(r"\d[-/.:]\d").all() or pd.to_numeric(given, errors="coerce").notna().all():
        return None  # also of a column without a value
    parts = given.str.extract(_YEAR_LAST)
    if len(given) and parts[0].notna().all():
        return _year_last(column, parts)
    times = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    return times if times.notna().sum() == len(given) else None


def _year_last(column: pd.Series, parts: pd.DataFrame) -> pd.Series | None:
    """Return dates such as 25/11/2024 as times; None if neither of the first two parts can only be a day."""
    first, second = pd.to_numeric(parts[0]), pd.to_numeric(parts[2])
    is_day_first, is_month_first = first.max() > 12 or parts[1].iloc[0] == ".", second.max() > 12
    if is_day_first == is_month_first:
        return None
    day, month = (parts[0], parts[2]) if is_day_first else (parts[2], parts[0])
    iso = parts[3] + "-" + month.str.zfill(2) + "-" + day.str.zfill(2) + parts[4].fillna("")
    times = pd.to_datetime(iso, format="ISO8601", errors="coerce", utc=True)
    return times.reindex(column.index) if times.notna().all() else None


def _errors(answers: np.ndarray, found: np.ndarray, level: float) -> str:
    """Say how far predictions are from true answers, each with its 95 % interval."""
    low, middle, high = found.T

    errors, count = abs(middle - answers), f"{len(answers):,} rows with true answers"
    chance = f" (± {1.96 * errors.std() / math.sqrt(len(errors)):.3g})"
    if len(errors) == 1:
        count, chance = "1 row with a true answer", ""
    text = f"{count}: mean absolute error {errors.mean():.3g}{chance}"
    if np.isnan(low).any():
        return text
    inside = int(((low <= answers) & (answers <= high)).sum())
    least, most = binomtest(inside, len(answers)).proportion_ci(method="wilson")
    return (
        f"{text}; intervals of {level:.0%} hold {inside / len(answers):.0%} of them (95 % interval: "
        f"{100 * least:.0f} to {100 * most:.0f} %), their mean width is {(high - low).mean():.3g}"
    )
