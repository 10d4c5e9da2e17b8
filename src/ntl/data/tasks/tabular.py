"""Any table as text: the question is made from the columns of a row, the answer is the number in one of them.

Without a prompt, a row is written like a line of CSV, `0.23,Ideal,E,SI2,61.5,55,3.95,3.98,2.43` -> `326`. The
column names would be the same in every question, so a model that is trained from scratch does not need them.
A pretrained model does: with `names`, a row is `carat: 0.23, cut: Ideal, ..., price: `, and a prompt such as
`A diamond of {carat} carat, cut {cut}. Price in dollars: ` names the columns in braces.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntl.config import Tabular
from ntl.data import Example, TaskData, format_number
from ntl.data.table_files import read_table
from ntl.errors import UserError

SAMPLE = Path(__file__).parents[1] / "sample" / "tabular" / "diamonds.csv"
_COLUMN = re.compile(r"\{([^{}]*)\}")
MISSING = "?"
UNKNOWN = "unknown"  # a missing value beside the names of columns
FEWEST = 20  # rows of a validation or test set that is a tenth of the table
# Texts that mean a missing value among numbers or dates; in a column of texts, NA is Namibia.
NO_VALUE = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
SEPARATOR = ", "  # between the numbers of an answer with several


def load(settings: Tabular) -> TaskData:
    """Read a table and split its rows, as `ntl.config.Tabular` says.

    Returns:
        Training, validation and one test set. Missing values are written as `?`. Left out, and counted in
        `note`, are rows without a target, rows that repeat a question and its answer, and training rows whose
        question is in the validation or test set. These are few in a split at random, which keeps the rows
        of one question together.

    Raises:
        UserError: The file cannot be read, a column is missing, a target is not a finite number, or there are
            too few rows.
    """
    file = settings.file
    whole = read_table(SAMPLE if file == "sample" else file, "dataset_args.file")
    table, settings = usable_rows(whole, settings)
    targets = settings.target
    columns = {name: _kind(table[name]) for name in _columns(table, settings)}
    questions = write_questions(table, settings, columns)
    answers = [SEPARATOR.join(map(_answer, values)) for values in table[targets].itertuples(index=False)]
    ratings = _ratings(table, settings.ratings)
    examples = [
        Example(question, answer, ratings=ratings.get(i, ()))
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
    ]
    groups = [questions] if settings.group_by is None else [questions, _groups(table[settings.group_by])]
    longest = settings.longest or math.inf
    short = [i for i in _order(table, settings, groups[-1]) if len(questions[i]) <= longest]
    last = {examples[i]: i for i in short}
    distinct = [i for i in short if last[examples[i]] == i]
    rows = distinct[-(settings.rows or len(distinct)) :]
    test, others = rows[-settings.test_size :], rows[: -settings.test_size]
    # Of a split by time, the rows before the test set are the validation set, whatever they ask.
    rest = _without(others, test, groups if settings.split_by is None else groups[1:])
    validation, others = rest[-settings.validation_size :], rest[: -settings.validation_size]
    train = _without(others, [*validation, *test], groups)
    shared = len(rows) - len(test) - len(validation) - len(train)
    alike = "a question" if settings.group_by is None else f"a question or {settings.group_by}"
    left_out = {
        f"without {' or '.join(targets)}": len(whole) - len(table),
        f"with a question of more than {settings.longest} characters": len(table) - len(short),
        "that repeat a question and its answer": len(short) - len(distinct),
        f"beyond dataset_args.rows={settings.rows}": len(distinct) - len(rows),
        f"with {alike} of the validation or test set": shared,
    }
    parts = [f"{count:,} rows {why}" for why, count in left_out.items() if count > 0]
    notes = [f"left out: {', '.join(parts)}"] if parts else []
    notes += _rounded(table, columns, settings.significant_digits)
    needed = settings.train_size or 1
    if len(train) < needed:
        kept_apart = " and ".join(filter(None, ("question", settings.group_by)))
        is_limited = len(rows) < len(distinct)
        mend = f"Raise dataset_args.rows={settings.rows}" if is_limited else "Lower dataset_args.train_size"
        raise UserError(
            f"{file} has {len(train)} training rows whose {kept_apart} is in neither the "
            f"validation nor the test set; expected at least {needed}. {mend}, lower validation_size or "
            "test_size, add columns to the question that distinguish the rows, or raise "
            "dataset_args.significant_digits, to which the numbers of the question are rounded."
        )
    if settings.train_seed is not None:
        train = np.random.default_rng(settings.train_seed).permutation(train).tolist()
    # The rows next to the held-out ones: those of a split by time are the latest.
    train = train[-(settings.train_size or len(train)) :]
    learned, held_out, tested = ([examples[i] for i in part] for part in (train, validation, test))
    several = tuple(targets) if len(targets) > 1 else ()
    return TaskData(
        learned, held_out, {"test": tested}, not several, targets=several, columns=columns,
        clip=None, note="; ".join(notes) or None,
    )  # fmt: skip


def usable_rows(table: pd.DataFrame, settings: Tabular) -> tuple[pd.DataFrame, Tabular]:
    """Return the rows with a target, and the settings with the sizes of validation and test set.

    Raises:
        UserError: A column is missing, a target is not a finite number, or there are too few rows.
    """
    settings = with_targets(settings)
    _check_columns(table, settings)
    gaps = {name: _with_gaps(table[name]) for name in {*settings.target, settings.split_by} - {None}}
    table = table.assign(**gaps)
    table = table[table[settings.target].notna().all(axis=1)]
    _check_numbers(table, settings)
    given = {key: getattr(settings, key) for key in ("validation_size", "test_size")}
    tenth = max(FEWEST, min(len(table), settings.rows or len(table)) // 10)
    settings = replace(settings, **{key: size or tenth for key, size in given.items()})
    needed = settings.validation_size + settings.test_size + (settings.train_size or 1)
    needed = max(needed, 0 if any(given.values()) else 3 * FEWEST)
    if len(table) < needed:
        raise UserError(
            f"{settings.file} has {len(table)} rows with a value of {settings.target[0]!r}; expected at "
            f"least {needed}. Add rows, or lower dataset_args.train_size, validation_size or test_size."
        )
    return table, settings


def write_questions(table: pd.DataFrame, settings: Tabular, columns: Mapping[str, str]) -> list[str]:
    """Write each row as a question.

    Args:
        table: Texts; see `ntl.data.table_files.read_table`.
        settings: `prompt`, `names`, `target` and `significant_digits`; see `load`.
        columns: Columns of the question, with their kinds; see `TaskData`.

    Returns:
        One question per row. Missing values are written as `?` or, beside names, `unknown`.

    Raises:
        UserError: The table lacks a column of the question, or a column of numbers holds something else.
    """
    for name, kind in columns.items():
        if name not in table.columns:
            raise UserError(
                f"the table has no column {name!r}, which the question is made from; expected the columns "
                f"{', '.join(columns)}, given {', '.join(table.columns)}. Add or rename the column."
            )
        if kind != "text" and not _is_numeric(table[name]):
            given = _with_gaps(table[name])
            row = (pd.to_numeric(given, errors="coerce").isna() & given.notna()).to_numpy().argmax()
            raise UserError(
                f"row {row + 1} of the table: {name!r} is {table[name].iloc[row]!r}; expected a number, as "
                "in the rows that the model was trained on, or nothing where it is missing. Correct it."
            )
    digits = settings.significant_digits
    named = settings.names and settings.prompt is None
    missing = UNKNOWN if named else MISSING
    texts = pd.DataFrame({name: _texts(table[name], kind, digits, missing) for name, kind in columns.items()})
    rows = (dict(zip(columns, row, strict=True)) for row in texts.itertuples(index=False, name=None))
    if named:
        end = f"{', '.join(settings.target)}: "
        return [", ".join([*(f"{name}: {value}" for name, value in row.items()), end]) for row in rows]
    if (prompt := settings.prompt) is None:
        return [",".join(row.values()) for row in rows]
    prompt = prompt.replace("\\n", "\n")  # the command line has no other way to write a line break
    return [_COLUMN.sub(lambda match, row=row: row[match[1]], prompt) for row in rows]


def prompt_columns(prompt: str) -> list[str]:
    """Return the columns that a prompt names in braces."""
    return list(dict.fromkeys(_COLUMN.findall(prompt)))


def _columns(table: pd.DataFrame, settings: Tabular) -> list[str]:
    """Return the columns of the question."""
    if settings.prompt is not None:
        return prompt_columns(settings.prompt)
    return settings.columns or [name for name in table.columns if name not in settings.target]


def with_targets(settings: Tabular) -> Tabular:
    """Return the settings with columns as texts, and a list of targets.

    The command line reads a name such as 2019 as a number.
    """
    given = {key: getattr(settings, key) for key in ("split_by", "group_by", "ratings")}
    named = {key: str(name) for key, name in given.items() if name is not None}
    targets = settings.target if isinstance(settings.target, list) else [settings.target]
    return replace(settings, **named, target=[*map(str, targets)])


def _without(rows: Sequence[int], held_out: Sequence[int], groups: Sequence[Sequence[Any]]) -> list[int]:
    """Return the rows that share their question, and each other group, with no row that is held out."""
    for group in groups:
        taken = {group[i] for i in held_out}
        rows = [i for i in rows if group[i] not in taken]
    return [*rows]


def _check_columns(table: pd.DataFrame, settings: Tabular) -> None:
    """Raise a UserError if a column that is named is missing, or the question contains the target."""
    key = "columns" if settings.prompt is None else "prompt"
    columns = _columns(table, settings)
    named = [("target", name) for name in settings.target] + [(key, name) for name in columns]
    named += [(name, getattr(settings, name)) for name in ("split_by", "group_by", "ratings")]
    for given, name in named:
        if name is not None and name not in table.columns:
            raise UserError(
                f"dataset_args.{given} names the column {name!r}; expected one of the columns of "
                f"{settings.file}: {', '.join(table.columns)}. Name one of them."
            )
    if both := [name for name in settings.target if name in columns]:
        raise UserError(
            f"dataset_args.{key} names the target {both[0]!r}; expected the columns that it is predicted "
            "from. Remove it from them."
        )
    if not columns:
        raise UserError(
            f"dataset_args.{key}={getattr(settings, key)} names no column beside the target; expected "
            f"columns of {settings.file}: {', '.join(table.columns)}; in a prompt, {{in braces}}. Add one."
        )


def _check_numbers(table: pd.DataFrame, settings: Tabular) -> None:
    """Raise a UserError if a target is not a finite number."""
    for target in settings.target:
        wrong = table[target][~np.isfinite(pd.to_numeric(table[target], errors="coerce"))]
        if len(wrong):
            raise UserError(
                f"{settings.file}, row {wrong.index[0] + 1} below the header: {target!r} is "
                f"{wrong.iloc[0]!r}; expected a finite number, or nothing where it is missing. Correct the "
                "file, or choose another dataset_args.target."
            )


def _order(table: pd.DataFrame, settings: Tabular, groups: Sequence[Any]) -> Sequence[int]:
    """Return the rows in random order, groups together, or sorted by a column, rows without a value first.

    Raises:
        UserError: The column that sorts them holds neither numbers nor dates.
    """
    split_by = settings.split_by
    if split_by is None:
        order = np.random.default_rng(settings.data_seed).permutation(len(table))
        # A group stands where its first row does, so large ones are not more often first.
        codes, _ = pd.factorize(pd.Series(groups, dtype=object))
        _, first = np.unique(codes, return_index=True)
        place = np.argsort(order)
        return order[np.argsort(place[first[codes[order]]], kind="stable")].tolist()
    column = table[split_by].reset_index(drop=True)
    dates = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    for values in (pd.to_numeric(column, errors="coerce"), dates):
        if values.notna().sum() == column.notna().sum():
            return values.sort_values(kind="stable", na_position="first").index.tolist()
    raise UserError(
        f"dataset_args.split_by={split_by} names a column with the value {column[column.notna()].iloc[0]!r}; "
        "expected numbers, or dates such as 2026-11-21. Rewrite the column, or name another one."
    )


def _groups(column: pd.Series) -> list[Any]:
    """Return the group of each row; a row without one is a group of its own, named by its place."""
    given = _with_gaps(column) if _is_numeric(column) else column
    return [i if pd.isna(group) else group for i, group in enumerate(given)]


def _ratings(table: pd.DataFrame, column: str | None) -> dict[int, tuple[float, ...]]:
    """Read the numbers of several people in each row, separated by spaces."""
    if column is None:
        return {}
    try:
        return {i: tuple(map(float, text.split())) for i, text in enumerate(table[column].fillna(""))}
    except ValueError as error:
        raise UserError(
            f"dataset_args.ratings={column} names a column with other values ({error}); expected numbers, "
            "separated by spaces."
        ) from None


def _with_gaps(column: pd.Series) -> pd.Series:
    return column.mask(column.isin(NO_VALUE))


def _is_numeric(column: pd.Series) -> bool:
    given = _with_gaps(column)
    return pd.to_numeric(given, errors="coerce").notna().sum() == given.notna().sum()


def _kind(column: pd.Series) -> str:
    """Return how a column is written; see `TaskData.columns`. Nothing is known of an empty one: it is text.

    Numbers are written in one way, so that a row is the same question in a file and in a data frame, whose
    numbers have no trailing zeros. Where this would lose characters, the column is text.
    """
    given = _with_gaps(column).dropna().astype(str).str.strip()
    is_id = given.str.fullmatch(r"[+-]?(0[0-9].*|[0-9]{16,}(\.0*)?)")
    if given.empty or not _is_numeric(column) or is_id.any():
        return "text"
    # pandas writes the whole numbers of a column as 4.0
    has_zeros = given.str.fullmatch(r".*\.[0-9]*0") & ~given.str.fullmatch(r".*[0-9]\.0")
    places = given.str.partition(".")[2].str.len()
    if not has_zeros.any():
        return "number"
    return f"0.{'0' * places.max()}" if places.nunique() == 1 else "text"


def _texts(column: pd.Series, kind: str, digits: int | None, missing: str) -> pd.Series:
    if kind != "text":
        column = _with_gaps(column)
        if digits is not None:
            written = {text: _number(text, kind, digits) for text in column.dropna().unique()}
            column = column.map(written)
    return column.astype(object).where(column.notna(), missing)


def _number(text: str, kind: str, digits: int) -> str:
    """Write a number as its column is written; see `_round` and `TaskData.columns`.

    Example:
        >>> _number("1.5", "number", 4), _number("1.5", "0.00", 4), _number("1234.50", "0.00", 4)
        ('1.5', '1.50', '1234')
    """
    written = _round(float(text), digits)
    places = len(kind.partition(".")[2])
    whole, _, after = written.partition(".")
    return f"{whole}.{after:0<{places}}" if places and float(written) == float(text) else written


def _rounded(table: pd.DataFrame, columns: Mapping[str, str], digits: int | None) -> list[str]:
    """Say which columns lose digits in the question, each with an example."""
    found = []
    for name, kind in columns.items():
        if kind == "text" or digits is None:
            continue
        texts = _with_gaps(table[name]).dropna().unique()
        pairs = ((text, _number(text, kind, digits)) for text in texts)
        example = next((pair for pair in pairs if float(pair[0]) != float(pair[1])), None)
        found += [] if example is None else [f"{name} (from {example[0]} to {example[1]})"]
    return [f"rounded to {digits} significant digits: {', '.join(found)}"] if found else []


def _round(number: float, digits: int) -> str:
    """Write a number in plain decimals, with a given number of significant digits.

    Example:
        >>> _round(2000.0833, 4), _round(71400.0, 2), _round(0.00012345, 3), _round(0.5, 4)
        ('2000', '71000', '0.000123', '0.5')
    """
    return np.format_float_positional(number + 0.0, digits, unique=False, fractional=False, trim="-")


def _answer(text: str) -> str:
    """Write a target in plain decimals. Targets that already are keep their digits.

    Example:
        >>> _answer("1.50"), _answer(" +1e3"), _answer(".5"), _answer("5.")
        ('1.50', '1000', '0.5', '5')
    """
    plain = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text.strip())
    return plain[0] if plain else format_number(float(text))
