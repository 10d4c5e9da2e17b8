"""Any table as text: the question is made from the columns of a row, the answer is the number in one of them.

Without a prompt, a row is written like a line of CSV, `0.23,Ideal,E,SI2,61.5,55,3.95,3.98,2.43` -> `326`. The
column names would be the same in every question, so a model that is trained from scratch does not need them.
A pretrained model does: with `names`, a row is `carat: 0.23, cut: Ideal, ..., price: `, and a prompt such as
`A diamond of {carat} carat, cut {cut}. Price in dollars: ` names the columns in braces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ntl.data.task import Data, Example, TaskData, fingerprint, format_number, setting
from ntl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = Path(__file__).parent / "sample" / "tabular" / "diamonds.csv"
FEWEST = 20  # rows of a validation or test set that is a tenth of the table
_SHOWN = 3  # values that an error quotes
_COLUMN = re.compile(r"\{([^{}]*)\}")
_ID = re.compile(r"\s*[+-]?(0[0-9].*|[0-9]{16,}(\.0*)?)\s*")  # 02139, or more digits than a float has
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TRAILING_ZERO = re.compile(r"\.[0-9]+0\s*$")  # 1.50, but not 1.0, as which pandas writes 1 beside gaps


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
        """Read a table and split its rows into training, validation and one test set.

        Left out, and counted in `note`, are rows without a target, rows that repeat an earlier one, and
        training rows whose question is in the validation or test set. These are few in a split at random,
        which keeps the rows of one question together.

        Raises:
            UserError: The file cannot be read, the settings do not fit it or each other, a target is not a
                finite number, or there are too few rows.
        """
        import pandas as pd  # slow

        whole, notes = read_columns(self.file)
        names = _columns_of_question(self, [*whole])
        table = _with_targets(whole, self)
        written = pd.DataFrame({name: _rewrite(table[name], self.significant_digits) for name in names})
        examples = _examples(table, names, write_questions(written, self), self)
        left_out = {f"without {self.target}": len(whole) - len(table)}
        train, validation, test = _split(table, examples, self, left_out)
        # A seed draws from all rows, with the columns that divide them.
        divided_by = [[*table[name]] for name in (self.split_by, self.group_by) if name is not None]
        if parts := [f"{count:,} rows {why}" for why, count in left_out.items() if count > 0]:
            notes.append(f"left out: {', '.join(parts)}")
        notes += _rounded(table, written, self.significant_digits)
        for part, rows in {"validation": validation, "test": test}.items():
            unrated = sum(not example.ratings for example in rows)
            if self.ratings is not None and unrated:
                notes.append(f"without {self.ratings}: {unrated:,} of {len(rows):,} {part} rows")
        return TaskData(
            train,
            validation,
            {"test": test},
            clip=None,
            note="; ".join(notes) or None,
            source=sha256(f"{fingerprint(examples)}{divided_by}".encode()).hexdigest(),
        )


def read_columns(file: str | Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the columns of a table as texts, None where there is nothing, and how it was read.

    Empty texts, and `NA` and the like in columns of numbers, are missing values.

    Raises:
        UserError: The file cannot be read.
    """
    from ntloss.regression import mark_gaps, read_table  # slow: pandas

    try:
        given, notes = read_table(SAMPLE if file == "sample" else file)
    except (OSError, ValueError) as error:
        raise UserError(f"dataset_args.file={file} cannot be read: {error}") from None
    texts = mark_gaps(given)
    is_text = texts.map(lambda text: isinstance(text, str) and text.strip() != "")
    return texts.where(is_text, None), notes


def write_questions(table: pd.DataFrame, settings: Tabular) -> list[str]:
    """Write each row of texts as a question; missing values as `?` or, beside names, as `unknown`."""
    rows = table.fillna("unknown" if settings.names else "?").to_dict("records")
    if settings.prompt is not None:
        # The command line has no other way to write a line break.
        prompt = settings.prompt.replace("\\n", "\n")
        return [_COLUMN.sub(lambda match, row=row: row[match[1]], prompt) for row in rows]  # type: ignore[misc]
    if settings.names:
        end = f"{settings.target}: "
        return [", ".join([*(f"{name}: {value}" for name, value in row.items()), end]) for row in rows]
    return [",".join(row.values()) for row in rows]


def _columns_of_question(settings: Tabular, known: Sequence[str]) -> list[str]:
    """Return the columns of the question, after a check that all that are named are among the known."""
    key, columns = "columns", settings.columns or [name for name in known if name != settings.target]
    if settings.prompt is not None:
        if settings.columns or settings.names:
            raise UserError(
                "dataset_args.prompt names its columns itself. Omit it, or dataset_args.columns and "
                "dataset_args.names."
            )
        key, columns = "prompt", _COLUMN.findall(settings.prompt)
    named = [("target", settings.target), *((key, name) for name in columns)]
    named += [(other, getattr(settings, other)) for other in ("split_by", "group_by", "ratings")]
    for given, name in named:
        if name is not None and name not in known:
            raise UserError(
                f"dataset_args.{given} names the column {name!r}; expected one of the columns of "
                f"{settings.file}: {', '.join(known)}."
            )
    if settings.target in columns or not columns:
        raise UserError(
            f"dataset_args.{key} names the columns {columns}; expected those that {settings.target!r} is "
            "predicted from; in a prompt, in braces."
        )
    return [*dict.fromkeys(columns)]


def _with_targets(table: pd.DataFrame, settings: Tabular) -> pd.DataFrame:
    """Return the rows with a target, which has to be a finite number."""
    texts = table[settings.target].dropna()
    wrong = texts[~_are_numbers(texts)]
    if texts.empty or not wrong.empty:
        shown = ", ".join(f"{text!r} in row {row + 1}" for row, text in wrong[:_SHOWN].items())
        raise UserError(
            f"{settings.file}: the target {settings.target!r} has to be a finite number; found "
            f"{shown or 'nothing'}, {len(wrong):,} in all. Rows where it is empty are left out."
        )
    return table.loc[texts.index].reset_index(drop=True)


def _are_numbers(texts: pd.Series) -> pd.Series:
    """Return which texts are finite numbers."""
    import pandas as pd  # slow

    return pd.to_numeric(texts, errors="coerce").astype(float).abs() < np.inf


def _examples(
    table: pd.DataFrame, columns: Sequence[str], questions: Sequence[str], settings: Tabular
) -> list[Example]:
    # The cells of the question, and all cells, with the names of their columns.
    known_by = [
        [repr([*row.items()]) for row in table[sorted(names)].to_dict("records")]
        for names in (columns, [*table])
    ]
    ratings: Sequence[tuple[float, ...]] = [()] * len(table)
    try:
        if settings.ratings is not None:
            ratings = [tuple(map(float, (text or "").split())) for text in table[settings.ratings]]
    except ValueError as error:
        raise UserError(
            f"dataset_args.ratings={settings.ratings} names a column with other values ({error}); expected "
            "numbers, separated by spaces."
        ) from None
    rows = zip(questions, map(_answer, table[settings.target]), ratings, *known_by, strict=True)
    return [
        Example(question, answer, ratings=of_people, known_by=tuple(cells))
        for question, answer, of_people, *cells in rows
    ]


def _split(
    table: pd.DataFrame, examples: Sequence[Example], settings: Tabular, left_out: dict[str, int]
) -> list[list[Example]]:
    """Choose the rows of training, validation and test set, and count in `left_out` those of none."""
    import pandas as pd  # slow

    rows = pd.DataFrame({"question": [example.question for example in examples]}, dtype=object)
    if settings.group_by is not None:
        # A row without a group is a group of its own.
        rows["group"] = table[settings.group_by].where(table[settings.group_by].notna(), table.index)
    keys = [*rows]
    if settings.split_by is None:
        rows = _shuffle(rows, settings.data_seed)
    else:
        values = _sortable(table[settings.split_by])
        rows = rows.loc[values.sort_values(kind="stable", na_position="first").index]
    short = rows[rows["question"].str.len() <= (settings.longest or np.inf)]
    distinct = short[~table.loc[short.index].duplicated(keep="last")]
    used = distinct[-(settings.rows or len(distinct)) :]
    tenth = max(FEWEST, min(len(examples), settings.rows or len(examples)) // 10)
    for_test, for_validation = settings.test_size or tenth, settings.validation_size or tenth
    test, others = used[-for_test:], used[:-for_test]
    # Of a split by time, the rows before the test set are the validation set, whatever they ask.
    rest = _without(others, test, keys if settings.split_by is None else keys[1:])
    validation, others = rest[-for_validation:], rest[:-for_validation]
    train = _without(others, pd.concat([validation, test]), keys)
    alike = "a question" if settings.group_by is None else f"a question or {settings.group_by}"
    left_out |= {
        f"with a question of more than {settings.longest} characters": len(examples) - len(short),
        "that repeat a question and its answer": len(short) - len(distinct),
        f"beyond dataset_args.rows={settings.rows}": len(distinct) - len(used),
        f"with {alike} of the validation or test set": len(used) - len(test) - len(validation) - len(train),
    }
    if len(train) < (needed := settings.train_size or 1):
        raise UserError(
            f"{settings.file} has {len(train)} training rows without {alike} of the {for_validation} "
            f"validation and {for_test} test rows; expected dataset_args.train_size={needed}. What limits "
            "them is dataset_args.rows, validation_size, test_size, or a question that does not tell rows "
            "apart, as with few dataset_args.significant_digits."
        )
    # The rows next to the held-out ones: those of a split by time are the latest.
    train = train[-(settings.train_size or len(train)) :]
    return [[examples[i] for i in part.index] for part in (train, validation, test)]


def _without(rows: pd.DataFrame, held_out: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the rows that share none of the keys with a row that is held out."""
    for key in keys:
        rows = rows[~rows[key].isin(held_out[key])]
    return rows


def _shuffle(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Shuffle rows, those with the same value in the last column together."""
    place = np.argsort(np.random.default_rng(seed).permutation(len(rows)))
    # A group stands where its first row does, so large ones are not more often first.
    first = rows.assign(place=place).groupby([*rows][-1], sort=False)["place"].transform("first")
    return rows.iloc[np.lexsort((place, first))]


def _answer(text: str) -> str:
    """Write a target in plain decimals. Targets that already are keep their digits.

    Example:
        >>> _answer("1.50"), _answer(" +1e3"), _answer(".5"), _answer("5.")
        ('1.50', '1000', '0.5', '5')
    """
    plain = _PLAIN.fullmatch(text.strip())
    return plain[0] if plain else format_number(float(text))


def _sortable(column: pd.Series) -> pd.Series:
    """Read numbers, or dates of ISO 8601 such as 2026-11 or 2026-11-21T10:00."""
    import pandas as pd  # slow

    if _are_numbers(column.dropna()).all():
        return column.astype(float)
    try:
        return pd.to_datetime(column, format="ISO8601", utc=True)
    except ValueError:
        raise UserError(
            f"dataset_args.split_by={column.name} names a column of other texts; expected numbers, or dates "
            "such as 2026-11-21."
        ) from None


def _rewrite(column: pd.Series, digits: int | None) -> pd.Series:
    """Write the numbers of a column with a given number of significant digits; see `_rewrite_number`.

    Columns of codes such as 02139, of whole numbers with more digits than a float has, and of other texts
    stay as they are.
    """
    texts = column.dropna().drop_duplicates()
    if digits is None or not _are_numbers(texts).all() or any(map(_ID.fullmatch, texts)):
        return column
    keeps_zeros = any(map(_TRAILING_ZERO.search, texts))
    return column.map({text: _rewrite_number(text, digits, keeps_zeros) for text in texts})


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


def _rounded(table: pd.DataFrame, written: pd.DataFrame, digits: int | None) -> list[str]:
    """Say which columns lose digits in the question, each with an example."""
    found = []
    for name in written:
        for old, new in zip(table[name], written[name], strict=True):
            if old and old != new and float(old) != float(new):
                found.append(f"{name} (from {old} to {new})")
                break
    return [f"rounded to {digits} significant digits: {', '.join(found)}"] if found else []
