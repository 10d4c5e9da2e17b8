"""Metrics of predicted numbers, from texts or floats.

The median error and rank correlation need every pair of numbers, so all pairs are kept, 32 bytes each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntl.metrics.accumulator import Accumulator, count_rows, read_answers
from ntl.protocol import numbers_of
from ntloss.numbers.parsing import Which, as_float, exact_number, parse_number


class NumericMetrics(Accumulator):
    r"""Metrics of predicted numbers over any number of batches and ranks.

    A prediction without a number, or with NaN, is *invalid*. An infinite one (`1e400`, or a thousand digits)
    is clipped like any other large number, and is invalid only without `clip`. A pair whose target has no
    number is *skipped*. With the valid predictions $\hat x$ and their targets $x$, clipped to $\pm$ `clip`,
    $e = \hat x - x$ and $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$:

    ===================== =======================================================================
    `count`               number of pairs
    `skipped`             pairs whose target has no number
    `invalid`             invalid predictions among the other pairs
    `invalid_rate`        `invalid` / (`count` - `skipped`), 0 to 1
    `exact_match`         share of *all* pairs with equal texts, ignoring surrounding white space, or with
                          equal numbers if either side was given as numbers
    `accuracy`            share of the pairs that are not skipped with
                          $|\hat x - x| \le 10^{-8} + 10^{-5} |x|$ (`np.isclose`), before clipping; too large
                          for float64: with all digits equal; an invalid prediction is wrong
    `accuracy_of_valid`   the same share among valid predictions
    `mae`, `medae`        mean and median of $|e|$, in the numbers' units
    `rmse`                $\sqrt{\mathrm{mean}(e^2)}$, in the numbers' units
    `r2`                  $1 - \sum e^2 / \sum (x - \bar x)^2$; NaN for constant targets
    `log_mae`, ...        `mae`, `rmse` and `r2` of $s(\hat x)$ and $s(x)$, as reported in the paper
    `pearson`             linear correlation; NaN if either side is constant
    `spearman`            rank correlation, with mean ranks for ties; NaN if either side is constant
    ===================== =======================================================================

    All but the first seven are over valid predictions. Report them together with `invalid_rate`: a model that
    answers only easy questions has a small error. A metric with nothing to average over is NaN.

    Args:
        which: which number of a text to compare, on both sides; see `parse_number`. Default: "last", by the
            paper's protocol (`ntl.protocol`).
        clip: largest absolute value, or None for no limit. Default: 1e10, as in the paper.
        metrics: names of the metrics to compute. Default: all.

    Raises:
        ValueError: an unknown metric or `which`, or a `clip` that is not positive.

    Source: "Regress, Don't Guess", ICML 2025 (last number of a text, `np.isclose`, clipping, log scale, count
    of invalid predictions).

    Example:
        >>> metrics = NumericMetrics(metrics=["accuracy", "mae", "invalid_rate"])
        >>> metrics.update(["so it is 12.", "40", "no idea"], ["12", "42", "7"]).compute()
        {'invalid_rate': 0.3333333333333333, 'accuracy': 0.3333333333333333, 'mae': 1.0}
        >>> metrics.update([7.0, None], [7.0, 1.0]).compute()["accuracy"]
        0.4
    """

    def __init__(
        self, *, which: Which = "last", clip: float | None = 1e10, metrics: Sequence[str] | None = None
    ) -> None:
        names = METRICS if metrics is None else metrics
        if isinstance(names, str) or (unknown := [name for name in names if name not in METRICS]):
            given = names if isinstance(names, str) else unknown
            raise ValueError(f"metrics={given!r}: expected a list of some of {', '.join(METRICS)}")
        if clip is not None and not as_float(clip) > 0:
            raise ValueError(f"clip={clip}: expected a number above 0, or None for no limit")
        if not callable(which):
            parse_number("", which)  # raises now for an unknown `which`
        super().__init__(0, 4, joined=True)  # prediction, target, whether they match exactly, or nearly
        self.names = tuple(name for name in METRICS if name in names)
        self.which = which
        self.clip = None if clip is None else as_float(clip)

    def update(self, predictions: Any, targets: Any) -> NumericMetrics:
        """Add a batch.

        Args:
            predictions: `[batch]`, texts or numbers, with None or NaN for a missing number. Tensors stay on
                their device until `compute`.
            targets: the same, though not necessarily of the same kind.

        Returns:
            `self`.

        Raises:
            TypeError: neither texts nor numbers.
            ValueError: different numbers of predictions and targets, or a tensor that is not `[batch]`.
        """
        predicted, of_predicted = read_answers(predictions, "predictions", self.which)
        true, of_true = read_answers(targets, "targets", self.which)
        if len(predicted) != len(true):
            raise ValueError(
                f"{len(predicted)} predictions for {len(true)} targets: expected one for each. Pass None for "
                "a prediction without a number."
            )
        true = true.to(predicted.device)
        equal = predicted == true
        exact = equal.clone()
        if of_predicted or of_true:
            too_large = (equal & predicted.isinf()).tolist()
            sides = (of_predicted or predicted.tolist(), of_true or true.tolist())
            for i, (one, other) in enumerate(zip(*sides, strict=True)):
                if too_large[i]:
                    equal[i] = exact[i] = self._exact(one) == self._exact(other)
                if isinstance(one, str) and isinstance(other, str):
                    exact[i] = one.strip() == other.strip()
        close = torch.isclose(predicted, true, rtol=1e-5, atol=1e-8) & (predicted.isfinite() | equal)
        self._add(torch.stack([predicted, true, exact.double(), close.double()], -1))
        return self

    def _exact(self, given: Any) -> Any:
        if isinstance(given, str) and self.which == "last":
            return exact_number(next(reversed(numbers_of(given)), ""), "whole")
        return exact_number(given, self.which)

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far.

        Returns:
            Name to value, in the order of the table above; NaN if a metric is undefined.
        """
        results = _compute(self._total(), math.inf if self.clip is None else self.clip)
        return {name: results[name] for name in self.names}


def _compute(pairs: Tensor, clip: float) -> dict[str, float]:
    for column in (3, 2, 0, 1):  # sorted, so that rounding does not depend on the order of batches and ranks
        pairs = pairs[pairs[:, column].argsort(stable=True)]
    predicted, true, exact, close = pairs.unbind(-1)
    has_target, has_prediction = (x.isfinite() | (x.isinf() & math.isfinite(clip)) for x in (true, predicted))
    valid = has_target & has_prediction
    results: dict[str, float] = {
        **count_rows(len(true), int((~has_target).sum()), int((has_target & ~valid).sum())),
        "exact_match": _mean(exact),
        "accuracy": _mean((close * valid)[has_target]),
        "accuracy_of_valid": _mean(close[valid]),
    }
    predicted, true = predicted[valid], true[valid]
    predicted, true = predicted.clamp(-clip, clip), true.clamp(-clip, clip)
    logs = _errors(*(x.sign() * torch.log10(x.abs() + 1) for x in (predicted, true)))
    return {
        **results,
        **_errors(predicted, true),
        **{f"log_{name}": logs[name] for name in ("mae", "rmse", "r2")},
        "pearson": _correlation(predicted, true),
        "spearman": _correlation(_ranks(predicted), _ranks(true)),
    }


def _mean(numbers: Tensor) -> float:
    return float(numbers.mean()) if len(numbers) else math.nan


def _scaled(numbers: Tensor) -> tuple[Tensor, float]:
    # Divided by a power of two, so that squares and sums are finite.
    scale = 2.0 ** (math.frexp(float(numbers.abs().max()))[1] - 1)
    return numbers / scale, scale


def _is_constant(numbers: Tensor) -> bool:
    return len(numbers) < 2 or bool((numbers == numbers[0]).all())


def _errors(predicted: Tensor, true: Tensor) -> dict[str, float]:
    if not len(true):
        return dict.fromkeys(("mae", "medae", "rmse", "r2"), math.nan)
    (predicted, true), scale = _scaled(torch.stack([predicted, true]))
    error = (predicted - true).abs()
    ordered = error.sort().values
    middle = ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]
    squared, spread = error.square().sum(), (true - true.mean()).square().sum()
    return {
        "mae": float(error.mean()) * scale,
        "medae": float(middle / 2) * scale,
        "rmse": math.sqrt(squared / len(error)) * scale,
        "r2": math.nan if _is_constant(true) else float(1 - squared / spread),
    }


def _correlation(one: Tensor, other: Tensor) -> float:
    if _is_constant(one) or _is_constant(other):
        return math.nan
    # Each side has its own scale, on which the correlation does not depend.
    return float(torch.corrcoef(torch.stack([_scaled(one)[0], _scaled(other)[0]]))[0, 1])


def _ranks(numbers: Tensor) -> Tensor:
    # Equal numbers have their mean rank.
    found: tuple[Tensor, ...] = torch.unique(numbers, return_inverse=True, return_counts=True)
    index, counts = found[1], found[2].double()
    return (counts.cumsum(0) - (counts - 1) / 2)[index]


METRICS = tuple(_compute(torch.empty(0, 4, device="cpu"), math.inf))
