"""Intervals from calibrated levels: split conformal prediction for a model with a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Numbers = NDArray[np.float64]
_OUTERMOST = 1e-9  # levels of quantiles are above 0 and below 1


@dataclass(frozen=True)
class Calibration:
    r"""Levels of a model's quantiles, chosen such that they hold what they promise on new rows.

    Of n calibration rows, the model's probability $F_i(y_i)$ of at most the true answer is known. With k the
    integer part of $(n + 1) q$, the model's quantile at the k-th smallest of them is above a new answer with
    a probability of at most q, because the new answer's rank is uniform; and likewise from above. This holds
    for any model if new rows are exchangeable with the calibration rows. The median is read at the level that
    half of them are below.

    Args:
        below: `[rows]`, the probability of smaller numbers than the true one, ascending.
        upto: `[rows]`, the probability of the true number and smaller ones, ascending.

    Source: "Distributional conformal prediction", PNAS 2021, here with a level for each tail.

    Example:
        >>> too_narrow = np.array([0.0, 0.01, 0.2, 0.4, 0.5, 0.6, 0.8, 0.99, 1.0])
        >>> Calibration.of(too_narrow, too_narrow).level(0.2)
        0.01
    """

    below: Numbers
    upto: Numbers

    @classmethod
    def of(cls, below: Numbers, upto: Numbers) -> Calibration:
        """Sort what a model believes about the true answers of calibration rows."""
        return cls(np.sort(below), np.sort(upto))

    def __len__(self) -> int:
        return len(self.below)

    def level(self, quantile: float) -> float:
        """Return the level at which the model's quantile is read.

        Raises:
            ValueError: there are too few rows for this quantile.
        """
        if quantile == 0.5:
            return float(np.median((self.below + self.upto) / 2))
        tail = min(quantile, 1 - quantile)
        if not (rank := self._rank(tail)):
            raise ValueError(
                f"{len(self)} held-out rows cannot calibrate the quantile {quantile:g}; expected at least "
                f"{math.ceil(round(1 / tail, 9)) - 1}. Fit more rows, or ask for narrower intervals."
            )
        # The quantile at a level is the smallest number whose probability reaches it.
        level = self.upto[rank - 1] if quantile < 0.5 else np.nextafter(self.below[-rank], 1)
        return float(np.clip(level, _OUTERMOST, 1 - _OUTERMOST))

    def covers(self, level: float) -> bool:
        """Return whether there are enough rows for an interval of a level."""
        return self._rank((1 - level) / 2) > 0

    def expected_coverage(self, level: float) -> tuple[float, float]:
        """Return the share of new answers in an interval of a level, as its 95 % interval.

        It follows a beta distribution over sets of calibration rows.
        """
        outside = 2 * self._rank((1 - level) / 2)
        low, high = beta.ppf([0.025, 0.975], len(self) + 1 - outside, outside)
        return float(low), float(high)

    def _rank(self, tail: float) -> int:
        return math.floor(round((len(self) + 1) * tail, 9))

    def to_lists(self) -> list[list[float]]:
        """Return what `from_lists` reads."""
        return [self.below.tolist(), self.upto.tolist()]

    @classmethod
    def from_lists(cls, lists: list[list[float]]) -> Calibration:
        """Make a calibration of what `to_lists` returned."""
        return cls(*(np.array(each) for each in lists))
