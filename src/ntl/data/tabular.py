"""Any table as text: the question is made from the columns of a row, the answer is the number in one of them.

Without a prompt, a row is written like a line of CSV, `0.23,Ideal,E,SI2,61.5,55,3.95,3.98,2.43` -> `326`. The
column names would be the same in every question, so a model that is trained from scratch does not need them.
A pretrained model does: with `names`, a row is `carat: 0.23, cut: Ideal, ..., price: `, and a prompt such as
`A diamond of {carat} carat, cut {cut}. Price in dollars: ` names the columns in braces.
"""

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ntl.data.task import Data, Example, TaskData, fingerprint, format_number, setting
from ntl.errors import UserError

SAMPLE = Path(__file__).parent / "sample" / "tabular" / "diamonds.csv"
FEWEST = 20  # rows of a validation or test set that is a tenth of the table
_SHOWN = 3  # values that an error quotes
_COLUMN = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_ID = re.compile(r"\s*[+-]?(0[0-9].*|[0-9]{16,}(\.0*)?)\s*")  # 02139, or more digits than a float has
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TRAILING_ZERO = re.compile(r"\.[0-9]+0\s*$")  # 1.50, but not 1.0, as which pandas writes 1 beside gaps

Column = Sequence[str | None]
"""The texts of a column, None where there is nothing."""


@dataclass
class Tabular(Data):
    """A table as text, a number in one of its columns as the answer: CSV, TSV, JSON lines or Parquet."""

    dataset_name: str = "tabular"
    file: str = setting("sample", "file of the table; sample: 2,000 diamonds that ship with the lab")
    target: str = setting("price", "the column to predict")
    ratings: str | None = setting(
        None,
        "a column with the numbers of several people, separated by spaces, against which the model's "
        "distribution is scored; rows in which it is empty are left out of this score",
        "answers",
    )
    prompt: str | None = setting(
        None,
        "the question, with columns in braces, such as '{text}\\nSentiment (0 to 80): '; null: the columns "
        "are joined with commas",
    )
    columns: list[str] | None = setting(
        None, "without a prompt: the columns of the question; null: all columns but the target"
    )
    names: bool = setting(
        False, "without a prompt: whether the columns are named, as in 'carat: 0.23, cut: Ideal, price: '"
    )
    significant_digits: int | None = setting(
        15,
        "numbers of the question are rounded to this many significant digits; null: they stay as written",
        least=1,
    )
    longest: int | None = setting(
        None, "rows whose question has more characters than this are left out; null: none is", least=1
    )
    rows: int | None = setting(
        None, "most rows that are used, drawn at random or, with split_by, the last ones; null: all", least=1
    )
    split_by: str | None = setting(
        None,
        "a column, such as a date: the rows with its largest values are the test set; null: the test set is "
        "drawn at random",
    )
    group_by: str | None = setting(
        None, "without split_by: a column; rows with the same value in it stay together in one split"
    )
    train_size: int | None = setting(None, "number of training rows; null: all rows that are left", least=1)
    validation_size: int | None = setting(
        200, "number of validation rows; null: a tenth of the rows, at least 20", least=1
    )
    test_size: int | None = setting(
        300, "number of test rows; null: a tenth of the rows, at least 20", least=1
    )
    data_seed: int = setting(0, "random seed of the split of the rows")
    max_new_tokens: int = setting(16, "most tokens of an answer", "answers", least=1)

    @property
    def title(self) -> str:
        """The table's name, without folder and ending; see `Data.title`."""
        return self.dataset_name if self.file == "sample" else Path(self.file).stem

    def read(self) -> TaskData:
        """Read a table and split its rows.

        Returns:
            Training, validation and one test set. Missing values are written as `?`. Left out, and counted in
            `note`, are rows without a target, rows that repeat a question and its answer, and training rows
            whose question is in the validation or test set. These are few in a split at random, which keeps
            the rows of one question together.

        Raises:
            UserError: The file cannot be read, a column is missing, a target is not a finite number, or there
                are too few rows.
        """
        whole, notes = read_columns(self.file)
        names = _columns_of_question(self, [*whole])
        table = _with_targets(whole, self)
        if not table[self.target]:
            raise UserError(f"{self.file} has no row with a value of {self.target}; expected some.")
        columns = {name: table[name] for name in names}
        examples = _examples(table, names, write_questions(columns, self), self)
        left_out = {f"without {self.target}": len(whole[self.target]) - len(examples)}
        train, validation, test = _split(table, examples, self, left_out)
        # A seed draws from all rows, with the columns that divide them.
        divided_by = [table[name] for name in (self.split_by, self.group_by) if name is not None]
        if parts := [f"{count:,} rows {why}" for why, count in left_out.items() if count > 0]:
            notes.append(f"left out: {', '.join(parts)}")
        notes += _rounded(columns, self.significant_digits)
        notes += _unrated({"validation": validation, "test": test}, self.ratings)
        return TaskData(
            train,
            validation,
            {"test": test},
            clip=None,
            note="; ".join(notes) or None,
            source=sha256(f"{fingerprint(examples)}{divided_by}".encode()).hexdigest(),
        )


def _split(
    table: Mapping[str, Column], examples: Sequence[Example], settings: Tabular, left_out: dict[str, int]
) -> list[list[Example]]:
    """Choose the rows of training, validation and test set, and count in `left_out` those of none."""
    questions = [example.question for example in examples]
    groups: list[Sequence[Hashable]] = [questions]
    if settings.group_by is not None:
        # A row without a group is a group of its own.
        groups.append([i if name is None else name for i, name in enumerate(table[settings.group_by])])
    order = _order(table, settings, groups[-1])
    short = [i for i in order if settings.longest is None or len(questions[i]) <= settings.longest]
    last = {examples[i]: i for i in short}
    distinct = [i for i in short if last[examples[i]] == i]
    rows = distinct[-(settings.rows or len(distinct)) :]
    tenth = max(FEWEST, min(len(examples), settings.rows or len(examples)) // 10)
    for_test, for_validation = settings.test_size or tenth, settings.validation_size or tenth
    test, others = rows[-for_test:], rows[:-for_test]
    # Of a split by time, the rows before the test set are the validation set, whatever they ask.
    rest = _without(others, test, groups if settings.split_by is None else groups[1:])
    validation, others = rest[-for_validation:], rest[:-for_validation]
    train = _without(others, [*validation, *test], groups)
    alike = "a question" if settings.group_by is None else f"a question or {settings.group_by}"
    left_out |= {
        f"with a question of more than {settings.longest} characters": len(examples) - len(short),
        "that repeat a question and its answer": len(short) - len(distinct),
        f"beyond dataset_args.rows={settings.rows}": len(distinct) - len(rows),
        f"with {alike} of the validation or test set": len(rows) - len(test) - len(validation) - len(train),
    }
    needed, limit = settings.train_size or 1, "null" if settings.rows is None else settings.rows
    if len(train) < needed:
        raise UserError(
            f"{settings.file} has {len(train)} training rows without {alike} of the {for_validation} "
            f"validation and {for_test} test rows; expected dataset_args.train_size={needed}. What limits "
            f"them is dataset_args.rows={limit}, validation_size, test_size, or a question that does "
            f"not tell rows apart with dataset_args.significant_digits={settings.significant_digits}."
        )
    # The rows next to the held-out ones: those of a split by time are the latest.
    train = train[-(settings.train_size or len(train)) :]
    return [[examples[i] for i in part] for part in (train, validation, test)]


def read_columns(file: str | Path) -> tuple[dict[str, Column], list[str]]:
    """Read the columns of a table as texts, with sentences about how it was read.

    Empty texts, and `NA` and the like in columns of numbers, are missing values. Columns without a name and
    without a value, which come of commas at the ends of lines, are left out.

    Raises:
        UserError: The file cannot be read.
    """
    from ntloss.regression import mark_gaps, read_table  # slow: pandas

    try:
        given, notes = read_table(SAMPLE if file == "sample" else file)
    except (OSError, ValueError) as error:
        raise UserError(f"dataset_args.file={file} cannot be read: {error}") from None
    rows = mark_gaps(given)
    table = {
        str(name): [text if isinstance(text, str) and text.strip() else None for text in rows[name]]
        for name in rows.columns
    }
    return {name: texts for name, texts in table.items() if name or any(texts)}, notes


def write_questions(table: Mapping[str, Column], settings: Tabular) -> list[str]:
    """Write each row as a question.

    Args:
        table: The columns of the question.
        settings: `prompt`, `names`, `target` and `significant_digits`.

    Returns:
        One question for each row. Missing values are written as `?` or, beside names, `unknown`.
    """
    named = settings.names and settings.prompt is None
    texts = {
        name: [("unknown" if named else "?") if text is None else text for text in written]
        for name, written in _rewrite(table, settings.significant_digits).items()
    }
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    if named:
        end = f"{settings.target}: "
        return [", ".join([*(f"{name}: {value}" for name, value in row.items()), end]) for row in rows]
    if settings.prompt is None:
        return [",".join(row.values()) for row in rows]
    prompt = settings.prompt.replace("\\n", "\n")  # the command line has no other way to write a line break
    return [_COLUMN.sub(lambda match, row=row: row[match[1]], prompt) for row in rows]  # type: ignore[misc]


def _columns_of_question(settings: Tabular, known: Sequence[str]) -> list[str]:
    """Return the columns of the question.

    Raises:
        UserError: A setting names a column that the table lacks, the question contains the target, or no
            column, or the columns are given twice.
    """
    key, columns = "columns", settings.columns or [name for name in known if name != settings.target]
    if settings.prompt is not None:
        if beside := [other for other in ("columns", "names") if getattr(settings, other)]:
            raise UserError(
                f"dataset_args.{beside[0]} is given together with dataset_args.prompt, which names its "
                "columns. Omit one of the two."
            )
        key, columns = "prompt", list(dict.fromkeys(_COLUMN.findall(settings.prompt)))
    named = [("target", settings.target), *((key, name) for name in columns)]
    named += [
        (other, name)
        for other in ("split_by", "group_by", "ratings")
        if (name := getattr(settings, other)) is not None
    ]
    for given, name in named:
        if name not in known:
            raise UserError(
                f"dataset_args.{given} names the column {name!r}; expected one of the columns of "
                f"{settings.file}: {', '.join(known)}."
            )
    if settings.target in columns:
        raise UserError(
            f"dataset_args.{key} names the target {settings.target!r}; expected the columns that it is "
            "predicted from."
        )
    if not columns:
        raise UserError(
            f"dataset_args.{key} names no column; expected some of {', '.join(known)}; in a prompt, in "
            "braces."
        )
    return columns


def _with_targets(table: Mapping[str, Column], settings: Tabular) -> dict[str, Column]:
    """Return the rows with a target; a UserError says which targets are no finite numbers."""
    texts = table[settings.target]
    wrong = {
        row: text
        for row, text in enumerate(texts, start=1)
        if text is not None and not (_NUMBER.fullmatch(text) and math.isfinite(float(text)))
    }
    if wrong:
        shown = ", ".join(f"{text!r} in row {row}" for row, text in [*wrong.items()][:_SHOWN])
        raise UserError(
            f"{settings.file}: the target {settings.target!r} is not a finite number in {len(wrong):,} rows: "
            f"{shown}. Rows where it is empty are left out."
        )
    kept = [i for i, text in enumerate(texts) if text is not None]
    return {name: [column[i] for i in kept] for name, column in table.items()}


def _examples(
    table: Mapping[str, Column], columns: Sequence[str], questions: Sequence[str], settings: Tabular
) -> list[Example]:
    answers = [_answer(text or "") for text in table[settings.target]]
    known_by = zip(_cells(table, columns), _cells(table, [*table]), strict=True)
    ratings: Sequence[tuple[float, ...]] = [()] * len(questions)
    try:
        if settings.ratings is not None:
            ratings = [tuple(map(float, (text or "").split())) for text in table[settings.ratings]]
    except ValueError as error:
        raise UserError(
            f"dataset_args.ratings={settings.ratings} names a column with other values ({error}); expected "
            "numbers, separated by spaces."
        ) from None
    return [
        Example(question, answer, ratings=of_people, known_by=cells)
        for question, answer, of_people, cells in zip(questions, answers, ratings, known_by, strict=True)
    ]


def _cells(table: Mapping[str, Column], names: Sequence[str]) -> list[str]:
    """Write the cells of each row with the names of their columns, in the order of the names."""
    names = sorted({*names})
    return [
        repr([*zip(names, row, strict=True)]) for row in zip(*(table[name] for name in names), strict=True)
    ]


def _unrated(parts: Mapping[str, Sequence[Example]], ratings: str | None) -> list[str]:
    """Say how many of the rows that are answered are left out of the score by ratings."""
    counts = {name: sum(not example.ratings for example in part) for name, part in parts.items()}
    found = [f"{count:,} of {len(parts[name]):,} {name} rows" for name, count in counts.items() if count]
    return [f"without {ratings}: {', '.join(found)}"] if ratings is not None and found else []


def _answer(text: str) -> str:
    """Write a target in plain decimals. Targets that already are keep their digits.

    Example:
        >>> _answer("1.50"), _answer(" +1e3"), _answer(".5"), _answer("5.")
        ('1.50', '1000', '0.5', '5')
    """
    plain = _PLAIN.fullmatch(text.strip())
    return plain[0] if plain else format_number(float(text))


def _without(rows: Sequence[int], held_out: Sequence[int], groups: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return the rows that share their question, and each other group, with no row that is held out."""
    for group in groups:
        taken = {group[i] for i in held_out}
        rows = [i for i in rows if group[i] not in taken]
    return [*rows]


def _order(table: Mapping[str, Column], settings: Tabular, groups: Sequence[Hashable]) -> list[int]:
    """Return the rows in random order, groups together, or sorted by a column, rows without a value first.

    Raises:
        UserError: The column that sorts them holds neither numbers nor dates.
    """
    if settings.split_by is None:
        order = np.random.default_rng(settings.data_seed).permutation(len(groups)).tolist()
        place = {row: i for i, row in enumerate(order)}
        first: dict[Hashable, int] = {}
        for row, group in enumerate(groups):
            first.setdefault(group, row)
        # A group stands where its first row does, so large ones are not more often first.
        return sorted(order, key=lambda row: place[first[groups[row]]])
    column = table[settings.split_by]
    given = [i for i, text in enumerate(column) if text is not None]
    values = _sortable([column[i] or "" for i in given], settings.split_by)
    empty = [i for i, text in enumerate(column) if text is None]
    return empty + [given[i] for i in np.argsort(values, kind="stable").tolist()]


def _sortable(texts: Sequence[str], name: str) -> Any:
    """Read numbers, or dates of ISO 8601 such as 2026-11 or 2026-11-21T10:00."""
    import pandas as pd  # slow

    if all(map(_NUMBER.fullmatch, texts)):
        return np.array(texts, float)
    try:
        return pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True).to_numpy()
    except ValueError as error:
        raise UserError(
            f"dataset_args.split_by={name} names a column of other texts ({error}); expected numbers, or "
            "dates such as 2026-11-21."
        ) from None


def _rewrite(table: Mapping[str, Column], digits: int | None) -> dict[str, Column]:
    """Write the numbers of each column with a given number of significant digits; see `_rewrite_number`.

    Columns of codes such as 02139, of whole numbers with more digits than a float has, and of other texts
    stay as they are.
    """
    rewritten = dict(table)
    for name, column in table.items():
        texts = {text for text in column if text is not None}
        if digits is None or not all(map(_NUMBER.fullmatch, texts)) or any(map(_ID.fullmatch, texts)):
            continue
        keeps_zeros = any(map(_TRAILING_ZERO.search, texts))
        numbers = {text: _rewrite_number(text, digits, keeps_zeros) for text in texts}
        rewritten[name] = [None if text is None else numbers[text] for text in column]
    return rewritten


def _rewrite_number(text: str, digits: int, keeps_zeros: bool) -> str:
    """Write a number in plain decimals, with a given number of significant digits.

    In a column with trailing zeros, such as prices, numbers with fewer digits stay as they are.

    Example:
        >>> _rewrite_number("2000.0833", 4, False), _rewrite_number("7.14e4", 2, False)
        ('2000', '71000')
        >>> _rewrite_number("55.0", 4, False), _rewrite_number("1.50", 4, True)
        ('55', '1.50')
    """
    number = float(text)
    written: str = np.format_float_positional(number + 0.0, digits, unique=False, fractional=False, trim="-")
    return text.strip() if keeps_zeros and float(written) == number else written


def _rounded(table: Mapping[str, Column], digits: int | None) -> list[str]:
    """Say which columns lose digits in the question, each with an example."""
    found = []
    for name, written in _rewrite(table, digits).items():
        for old, new in zip(table[name], written, strict=True):
            if old != new and float(old or 0) != float(new or 0):
                found.append(f"{name} (from {old} to {new})")
                break
    return [f"rounded to {digits} significant digits: {', '.join(found)}"] if found else []
