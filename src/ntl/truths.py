"""True answers in a column of a table: they calibrate intervals, and score predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ntl.errors import UserError
from ntloss.numbers.parsing import parse_number


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


def describe_errors(predicted: pd.DataFrame, truths: Sequence[float], level: float) -> str:
    """Describe the errors of predictions, beside those of the best constant, in one line."""
    true = np.array(truths)
    readings = {name: predicted[name].to_numpy(float) for name in ("median", "greedy") if name in predicted}
    readings["constant"] = np.full(len(true), np.median(true))
    errors = [f"{name} {np.nanmean(np.abs(given - true)):.4g}" for name, given in readings.items()]
    missing = max(int(np.isnan(given).sum()) for given in readings.values())
    line = f"mean absolute error of {len(true):,} rows: {', '.join(errors)}"
    line += f" ({missing:,} rows without a number are left out)" if missing else ""
    if "lower" not in predicted:
        return line
    low, high = predicted["lower"].to_numpy(float), predicted["upper"].to_numpy(float)
    inside, width = ((low <= true) & (true <= high)).mean(), np.nanmean(high - low)
    return f"{line}; the {level:.0%} interval covers {inside:.0%}, mean width {width:.4g}"
