"""How the columns of a table are read: a record of each, by which new rows are read, too."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntloss.numbers import parse_number

NUMBERS, CODES, TEXTS = "numbers", "codes", "texts"
_GAPS = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "?", ".", "na", "n/a", "n.a.", "#n/a", "<na>", "nan"}
_GAPS |= {"null", "none", "unknown"}
_GAPS |= {"#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!"}  # a spreadsheet's errors
_POWER_CODE = "[0-9]+[eE][0-9]+"  # 5E6 is a code: programs write a sign or a point in such numbers
PLAIN = re.compile(
    rf"(?!{_POWER_CODE}\Z)[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
)  # as `float` reads it
_CODE = re.compile(f"0[0-9]+|{_POWER_CODE}")
_AROUND_DIGITS = re.compile(r"([^0-9]*)([0-9](?:.*[0-9])?)([^0-9]*)", re.DOTALL)
_ONE_GROUP = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_MINUSES = ("-", "\N{MINUS SIGN}", "\N{HYPHEN}", "\N{NON-BREAKING HYPHEN}", "\N{FIGURE DASH}", "\N{EN DASH}")
_MARKS = f"(. +{''.join(_MINUSES)}"
_MAGNITUDES = re.compile(
    "hundred|thousand|lakh|crore|[mbt]n|mln|mio|bln|mrd|trn|[mbtr]+illion|[kmbt]", re.IGNORECASE
)
_CURRENCY = "[A-Z]{3}|Rs|kr|zł|Kč|Ft|Fr|dollars?|euros?"
_IN_PARENTHESES = re.compile(r"\$?\(([^()\-\u2212]*)\)")
_SCORE = r"([0-9][0-9.,]*)\s*(?:/|out of)\s*([0-9]+)"
_LONGEST = 30  # characters of a number with a currency or unit, in a column that is not asked for
_EXAMPLES = 3  # rows of an error
_SHOWN = 60  # characters of a cell


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Args:
        kind: "numbers"; "codes", digits that name something, such as 0123, 5E6, or 1.9 beside 1.10; "texts".
        decimal: the mark before decimals; None if no cell decides it.
        unit: what stands beside all numbers: a currency, a unit, or `/5` of scores out of 5.
        plain: whether `float` reads the numbers. Default: True.
        low: the smallest number. Default: there are none.
        high: the largest number.
    """

    kind: str
    decimal: str | None = None
    unit: str = ""
    plain: bool = True
    low: float | None = None
    high: float | None = None

    @classmethod
    def learn(cls, cells: pd.Series) -> Column:
        """Find out how a column is read that is not asked for: as numbers if all of its cells are."""
        if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_complex_dtype(cells):
            return cls(TEXTS)
        if pd.api.types.is_numeric_dtype(cells):
            return cls(NUMBERS)._with_range(as_floats(cells))
        texts = pd.Series(_given(cells).unique(), dtype=object)
        if not len(texts):
            return cls(TEXTS)
        if all(PLAIN.fullmatch(text) or _CODE.fullmatch(text) for text in texts):
            return cls(CODES) if _are_codes(texts) else cls(NUMBERS)._with_range(as_floats(texts))
        if texts.str.len().max() > _LONGEST or texts.str.fullmatch(_CODE).any():
            return cls(TEXTS)
        first = _Cell.of(texts[0])  # at which most columns of texts end
        is_named = re.search("[^\\W\\d_]", first.before) is not None and not first.is_money  # as room 12
        if is_named or ("/" not in first.core and all(math.isnan(first.read(mark)[0]) for mark in ".,")):
            return cls(TEXTS)
        for decimal in (None, "."):  # where commas may be thousands or decimals, they are thousands
            try:
                return read_answers(texts, decimal).column
            except ValueError:
                continue
        return cls(TEXTS)

    def read(self, cells: pd.Series) -> NDArray[np.float64]:
        """Return the numbers of cells, `[rows]`, NaN for gaps and for what is not read like this column."""
        if pd.api.types.is_numeric_dtype(cells):
            return as_floats(cells)
        cells = cells.reset_index(drop=True)  # rows of a frame may have one label
        texts = _given(cells)
        if self.plain:
            numbers = as_floats(texts.where(texts.str.fullmatch(PLAIN)))
        else:
            if self.unit.startswith("/"):
                parts = texts.str.extract(rf"^{_SCORE}$")
                texts = parts[0].where("/" + parts[1] == self.unit, "")
            pairs = texts.map(_Cell.of).map(lambda cell: cell.read(self.decimal))
            unit = "" if self.unit.startswith("/") else _singular(self.unit)
            same = pairs.map(lambda pair: _singular(pair[1]) == unit)
            numbers = pairs.map(lambda pair: pair[0]).where(same).to_numpy(float)
        found: NDArray[np.float64] = pd.Series(numbers, texts.index).reindex(cells.index).to_numpy(float)
        return found

    def misfits(self, cells: pd.Series) -> NDArray[np.bool_]:
        """Return which cells hold something that is not read as this column was, `[rows]`."""
        is_typed = pd.api.types.is_numeric_dtype(cells)
        given: NDArray[np.bool_] = (cells.notna() & ~is_gap_mark(cells)).to_numpy(bool)
        if self.kind == NUMBERS and not is_typed:
            return given & np.isnan(self.read(cells))
        has_lost = is_typed and self.kind != TEXTS and (self.kind == CODES or self.unit != "")
        return given if has_lost else np.zeros_like(given)  # zeros of codes, or units

    def notes(self, cells: pd.Series) -> list[str]:
        """Say which cells are not read as this column was, and whether numbers are far from those it had."""
        found, name = list[str](), repr(str(cells.name))
        if (wrong := self.misfits(cells)).any():
            row = int(np.flatnonzero(wrong)[0])
            count = f"{wrong.sum():,} of {len(cells):,} rows"
            held = f"{self.kind} with {self.unit!r}" if self.unit else self.kind
            held += ", and commas before decimals" if self.decimal == "," else ""
            found.append(
                f"{count} of {name} are not read as in the fitted table, which had {held}: "
                f"{str(cells.iloc[row])[:_SHOWN]!r} in row {row + 1:,}"
            )
        numbers = self.read(cells) if self.kind == NUMBERS else np.zeros(0)
        return [*found, *self._far(numbers[~np.isnan(numbers)], name)]

    def _far(self, numbers: NDArray[np.float64], name: str) -> list[str]:
        if self.low is None or self.high is None or not len(numbers):
            return []
        margin, middle = self.high - self.low, float(np.median(numbers))
        if self.low - margin <= middle <= self.high + margin:
            return []
        here, there = f"{numbers.min():g} to {numbers.max():g}", f"{self.low:g} to {self.high:g}"
        return [f"{name} is {here}, but {there} in the fitted table: is it in another unit?"]

    def _with_range(self, numbers: NDArray[np.float64]) -> Column:
        numbers = numbers[np.isfinite(numbers)]
        return replace(self, low=float(numbers.min()), high=float(numbers.max())) if len(numbers) else self


class Answers(NamedTuple):
    """Numbers of a column, NaN where there is nothing, and how they were read.

    Attributes:
        numbers: `[rows]`.
        notes: sentences about how they were read.
        column: the record of this.
    """

    numbers: NDArray[np.float64]
    notes: list[str]
    column: Column = Column(NUMBERS)


def as_floats(column: pd.Series) -> NDArray[np.float64]:
    """Return a column as numbers, NaN where there is none; of any dtype, Int64 with pd.NA among them."""
    numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)
    return numbers


def is_gap_mark(cells: pd.Series, missing: Collection[str] | None = None) -> pd.Series:
    """Return which cells stand for nothing, `[rows]`.

    Args:
        cells: texts or numbers.
        missing: what stands for a gap. Default: nothing, `?`, `n/a` and the like.
    """
    marks = _GAPS if missing is None else {*map(_normal, missing)}
    return cells.map(lambda cell: cell is not None and _normal(str(cell)) in marks).astype(bool)


def mark_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of texts with None in place of `NA`, `?` and the like in columns of numbers.

    Example:
        >>> mark_gaps(pd.DataFrame({"size": ["3", "NA"], "country": ["NA", "NO"]})).to_dict("list")
        {'size': ['3', None], 'country': ['NA', 'NO']}
    """
    given = {name: _given(rows[name]) for name in rows.columns}
    numeric = [name for name, cells in given.items() if len(cells) and not np.isnan(as_floats(cells)).any()]
    marked = {name: rows[name].astype(object).mask(is_gap_mark(rows[name]), None) for name in numeric}
    return rows.assign(**marked)


def _given(cells: pd.Series) -> pd.Series:
    """Return the cells that are no gaps, as texts without blanks at their ends."""
    texts = cells[cells.notna()].map(lambda cell: str(cell).replace("\xa0", " ").strip()).astype(object)
    return texts[~is_gap_mark(texts)]


def _are_codes(texts: pd.Series) -> bool:
    """Return whether digits name something: some begin with a 0, or are versions, whose last 0 counts."""
    decimals = texts.str.extract(r"^[0-9]+\.([0-9]+)$")[0].dropna()
    are_versions = {*decimals.str.len()} == {1, 2} and decimals.str.fullmatch("[0-9]0").any()
    are_versions &= not decimals.str.fullmatch("0[0-9]").any()  # there is a 1.05, too
    return bool(are_versions or texts.str.fullmatch(_CODE).any())


def _normal(text: str) -> str:
    """Return a text as marks of gaps are compared: without case, and numbers by their values."""
    text = text.strip().lower()
    return str(float(text)) if PLAIN.fullmatch(text) else text


def _singular(unit: str) -> str:
    return unit.removesuffix("s") if len(unit) > 2 else unit


def read_answers(
    column: pd.Series,
    decimal: str | None = None,
    missing: Iterable[str] = (),
    fitted: Column | None = None,
) -> Answers:
    """Read the numbers of a column of texts, each by the grammar of `parse_number`.

    What one answer leaves open, the other ones decide: `$1,234.50` says that commas separate thousands,
    `2,6` that they stand before decimals. A currency or unit that all rows share is left out, True and False
    are 1 and 0, and notes say so.

    Args:
        column: texts.
        decimal: "." or ",", the mark before decimals; the other one then separates thousands. Default: that
            of the fitted answers, or the answers decide; numbers that may still be meant in two ways are an
            error.
        missing: what stands for no answer, in addition to `?`, `n/a` and the like.
        fitted: how the answers were read that a model was fitted to. Default: there is none.

    Raises:
        ValueError: some rows hold something else, may be read in two ways, or have another unit than the
            fitted ones.

    Example:
        >>> numbers, notes, column = read_answers(pd.Series(["$5", "$7.50", "?"], name="y"))
        >>> numbers, notes, column.unit
        (array([5. , 7.5, nan]), ["1 row has no 'y' ('?')", "every 'y' has '$'"], '$')
        >>> read_answers(pd.Series(["12.345", "523"]), decimal=",").numbers
        array([12345.,   523.])
    """
    name = "answer" if column.name is None else str(column.name)
    texts = column.fillna("").map(lambda text: str(text).replace("\xa0", " ").strip())
    is_gap = is_gap_mark(texts) | is_gap_mark(texts, [*missing])
    given, notes = texts[~is_gap], list[str]()
    if absent := len(texts) - len(given):
        marks = sorted({*texts[is_gap]} - {""})
        meant = f" ({', '.join(map(repr, marks))})" if marks else ""
        notes.append(f"{absent:,} row{'s have' if absent > 1 else ' has'} no {name!r}{meant}")
    if not len(given):
        raise ValueError(f"the column {name!r} holds no number")
    if given.str.lower().isin(["true", "false"]).all():
        notes.append(f"{name!r}: True is 1, False is 0")
        given = (given.str.lower() == "true").map({True: "1", False: "0"})
    given, scale = _without_scale(given, name, notes)
    found = given.map(_Cell.of)
    mark = decimal or (None if fitted is None else fitted.decimal) or _decimal_mark(found, name, notes)
    read = [cell.read(mark) for cell in found]
    is_wrong = [math.isnan(number) for number, _ in read]
    measured = [unit for number, unit in read if not math.isnan(number)]
    units = {_singular(unit) for unit in measured}
    if len(units) == 1 and (unit := max(measured, key=len)):
        notes.append(f"every {name!r} has {unit!r}")
    scaled = [
        (cell.text, number)
        for cell, (number, unit) in zip(found, read, strict=True)
        if cell.magnitudes and cell.magnitudes[0] not in unit.split()
    ]
    if scaled:
        notes.append(f"{scaled[0][0]!r} in {name!r} is read as {scaled[0][1]:.15g}")
    if len(units) > 1 and not any(is_wrong):
        is_wrong = [unit != "" for _, unit in read]
    wrong = given[is_wrong]
    if len(wrong):
        rows = wrong.index[:_EXAMPLES]
        shown = ", ".join(f"{texts[row]!r} in row {texts.index.get_loc(row) + 1:,}" for row in rows)
        raise ValueError(
            f"the column {name!r} holds no plain number in {len(wrong):,} of {len(texts):,} rows: {shown}. "
            f"{_advice(found[is_wrong], [number for number, _ in read], units, mark)}"
        )
    numbers = pd.Series([number for number, _ in read], given.index)
    _note_parentheses(given, name, notes)
    is_plain = bool(given.map(lambda text: PLAIN.fullmatch(text) is not None).all()) and mark != ","
    kept = Column(
        NUMBERS, mark, scale or (max(measured, key=len) if measured else ""), is_plain and not scale
    )
    if fitted is not None:
        if kept.unit and fitted.unit and _singular(kept.unit) != _singular(fitted.unit):
            raise ValueError(
                f"{name!r} has {kept.unit!r} ({texts[given.index[0]]!r}), but {fitted.unit!r} in the fitted "
                "table: convert the numbers"
            )
        if _singular(kept.unit) != _singular(fitted.unit):
            had = repr(fitted.unit) if fitted.unit else "no unit"
            notes.append(
                f"{name!r} has {kept.unit or 'no unit'}, and {had} in the fitted table: taken for the same"
            )
        notes += fitted._far(numbers.to_numpy(float), repr(name))
    return Answers(
        numbers.reindex(texts.index).to_numpy(float), notes, kept._with_range(numbers.to_numpy(float))
    )


class _Cell(NamedTuple):
    """A text around one number: what stands before its first digit, up to the last one, and after that."""

    text: str
    before: str
    core: str
    after: str

    @classmethod
    def of(cls, text: str) -> _Cell:
        match = _AROUND_DIGITS.fullmatch(text)
        return cls(text, *(match.groups() if match else (text, "", "")))

    def read(self, decimal: str | None) -> tuple[float, str]:
        """Return the number, NaN if there is none, and its currency or unit."""
        number, unit = self._read(decimal)
        return (math.nan if number is None or math.isinf(number) else number), unit

    def _read(self, decimal: str | None) -> tuple[float | None, str]:
        if PLAIN.fullmatch(self.text) and (decimal != "," or "." not in self.text):
            return float(self.text), ""
        if decimal is None and "," in self.core:
            return None, ""  # thousands, or decimals?
        thousands = self._thousands(decimal)
        before, after = self.before.lstrip(_MARKS).rstrip("(. "), self.after.strip(")(. ")
        number = parse_number(self.text, "whole", thousands)
        if number is None and (inside := _IN_PARENTHESES.fullmatch(self.text)):  # of accountants
            number = parse_number(inside[1], "whole", thousands)
            number = None if number is None else -number
        if number is not None:
            before = before.rstrip(_MARKS)
            after = " ".join(word for word in after.split() if word not in self.magnitudes)
        elif "(" not in self.before and parse_number(self.core, "whole", thousands) is not None:
            number = parse_number(self.text, "first", thousands)
        return number, f"{before} {after}".strip()

    @property
    def magnitudes(self) -> list[str]:
        """What may stand for thousands or millions after the number."""
        return [word for word in self.after.split() if _MAGNITUDES.fullmatch(word.removesuffix("s"))]

    @property
    def is_money(self) -> bool:
        """Whether a currency's sign, or three capitals, stand beside the number."""
        around = (self.before + self.after).replace("-", "").strip()
        return re.fullmatch(_CURRENCY, around) is not None or any(
            unicodedata.category(c) == "Sc" for c in around
        )

    def _thousands(self, decimal: str | None) -> str | None:
        """Return the separator of thousands that the text has, or may have beside its mark of decimals."""
        for mark, pattern in (("'", "[0-9]['\u2019][0-9]"), (" ", r"[0-9]\s[0-9]")):
            if re.search(pattern, self.core):
                return mark
        if decimal == ",":
            return "."
        return None if decimal is None or self.core.count(",") > 1 else ","

    @property
    def mark(self) -> str | None:
        """The mark before decimals, if the text alone decides it."""
        points, commas = self.core.count("."), self.core.count(",")
        if points and commas:
            return max(",.", key=self.core.rindex) if min(points, commas) == 1 else None
        if points + commas == 1:
            return None if _ONE_GROUP.fullmatch(self.core) else "." if points else ","
        return "." if commas else "," if points else None


def _decimal_mark(cells: pd.Series, name: str, notes: list[str]) -> str | None:
    """Return the mark before decimals that the answers of a column decide.

    None: they have neither decimals nor separators of thousands, or commas that may be one or the other.

    Raises:
        ValueError: points may be meant in two ways.
    """
    deciding = dict[str, str]()
    for cell in cells:
        if cell.mark is not None:
            deciding.setdefault(cell.mark, cell.text)
    if len(deciding) == 1:
        ((mark, example),) = deciding.items()
        other = {".": ",", ",": "."}[mark]
        if mark == "," or any("," in cell.core for cell in cells):
            notes.append(
                f"in {name!r}, {mark!r} stands before decimals and {other!r} between thousands ({example!r})"
            )
        return mark
    if deciding:
        return "."  # what has decimals after a comma will be named
    cells = cells[cells.map(lambda cell: cell.core != "")]
    grouped = {mark: [cell for cell in cells if mark in cell.core] for mark in ".,"}
    for mark, other in ((".", ","), (",", ".")):
        found = grouped[mark]
        # In all rows, three digits after a point may be decimals, also of money.
        is_open = not found or grouped[other] or (mark == "." and len(found) == len(cells))
        if not is_open and all(cell.is_money for cell in found):
            notes.append(f"in {name!r}, {mark!r} separates thousands, as of money ({found[0].text!r})")
            return other
    pointed = grouped["."]
    if not pointed:
        return None
    if len(pointed) == len(cells):
        notes.append(
            f"the points in {name!r} are read as decimals ({cells.iloc[0].text!r}); if they separate "
            "thousands, pass --decimal ,"
        )
        return "."
    examples = [pointed[0].text, next(cell.text for cell in cells if "." not in cell.core)]
    raise ValueError(
        f"the column {name!r} may be read in two ways: {' and '.join(map(repr, examples))} are thousands "
        "separated by points, or have decimals. Pass --decimal , for thousands, --decimal . for decimals."
    )


def _without_scale(texts: pd.Series, name: str, notes: list[str]) -> tuple[pd.Series, str]:
    """Return scores of one scale, such as 4/5 and 3/5 in all rows, without it, and the scale."""
    parts = texts.str.extract(rf"^{_SCORE}$")
    scores, scales = pd.to_numeric(parts[0].str.replace(",", "."), errors="coerce"), pd.to_numeric(parts[1])
    if not (scores <= scales).all() or scales.nunique() > 1:
        return texts, ""
    notes.append(f"every {name!r} is out of {scales.iloc[0]:g} ({texts.iloc[0]!r})")
    return parts[0], f"/{scales.iloc[0]:g}"


def _note_parentheses(texts: pd.Series, name: str, notes: list[str]) -> None:
    """Say that parentheses are read as a minus sign.

    Raises:
        ValueError: other answers have minus signs, so that parentheses may mean something else.
    """
    enclosed = texts.str.startswith("(") & texts.str.endswith(")")
    if not enclosed.any():
        return
    signed = texts[~enclosed & texts.str.startswith(_MINUSES)]
    if len(signed):
        raise ValueError(
            f"the column {name!r} may be read in two ways: {signed.iloc[0]!r} has a minus sign, so "
            f"{texts[enclosed].iloc[0]!r} in parentheses may be negative or not. Write one of the two."
        )
    count = int(enclosed.sum())
    rows = f"{count:,} row{'s' * (count > 1)}"
    notes.append(f"the parentheses around {name!r} in {rows} are read as negative numbers")


def _advice(wrong: pd.Series, numbers: Sequence[float], units: set[str], decimal: str | None) -> str:
    if not np.isnan(numbers).any():
        shown = ", ".join(map(repr, sorted(units - {""})[:_EXAMPLES]))
        others = ", and rows without one" if "" in units else ""
        return f"There are several units or marks: {shown}{others}. Write one, or none, in all rows."
    if wrong.map(lambda cell: cell.text.startswith("=")).any():
        return "Formulas have no values here: open the file in a spreadsheet program, and save it."
    has_point, has_comma = (any(mark in cell.core for cell in wrong) for mark in ".,")
    if decimal == "," and has_point:
        return "With --decimal , points separate thousands, as in 1.234,5."
    if decimal is None and has_comma:
        return "Commas are thousands: --decimal . Commas are decimals: --decimal ,"
    if not any(cell.core for cell in wrong) and len(wrong) == len(numbers):
        return "Expected numbers. If these words have an order, write a number for each."
    advice = "Correct them, or leave them empty: rows without an answer are left out."
    if mark := next((cell.text for cell in wrong if not re.search("[0-9]", cell.text)), None):
        advice += f" If they stand for gaps, name them: --missing={shlex.quote(mark[:_SHOWN])}"
    return advice
