"""Metrics of predicted quantiles: how sharp a model's predictions are, and how well calibrated.

    metrics = QuantileMetrics(quantiles=(0.05, 0.5, 0.95))
    for batch in batches:
        metrics.update(predicted_quantiles, targets)
    results = metrics.gathered().compute()  # over all ranks

For metrics of one predicted number each, see `NumericMetrics`.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.metrics.numeric import gather
from ntloss.numbers.parsing import as_float

# Largest distance from 1 of two levels that add up to 1: enough for levels in float32.
_ROUNDING = 2e-7


class QuantileMetrics:
    r"""Proper scores and interval coverage of predicted quantiles, over any number of batches and ranks.

    A row with a missing (NaN) or infinite quantile is *invalid*. A row whose target is NaN or infinite is
    *skipped*. For the other rows, with the predicted quantile $\hat x_\tau$ of level $\tau$ and the target
    $x$:

    ======================= =====================================================================
    `count`                 number of rows
    `skipped`               rows whose target is NaN or infinite
    `invalid`               invalid predictions among the other rows
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
        >>> from ntloss import QuantileMetrics
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
        self._names = [f"pinball_{level:g}" for level in self.quantiles]
        if len(set(self._names)) < len(self._names):
            raise ValueError(
                f"quantiles={quantiles!r}: two levels are equal to six digits, so their metrics would "
                "have the same name. Omit one of them."
            )
        count = len(self.quantiles)
        self._intervals = [
            (low, high)
            for low in range(count)
            for high in range(low + 1, count)
            if abs(self.quantiles[low] + self.quantiles[high] - 1) < _ROUNDING
        ]
        # count, skipped, invalid; pinball loss of each level; coverage, width and score of each interval
        self._sums = torch.zeros(3 + count + 3 * len(self._intervals), dtype=torch.float64)

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
        predicted, true = _numbers(predictions, "predictions"), _numbers(targets, "targets")
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
        predicted_valid, true_valid = predicted[valid], true[valid]
        if (descending := (predicted_valid.diff() < 0).any(-1)).any():
            row = predicted_valid[descending][0].tolist()
            raise ValueError(
                f"predicted quantiles {row}: expected ascending values, as the levels {self.quantiles} are. "
                "Sort each row."
            )
        head = torch.stack([torch.tensor(len(true)), (~counted).sum(), (counted & ~valid).sum()])
        scores = self._scores(predicted_valid, true_valid)
        self._sums = self._sums + torch.cat([head.double(), scores.sum(0)])
        return self

    def _scores(self, predicted: Tensor, true: Tensor) -> Tensor:
        """`[rows, metrics]`, in the order of `_sums`."""
        levels = torch.tensor(self.quantiles, dtype=torch.float64)
        error = true.unsqueeze(-1) - predicted
        columns = [torch.maximum(levels * error, (levels - 1) * error)]
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
        count, skipped, invalid, *sums = self._sums.tolist()
        asked, valid = count - skipped, count - skipped - invalid
        means = [total / valid if valid else math.nan for total in sums]
        pinball = means[: len(self.quantiles)]
        results: dict[str, float] = {"count": int(count), "skipped": int(skipped), "invalid": int(invalid)}
        results["invalid_rate"] = invalid / asked if asked else math.nan
        results |= dict(zip(self._names, pinball, strict=True))
        results["crps"] = 2 * sum(w * mean for w, mean in zip(self._level_weights(), pinball, strict=True))
        for index, (low, high) in enumerate(self._intervals):
            percent = f"{100 * (self.quantiles[high] - self.quantiles[low]):.6g}"
            first = len(pinball) + 3 * index
            for name, mean in zip(
                ("coverage", "mean_width", "interval_score"), means[first : first + 3], strict=True
            ):
                results[f"{name}_{percent}"] = mean
        return results

    def _level_weights(self) -> list[float]:
        """Length of the part of `[0, 1]` that is nearest to each level."""
        middles = [(a + b) / 2 for a, b in itertools.pairwise(self.quantiles)]
        edges = [0.0, *middles, 1.0]
        return [b - a for a, b in itertools.pairwise(edges)]

    def gathered(self, group: dist.ProcessGroup | None = None) -> QuantileMetrics:
        """Sum over all ranks; a collective operation with the same result on every rank.

        Args:
            group: process group. Default: all processes, or this one alone without `torch.distributed`.

        Returns:
            A new object. Examples that a sampler repeats to fill the last batch count twice.
        """
        result = copy.copy(self)
        result._sums = torch.stack(gather(self._sums, group)).sum(0)
        return result


def _numbers(given: Any, name: str) -> Tensor:
    """Convert a tensor, an array, or nested lists of numbers of any type and None to float64 on the CPU."""

    def floats(item: Any) -> Any:
        if isinstance(item, Tensor) or hasattr(item, "__array__"):
            item = item.tolist()
        return [floats(i) for i in item] if isinstance(item, (list, tuple)) else as_float(item)

    try:
        if isinstance(given, Tensor) and not given.is_complex():
            return given.detach().to("cpu", torch.float64)
        return torch.tensor(floats(given), dtype=torch.float64, device="cpu")
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
