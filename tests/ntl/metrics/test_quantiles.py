"""Scores of quantiles, against their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntl.metrics.quantiles import crps, interval_metrics

NUMBER = st.floats(-1e3, 1e3, allow_subnormal=False)


@given(values=st.lists(NUMBER, min_size=1, max_size=9), x=NUMBER)
def test_crps_of_equally_likely_values_equals_the_double_sum(values, x):
    n = len(values)
    found = crps([sorted(values)], [x], [(i + 0.5) / n for i in range(n)])
    to_label = np.abs(np.subtract(values, x)).mean()
    between = np.abs(np.subtract.outer(values, values)).mean()
    assert found == approx(float(to_label - between / 2), dtype=torch.float64, scale=2e3)


@given(rows=st.lists(st.tuples(NUMBER, st.floats(0, 1e3), NUMBER), min_size=1, max_size=9))
def test_interval_metrics_match_their_definitions(rows):
    low, width, x = map(np.array, zip(*rows, strict=True))
    high = low + width
    covered, mean_width, score = interval_metrics(low, high, x, 0.9)
    assert covered == np.mean((low <= x) & (x <= high))
    assert mean_width == approx(float(np.mean(high - low)), dtype=torch.float64, scale=2e3)
    penalty = [20 * max(a - c, 0) + 20 * max(c - b, 0) for a, b, c in zip(low, high, x, strict=True)]
    assert score == approx(float(np.mean(high - low + penalty)), dtype=torch.float64, scale=2e5)


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_rows_with_a_missing_number_are_left_out(missing):
    quantiles = [[1.0, 3.0], [1.0, 3.0], [1.0, missing]]
    true = [2.0, missing, 2.0]
    assert crps(quantiles, true, [0.25, 0.75]) == crps(quantiles[:1], true[:1], [0.25, 0.75])
    assert interval_metrics([1.0, 1.0, 1.0], [3.0, 3.0, missing], true, 0.5) == (1.0, 2.0, 2.0)
