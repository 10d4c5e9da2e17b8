r"""Metrics of predicted numbers, from texts or floats.

    metrics = NumericMetrics()
    for batch in batches:
        metrics.update(decoded_texts, targets)
    results = metrics.gathered().compute()  # over all ranks

The median error and rank correlation need every pair of numbers, so all pairs are kept, 32 bytes each, and no
result depends on their order. For the same reason this is not a torchmetrics metric: streaming sums would
save nothing. torchmetrics also computes in float32 by default, and sets the R² of constant targets to 0 or 1.
For teacher-forced metrics of tokens, see `TokenMetrics`.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.numbers.parsing import Which, as_float, exact_number, parse_number

METRICS = (
    "count",
    "skipped",
    "invalid",
    "invalid_rate",
    "exact_match",
    "accuracy",
    "accuracy_of_valid",
    "mae",
    "medae",
    "rmse",
    "r2",
    "log_mae",
    "log_rmse",
    "log_r2",
    "pearson",
    "spearman",
    "mape",
    "smape",
    "digit_count_error",
)
_NEED_SCIPY = ("pearson", "spearman")


class NumericMetrics:
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
    `mape`                mean of $|e| / |x|$ where $x \ne 0$, as a fraction (0.1 is 10 %)
    `smape`               mean of $2 |e| / (|\hat x| + |x|)$, 0 to 2; 0 where both are 0
    `digit_count_error`   mean absolute difference in the number of digits before the decimal point, before
                          clipping: 1 for 999 and 1000
    ===================== =======================================================================

    All but the first seven are over valid predictions. Report them together with `invalid_rate`: a model that
    answers only easy questions has a small error. A metric with nothing to average over is NaN.

    Args:
        which: which number of a text to compare, on both sides; see `parse_number`. Default: "last".
        clip: largest absolute value, or None for no limit. Default: 1e10, as in the paper.
        metrics: names of the metrics to compute. Default: all.

    Raises:
        ImportError: scipy is missing; `pearson` and `spearman` need it.
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
        self,
        *,
        which: Which = "last",
        clip: float | None = 1e10,
        metrics: Sequence[str] | None = None,
    ) -> None:
        names = METRICS if metrics is None else metrics
        if isinstance(names, str) or (unknown := [name for name in names if name not in METRICS]):
            given = names if isinstance(names, str) else unknown
            raise ValueError(f"metrics={given!r}: expected a list of some of {', '.join(METRICS)}")
        if clip is not None and not as_float(clip) > 0:
            raise ValueError(f"clip={clip}: expected a number above 0, or None for no limit")
        parse_number("", which)  # raises now for an unknown `which`, as _scipy_stats does without scipy
        if set(names) & set(_NEED_SCIPY):
            _scipy_stats()
        self.names = tuple(name for name in METRICS if name in names)
        self.which = which
        self.clip = None if clip is None else as_float(clip)
        self._chunks: list[Tensor] = []

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
        predicted, predicted_items = self._read(predictions, "predictions")
        true, true_items = self._read(targets, "targets")
        if len(predicted) != len(true):
            raise ValueError(
                f"{len(predicted)} predictions for {len(true)} targets: expected one for each. Pass None for "
                "a prediction without a number."
            )
        true = true.to(predicted.device)
        equal = predicted == true
        exact = equal.clone()
        if predicted_items is not None or true_items is not None:
            sides = (predicted_items or predicted.tolist(), true_items or true.tolist())
            too_large = (equal & predicted.isinf()).tolist()
            for i, (one, other) in enumerate(zip(*sides, strict=True)):
                if too_large[i]:
                    equal[i] = exact[i] = exact_number(one, self.which) == exact_number(other, self.which)
                if isinstance(one, str) and isinstance(other, str):
                    exact[i] = one.strip() == other.strip()
        close = torch.isclose(predicted, true, rtol=1e-5, atol=1e-8) & (predicted.isfinite() | equal)
        self._chunks.append(torch.stack([predicted, true, exact.double(), close.double()], -1))
        return self

    def _read(self, given: Any, name: str) -> tuple[Tensor, list[Any] | None]:
        """The numbers, `[batch]`, float64, and what they were given as if it was no tensor."""
        if getattr(getattr(given, "dtype", None), "kind", "") in tuple("fiub"):  # of a NumPy array
            given = torch.as_tensor(given)
        if isinstance(given, Tensor):
            if given.dim() != 1 or given.is_complex():
                raise ValueError(
                    f"{name} of shape {list(given.shape)} and {given.dtype}: expected real numbers as [batch]"
                )
            device = "cpu" if given.device.type == "mps" else given.device  # MPS has no float64
            return given.detach().to(device, torch.float64), None
        wanted = f"{name}: given {given!r:.100}; expected a list of texts, or of numbers or None"
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            raise TypeError(wanted)
        items = list(given)
        of_texts = any(isinstance(item, str) for item in items)
        if of_texts and not all(item is None or isinstance(item, str) for item in items):
            raise TypeError(wanted)
        numbers = [parse_number(i, self.which) if isinstance(i, str) else i for i in items]
        try:
            return torch.tensor([as_float(number) for number in numbers], dtype=torch.float64), items
        except TypeError as error:
            raise TypeError(f"{wanted} ({error})") from error

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far.

        Returns:
            Name to value, in the order of `METRICS`; NaN if a metric is undefined.
        """
        predicted, true, exact, close = self._pairs().unbind(-1)
        results: dict[str, float] = {"count": len(true), "exact_match": _mean(exact)}
        counted = self._is_number(true)
        predicted, true, close = predicted[counted], true[counted], close[counted]
        valid = self._is_number(predicted)
        results["skipped"] = int((~counted).sum())
        results["invalid"] = int((~valid).sum())
        results["invalid_rate"] = _mean((~valid).double())
        results["accuracy"] = _mean(close * valid)
        results["accuracy_of_valid"] = _mean(close[valid])
        predicted, true = predicted[valid], true[valid]
        results["digit_count_error"] = _mean((_digits(predicted) - _digits(true)).abs().double())
        if self.clip is not None:
            predicted, true = (x.clamp(-self.clip, self.clip) for x in (predicted, true))
        results |= _errors(predicted, true)
        logs = _errors(*(x.sign() * torch.log10(x.abs() + 1) for x in (predicted, true)))
        results |= {f"log_{name}": logs[name] for name in ("mae", "rmse", "r2")}
        results |= _relative_errors(predicted, true)
        results |= _correlations(predicted, true, [name for name in _NEED_SCIPY if name in self.names])
        return {name: results[name] for name in self.names}

    def _is_number(self, numbers: Tensor) -> Tensor:
        return numbers.isfinite() if self.clip is None else ~numbers.isnan()

    def _pairs(self) -> Tensor:
        """`[pairs, 4]`: prediction, target, whether they match exactly, or nearly; float64, CPU, sorted."""
        if not self._chunks:
            return torch.empty(0, 4, dtype=torch.float64)
        pairs = torch.cat([chunk.cpu() for chunk in self._chunks])
        # Sorted, so that rounding does not depend on the order of batches and ranks.
        for column in (3, 2, 0, 1):
            pairs = pairs[pairs[:, column].argsort(stable=True)]
        self._chunks = [pairs]
        return pairs

    def gathered(self, group: dist.ProcessGroup | None = None) -> NumericMetrics:
        """Gather the pairs of all ranks; a collective operation with the same result on every rank.

        Args:
            group: process group. Default: all processes, or this one alone without `torch.distributed`.

        Returns:
            A new object. Examples that a sampler repeats to fill the last batch count twice.
        """
        result = copy.copy(self)
        result._chunks = gather(self._pairs(), group)
        return result


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Gather tensors of any length from all ranks, on the CPU.

    Without `torch.distributed`, return this tensor alone.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [tensor.cpu()]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, tensor.cpu(), group=group)
    return gathered


def _scipy_stats() -> Any:
    try:
        return importlib.import_module("scipy.stats")
    except ImportError as error:
        raise ImportError(
            "pearson and spearman need scipy: pip install 'ntloss[metrics]', or choose other metrics, "
            "NumericMetrics(metrics=['accuracy', 'mae'])"
        ) from error


def _mean(numbers: Tensor) -> float:
    return float(numbers.mean()) if len(numbers) else math.nan


def _in_range(numbers: Tensor) -> tuple[Tensor, float]:
    """Divide numbers by a power of two so that their squares and sums are finite; also return the power."""
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    scale = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
    return numbers / scale, scale


def _is_constant(numbers: Tensor) -> bool:
    return len(numbers) < 2 or bool((numbers == numbers[0]).all())


def _errors(predicted: Tensor, true: Tensor) -> dict[str, float]:
    if not len(true):
        return dict.fromkeys(("mae", "medae", "rmse", "r2"), math.nan)
    both, scale = _in_range(torch.stack([predicted, true]))
    error = both[0] - both[1]
    ordered = (predicted - true).abs().sort().values
    middle = ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2
    squared = error.square().sum()
    spread = (both[1] - both[1].mean()).square().sum()
    return {
        "mae": float(error.abs().mean()) * scale,
        "medae": float(middle),
        "rmse": math.sqrt(squared / len(error)) * scale,
        "r2": math.nan if _is_constant(true) else float(1 - squared / spread),
    }


def _relative_errors(predicted: Tensor, true: Tensor) -> dict[str, float]:
    predicted, true = predicted / 2, true / 2  # so that differences of huge numbers are finite
    error, size = (predicted - true).abs(), predicted.abs() + true.abs()
    return {
        "mape": _mean((error / true.abs())[true != 0]),
        "smape": _mean(torch.where(size > 0, 2 * (error / size), 0)),
    }


def _correlations(predicted: Tensor, true: Tensor, names: Sequence[str]) -> dict[str, float]:
    if not names or _is_constant(predicted) or _is_constant(true):
        return dict.fromkeys(names, math.nan)
    functions: dict[str, Callable[..., Any]] = {
        "pearson": _scipy_stats().pearsonr,
        "spearman": _scipy_stats().spearmanr,
    }
    # Each side has its own scale, on which correlations do not depend.
    columns = [_in_range(x)[0].numpy() for x in (predicted, true)]
    return {name: float(functions[name](*columns).statistic) for name in names}


def _digits(numbers: Tensor) -> Tensor:
    """Count the digits before the decimal point; a logarithm would round 999,999,999,999,999.9 up."""
    powers = torch.tensor([float(f"1e{i}") for i in range(309)], dtype=torch.float64)
    return torch.searchsorted(powers, numbers.abs().contiguous(), right=True).clamp(min=1)
