"""Metrics of scores, such as grades from 1 to 10: agreement, and the distribution that a model gives them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.metrics.accumulator import Accumulator, read_answers, read_numbers
from ntloss.numbers.parsing import Which

_ROUNDING = 0.01  # of probabilities in half precision


class ScoreMetrics(Accumulator):
    r"""Metrics of predicted scores over any number of batches and ranks.

    With the share $O_{ij}$ of the valid pairs with the predicted score $s_i$ and the true score $s_j$, its
    expectation by chance $E_{ij} = \sum_k O_{ik} \sum_k O_{kj}$ and $w_{ij} = (s_i - s_j)^2$:

    =================== =======================================================================
    `count`             number of pairs
    `skipped`           pairs whose target is none of the scores
    `invalid`           other pairs whose prediction is none of the scores
    `invalid_rate`      `invalid` / (`count` - `skipped`), 0 to 1
    `quadratic_kappa`   $1 - \sum_{ij} w_{ij} O_{ij} / \sum_{ij} w_{ij} E_{ij}$: 1 for equal scores, 0 for
                        chance; NaN where all predictions and targets are one score
    `rps`               mean ranked probability score, $\sum_k (F_k - 1[s_k \ge x])^2 (s_{k+1} - s_k)$ with
                        the target $x$ and the cumulative probabilities $F_k$, in the scores' units: the
                        absolute error of a certain prediction. It needs no valid prediction; NaN without
                        probabilities
    =================== =======================================================================

    Args:
        scores: the scores in ascending order. Default: 1 to 10.
        which: which number of a text is its score; see `parse_number`. Default: "last".

    Raises:
        ValueError: fewer than two scores, scores that do not ascend, or an unknown `which`.

    Source: Cohen, "Weighted Kappa", Psychological Bulletin 1968; Epstein, "A Scoring System for Probability
    Forecasts of Ranked Categories", Journal of Applied Meteorology 1969.

    Example:
        >>> from ntloss.metrics import ScoreMetrics
        >>> metrics = ScoreMetrics(scores=range(1, 4))
        >>> probabilities = [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
        >>> results = metrics.update(["Score: 3", "1", "2"], [3, 1, 3], probabilities).compute()
        >>> round(results["quadratic_kappa"], 3), round(results["rps"], 3)
        (0.8, 0.333)
    """

    def __init__(self, scores: Sequence[float] = range(1, 11), which: Which = "last") -> None:
        self.scores, self.which = tuple(map(float, scores)), which
        if len(self.scores) < 2 or any(not a < b for a, b in itertools.pairwise(self.scores)):
            raise ValueError(
                f"scores={scores!r}: expected two or more in ascending order, such as range(1, 11)"
            )
        read_answers([""], "scores", which)  # raises now for an unknown `which`
        # count, skipped, invalid, rows with probabilities, sum of their rps; then pairs of each two scores
        super().__init__(5 + len(self.scores) ** 2)

    def update(self, predictions: Any, targets: Any, probabilities: Any = None) -> ScoreMetrics:
        """Add a batch.

        Args:
            predictions: `[batch]`, texts or numbers, with None or NaN for a missing score.
            targets: likewise.
            probabilities: `[batch, scores]`, the probability of each score. Default: none, no `rps`.

        Returns:
            `self`.

        Raises:
            TypeError: neither texts nor numbers.
            ValueError: shapes that do not fit, or probabilities that are negative or do not add up to 1.
        """
        predicted = read_answers(predictions, "predictions", self.which)[0].cpu()
        true = read_answers(targets, "targets", self.which)[0].cpu()
        if len(predicted) != len(true):
            raise ValueError(
                f"{len(predicted)} predictions for {len(true)} targets: expected one for each. Pass None for "
                "a prediction without a score."
            )
        levels = torch.tensor(self.scores, dtype=torch.float64, device="cpu")
        of_predicted, of_true = predicted[:, None] == levels, true[:, None] == levels
        counted = of_true.any(-1)
        valid = counted & of_predicted.any(-1)
        pairs = of_predicted[valid].double().T @ of_true[valid].double()
        scores = torch.zeros(0, dtype=torch.float64, device="cpu")
        if probabilities is not None:
            scores = self._rank_scores(read_numbers(probabilities, "probabilities").cpu(), of_true)[counted]
        counts = [len(true), (~counted).sum(), (counted & ~valid).sum(), len(scores), scores.sum()]
        self._add(torch.cat([torch.tensor(counts, dtype=torch.float64, device="cpu"), pairs.flatten()]))
        return self

    def _rank_scores(self, probabilities: Tensor, of_true: Tensor) -> Tensor:
        """The ranked probability score of each row, `[batch]`."""
        if probabilities.shape != of_true.shape:
            raise ValueError(
                f"probabilities of shape {list(probabilities.shape)}: expected [batch, scores], "
                f"{list(of_true.shape)}"
            )
        fits = ((probabilities.sum(-1) - 1).abs() <= _ROUNDING) & (probabilities >= 0).all(-1)
        if not fits.all():
            raise ValueError(
                f"probabilities {probabilities[~fits][0].tolist()}: expected numbers from 0 that add up "
                "to 1. Pass the softmax over the tokens of the scores."
            )
        error = probabilities.cumsum(-1) - of_true.double().cumsum(-1)
        gaps = torch.tensor(self.scores, dtype=torch.float64, device="cpu").diff()
        return (error[:, :-1].square() * gaps).sum(-1)

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far.

        Returns:
            Name to value, in the order of the table above.
        """
        total = self._total()
        count, skipped, invalid, rows, rps = total[:5].tolist()
        asked = count - skipped
        pairs = total[5:].reshape(len(self.scores), -1)
        levels = torch.tensor(self.scores, dtype=torch.float64, device="cpu")
        weights = (levels[:, None] - levels).square()
        by_chance = (weights * pairs.sum(1)[:, None] * pairs.sum(0)).sum() / pairs.sum()
        return {
            "count": int(count),
            "skipped": int(skipped),
            "invalid": int(invalid),
            "invalid_rate": invalid / asked if asked else math.nan,
            "quadratic_kappa": float(1 - (weights * pairs).sum() / by_chance) if by_chance > 0 else math.nan,
            "rps": rps / rows if rows else math.nan,
        }
