"""What a reading returns: for one prompt numbers, for a batch tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from ntloss.results import Result, axes

_MOST_BARS = 40
_LIKELY = 0.5  # the probability that a number begins, below which a printed reading says so


@dataclass(frozen=True)
class NumberQuantiles:
    """Quantiles of the number that follows each prompt; float64, on the prompts' device.

    All are NaN if the model writes no number. Errors are those of the reading, not of the model.

    Args:
        levels: the requested levels, each between 0 and 1.
        values: `[batch, levels]`, for each level q the smallest number that the model's number does not
            exceed with probability q.
        lower: `[batch, levels]`, lower 95 % bounds of the values; equal to them where the reading is exact.
            Where smaller numbers may have been missed, the end of the range that is read, or minus infinity.
        upper: `[batch, levels]`, upper 95 % bounds; likewise, with the upper end or infinity.
        mean: `[batch]`, the mean of the numbers; NaN for a fixed width.
        mean_error: `[batch]`, 1.96 standard errors of the mean. It is no bound: where numbers have many
            lengths, rare large ones may be missed.
        starts: `[batch]`, the probability that a number starts at the end of the prompt.
        ends: `[batch]`, the probability that a number that starts also ends within the digits that are read:
            `max_digits`, or exactly those of a fixed width.
        continues: `[batch]`, the probability that a number that is read goes on with what is not read, so
            that it is only a part of what the model writes: the `/2` of `1/2`, or digits after a fixed width.
        passes: number of calls of the model.
        rows: number of rows in all calls.
        distributions: for each prompt the numbers that were read, `[numbers]` in ascending order, and their
            probabilities, `[numbers]`, which add up to 1. Empty for a fixed width, whose quantiles are found
            without the other numbers.
    """

    levels: tuple[float, ...]
    values: Tensor
    lower: Tensor
    upper: Tensor
    mean: Tensor
    mean_error: Tensor
    starts: Tensor
    ends: Tensor
    continues: Tensor
    passes: int
    rows: int
    distributions: tuple[tuple[Tensor, Tensor], ...] = field(default=(), repr=False)

    def row(self, index: int) -> NumberReading:
        """Return the reading of one prompt, with a median if 0.5 is among the levels."""
        of_row: dict[str, Any] = {
            name: column[index : index + 1]
            for name, column in vars(self).items()
            if isinstance(column, Tensor)
        }
        values = dict(zip(self.levels, self.values[index].tolist(), strict=True))
        return NumberReading(
            values.get(0.5, math.nan),
            values[min(values)],
            values[max(values)],
            float(self.starts[index]),
            float(self.ends[index]),
            float(self.continues[index]),
            replace(self, distributions=self.distributions[index : index + 1], **of_row),
        )


@dataclass(frozen=True, repr=False)
class NumberReading(Result):
    """A number that a model is about to write; printed as `11 [2, 30]`. NaN if it writes none.

    If a number begins with a probability below 0.5, the printed reading says so: the model may write
    something else, such as `eight`.

    Args:
        median: the 0.5-quantile: with a probability of 0.5 or more, the number is this one or a smaller one.
        low: the quantile of the lowest level, the interval's lower end.
        high: the quantile of the highest level, the interval's upper end.
        starts, ends, continues: probabilities of such a number; see `NumberQuantiles`.
        details: all levels with the errors of the reading, the mean, and what it cost; of one prompt.
    """

    median: float
    low: float
    high: float
    starts: float
    ends: float
    continues: float
    details: NumberQuantiles

    def __str__(self) -> str:
        if math.isnan(self.median):
            return "no number"
        median, low, high = (f"{number:.15g}" for number in (self.median, self.low, self.high))
        rare = self.starts < _LIKELY
        said = f" (a number begins here with a probability of {self.starts:.2g})" if rare else ""
        return f"{median} [{low}, {high}]{said}"

    def _rows(self) -> dict[Any, dict[str, Any]]:
        columns = {name: value for name, value in vars(self).items() if name != "details"}
        return {"": {**columns, "mean": float(self.details.mean)}}

    @property
    def distribution(self) -> dict[float, float]:
        """Each number that was read, with its probability; empty for a fixed width."""
        found: dict[float, float] = {}
        for numbers, shares in self.details.distributions:
            found |= zip(numbers.tolist(), shares.tolist(), strict=True)
        return found

    def plot(self, ax: Any = None) -> Any:
        """Draw the numbers with their probabilities, the median, and the interval; return the axes.

        Numbers of few steps are bars, others a density; those farther from the interval than its width are
        left out. The density of a fixed width is uniform between the levels that were read, so read more of
        them for a finer figure.

        Args:
            ax: axes of matplotlib. Default: new ones.
        """
        ax = axes(ax)
        if math.isnan(self.median):
            ax.set_title("no number")
            return ax
        low, high = self.low, self.high
        ax.axvspan(low, high, color="tab:blue", alpha=0.15, linewidth=0, label=f"[{low:.15g}, {high:.15g}]")
        shares, width = self.distribution, high - low
        inside = [number for number in sorted(shares) if low - width <= number <= high + width]
        weights = [shares[number] for number in inside]
        gap = min((after - before for before, after in pairwise(inside)), default=1.0)
        has_bars = bool(inside) and inside[-1] - inside[0] < _MOST_BARS * gap
        if has_bars:
            ax.bar(inside, weights, width=0.8 * gap)
        elif inside:
            ax.hist(inside, bins=_MOST_BARS, weights=weights, density=True)
        elif width:
            points = sorted(zip(self.details.values[0].tolist(), self.details.levels, strict=True))
            steps = [(a, b, (q - p) / (b - a)) for (a, p), (b, q) in pairwise(points) if b > a]
            ax.stairs([height for *_, height in steps], [*(a for a, *_ in steps), high], fill=True)
        ax.set_ylabel("probability" if has_bars else "density")
        ax.axvline(self.median, color="black", label=f"median {self.median:.15g}")
        ax.set_xlabel("number")
        ax.legend()
        return ax


@dataclass(frozen=True, repr=False)
class WrittenNumber(Result):
    """A number of an answer, and what the model would have written in its place; printed as both.

    Args:
        text: the number as it is written.
        start: the index of its first character in the answer.
        value: the number.
        probability: the probability of that value, of all numbers that the model writes there.
        reading: the model's number after the answer up to there.
    """

    text: str
    start: int
    value: float
    probability: float
    reading: NumberReading

    def __str__(self) -> str:
        return f"{self.text} (with probability {self.probability:.2g}; {self.reading})"

    def _rows(self) -> dict[Any, dict[str, Any]]:
        (columns,) = self.reading._rows().values()
        return {self.text: {"value": self.value, "probability": self.probability, **columns}}
