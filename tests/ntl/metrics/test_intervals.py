"""Metrics of quantiles, against their definitions."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntl.metrics import QuantileMetrics

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
NUMBER = st.floats(-1e3, 1e3, allow_subnormal=False)
ROWS = st.lists(
    st.tuples(st.lists(NUMBER, min_size=5, max_size=5).map(sorted), NUMBER), min_size=1, max_size=12
)


def mean(values):
    return math.fsum(values) / len(values)


def expected_metrics(rows):
    results: dict[str, float] = {"count": len(rows), "skipped": 0, "invalid": 0, "invalid_rate": 0.0}
    for i, level in enumerate(LEVELS):
        results[f"pinball_{level:g}"] = mean(
            [level * (x - q[i]) if x >= q[i] else (1 - level) * (q[i] - x) for q, x in rows]
        )
    # Each level stands for the part of [0, 1] that is nearest to it.
    weights = {0.05: 0.15, 0.25: 0.225, 0.5: 0.25, 0.75: 0.225, 0.95: 0.15}
    results["crps"] = 2 * sum(weight * results[f"pinball_{level:g}"] for level, weight in weights.items())
    for name, low, high, alpha in (("90", 0, 4, 0.1), ("50", 1, 3, 0.5)):
        results[f"coverage_{name}"] = mean([float(q[low] <= x <= q[high]) for q, x in rows])
        results[f"mean_width_{name}"] = mean([q[high] - q[low] for q, x in rows])
        results[f"interval_score_{name}"] = mean(
            [
                q[high] - q[low] + 2 / alpha * max(q[low] - x, 0) + 2 / alpha * max(x - q[high], 0)
                for q, x in rows
            ]
        )
    return results


def computed(rows, batch=3):
    metrics = QuantileMetrics(LEVELS)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        metrics.update([q for q, _ in part], [x for _, x in part])
    return metrics.compute()


@given(rows=ROWS)
def test_every_metric_matches_its_definition_for_any_batching(rows):
    for batch in (1, 3, 100):
        assert computed(rows, batch) == approx(expected_metrics(rows), dtype=torch.float64, scale=2e4)


@given(values=st.lists(NUMBER, min_size=1, max_size=9), x=NUMBER)
def test_crps_of_equally_likely_values_equals_the_double_sum(values, x):
    n = len(values)
    metrics = QuantileMetrics([(i + 0.5) / n for i in range(n)])
    crps = metrics.update([sorted(values)], [x]).compute()["crps"]
    to_label = mean([abs(v - x) for v in values])
    between = mean([abs(v - w) for v in values for w in values])
    assert crps == approx(to_label - between / 2, dtype=torch.float64, scale=2e3)


def test_missing_predictions_and_targets_are_counted_and_left_out_of_means():
    rows = [[1.0, 2.0, 3.0], [math.nan, 2.0, 3.0], [1.0, 2.0, math.inf], [1.0, 2.0, 3.0]]
    metrics = QuantileMetrics().update(rows, [2.0, 2.0, 2.0, math.nan])
    results = metrics.compute()
    assert [results[name] for name in ("count", "skipped", "invalid")] == [4, 1, 2]
    assert results["invalid_rate"] == approx(2 / 3, dtype=torch.float64)
    assert results["pinball_0.5"] == 0
    assert results["coverage_90"] == 1


def test_without_quantiles_means_are_nan():
    results = QuantileMetrics().compute()
    assert results["count"] == 0
    assert all(math.isnan(results[name]) for name in ("invalid_rate", "crps", "pinball_0.5", "coverage_90"))
    for rows, targets in ((torch.empty(0, 3), torch.empty(0)), ([], [])):
        assert QuantileMetrics().update(rows, targets).compute()["count"] == 0


def test_a_single_quantile_has_a_pinball_loss_and_no_interval():
    results = QuantileMetrics([0.5]).update([[3.0]], [5.0]).compute()
    assert results["pinball_0.5"] == 1
    assert results["crps"] == 2  # of a certain prediction: the absolute error
    assert not any(name.startswith("coverage") for name in results)


def test_levels_of_float32_form_the_same_intervals():
    rows, targets = [[1.0, 2.0, 3.0], [0.0, 5.0, 9.0]], [2.5, -1.0]
    rounded = QuantileMetrics(torch.tensor([0.05, 0.5, 0.95]).tolist()).update(rows, targets).compute()
    assert rounded == approx(QuantileMetrics().update(rows, targets).compute(), scale=20)


@pytest.mark.parametrize(
    "row",
    [
        np.array([1, 2, 3]),
        torch.tensor([1.0, 2.0, 3.0]),
        (np.int64(1), Decimal(2), np.float32(3)),
        np.array([1, 2.0, 3], dtype=object),
    ],
    ids=repr,
)
def test_numbers_of_any_type_are_read(row):
    expected = QuantileMetrics().update([[1.0, 2.0, 3.0]], [2.0]).compute()
    assert QuantileMetrics().update([row], [np.int64(2)]).compute() == approx(expected)


def test_huge_integers_count_as_infinite_and_none_as_missing():
    rows = [[1, 2, 10**400], [1, None, 3], [1, 2, 3], [1, 2, 3]]
    results = QuantileMetrics().update(rows, [2, 2, -(10**400), None]).compute()
    assert [results[name] for name in ("count", "skipped", "invalid")] == [4, 2, 2]


@pytest.mark.parametrize(
    "levels",
    [None, 0.5, "abc", [None], [10**400], (), (0.0, 0.5), (0.5, 0.5), (0.9, 0.1), (0.5, 1.0), (math.nan,)],
)
def test_levels_must_ascend_between_0_and_1_and_differ_in_name(levels):
    with pytest.raises(ValueError, match="expected ascending levels between 0 and 1"):
        QuantileMetrics(levels)
    with pytest.raises(ValueError, match="two levels are equal to six digits"):
        QuantileMetrics((0.1, 0.1000001, 0.5))


@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        ([[1.0, 2.0]], [1.0], r"shape \[1, 2\].*expected \[batch, 3\]"),
        ([[1.0, 2.0, 3.0]], [1.0, 2.0], r"shape \[1, 3\] for targets of shape \[2\]"),
        ([[1.0, 3.0, 2.0]], [1.0], r"\[1.0, 3.0, 2.0\]: expected ascending values.*Sort each row"),
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], [1.0, 2.0], "predictions: expected sequence of length 2"),
        ([["1", "2", "3"]], [1.0], "predictions: expected a number or None, given '1'"),
        ([[1.0, 2.0, 3.0]], ["x"], "targets: expected a number or None, given 'x'"),
        (torch.tensor([[1j, 2.0, 3.0]]), [1.0], "predictions: expected a number or None"),
    ],
)
def test_predictions_that_do_not_fit_raise(predictions, targets, message):
    with pytest.raises((TypeError, ValueError), match=message):
        QuantileMetrics().update(predictions, targets)
