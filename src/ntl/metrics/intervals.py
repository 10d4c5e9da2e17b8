"""Metrics of predicted quantiles and intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntl.metrics.accumulator import Accumulator, count_rows, read_numbers
from ntloss.numbers.parsing import as_float

# Largest distance from 1 of two levels that add up to 1: enough for levels in float32.
_ROUNDING_OF_LEVELS = 2e-7


class QuantileMetrics(Accumulator):
    r"""Proper scores and interval coverage of predicted quantiles, over any number of batches and ranks.

    For the rows that are neither skipped nor invalid, with the quantile $\hat x_\tau$ of level $\tau$ and the
    target $x$:

    ======================= =====================================================================
    `count`                 number of rows
    `skipped`               rows whose target is NaN or infinite
    `invalid`               other rows with a missing (NaN) or infinite quantile
    `invalid_rate`          `invalid` / (`count` - `skipped`), 0 to 1
    `pinball_0.05`, ...     mean of $\max(\tau (x - \hat x_\tau), (\tau - 1)(x - \hat x_\tau))$ at each level
    `crps`                  $2 \sum_\tau w_\tau \, pinball_\tau$, the continuous ranked probability score of
                            the distribution with these quantiles; $w_\tau$ is the length of the part of
                            $[0, 1]$ that is nearest to $\tau$. Exact for n equally likely values at the
                            levels $(i - 1/2)/n$; with few levels an approximation
    `coverage_90`, ...      share of targets within the central interval between the levels $\alpha/2$ and
                            $1 - \alpha/2$, bounds included; 0.9 if the interval is calibrated
    `mean_width_90`, ...    mean width $u - l$ of that interval
    `interval_score_90`, .. mean of $(u - l) + \frac{2}{\alpha}(l - x)^+ + \frac{2}{\alpha}(x - u)^+$
    ======================= =====================================================================

    Coverage is a fraction; the other metrics after the first four are in the numbers' units. They are NaN
    if there is no valid row.

    Args:
        quantiles: levels in ascending order, each above 0 and below 1, that differ in six significant digits.
            Two levels that add up to 1 form a central interval. Default: `(0.05, 0.5, 0.95)`.

    Raises:
        ValueError: levels that are not ascending, not between 0 and 1, or equal to six digits.

    Source: Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007,
    equation 43 (interval score); Laio and Tamea, HESS 2007 (CRPS as an integral of pinball losses).

    Example:
        >>> from ntl.metrics import QuantileMetrics
        >>> metrics = QuantileMetrics(quantiles=(0.05, 0.5, 0.95))
        >>> results = metrics.update([[1.0, 4.0, 6.0], [2.0, 3.0, 5.0]], [4.0, 7.0]).compute()
        >>> results["coverage_90"], results["mean_width_90"], results["pinball_0.5"]
        (0.5, 4.0, 1.0)
    """

    def __init__(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> None:
        try:
            self.quantiles = tuple(as_float(level) for level in quantiles)
        except TypeError:  # no numbers, or a single one
            self.quantiles = ()
        bounds = (0.0, *self.quantiles, 1.0)
        if not self.quantiles or any(not a < b for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"quantiles={quantiles!r}: expected ascending levels between 0 and 1, such as "
                "(0.05, 0.5, 0.95)"
            )
        names = [f"pinball_{level:g}" for level in self.quantiles]
        if len(set(names)) < len(names):
            raise ValueError(
                f"quantiles={quantiles!r}: two levels are equal to six digits, so their metrics would "
                "have the same name. Omit one of them."
            )
        self._intervals = [
            (low, high)
            for low, high in itertools.combinations(range(len(names)), 2)
            if abs(self.quantiles[low] + self.quantiles[high] - 1) < _ROUNDING_OF_LEVELS
        ]
        names.append("crps")
        for low, high in self._intervals:
            percent = f"{100 * (self.quantiles[high] - self.quantiles[low]):.6g}"
            names += [f"{name}_{percent}" for name in ("coverage", "mean_width", "interval_score")]
        self._names = names
        super().__init__(3 + len(names))  # counts of rows, skipped and invalid ones, then sums

    def update(self, predictions: Any, targets: Any) -> QuantileMetrics:
        """Add a batch.

        Args:
            predictions: `[batch, quantiles]`, ascending in each row, with None or NaN for a missing number.
            targets: `[batch]`; likewise.

        Returns:
            `self`.

        Raises:
            TypeError: not numbers.
            ValueError: shapes that do not fit, or a row of predictions that is not ascending.
        """
        predicted = read_numbers(predictions, "predictions").cpu()
        true = read_numbers(targets, "targets").cpu()
        if predicted.shape == true.shape == (0,):  # an empty list of rows
            predicted = predicted.reshape(0, len(self.quantiles))
        if predicted.shape != (*true.shape, len(self.quantiles)) or true.dim() != 1:
            raise ValueError(
                f"predictions of shape {list(predicted.shape)} for targets of shape {list(true.shape)}: "
                f"expected [batch, {len(self.quantiles)}], one column for each of the quantiles "
                f"{self.quantiles}, and [batch]"
            )
        counted = true.isfinite()
        valid = counted & predicted.isfinite().all(-1)
        head = torch.stack([torch.tensor(len(true)), (~counted).sum(), (counted & ~valid).sum()])
        predicted, true = predicted[valid], true[valid]
        if (descending := (predicted.diff() < 0).any(-1)).any():
            row = predicted[descending][0].tolist()
            raise ValueError(
                f"predicted quantiles {row}: expected ascending values, as the levels {self.quantiles} are. "
                "Sort each row."
            )
        self._add(torch.cat([head.double(), self._scores(predicted, true).sum(0)]))
        return self

    def _scores(self, predicted: Tensor, true: Tensor) -> Tensor:
        """`[rows, metrics]`, in the order of their names."""
        levels = torch.tensor(self.quantiles, dtype=torch.float64)
        error = true.unsqueeze(-1) - predicted
        pinball = torch.maximum(levels * error, (levels - 1) * error)
        # The length of the part of [0, 1] that is nearest to each level.
        middles = [(a + b) / 2 for a, b in itertools.pairwise(self.quantiles)]
        weights = torch.tensor([0.0, *middles, 1.0], dtype=torch.float64).diff()
        columns = [pinball, 2 * (pinball * weights).sum(-1, keepdim=True)]
        for low, high in self._intervals:
            lower, upper = predicted[:, low], predicted[:, high]
            outside = (lower - true).clamp(min=0) + (true - upper).clamp(min=0)
            width = upper - lower
            score = width + outside / self.quantiles[low]  # alpha is twice the lower level
            columns.append(torch.stack([(outside == 0).double(), width, score], -1))
        return torch.cat(columns, -1)

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far.

        Returns:
            Name to value, in the order of the table above.
        """
        count, skipped, invalid, *sums = self._total().tolist()
        valid = count - skipped - invalid
        means = (total / valid if valid else math.nan for total in sums)
        return {**count_rows(count, skipped, invalid), **dict(zip(self._names, means, strict=True))}
