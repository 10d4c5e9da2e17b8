"""Criteria of transport: Wasserstein and CRPS."""

from __future__ import annotations

import numpy as np
import torch
from criterion_cases import SPACED, make_input
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntloss import CRPS


@given(
    truth=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    predicted=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
)
def test_expected_crps_exceeds_its_minimum_by_the_distance_of_the_cumulative_probabilities(
    truth: list[float], predicted: list[float]
) -> None:
    # So it is strictly proper: the distance is 0 for equal distributions alone.
    q, p = (np.array(weights) / sum(weights) for weights in (truth, predicted))

    def expected(distribution: np.ndarray) -> float:
        return sum(q[k] * float(CRPS()(make_input(distribution, SPACED, k))) for k in range(len(SPACED)))

    distance = ((p.cumsum() - q.cumsum())[:-1] ** 2 * np.diff(SPACED)).sum()
    assert expected(p) - expected(q) == approx(distance, dtype=torch.float64, scale=7.0)
