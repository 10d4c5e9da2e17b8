"""Metrics of predicted numbers, by the paper's protocol, on which all published results of the lab rest.

The number of an answer is the last one of the decoded text. Only commas separate thousands, and a number
counts although it is a part of something else: the answer `1/2` is 2, where `ntloss.numbers.parse_number`
says None.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise

import numpy as np
from scipy.stats import rankdata

from ntloss.numbers import number_texts

Answer = str | float | None
"""A text, whose last number counts, or a number; None or NaN if there is none."""


def numbers_of(text: str) -> list[str]:
    """Return the numbers of a text, as strings that `float` and `Decimal` accept.

    Example:
        >>> numbers_of("12 - 1,000 = -988")
        ['12', '1000', '-988']
    """
    return number_texts(text, thousands=",")


def last_number(text: str) -> float | None:
    """Return the last number of a text, or None if there is none.

    Example:
        >>> last_number("3/4 of 2"), last_number("1/2"), last_number("none")
        (2.0, 2.0, None)
    """
    numbers = numbers_of(text)
    return float(numbers[-1]) + 0.0 if numbers else None  # one zero


def number_metrics(
    predicted: Sequence[Answer], true: Sequence[Answer], clip: float | None = 1e10
) -> dict[str, float]:
    r"""Compute metrics of predicted numbers.

    A prediction without a number is *invalid*. An infinite one (`1e400`, or a thousand digits) is clipped
    like any other large number, and is invalid only without `clip`. A pair whose target has no number is
    *skipped*. With the valid predictions $\hat x$ and their targets $x$, clipped to $\pm$ `clip`,
    $e = \hat x - x$ and $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$:

    ===================== =======================================================================
    `count`               number of pairs
    `skipped`             pairs whose target has no number
    `invalid`             invalid predictions among the other pairs
    `invalid_rate`        `invalid` / (`count` - `skipped`), 0 to 1
    `exact_match`         share of *all* pairs with equal texts, ignoring surrounding white space, or with
                          equal numbers if either side was given as numbers
    `accuracy`            share of the pairs that are not skipped with
                          $|\hat x - x| \le 10^{-8} + 10^{-5} |x|$ (`np.isclose`), before clipping; numbers
                          too large for float64 are all the same; an invalid prediction is wrong
    `accuracy_of_valid`   the same share among valid predictions
    `mae`, `medae`        mean and median of $|e|$, in the numbers' unit
    `rmse`                $\sqrt{\mathrm{mean}(e^2)}$, in the numbers' unit
    `r2`                  $1 - \sum e^2 / \sum (x - \bar x)^2$; NaN for constant targets
    `log_mae`, ...        `mae`, `rmse` and `r2` of $s(\hat x)$ and $s(x)$, as reported in the paper
    `pearson`             linear correlation; NaN if either side is constant
    `spearman`            rank correlation, with mean ranks for ties; NaN if either side is constant
    ===================== =======================================================================

    All but the first seven are over valid predictions. Report them together with `invalid_rate`: a model that
    answers only easy questions has a small error.

    Args:
        predicted: What the model answered.
        true: The true answers, as many.
        clip: Largest absolute value, or None for no limit. Default: 1e10, as in the paper.

    Returns:
        Name to value, in the order of the table; NaN if there is nothing to average over.

    Source: "Regress, Don't Guess", ICML 2025 (last number of a text, `np.isclose`, clipping, log scale, count
    of invalid predictions).

    Example:
        >>> found = number_metrics(["so it is 12.", "40", "no idea"], ["12", "42", "7"])
        >>> found["mae"], found["invalid"]
        (1.0, 1)
    """
    pairs = [*zip(predicted, true, strict=True)]
    p, t = np.array([[_as_float(x) for x in pair] for pair in pairs], dtype=float).reshape(-1, 2).T
    match = [
        a.strip() == b.strip() if isinstance(a, str) and isinstance(b, str) else same
        for (a, b), same in zip(pairs, (p == t).tolist(), strict=True)
    ]
    close = np.isclose(p, t)
    limit = math.inf if clip is None else clip
    asked, answered = (np.isfinite(x) | (np.isinf(x) & (limit < math.inf)) for x in (t, p))
    valid = asked & answered
    counts = {
        "count": len(pairs),
        "skipped": int((~asked).sum()),
        "invalid": int((asked & ~valid).sum()),
        "invalid_rate": _mean(~valid[asked]),
        "exact_match": _mean(np.array(match)),
        "accuracy": _mean((close & valid)[asked]),
        "accuracy_of_valid": _mean(close[valid]),
    }
    p, t = (x[valid].clip(-limit, limit) for x in (p, t))
    logs = _errors(*(np.sign(x) * np.log10(np.abs(x) + 1) for x in (p, t)))
    return {
        **counts,
        **_errors(p, t),
        **{f"log_{name}": logs[name] for name in ("mae", "rmse", "r2")},
        "pearson": _correlation(p, t),
        "spearman": _correlation(rankdata(p), rankdata(t)),
    }


def exact_value(number: str) -> Decimal | str:
    """Return a number from `numbers_of` with all its digits: `1.50` equals `1.5`, `1e400` is finite."""
    try:
        return Decimal(number)
    except InvalidOperation:  # an exponent of more than eighteen digits: compare the text instead
        return number


def _as_float(answer: Answer) -> float:
    number = last_number(answer) if isinstance(answer, str) else answer
    return math.nan if number is None else number


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _is_constant(numbers: np.ndarray) -> bool:
    return all(a == b for a, b in pairwise(numbers))


def _errors(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    if not len(true):
        return dict.fromkeys(("mae", "medae", "rmse", "r2"), math.nan)
    error = np.abs(predicted - true)
    squared, spread = np.square(error).sum(), np.square(true - true.mean()).sum()
    return {
        "mae": float(error.mean()),
        "medae": float(np.median(error)),
        "rmse": math.sqrt(squared / len(error)),
        "r2": math.nan if _is_constant(true) or not spread else float(1 - squared / spread),
    }


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if _is_constant(one) or _is_constant(other):
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])
