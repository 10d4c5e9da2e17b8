"""Rows as users give them: how each column is read, by a record, and the questions that a model reads."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_any_real_numeric_dtype, is_scalar

from ntloss.numbers import parse_number

Numbers = NDArray[np.float64]
NUMBERS, TEXTS = "numbers", "texts"
_GAP = "unknown"  # how a gap is written
_GAPS = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "?", ".", "na", "n/a", "n.a.", "#n/a", "<na>", "nan"}
_GAPS |= {"null", "none", "unknown"}
_GAPS |= {"#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!"}  # a spreadsheet's errors
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# 0123 and 5E6 are codes: programs write a sign or a point in numbers with a power of ten.
PLAIN = re.compile(rf"(?!(?:0[0-9]+|[0-9]+[eE][0-9]+)\Z){_FLOAT.pattern}")
_DATES = ("ISO8601", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%Y")
_DATE = re.compile(r"\d[-/.:]\d")
_MIDNIGHT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00:00")
_MINUSES = "-\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}"
_MINUS = re.escape(_MINUSES)
# One number with what stands around it; `/5` and `out of 5` after a score.
_CELL = re.compile(
    r"([^0-9]*)([0-9](?:[0-9.,'\u2019\s]*[0-9])?)([^0-9]*|\s*(?:/|out of)\s*[0-9]+)", re.DOTALL
)
_BEFORE = re.compile(rf"([(+{_MINUS}\s]*)([^(+{_MINUS}]*?)([(+{_MINUS}\s]*)")
_CUT = re.compile(r"(^|\W)[.,]$|^=")  # what stands before the digits of $.50, and formulas
_NOT_AFTER = re.compile(rf"[{_MINUS}(\u00bc-\u00be\u2150-\u215e]")  # of ranges, and fractions such as ½
_DIGITS = {  # of thousands in groups, and decimals, by the mark before these
    mark: re.compile(
        rf"([0-9]+|[0-9]{{1,3}}(?:[{other}'\u2019\s][0-9]{{2,3}})*[{other}'\u2019\s][0-9]{{3}})"
        rf"(?:[{mark}]([0-9]+))?"
    )
    for mark, other in (".,", ",.")
}
ONE_GROUP = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_CURRENCY = "[A-Z]{3}|Rs\\.?|kr|zł|Kč|Ft|Fr|dollars?|euros?"
_SIGNIFICANT = 9  # digits of a float with more than twelve characters
_EXACT = 2.0**53  # from which a float may stand for several whole numbers
_NEAR = 0.1  # share of the smallest number, above 0, below which others are far from it
_MOST_FORMS = 4  # of dates such as 1.1.2024, 12.1.2024, 1.12.2024 and 12.12.2024
_SHOWN = 60  # characters of a cell

TEXT = "text"  # a single column without a name
FEWEST = 20  # rows
_HELD_OUT = 0.25  # share of the rows
_FEWEST_HELD_OUT, _MOST_HELD_OUT = 50, 1000
_FEWEST_CHOOSING = 15  # held-out rows below which none choose the epoch
_COLUMN = re.compile(r"\{([^{}]*)\}")
_ANSWER = "answer"  # what is asked for, unless y has a name
# A column numbers the rows if it begins at 0 to 2 and ends at this many times their number: some may be
# left out.
_MOST_PER_ROW = 1.5
_MOST_GAPS = 0.1  # share of the rows in a column that is a multiple of the answer
_UNNAMED = re.compile(r"|Unnamed: [0-9]+")  # the index of a frame in a CSV file, and as it is read


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Args:
        kind: "numbers", or "texts", among them codes such as 0123 and 5E6.
        plain: whether `float` reads the numbers. Default: True.
        decimal: the mark before decimals. Default: a point.
        unit: what stands beside all numbers: a currency, a unit, or `/5` after scores. Default: nothing.
        low, high: the smallest number and the largest one. Default: there are none.
        forms: of texts that have a digit each, such as dates and codes, the forms that they have: letters as
            a and digits as 0. Default: nothing is known of the texts, as of names and prose.
    """

    kind: str
    plain: bool = True
    decimal: str = "."
    unit: str = ""
    low: float | None = None
    high: float | None = None
    forms: Sequence[str] = ()

    @classmethod
    def learn(cls, cells: pd.Series) -> Column:
        """Find out how a column is read that is not asked for: as numbers if all of its cells are."""
        if is_any_real_numeric_dtype(cells):
            return cls(NUMBERS).with_range(as_floats(cells))
        texts = [*dict.fromkeys(as_text(cell) for cell in cells[~find_gaps(cells)])]
        is_plain = all(map(PLAIN.fullmatch, texts))
        if texts and not any(map(_is_code, texts)) and not (is_plain and _are_versions(texts)):
            try:
                decimal = find_decimal_mark(texts)
            except ValueError:
                decimal = "."
            numbers, units = read_cells(texts, decimal)
            if not np.isnan(numbers).any() and len({*map(singular, units)}) == 1:
                return cls(NUMBERS, is_plain, decimal, max(units, key=len)).with_range(numbers)
        forms = [*dict.fromkeys(_form(_write(text, False)) for text in texts)]
        are_codes = len(forms) <= _MOST_FORMS and all("0" in form for form in forms)
        return cls(TEXTS, forms=forms if are_codes else ())

    def with_range(self, numbers: Numbers) -> Column:
        """Return the record with the range of the numbers, NaN for gaps."""
        numbers = numbers[np.isfinite(numbers)]
        return replace(self, low=float(numbers.min()), high=float(numbers.max())) if len(numbers) else self

    def gaps(self, cells: pd.Series) -> NDArray[np.bool_]:
        """Return which cells hold nothing, or where not texts are expected a mark of that, `[rows]`."""
        return find_gaps(cells, {""} if self.kind == TEXTS else _GAPS)

    def read(self, cells: pd.Series) -> Numbers:
        """Return the numbers of cells, `[rows]`, NaN for gaps and for what is not read like this column."""
        if is_any_real_numeric_dtype(cells):
            return as_floats(cells)
        texts = [*map(as_text, cells)]
        numbers, units = read_cells(texts, self.decimal)
        is_read = [
            singular(unit) == singular(self.unit) and (not self.plain or bool(PLAIN.fullmatch(text)))
            for text, unit in zip(texts, units, strict=True)
        ]
        return np.where(np.array(is_read, bool) & ~self.gaps(cells), numbers, np.nan)

    def write(self, cells: pd.Series) -> list[str]:
        """Write cells as a question holds them: numbers alike in texts and as floats, and gaps as unknown."""
        is_plain = self.kind == NUMBERS and self.plain
        values: Iterable[Any] = cells.to_numpy() if cells.dtype.kind == "f" else cells  # float32 stays it
        return [
            _GAP if gap else _write(value, is_plain)
            for value, gap in zip(values, self.gaps(cells), strict=True)
        ]

    def notes(self, cells: pd.Series) -> list[str]:
        """Say how many cells do not fit those that the column had when the model was fitted, if any."""
        is_typed = is_any_real_numeric_dtype(cells)
        if self.kind == NUMBERS:
            numbers = self.read(cells)
            wrong = np.isnan(numbers) | self.are_far(numbers) | (is_typed and self.unit != "")
        elif self.forms:
            wrong = np.array([_form(text) not in self.forms for text in self.write(cells)], bool)
        else:  # of which numbers may have lost zeros, as of 0123
            wrong = np.full(len(cells), is_typed)
        return self.count(wrong & ~find_gaps(cells), cells)

    def are_far(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return which numbers are far from all that the column had, as in another unit, `[rows]`."""
        if self.low is None or self.high is None:
            return np.zeros(len(numbers), bool)
        least, most = 2 * self.low - self.high, 2 * self.high - self.low
        if self.low > 0:
            least = max(least, _NEAR * self.low)
        far: NDArray[np.bool_] = (numbers != 0) & ((numbers < least) | (numbers > most))
        return far

    def count(self, is_wrong: NDArray[np.bool_], cells: pd.Series) -> list[str]:
        """Say in how many rows a cell does not fit, and show the first; nothing if all do."""
        if not (wrong := int(is_wrong.sum())):
            return []
        row = int(is_wrong.argmax())
        held = self.kind
        if self.forms:
            held += f" such as {self.forms[0]!r} (a is a letter, 0 a digit)"
        elif self.low is not None:
            held += f" from {self.low:g} to {self.high:g}{f' with {self.unit!r}' * (self.unit != '')}"
            held += ", and commas before decimals" * (self.decimal == ",")
        return [
            f"{wrong:,} of {len(cells):,} rows of {cells.name!r} do not fit the fitted table, which had "
            f"{held} ({str(cells.iloc[row])[:_SHOWN]!r} in row {row + 1:,})"
        ]


@dataclass(frozen=True)
class Questions:
    """How rows are written as questions.

    Args:
        columns: the columns of a question, in order, and how each was read when the model was fitted.
        prompt: the question, with names of columns in braces. None: all columns with their names.
        answer: the name of the number that is asked for.
        left_out: columns that no question holds, each with the reason.
        width: number of columns that the rows had, if these had no names, as those of arrays. None: they had.
    """

    columns: Mapping[str, Column]
    prompt: str | None
    answer: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    width: int | None = None

    @classmethod
    def choose(
        cls,
        table: pd.DataFrame,
        answers: Numbers,
        name: Any = None,
        prompt: str | None = None,
        is_named: bool = True,
    ) -> Questions:
        """Choose what questions hold: all columns that are of use, or those that a prompt names.

        Raises:
            ValueError: the prompt names no column, or one that the table does not have.
        """
        answer = _ANSWER if name is None or name == "" else str(name)
        width = None if is_named else len(table.columns)
        if prompt is not None:
            names = [*dict.fromkeys(_COLUMN.findall(prompt))]
            if not names:
                raise ValueError(
                    f"prompt={prompt!r}: expected the name of a column in braces, such as {{text}}"
                )
            if width == 1 and len(names) == 1:
                names, prompt = [TEXT], _COLUMN.sub("{text}", prompt)
            _check_columns(names, table, "prompt names")
            return cls({c: Column.learn(table[c]) for c in names}, prompt, answer, width=width)
        columns = {name: Column.learn(table[name]) for name in table.columns}
        numbers = {c: column.read(table[c]) for c, column in columns.items() if column.kind == NUMBERS}
        left_out = {} if len(columns) < 2 else find_useless(table, numbers, answers)
        kept = {name: column for name, column in columns.items() if name not in left_out}
        if not kept:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
            raise ValueError(
                f"X: no column is left to predict from ({reasons}); expected one that differs, or a prompt "
                "that names the columns"
            )
        return cls(kept, None, answer, left_out, width)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Questions:
        """Make an object of the fields that were saved as JSON."""
        return cls(**{**fields, "columns": {c: Column(**of) for c, of in fields["columns"].items()}})

    def table(self, X: Any) -> pd.DataFrame:  # noqa: N803
        """Return the columns of the question as a table.

        Raises:
            ValueError: a column is missing, or X has no names and another number of columns.
            TypeError: X is neither a table nor texts.
        """
        table, is_named = as_table(X)
        if not len(table):
            return pd.DataFrame(columns=[*self.columns])
        if not is_named and self.width not in (None, len(table.columns)):
            raise ValueError(
                f"X has {len(table.columns)} columns, but the model was fitted with {self.width}: expected "
                "as many, because they have no names"
            )
        if len(self.columns) == len(table.columns) == 1:
            # A name says nothing beside texts that had none, unless it is that of a frame's column.
            is_texts = self.width == 1 and not hasattr(X, "columns")
            if is_texts or not is_named or table.columns[0] == "x0":
                table = table.set_axis([*self.columns], axis=1)
        _check_columns(self.columns, table, "the model was fitted with")
        return table[[*self.columns]]

    def find_empty(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Return which rows have nothing in any column of the question, `[rows]`."""
        table = self.table(X)
        empty: NDArray[np.bool_] = np.all([of.gaps(table[c]) for c, of in self.columns.items()], axis=0)
        return empty

    def numbers(self, X: Any) -> dict[str, Numbers]:  # noqa: N803
        """Return the columns that hold numbers, `[rows]` each, NaN for gaps."""
        table = self.table(X)
        return {c: column.read(table[c]) for c, column in self.columns.items() if column.kind == NUMBERS}

    def notes(self, X: Any) -> list[str]:  # noqa: N803
        """Say which cells are not read as those that the model was fitted to."""
        table = self.table(X)
        return [note for c, column in self.columns.items() for note in column.notes(table[c])]

    def write(self, X: Any) -> list[str]:  # noqa: N803
        """Write each row as a question."""
        table = self.table(X)
        texts = [column.write(table[name]) for name, column in self.columns.items()]
        rows = [dict(zip(self.columns, row, strict=True)) for row in zip(*texts, strict=True)]
        if self.prompt is not None:
            parts = _COLUMN.split(self.prompt)  # every other one is the name of a column
            return ["".join(row[part] if i % 2 else part for i, part in enumerate(parts)) for row in rows]
        if len(self.columns) == 1:
            return [f"{text}\n{self.answer}: " for text in texts[0]]
        return [", ".join([*(f"{c}: {text}" for c, text in row.items()), f"{self.answer}: "]) for row in rows]


def _check_columns(names: Iterable[str], table: pd.DataFrame, why: str) -> None:
    if missing := [name for name in names if name not in table.columns]:
        raise ValueError(
            f"X: {why} the column {missing[0]!r}; expected it among {', '.join(map(str, table.columns))}"
        )


def as_table(X: Any) -> tuple[pd.DataFrame, bool]:  # noqa: N803
    """Return rows as a table, and whether its columns have names.

    Raises:
        TypeError: X is neither a table nor a sequence.
        ValueError: several columns have one name, or X has more than two dimensions.
    """
    if hasattr(X, "to_pandas"):  # frames and series of polars, and tables of pyarrow and datasets
        X = X.to_pandas()  # noqa: N806
    if isinstance(X, pd.DataFrame):
        table = X.set_axis([*map(column_name, X.columns)], axis=1)
        if table.columns.has_duplicates:
            twice = table.columns[table.columns.duplicated()][0]
            raise ValueError(f"X: several columns are called {twice!r}; rename all but one")
        return table, True
    if isinstance(X, pd.Series):
        name = TEXT if X.name is None else column_name(X.name)
        return X.to_frame(name).reset_index(drop=True), X.name is not None
    is_array = hasattr(X, "__array__")
    is_other = isinstance(X, str | Mapping | Set) or hasattr(X, "toarray")
    if is_other or not (is_array or isinstance(X, Iterable)):
        raise TypeError(
            f"X: expected a list of texts or a DataFrame, given a {type(X).__name__}; put one row into a "
            "list, and make a sparse matrix dense"
        )
    rows = X if is_array else [*X]
    if not is_array and rows and all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(rows), True
    array = np.asarray(rows, dtype=object)
    array = array[:, None] if array.ndim == 1 else array
    width = array.shape[1]
    names = [TEXT] if width == 1 else [*map(column_name, range(width))]
    return pd.DataFrame(array, columns=names, dtype=object), False


def column_name(name: Any) -> str:
    """Return a column's name; of an array, and of a frame without names, they are x0, x1 and so on."""
    return f"x{name}" if isinstance(name, int) else str(name)


def as_answers(y: Any) -> Numbers:
    """Return answers as finite numbers, `[rows]`.

    Raises:
        ValueError: there are others, some of which are shown, or y has several columns.
        TypeError: y holds dates or durations, whose unit is unknown.
    """
    from sklearn.utils.validation import column_or_1d  # slow

    answers = column_or_1d(y, warn=True)
    kind = infer_dtype(answers, skipna=True)
    if kind.startswith(("date", "period", "timedelta")):
        raise TypeError(f"y holds a {kind}: expected numbers, such as y.dt.year or y.dt.total_seconds()")
    numbers = as_floats(pd.Series(answers))
    if len(rows := np.flatnonzero(~np.isfinite(numbers))):
        shown = ", ".join(f"{answers[row]!s:.20} in row {row}" for row in rows[:3])
        raise ValueError(
            f"y holds no finite number in {len(rows):,} of {len(answers):,} rows: {shown}. Leave such rows "
            "out of X and y; texts such as $1,234.50 are read by ntloss.numbers.parse_number(text, 'whole')"
        )
    return numbers


def divide(count: int, most: int, shuffle: bool, seed: int) -> tuple[NDArray[np.int64], list[slice]]:
    """Choose at most so many rows, for training, for the choice of the epoch and for calibration.

    Returns:
        The indices of the rows, in random order or, unshuffled, those of the last ones; and the three parts.
    """
    used = np.arange(max(0, count - most), count)
    if shuffle:
        used = np.random.default_rng(seed).permutation(count)[:most]
    count = len(used)
    size = min(_MOST_HELD_OUT, max(round(_HELD_OUT * count), min(_FEWEST_HELD_OUT, count // 3)))
    choosing = size // 3 if size // 3 >= _FEWEST_CHOOSING else 0
    ends = [0, count - size, count - size + choosing, count]
    return used, [*map(slice, ends[:-1], ends[1:])]


def find_useless(table: pd.DataFrame, numbers: Mapping[str, Numbers], answers: Numbers) -> dict[str, str]:
    """Find columns that no question should hold, and say why; `numbers` are those of columns of numbers."""
    found = {}
    for name in table.columns:
        column = numbers.get(name)
        if len({*map(str, table[name])}) == 1:
            found[name] = "it is the same in all rows"
        elif column is None:
            continue
        elif times := _ratio(column, answers):
            found[name] = "it equals the answer" if times == 1 else f"it is {times:.6g} times the answer"
        elif np.array_equal(column, abs(np.floor(column))) and len(np.unique(column)) == len(column):
            if column.min() <= 2 and column.max() <= _MOST_PER_ROW * len(column):
                found[name] = "it numbers the rows"
            elif _UNNAMED.fullmatch(name):
                found[name] = "it has no name, and different whole numbers as an index has"
    return found


def _ratio(numbers: Numbers, answers: Numbers) -> float:
    """Return how many times the answers a column is, in all rows but a few gaps; 0 if it is no multiple."""
    known = ~np.isnan(numbers)
    if (~known).sum() > _MOST_GAPS * len(known):
        return 0.0
    numbers, answers = numbers[known], answers[known]
    with np.errstate(all="ignore"):  # answers of 0 alone, or too large ones, are refused later
        times = float(numbers @ answers / (answers @ answers))
        return round(times, 9) if np.allclose(numbers, times * answers, rtol=1e-9, atol=0) else 0.0


def find_gaps(cells: pd.Series, marks: Iterable[str] = _GAPS) -> NDArray[np.bool_]:
    """Return which cells hold nothing, or one of the marks, `[rows]`.

    Case does not matter, and marks that are numbers are compared by their values: -999 and -999.0.
    """
    keys = {*map(_key, marks)}
    return np.array([(is_scalar(cell) and pd.isna(cell)) or _key(cell) in keys for cell in cells], bool)


def as_floats(column: pd.Series) -> Numbers:
    """Return a column as numbers, NaN where there is none; of any dtype, Int64 with pd.NA among them."""
    numbers: Numbers = pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)
    return numbers


def as_times(cells: pd.Series) -> pd.Series | None:
    """Return a column of dates as times, and None for any other, also if it is open which part is the day."""
    known = cells.dropna()
    texts = [str(cell).strip() for cell in known]
    if not all(map(_DATE.search, texts)) or all(map(_FLOAT.fullmatch, texts)):
        return None  # also of a column without a value
    given = pd.Series(texts, known.index, dtype=object)
    read = [pd.to_datetime(given, format=date, errors="coerce", utc=True) for date in _DATES]
    found = [times for times in read if times.notna().all()]
    return found[0].reindex(cells.index) if len(found) == 1 else None


def _write(value: Any, is_plain: bool) -> str:
    """Write a value: numbers with decimals without needless digits, and midnights as dates.

    Example:
        >>> [_write(value, is_plain=True) for value in (0.1 + 0.2, np.float32(0.1), 4006381333931.0, "3.00")]
        ['0.3', '0.1', '4006381333931', '3']
        >>> _write("3.00", is_plain=False), _write("2026-11-27 00:00:00", is_plain=False)
        ('3.00', '2026-11-27')
    """
    text = str(value).strip().encode("utf-8", "replace").decode()  # halves of surrogate pairs are no text
    if is_plain and not isinstance(value, float | np.floating) and re.search("[.eE]", text):
        value = float(text) if PLAIN.fullmatch(text) else value
    if isinstance(value, float | np.floating):
        if value.is_integer() and abs(float(value)) < _EXACT:
            return str(int(value))
        return str(value) if len(str(value)) <= _SIGNIFICANT + 3 else f"{value:.{_SIGNIFICANT}g}"
    midnight = _MIDNIGHT.fullmatch(text)
    return midnight[1] if midnight else text


def read_cells(texts: Sequence[str], decimal: str) -> tuple[Numbers, list[str]]:
    """Return the number of each text, NaN if it holds another one or none, and the unit beside it.

    Example:
        >>> read_cells(["-$1,234.50", "(5)", "1.2M", "4/5", "3 kg", "3-5"], ".")[1]
        ['$', '', '', '/5', 'kg', '']
    """
    read = [_read(text, decimal) for text in texts]
    return np.array([number for number, _ in read]), [unit for _, unit in read]


def _read(text: str, decimal: str) -> tuple[float, str]:
    none = math.nan, ""
    if _FLOAT.fullmatch(text) and (decimal == "." or "." not in text):
        return (number, "") if math.isfinite(number := float(text)) else none
    match = _CELL.fullmatch(text)
    if match is None or (digits := _DIGITS[decimal].fullmatch(match[2])) is None:
        return none
    before, after = _BEFORE.fullmatch(match[1]), match[3].rstrip(" .")
    if before is None or _NOT_AFTER.search(after):
        return none
    unit, signs = before[2].strip(), before[1] + before[3]
    minuses, is_enclosed = sum(signs.count(minus) for minus in _MINUSES), "(" in signs
    is_joined = unit[-1:].isalpha() and before[3] != "" and not before[3][0].isspace()  # as in A-12
    if is_joined or minuses + is_enclosed > 1 or is_enclosed != (")" in after) or _CUT.search(unit):
        return none
    after = after.replace(")", "")
    number = float(re.sub("[^0-9]", "", digits[1]) + f".{digits[2] or 0}")
    is_negative = minuses > 0 or is_enclosed
    if scale := re.fullmatch(r"\s*(?:/|out of)\s*([0-9]+)", after):
        return (number, f"/{scale[1]}") if number <= float(scale[1]) and not is_negative else none
    word = re.match(r"\s*[^\W\d_]*", after)[0]  # type: ignore[index]  # it matches nothing, too
    if (times := _magnitude(word)) != 1:
        after = after[len(word) :]
    return (-number if is_negative else number) * times, f"{unit} {after.strip()}".strip()


@functools.lru_cache(maxsize=1024)
def _magnitude(word: str) -> float:
    """Return what a word after a number multiplies it with, as million or K; 1 of any other word."""
    return parse_number(f"1{word}", "whole") or 1.0


def find_decimal_mark(texts: Sequence[str], name: str = "") -> str:
    """Return the mark before decimals that texts decide: `$1,234.50` says a point, `2,6` a comma.

    Raises:
        ValueError: points or commas may be meant in two ways.
    """
    cores = {text: match[2] for text in texts if (match := _CELL.fullmatch(text)) is not None}
    decided, is_open = set[str](), list[str]()
    for text, core in cores.items():
        points, commas = core.count("."), core.count(",")
        if points and commas:
            decided.add(max(",.", key=core.rindex))
        elif points + commas == 1 and ONE_GROUP.fullmatch(core):
            is_open.append(text)
        elif points + commas:
            decided.add("." if (points == 1 or commas > 1) else ",")
    if decided or not is_open:
        return "," if decided == {","} else "."
    marks = {mark for mark in ".," for text in is_open if mark in cores[text]}
    if marks == {"."} and len(is_open) == len(cores):
        return "."
    if len(marks) == 1 and all(map(_is_money, is_open)):
        return "." if marks == {","} else ","
    raise ValueError(
        f"the column {name!r} may be read in two ways: is {is_open[0]!r} a number of thousands, or has it "
        f"decimals? Pass --decimal . or --decimal , which is the mark before decimals."
    )


def _is_money(text: str) -> bool:
    """Return whether a currency's sign or name stands beside the number."""
    around = re.sub(rf"[0-9.,'()\s{_MINUS}]", "", text)
    return re.fullmatch(_CURRENCY, around) is not None or any(unicodedata.category(c) == "Sc" for c in text)


def _form(text: str) -> str:
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def _is_code(text: str) -> bool:
    """Return whether a text may be a name, as 0123, 5E6, A-12 and room 12 are, and no number with a unit."""
    is_named = re.match(r"[^0-9]*[^\W\d_]", text) is not None and not _is_money(text)
    return is_named or (_FLOAT.fullmatch(text) is not None and PLAIN.fullmatch(text) is None)


def _are_versions(texts: Sequence[str]) -> bool:
    """Return whether a last 0 counts: 1.10 beside 1.9, where no 1.05 says that these are decimals."""
    decimals = {text.partition(".")[2] for text in texts} - {""}
    counts = any(re.fullmatch("[1-9]0", each) for each in decimals)
    return counts and {*map(len, decimals)} == {1, 2} and not any(re.match("0.", each) for each in decimals)


def as_text(cell: Any) -> str:
    """Return a cell as text, without blanks at its ends."""
    return str(cell).replace("\xa0", " ").strip()


def _key(cell: Any) -> str:
    """Return a cell as marks of gaps are compared: without case, and numbers by their values."""
    text = as_text(cell).lower()
    return str(float(text)) if PLAIN.fullmatch(text) else text


def singular(unit: str) -> str:
    """Return a unit as units are compared: `stars` as `star`."""
    return unit.removesuffix("s") if len(unit) > 2 else unit
