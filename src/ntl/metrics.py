"""The metrics that a comparison reports, and from runs to means with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ntloss import NumericMetrics
from ntloss.parsing import parse_number

METRICS = ("mae", "rmse", "r2", "pearson", "accuracy", "invalid")


def read_answer(text: str) -> float | None:
    """Read a decoded text that should be one number and nothing else; None where it is not.

    Example:
        >>> read_answer(" -3.5 "), read_answer("4 2"), read_answer("")
        (-3.5, None, None)
    """
    return parse_number(text, "whole")


def score(predictions: Sequence[float | None], targets: Sequence[float]) -> dict[str, float | None]:
    """Compare predicted with true numbers.

    Args:
        predictions: One per target; None where the model wrote no number.
        targets: The true numbers.

    Returns:
        `mae`, `rmse`, `r2`, `pearson` and `accuracy` over the valid predictions, as `ntloss.NumericMetrics`
        defines them (`accuracy_of_valid` there), None where they are not defined, and `invalid`, the count
        of the others.

    Raises:
        ValueError: The lengths differ.
    """
    names = ["accuracy_of_valid" if name == "accuracy" else name for name in METRICS]
    found = NumericMetrics(metrics=names).update(predictions, targets).compute()
    values = dict(zip(METRICS, (found[name] for name in names), strict=True))
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def mean_and_error(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The mean over seeds and its standard error.

    Args:
        values: One per seed.

    Returns:
        The mean (None where a value is), and the sample standard deviation / sqrt(seeds) (None below two
        seeds).
    """
    if not values or any(value is None for value in values):
        return None, None
    array = np.array(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return float(array.mean()), error
