"""From texts to numbers to metrics, and from runs to means with their uncertainty. NumPy only."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")

METRICS = ("mae", "rmse", "r2", "pearson", "accuracy", "invalid")


def parse_number(text: str) -> float | None:
    """Read a decoded text as a number.

    Args:
        text: What the model wrote.

    Returns:
        The number; None where the text is not exactly one number in ASCII digits.

    Example:
        >>> parse_number(" -3.5 "), parse_number("4 2"), parse_number("")
        (-3.5, None, None)
    """
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def score(predictions: Sequence[float | None], targets: Sequence[float]) -> dict[str, float | None]:
    """Compare predicted with true numbers.

    Args:
        predictions: One per target; None where the model wrote no number.
        targets: The true numbers.

    Returns:
        ``mae``, ``rmse``, ``r2``, ``pearson`` and ``accuracy`` over the valid predictions, None where they
        are not defined (no valid prediction; for r2 constant targets; for pearson constant numbers on either
        side), and
        ``invalid``, the count of the others. ``accuracy`` is ``np.isclose``.

    Raises:
        ValueError: The lengths differ.
    """
    if len(predictions) != len(targets):
        raise ValueError(
            f"{len(predictions)} predictions for {len(targets)} targets; expected one per target. Pass None "
            "for a prediction that is no number."
        )
    pairs = [(p, t) for p, t in zip(predictions, targets, strict=True) if p is not None]
    result: dict[str, float | None] = dict.fromkeys(METRICS)
    result["invalid"] = len(targets) - len(pairs)
    if not pairs:
        return result
    predicted, true = np.array(pairs, dtype=np.float64).T
    errors = predicted - true
    spread = np.square(true - true.mean()).sum()
    result["mae"] = float(np.abs(errors).mean())
    result["rmse"] = float(np.sqrt(np.square(errors).mean()))
    result["r2"] = float(1 - np.square(errors).sum() / spread) if spread > 0 else None
    result["accuracy"] = float(np.isclose(predicted, true).mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant input: Pearson is then not defined, and is None here
        pearson = stats.pearsonr(predicted, true).statistic if len(pairs) > 1 else math.nan
    result["pearson"] = float(pearson) if math.isfinite(pearson) else None
    return result


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
