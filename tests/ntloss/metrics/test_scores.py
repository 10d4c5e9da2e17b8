"""Agreement of scores and the ranked probability score, against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntloss import CRPS, NumberTokenLoss, NumberVocabulary
from ntloss.metrics import ScoreMetrics

SCORES = (0, 1, 2, 4, 10)
PAIRS = st.lists(st.tuples(st.sampled_from(SCORES), st.sampled_from(SCORES)), min_size=1, max_size=20)


@given(pairs=PAIRS)
def test_the_kappa_matches_its_definition_for_any_batching(pairs: list[tuple[int, int]]) -> None:
    predicted, true = np.array(pairs, dtype=float).T
    observed = ((predicted - true) ** 2).mean()
    by_chance = np.mean([(p - t) ** 2 for p in predicted for t in true])
    metrics = ScoreMetrics(SCORES)
    for start in range(0, len(pairs), 3):
        metrics.update(predicted[start : start + 3], true[start : start + 3])
    expected = 1 - observed / by_chance if by_chance else math.nan
    assert metrics.compute()["quadratic_kappa"] == approx(expected, dtype=torch.float64, scale=1)


def test_the_ranked_probability_score_is_the_crps_of_the_scores() -> None:
    vocabulary = NumberVocabulary.from_mapping({i: float(s) for i, s in enumerate(SCORES)}, len(SCORES))
    logits = torch.randn(7, len(SCORES), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 4])
    targets = [SCORES[label] for label in labels]
    results = ScoreMetrics(SCORES).update([None] * 7, targets, logits.softmax(-1)).compute()
    expected = NumberTokenLoss(vocabulary, CRPS())(logits, labels)
    assert results["rps"] == approx(float(expected), dtype=torch.float64)
    assert results["invalid_rate"] == 1


def test_a_certain_prediction_has_its_absolute_error_as_its_score() -> None:
    certain = torch.eye(len(SCORES))
    results = ScoreMetrics(SCORES).update([2, 10], ["1", "4"], certain[[2, 4]]).compute()
    assert results["rps"] == (1 + 6) / 2


def test_texts_are_read_and_what_is_no_score_is_counted() -> None:
    metrics = ScoreMetrics().update(["Score: 7", "7.5", ""], [7, 7, 7]).update([3.0, 11.0], [0.0, 5.0])
    results = metrics.compute()
    assert list(results) == ["count", "skipped", "invalid", "invalid_rate", "quadratic_kappa", "rps"]
    assert [results[name] for name in ("count", "skipped", "invalid")] == [5, 1, 3]
    assert results["invalid_rate"] == 3 / 4
    assert math.isnan(results["quadratic_kappa"])  # one pair is left
    assert math.isnan(results["rps"])
    assert ScoreMetrics(which="first").update(["7 of 10"], ["7"]).compute()["invalid"] == 0


def test_rows_whose_target_is_no_score_have_no_ranked_probability_score() -> None:
    results = ScoreMetrics((1, 2)).update([1, 1], [1, None], [[0.5, 0.5], [0.0, 1.0]]).compute()
    assert results["rps"] == 0.25


def test_without_pairs_means_are_nan() -> None:
    for metrics in (ScoreMetrics(), ScoreMetrics().update([], [])):
        results = metrics.compute()
        assert results["count"] == 0
        assert all(math.isnan(results[name]) for name in ("invalid_rate", "quadratic_kappa", "rps"))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (([1], [1, 2]), "1 predictions for 2 targets"),
        (([1], [1], [[0.5, 0.5]]), r"shape \[1, 2\]: expected \[batch, scores\], \[1, 3\]"),
        (([1], [1], [[0.5, 0.5, 0.5]]), "expected numbers from 0 that add up to 1"),
        (([1], [1], [[1.5, -0.5, 0.0]]), "expected numbers from 0 that add up to 1"),
        (([1], [1], [[math.nan, 0.5, 0.5]]), "expected numbers from 0 that add up to 1"),
    ],
)
def test_batches_that_do_not_fit_are_errors(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreMetrics((1, 2, 3)).update(*inputs)


@pytest.mark.parametrize("options", [{"scores": [1]}, {"scores": (2, 1)}, {"which": "any"}])
def test_invalid_options_are_errors(options: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        ScoreMetrics(**options)
