"""What `ntl predict` says of its answers: true answers in a column, errors, margins and advice."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ntl.errors import UserError
from ntl.scores import Scores, finite_or_none, short
from ntloss.numbers import NumberFormat
from ntloss.numbers.parsing import parse_number

TEN = 10.0  # an interval whose upper end is so many times its lower one spans a power of ten


class Margin(NamedTuple):
    """How far the ends of intervals are moved outwards: by a distance or, of a long tail, by a factor.

    Example:
        >>> str(Margin(2.0)), str(Margin(-0.5, by_factor=True))
        ('widened by 2 at each end', 'narrowed by a factor of 1.649 at each end')
    """

    size: float = 0.0  # of a factor, its logarithm
    by_factor: bool = False
    floor: float = 0.0  # of a factor: smaller ends are raised to it first, because a factor keeps 0

    def move(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move the ends of intervals."""
        if self.by_factor:
            lower, upper = np.maximum(lower, self.floor), np.maximum(upper, self.floor)
            return lower * math.exp(-self.size), upper * math.exp(self.size)
        return lower - self.size, upper + self.size

    def __str__(self) -> str:
        size = f"a factor of {math.exp(abs(self.size)):.4g}" if self.by_factor else f"{abs(self.size):g}"
        return f"{'narrowed' if self.size < 0 else 'widened'} by {size} at each end"


def read_truths(table: pd.DataFrame, column: str) -> list[float]:
    """Return the true answers of a table of texts; a UserError if one is missing or no number."""
    if column not in table.columns:
        raise UserError(
            f"truth={column}: the table has no such column; expected one of {', '.join(table.columns)}. "
            "Correct the name."
        )
    found = [parse_number(text if isinstance(text, str) else "", "whole") for text in table[column]]
    if None in found:
        row = found.index(None)
        raise UserError(
            f"truth={column}: row {row + 1} holds {table[column].iloc[row]!r}; expected a number in each. "
            "Correct or remove the row."
        )
    return [number for number in found if number is not None]


def read_format(given: str, is_run: bool) -> NumberFormat:
    """Read how answers are written: a number of digits, or a form such as `+00.0`.

    Example:
        >>> read_format("3", False) == read_format("000", False), read_format("+00.0", False).signed
        (True, True)
    """
    form = re.fullmatch(r"([+-]?)(0+)(?:\.(0+))?", given)
    form = None if given == "0" else form  # no digits
    digits = int(given) if form is None and re.fullmatch("[0-9]{1,2}", given) else 0
    whole = len(form[2]) if form else digits
    if is_run or not 1 <= whole <= 18:
        raise UserError(
            f"digits or format={given} cannot be used; expected a number of digits from 1 to 18, or a form "
            "such as +00.0, of a model that is not a run of the lab. Correct or omit it."
        )
    return NumberFormat(whole, len(form[3] or "") if form else 0, bool(form and form[1]))


def score_predictions(predicted: pd.DataFrame, truths: Sequence[float], constant: float) -> Scores:
    """Score predictions with the metrics of `ntl.scores.describe_errors`; rows without a number are left out.

    Args:
        predicted: The columns of `ntl.predictor.PREDICTED`.
        truths: The true answers.
        constant: The answer whose error the others are compared with.
    """
    true = np.array(truths)
    readings = {"median_mae": "median", "mae": "greedy"}
    scores = {
        metric: float(np.nanmean(np.abs(predicted[name].to_numpy(float) - true)))
        for metric, name in readings.items()
        if name in predicted and predicted[name].notna().any()
    }
    scores |= {"constant_mae": float(np.abs(true - constant).mean())}
    scores["invalid"] = float(predicted["greedy"].isna().sum()) if "greedy" in predicted else 0.0
    if "lower" in predicted:
        low, high = predicted["lower"].to_numpy(float), predicted["upper"].to_numpy(float)
        scores["interval_coverage"] = float(((low <= true) & (true <= high)).mean())
        scores["interval_width"] = float(np.nanmean(high - low))
    return {name: finite_or_none(value) for name, value in scores.items()}


def describe_answer(row: pd.Series, level: float) -> str:
    """Describe the prediction of one text, for people.

    Example:
        >>> describe_answer(pd.Series({"greedy": 60.0, "median": 62.0, "lower": 51.0, "upper": 69.0}), 0.9)
        '62, 51 to 69 (90 %)'
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    if "median" in numbers:
        middle, lower, upper = (_number(numbers[name]) for name in ("median", "lower", "upper"))
        is_number = not math.isnan(numbers["median"])
        return f"{middle}, {lower} to {upper} ({100 * level:g} %)" if is_number else middle
    if "greedy" in numbers:
        return str(row["written"]) if "written" in row else _number(numbers["greedy"])
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _number(value: float) -> str:
    return "no number" if math.isnan(value) else short(value)


def advise(
    found: pd.DataFrame, form: NumberFormat | None, is_run: bool, is_log: bool = False
) -> Iterator[str]:
    """Yield what a user may want to do about predictions, of a run whose answers may be logarithms."""
    if "greedy" in found and (missing := int(found["greedy"].isna().sum())):
        yield f"{missing:,} of {len(found):,} answers are no numbers; their cells are empty"
    is_settled = is_run and (is_log or (form is not None and form.signed))  # a log scale is no remedy
    if "lower" in found and not is_settled:
        wide = (found["lower"] > 0) & (found["upper"] >= TEN * found["lower"])
        if 2 * wide.sum() > len(found):
            remedy = "digits=N, or format=, gives all answers one length"
            if is_run:
                remedy = "with scale=log, `ntl fit` learns relative errors"
            elif form is not None:
                remedy = "fewer digits, or a prompt that names the unit, may help"
            yield f"{wide.sum():,} of {len(found):,} intervals span a power of ten or more: {remedy}"
