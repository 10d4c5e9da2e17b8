"""Metrics of predicted numbers."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tolerances import approx

from ntl.metrics import number_metrics


def test_metrics_match_figures_computed_by_hand():
    texts = ["I say 10.", "no idea", " 3 ", "-8", "1,000"]
    result = number_metrics(texts, ["10", "5", "3", "-4", "x"])
    expected = {
        "count": 5,
        "skipped": 1,  # "x"
        "invalid": 1,  # "no idea"
        "invalid_rate": 1 / 4,
        "exact_match": 1 / 5,  # only " 3 ": "I say 10." differs from "10"
        "accuracy": 2 / 4,
        "accuracy_of_valid": 2 / 3,
        "mae": 4 / 3,
        "medae": 0,
        "rmse": math.sqrt(16 / 3),
        "r2": 1 - 16 / 98,  # targets 10, 3, -4: mean 3
        "log_mae": (math.log10(9) - math.log10(5)) / 3,
        "log_rmse": (math.log10(9) - math.log10(5)) / math.sqrt(3),
        "spearman": 1,
    }
    assert {name: result[name] for name in expected} == approx(expected)


@pytest.mark.parametrize("count", [500, 501])  # the median of an even number of errors is between two
@pytest.mark.parametrize("clip", [None, 1e10, 1e3])
def test_metrics_match_numpy_and_scipy(clip, count):
    generator = np.random.default_rng(0)
    true = generator.normal(size=count) * 10 ** generator.uniform(-3, 6, size=count)
    predicted = true * (1 + 0.1 * generator.normal(size=count))
    predicted[::7] = true[::7]
    predicted[1::50] = predicted[1]  # ties have their mean rank
    result = number_metrics(predicted, true, clip=clip)

    limit = math.inf if clip is None else clip
    assert result["accuracy"] == np.isclose(predicted, true).mean()
    p, t = predicted.clip(-limit, limit), true.clip(-limit, limit)
    expected = {
        "mae": np.abs(p - t).mean(),
        "medae": np.median(np.abs(p - t)),
        "rmse": np.sqrt(np.mean((p - t) ** 2)),
        "r2": 1 - np.sum((p - t) ** 2) / np.sum((t - t.mean()) ** 2),
        "pearson": stats.pearsonr(p, t).statistic,
        "spearman": stats.spearmanr(p, t).statistic,
    }
    p, t = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (p, t))
    expected["log_mae"] = np.abs(p - t).mean()
    expected["log_rmse"] = np.sqrt(np.mean((p - t) ** 2))
    expected["log_r2"] = 1 - np.sum((p - t) ** 2) / np.sum((t - t.mean()) ** 2)
    assert {name: result[name] for name in expected} == approx(expected, dtype=torch.float64)


def test_correlations_of_constants_and_r2_of_constant_targets_are_nan():
    result = number_metrics([1.0, 2.0, 4.0], [3.0, 3.0, 3.0])
    assert all(math.isnan(result[name]) for name in ("r2", "log_r2", "pearson", "spearman"))
    assert result["mae"] == approx(4 / 3)
    result = number_metrics([3.0, 3.0, 3.0], [1.0, 2.0, 6.0])
    assert math.isnan(result["pearson"])
    assert result["r2"] == 0
    # Numbers that are far from zero and close together are not constant.
    assert number_metrics([1e9, 1e9 + 1], [1e9, 1e9 + 1])["r2"] == 1
    assert math.isnan(number_metrics([1.0], [1.0])["r2"])


def test_nan_is_invalid_and_infinity_is_clipped():
    result = number_metrics([math.nan, math.inf, 1.0], [1.0, 0.0, 1.0])
    assert (result["invalid"], result["mae"]) == (1, 5e9)
    result = number_metrics([math.nan, math.inf, 1.0], [1.0, 0.0, 1.0], clip=None)
    assert (result["invalid"], result["mae"]) == (2, 0)
    # A number too large for a float is clipped, too.
    assert number_metrics(["-" + "9" * 5000], ["1"])["mae"] == 1e10 + 1
    # Clipping does not make two numbers equal.
    assert number_metrics([2e10], [3e10])["accuracy"] == 0
