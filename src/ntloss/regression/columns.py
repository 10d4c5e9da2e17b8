"""How the columns of a table are read: a record of each, by which new rows are read, too."""

from __future__ import annotations

import functools
import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
_ONE_GROUP = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_CURRENCY = "[A-Z]{3}|Rs\\.?|kr|zł|Kč|Ft|Fr|dollars?|euros?"
_SIGNIFICANT = 9  # digits of a float with more than twelve characters
_EXACT = 2.0**53  # from which a float may stand for several whole numbers
_LONGEST = 30  # characters of a number with a currency or unit, in a column that is not asked for
_NEAR = 0.1  # share of the smallest number, above 0, below which others are far from it
_MOST_FORMS = 4  # of dates such as 1.1.2024, 12.1.2024, 1.12.2024 and 12.12.2024
_EXAMPLES = 3  # cells that are shown
_SHOWN = 60  # characters of a cell


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Args:
        kind: "numbers", or "texts", among them codes such as 0123 and 5E6.
        plain: whether `float` reads the numbers. Default: True.
        decimal: the mark before decimals. Default: a point.
        unit: what stands beside all numbers: a currency, a unit, or `/5` after scores. Default: nothing.
        low: the smallest number. Default: there are none.
        high: the largest number.
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
        if _holds_numbers(cells):
            return cls(NUMBERS)._with_range(as_floats(cells))
        texts = [*dict.fromkeys(_normal(cell) for cell in cells[~find_gaps(cells)])]
        as_texts = cls(TEXTS, forms=_forms(_write(text, False) for text in texts))
        if all(map(PLAIN.fullmatch, texts)):
            is_number = texts and not _are_versions(texts)
            return cls(NUMBERS)._with_range(np.array([*map(float, texts)])) if is_number else as_texts
        for text in texts:  # at the first of which most columns of texts end
            match = _CELL.fullmatch(text) if len(text) <= _LONGEST else None
            is_code = _FLOAT.fullmatch(text) and not PLAIN.fullmatch(text)
            if match is None or is_code or (re.search(r"[^\W\d_]", match[1]) and not _is_money(text)):
                return as_texts  # as room 12
        try:
            decimal = _decimal_mark(texts)
        except ValueError:
            decimal = "."
        numbers, units = read_cells(texts, decimal)
        if np.isnan(numbers).any() or len({*map(_singular, units)}) > 1:
            return as_texts
        return cls(NUMBERS, False, decimal, max(units, key=len))._with_range(numbers)

    def gaps(self, cells: pd.Series) -> NDArray[np.bool_]:
        """Return which cells hold nothing, or where not texts are expected a mark of that, `[rows]`."""
        return find_gaps(cells, {""} if self.kind == TEXTS else _GAPS)

    def read(self, cells: pd.Series) -> Numbers:
        """Return the numbers of cells, `[rows]`, NaN for gaps and for what is not read like this column."""
        if _holds_numbers(cells):
            return as_floats(cells)
        texts = [*map(_normal, cells)]
        numbers, units = read_cells(texts, self.decimal)
        is_read = [
            _singular(unit) == _singular(self.unit) and (not self.plain or bool(PLAIN.fullmatch(text)))
            for text, unit in zip(texts, units, strict=True)
        ]
        return np.where(is_read & ~self.gaps(cells), numbers, np.nan)

    def write(self, cells: pd.Series) -> list[str]:
        """Write cells as a question holds them: numbers alike in texts and as floats, and gaps as unknown."""
        is_plain = self.kind == NUMBERS and self.plain
        values: Iterable[Any] = cells.to_numpy() if cells.dtype.kind == "f" else cells  # float32 stays it
        return [
            _GAP if gap else _write(value, is_plain)
            for value, gap in zip(values, self.gaps(cells), strict=True)
        ]

    def notes(self, cells: pd.Series) -> list[str]:
        """Say which cells are not read as this column was, and which numbers are far from those it had."""
        numbers, is_typed = np.full(len(cells), np.nan), _holds_numbers(cells)
        if self.kind == NUMBERS:
            numbers = self.read(cells)
            wrong = np.isnan(numbers) | (is_typed and self.unit != "")
        elif self.forms:
            wrong = np.array([_form(text) not in self.forms for text in self.write(cells)], bool)
        else:  # of which numbers may have lost zeros, as of 0123
            wrong = np.full(len(cells), is_typed)
        held = f"{self.kind} with {self.unit!r}" if self.unit else self.kind
        held += ", and commas before decimals" if self.decimal == "," else ""
        text = f"are not read as in the fitted table, which had {held}"
        if self.forms:
            form = f"{self.forms[0]!r} (a is a letter, 0 a digit)"
            text = f"have another form than in the fitted table, which had texts such as {form}"
        return _count(wrong & ~find_gaps(cells), cells, text) + self.far(numbers, cells)

    def far(self, numbers: Numbers, cells: pd.Series) -> list[str]:
        """Say which numbers are far from all that this column had, as they are in another unit.

        Args:
            numbers: `[rows]`, NaN for gaps.
            cells: that they were read from.
        """
        if self.low is None or self.high is None:
            return []
        least, most = 2 * self.low - self.high, 2 * self.high - self.low
        if self.low > 0:
            least = max(least, _NEAR * self.low)
        text = f"are far from the fitted table, which had {self.low:g} to {self.high:g}: another unit?"
        return _count((numbers != 0) & ((numbers < least) | (numbers > most)), cells, text)

    def _with_range(self, numbers: Numbers) -> Column:
        numbers = numbers[np.isfinite(numbers)]
        return replace(self, low=float(numbers.min()), high=float(numbers.max())) if len(numbers) else self


class Answers(NamedTuple):
    """Numbers of a column, NaN where there is nothing, and how they were read.

    Attributes:
        numbers: `[rows]`.
        notes: sentences about how they were read.
        column: the record of this.
    """

    numbers: Numbers
    notes: list[str]
    column: Column


def read_answers(
    cells: pd.Series,
    decimal: str | None = None,
    missing: Iterable[str] = (),
    fitted: Column | None = None,
) -> Answers:
    """Read a column of numbers with at most one currency or unit, the same in all rows.

    Args:
        cells: texts.
        decimal: "." or ",", the mark before decimals; the other one then separates thousands. Default: that
            of the fitted answers, or the answers decide; numbers that may still be meant in two ways are an
            error.
        missing: what stands for no answer, in addition to `?`, `n/a` and the like.
        fitted: how the answers were read that a model was fitted to. Default: there is none.

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
    shown, notes = [_normal(cell) for cell in cells[~is_gap]], list[str]()
    if absent := int(is_gap.sum()):
        marks = ", ".join(map(repr, sorted({_normal(cell) for cell in cells[is_gap].dropna()} - {""})))
        rows = f"{absent:,} row{'s have' if absent > 1 else ' has'}"
        notes.append(f"{rows} no {name!r}{f' ({marks})' if marks else ''}")
    if not shown:
        raise ValueError(f"the column {name!r} holds no number")
    is_truth = {text.lower() for text in shown} <= {"true", "false"}
    texts = [str(int(text.lower() == "true")) for text in shown] if is_truth else shown
    mark = decimal or (_decimal_mark(texts, name) if fitted is None else fitted.decimal)
    numbers, units = read_cells(texts, mark)
    wrong, kinds = np.isnan(numbers), {*map(_singular, units)}
    if not wrong.any() and len(kinds) > 1:
        wrong = np.array([unit != "" for unit in units])
    if wrong.any():
        mark_of_gap = shlex.quote(np.array(shown)[wrong][0][:_SHOWN])
        advice = f"Correct them, or leave them out as gaps: --missing={mark_of_gap}"
        if not np.isnan(numbers).any():
            advice = f"There are several units: {', '.join(map(repr, sorted(kinds)[:_EXAMPLES]))}."
        elif any(text.startswith("=") for text in shown):
            advice = "Formulas have no values here: open the file in a spreadsheet program, and save it."
        elif mark == "," and decimal is None:
            advice = "Commas stand before decimals in other rows; if they separate thousands: --decimal ."
        places = np.flatnonzero(~is_gap)[wrong][:_EXAMPLES]
        listed = ", ".join(f"{_normal(cells.iloc[row])[:_SHOWN]!r} in row {row + 1:,}" for row in places)
        raise ValueError(
            f"the column {name!r} holds no plain number in {wrong.sum():,} of {len(cells):,} rows: {listed}. "
            f"{advice}"
        )
    notes += _show_readings(shown, numbers, name)
    if mark == "." and decimal is None and all("." in text and _ONE_GROUP.search(text) for text in texts):
        notes.append(f"the points in {name!r} are decimals; if they separate thousands, pass --decimal ,")
    is_plain = mark == "." and all(map(PLAIN.fullmatch, texts))
    column = Column(NUMBERS, is_plain, mark, max(units, key=len))._with_range(numbers)
    if fitted is not None and _singular(column.unit) != _singular(fitted.unit):
        here, there = column.unit or "no unit", fitted.unit or "no unit"
        if column.unit and fitted.unit:
            raise ValueError(f"{name!r} has {here!r}, but {there!r} in the fitted table: convert the numbers")
        notes.append(f"{name!r} has {here}, and {there} in the fitted table: taken for the same")
    found = np.full(len(cells), np.nan)
    found[~is_gap] = numbers
    return Answers(found, notes + ([] if fitted is None else fitted.far(found, cells)), column)


def mark_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of texts with None in place of `NA`, `?` and the like in columns of numbers.

    Example:
        >>> mark_gaps(pd.DataFrame({"size": ["3", "NA"], "country": ["NA", "NO"]})).to_dict("list")
        {'size': ['3', None], 'country': ['NA', 'NO']}
    """
    gaps = {name: find_gaps(rows[name]) for name in rows.columns}
    numeric = [c for c, gap in gaps.items() if not gap.all() and not np.isnan(as_floats(rows[c][~gap])).any()]
    return rows.assign(**{name: rows[name].astype(object).mask(gaps[name], None) for name in numeric})


def find_gaps(cells: pd.Series, marks: Iterable[str] = _GAPS) -> NDArray[np.bool_]:
    """Return which cells hold nothing, or a mark of that, `[rows]`.

    Args:
        cells: texts or numbers.
        marks: without regard to case; numbers are compared by their values. Default: `?`, `n/a` and the like.
    """
    keys = {*map(_key, marks)}
    return np.array(
        [(pd.api.types.is_scalar(cell) and pd.isna(cell)) or _key(cell) in keys for cell in cells], bool
    )


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

    Args:
        value: of a cell.
        is_plain: whether texts are numbers of a column that `float` reads.

    Example:
        >>> [_write(value, True) for value in (0.1 + 0.2, np.float32(0.1), 4006381333931.0, "3.00")]
        ['0.3', '0.1', '4006381333931', '3']
        >>> _write("3.00", False), _write("2026-11-27 00:00:00", False)
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
    is_joined = unit[-1:].isalpha() and before[3] != "" and not before[3][0].isspace()  # as in A-12
    minuses, is_enclosed = sum(signs.count(minus) for minus in _MINUSES), "(" in signs
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


def _decimal_mark(texts: Sequence[str], name: str = "") -> str:
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
        elif points + commas == 1 and _ONE_GROUP.fullmatch(core):
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


def _show_readings(texts: Sequence[str], numbers: Numbers, name: str) -> list[str]:
    """Show how numbers were read that `float` does not read, one of each kind."""
    shapes = dict[str, str]()
    for text, number in zip(texts, numbers, strict=True):
        if not PLAIN.fullmatch(text) or float(text) != number:
            shapes.setdefault(re.sub("[0-9]+", "0", text), f"{text!r} {{}}as {number:.15g}")
    shown = [each.format("is read " * (i == 0)) for i, each in enumerate([*shapes.values()][:_EXAMPLES])]
    return [f"in {name!r}, {', '.join(shown)}"] if shown else []


def _holds_numbers(cells: pd.Series) -> bool:
    """Return whether a column has a dtype of numbers; True and False are texts."""
    is_other = pd.api.types.is_bool_dtype(cells) or pd.api.types.is_complex_dtype(cells)
    return pd.api.types.is_numeric_dtype(cells) and not is_other


def _forms(texts: Iterable[str]) -> list[str]:
    """Return the forms of texts, if these are few and each has a digit; otherwise nothing.

    Example:
        >>> _forms(["2024-01-05", "2024-11-30"]), _forms(["AB-12", "CD-34"]), _forms(["Anna", "Bo 2"])
        (['0000-00-00'], ['aa-00'], [])
    """
    forms: dict[str, None] = {}
    for form in map(_form, texts):
        forms[form] = None
        if "0" not in form or len(forms) > _MOST_FORMS:
            return []
    return [*forms]


def _form(text: str) -> str:
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def _count(is_wrong: NDArray[np.bool_], cells: pd.Series, text: str) -> list[str]:
    """Say in how many rows something is wrong, and show the first; nothing if it is in none."""
    if not (count := int(is_wrong.sum())):
        return []
    row = int(is_wrong.argmax())
    shown = f"{str(cells.iloc[row])[:_SHOWN]!r} in row {row + 1:,}"
    return [f"{count:,} of {len(cells):,} rows of {cells.name!r} {text} ({shown})"]


def _are_versions(texts: Sequence[str]) -> bool:
    """Return whether a last 0 counts: 1.10 beside 1.9, where no 1.05 says that these are decimals."""
    decimals = {text.partition(".")[2] for text in texts} - {""}
    counts = any(re.fullmatch("[1-9]0", each) for each in decimals)
    return counts and {*map(len, decimals)} == {1, 2} and not any(re.match("0.", each) for each in decimals)


def _normal(cell: Any) -> str:
    return str(cell).replace("\xa0", " ").strip()


def _key(cell: Any) -> str:
    """Return a cell as marks of gaps are compared: without case, and numbers by their values."""
    text = _normal(cell).lower()
    return str(float(text)) if PLAIN.fullmatch(text) else text


def _singular(unit: str) -> str:
    return unit.removesuffix("s") if len(unit) > 2 else unit
