r"""How good predicted numbers are: metrics of whole numbers, from texts, token ids or floats.

    metrics = NumericMetrics()
    for batch in batches:
        metrics.update(decoded_texts, targets)
    results = metrics.gathered().compute()  # over all ranks

Median error and rank correlation need every pair of numbers, so that is what is kept, 24 bytes for each:
streaming, merging and gathering are then concatenation, and no result depends on their order. (That is also
why this is no torchmetrics: its streaming sums would save nothing, default to float32, and call the R² of
constant targets 0 or 1.) For teacher-forced metrics of tokens, see `ntloss.token_metrics`.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.decoding import make_decoder
from ntloss.parsing import Which, parse_number

METRICS = (
    "count",
    "skipped",
    "invalid",
    "invalid_rate",
    "exact_match",
    "accuracy",
    "accuracy_of_valid",
    "mae",
    "median_ae",
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
    r"""Metrics of predicted numbers, over as many batches and ranks as there are.

    A prediction without a number, or with NaN, is *invalid*. An infinite one (`1e400`, or a thousand digits)
    is clipped like any other large one, and invalid only without `clip`. A target without a number is
    *skipped*, prediction and all. With $\hat x$ and $x$ the valid predictions and their targets, clipped to
    $\pm$ `clip`, $e = \hat x - x$ and $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$:

    ===================== =======================================================================
    `count`               pairs given
    `skipped`             of these, targets without a number
    `invalid`             of the rest, predictions that are invalid
    `invalid_rate`        `invalid` / (`count` - `skipped`), 0 to 1
    `exact_match`         share of *all* pairs whose texts are equal, white space around them aside; whose
                          numbers are equal, where either side was given as numbers
    `accuracy`            share of pairs with $|\hat x - x| \le atol + rtol |x|$ (`np.isclose`), before
                          clipping; an invalid prediction is wrong
    `accuracy_of_valid`   the same share of the valid predictions alone
    `mae`, `median_ae`    mean and median of $|e|$, in the numbers' units, as `rmse` is
    `rmse`                $\sqrt{\mathrm{mean}(e^2)}$
    `r2`                  $1 - \sum e^2 / \sum (x - \bar x)^2$; NaN for constant targets
    `log_mae` and so on   `mae`, `rmse`, `r2` of $s(\hat x)$ and $s(x)$, as the paper reports them
    `pearson`             linear correlation; NaN where either side is constant
    `spearman`            rank correlation, ties with their mean rank; NaN likewise
    `mape`                mean of $|e| / |x|$ where $x \ne 0$: a fraction, 0.1 is 10 %
    `smape`               mean of $2 |e| / (|\hat x| + |x|)$, 0 to 2; 0 where both are 0
    `digit_count_error`   mean difference in the count of digits before the point, before clipping: 999 for
                          1000 differs by 1
    ===================== =======================================================================

    All but the first seven are over valid predictions, so read them together with `invalid_rate`: a model
    that answers only what is easy has a small error. What has nothing to average over is NaN.

    Args:
        tokenizer: what decodes token ids: a tokenizer, a function from rows of ids to texts, or a
            `NumberVocabulary` (see `decoding.read_generation`). Default: token ids are not taken.
        which: the number of a text that counts, on both sides; see `parse_number`. Default: "last".
        clip: largest absolute value. Default: 1e10, as in the paper; None for no limit.
        rtol: relative tolerance of `accuracy`. Default: 1e-5.
        atol: absolute tolerance of `accuracy`. Default: 1e-8.
        metrics: names of what to compute. Default: all.

    Raises:
        ImportError: scipy is missing, which `pearson` and `spearman` need.
        ValueError: an unknown metric, or a limit or tolerance out of range.

    Source: "Regress, Don't Guess", ICML 2025 (last number, `np.isclose`, clipping, log scale, invalid ones
    counted).

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
        tokenizer: Any = None,
        which: Which = "last",
        clip: float | None = 1e10,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        metrics: Sequence[str] | None = None,
    ) -> None:
        names = METRICS if metrics is None else metrics
        if unknown := sorted(set(names) - set(METRICS)):
            raise ValueError(f"metrics={unknown}: expected some of {', '.join(METRICS)}")
        if not (clip is None or clip > 0) or not (rtol >= 0 and atol >= 0):
            raise ValueError(
                f"clip={clip}, rtol={rtol}, atol={atol}: expected a clip above 0 or None, and tolerances of "
                "0 or more"
            )
        parse_number("", which)  # an unknown one is told now, and so is a missing scipy
        if set(names) & set(_NEED_SCIPY):
            _scipy_stats()
        self.names = tuple(name for name in METRICS if name in names)
        self.which = which
        self.clip = clip
        self.rtol = rtol
        self.atol = atol
        self._decode = None if tokenizer is None else make_decoder(tokenizer)
        self._chunks: list[Tensor] = []

    def update(self, predictions: Any, targets: Any) -> NumericMetrics:
        """Add a batch.

        Args:
            predictions: `[batch]`: texts; numbers, None or NaN for none (a list, array or tensor, which may
                stay on its device: nothing is copied to the host before `compute`); or rows of token ids,
                `[batch, seq]`, where negative ids are dropped.
            targets: `[batch]`, the same; need not be of the same kind.

        Returns:
            Itself.

        Raises:
            TypeError: neither texts nor numbers nor token ids; token ids without a tokenizer.
            ValueError: not as many targets as predictions; numbers of another shape than `[batch]`.
        """
        predicted, predicted_texts = self._read(predictions, "predictions")
        true, true_texts = self._read(targets, "targets")
        if len(predicted) != len(true):
            raise ValueError(
                f"{len(predicted)} predictions for {len(true)} targets: expected one for each. Pass None for "
                "a prediction that is no number."
            )
        true = true.to(predicted.device)
        if predicted_texts is None or true_texts is None:
            exact = (predicted == true).double()
        else:
            pairs = zip(predicted_texts, true_texts, strict=True)
            exact = torch.tensor([float(a.strip() == b.strip()) for a, b in pairs], dtype=torch.float64)
        self._chunks.append(torch.stack([predicted, true, exact], -1))
        return self

    def _read(self, given: Any, name: str) -> tuple[Tensor, list[str] | None]:
        """`[batch]`, float64, and the texts where there are any."""
        kind = getattr(getattr(given, "dtype", None), "kind", None)  # of NumPy's arrays
        if isinstance(given, Tensor) or (kind is not None and kind in "fiub"):
            given = torch.as_tensor(given)
            if given.is_floating_point() and given.dim() != 1:
                raise ValueError(f"{name} of shape {list(given.shape)}: expected numbers as [batch]")
            if given.dim() == 1:
                device = "cpu" if given.device.type == "mps" else given.device  # it has no float64
                return given.detach().to(device, torch.float64), None
            given = given.tolist()
        items = [] if isinstance(given, (str, Mapping)) else list(given)
        if all(isinstance(item, str) for item in items) and not isinstance(given, (str, Mapping)):
            return self._parse(items), items
        if all(item is None or isinstance(item, (int, float)) for item in items) and items:
            return torch.tensor([_as_float(item) for item in items], dtype=torch.float64), None
        if not items or not all(hasattr(item, "__len__") and not isinstance(item, str) for item in items):
            kinds = sorted({type(item).__name__ for item in items}) or type(given).__name__
            raise TypeError(
                f"{name}: given {kinds}; expected a list of texts, of numbers (None for none), or of rows "
                "of token ids"
            )
        if self._decode is None:
            raise TypeError(
                f"{name}: token ids need a tokenizer: NumericMetrics(tokenizer=tokenizer). Numbers are "
                "expected as [batch]."
            )
        texts = self._decode([[int(i) for i in row if i >= 0] for row in items])
        return self._parse(texts), texts

    def _parse(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor(
            [_as_float(parse_number(text, self.which)) for text in texts], dtype=torch.float64
        )

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far; more may follow.

        Returns:
            Metric by name, in the order of `METRICS`; NaN where one is not defined.
        """
        predicted, true, exact = self._pairs().unbind(-1)
        results: dict[str, float] = {"count": len(true), "exact_match": _mean(exact)}
        counted = self._is_number(true)
        predicted, true = predicted[counted], true[counted]
        valid = self._is_number(predicted)
        close = torch.isclose(predicted, true, rtol=self.rtol, atol=self.atol) & predicted.isfinite()
        results["skipped"] = int((~counted).sum())
        results["invalid"] = int((~valid).sum())
        results["invalid_rate"] = _mean((~valid).double())
        results["accuracy"] = _mean(close.double())
        results["accuracy_of_valid"] = _mean(close[valid].double())
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
        """`[pairs, 3]`: prediction, target, whether they match; float64, CPU, in an order of their own."""
        if not self._chunks:
            return torch.empty(0, 3, dtype=torch.float64)
        pairs = torch.cat([chunk.cpu() for chunk in self._chunks])
        # Sorted, so that rounding is the same in whatever order batches and ranks came.
        for column in (2, 0, 1):
            pairs = pairs[pairs[:, column].argsort(stable=True)]
        self._chunks = [pairs]
        return pairs

    def reset(self) -> None:
        """Forget all batches."""
        self._chunks = []

    def merge(self, other: NumericMetrics) -> NumericMetrics:
        """Add the batches of another one, whose options do not matter.

        Args:
            other: left as it is.

        Returns:
            Itself.

        Example:
            >>> one, other = (NumericMetrics(metrics=["mae"]).update([x], [0.0]) for x in (1.0, 2.0))
            >>> one.merge(other).compute()
            {'mae': 1.5}
        """
        self._chunks = [*self._chunks, *other._chunks]
        return self

    def gathered(self, group: dist.ProcessGroup | None = None) -> NumericMetrics:
        """The metrics of all ranks; each rank must call it, and each gets the same.

        Args:
            group: of processes. Default: all; without `torch.distributed`, this process alone.

        Returns:
            A new one, so that this one can go on. With a sampler that repeats examples to fill up the last
            batch, these count twice.
        """
        result = copy.copy(self)
        result._chunks = gather(self._pairs(), group)
        return result

    def state_dict(self) -> dict[str, Tensor]:
        """What to save: `pairs`, `[pairs, 3]`, float64: prediction, target, whether they match exactly."""
        return {"pairs": self._pairs().clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave, in place of all batches so far.

        Raises:
            ValueError: it is not of this kind.
        """
        pairs = state.get("pairs")
        if pairs is None or pairs.dim() != 2 or pairs.shape[-1] != 3:
            raise ValueError(
                f"state with {sorted(state)}: expected 'pairs' of shape [pairs, 3], as state_dict gives"
            )
        self._chunks = [pairs.to(torch.float64)]


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """The tensors of all ranks, of any length, on the CPU; this one's alone without `torch.distributed`."""
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
            "pearson and spearman need scipy: pip install 'ntloss[metrics]', or name the metrics that you "
            "want, NumericMetrics(metrics=['accuracy', 'mae'])"
        ) from error


def _as_float(number: float | None) -> float:
    if number is None:
        return math.nan
    try:
        return float(number)
    except OverflowError:  # an int of more than 308 digits
        return math.inf if number > 0 else -math.inf


def _mean(numbers: Tensor) -> float:
    return float(numbers.mean()) if len(numbers) else math.nan


def _in_range(numbers: Tensor) -> tuple[Tensor, float]:
    """The numbers over a power of two that keeps their squares and sums finite, and that power."""
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    scale = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
    return numbers / scale, scale


def _is_constant(numbers: Tensor) -> bool:
    return len(numbers) < 2 or bool((numbers == numbers[0]).all())


def _errors(predicted: Tensor, true: Tensor) -> dict[str, float]:
    if not len(true):
        return dict.fromkeys(("mae", "median_ae", "rmse", "r2"), math.nan)
    both, scale = _in_range(torch.stack([predicted, true]))
    error = both[0] - both[1]
    ordered = (predicted - true).abs().sort().values
    middle = ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2
    squared = error.square().sum()
    spread = (both[1] - both[1].mean()).square().sum()
    return {
        "mae": float(error.abs().mean()) * scale,
        "median_ae": float(middle),
        "rmse": math.sqrt(squared / len(error)) * scale,
        "r2": math.nan if _is_constant(true) else float(1 - squared / spread),
    }


def _relative_errors(predicted: Tensor, true: Tensor) -> dict[str, float]:
    predicted, true = predicted / 2, true / 2  # a difference of two huge ones stays finite
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
    # Each side by a scale of its own: correlations do not see it.
    columns = [_in_range(x)[0].numpy() for x in (predicted, true)]
    return {name: float(functions[name](*columns).statistic) for name in names}


def _digits(numbers: Tensor) -> Tensor:
    """Count of digits before the point; exact, where a logarithm would round 999,999,999,999,999.9 up."""
    powers = torch.tensor([float(f"1e{i}") for i in range(309)], dtype=torch.float64)
    return torch.searchsorted(powers, numbers.abs().contiguous(), right=True).clamp(min=1)
