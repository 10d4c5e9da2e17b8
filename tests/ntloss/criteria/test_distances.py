"""Criteria that measure the distance from the label's value."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from criterion_cases import SPACED, make_input
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx, assert_close

from ntloss import (
    CRPS,
    SMMD,
    ExpectedValue,
    NumberTokenLoss,
    NumberVocabulary,
)


@given(
    truth=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    predicted=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
)
def test_expected_crps_exceeds_its_minimum_by_the_distance_of_the_cumulative_probabilities(truth, predicted):
    # So it is strictly proper: the distance is 0 for equal distributions alone.
    q, p = (np.array(weights) / sum(weights) for weights in (truth, predicted))

    def expected(distribution):
        return sum(q[k] * float(CRPS()(make_input(distribution, SPACED, k))) for k in range(len(SPACED)))

    distance = ((p.cumsum() - q.cumsum())[:-1] ** 2 * np.diff(SPACED)).sum()
    assert expected(p) - expected(q) == approx(distance, dtype=torch.float64, scale=7.0)


def test_expected_value_over_the_vocabulary_needs_the_mass():
    x = make_input([0.5, 0.5, 0, 0, 0], SPACED, 0)
    with pytest.raises(ValueError, match=r"log_mass is None, but ExpectedValue.*all number tokens"):
        ExpectedValue(over="vocabulary")(replace(x, log_mass=None))


@pytest.mark.parametrize(
    ("given_loss", "named"),
    [
        (F.mse_loss, "squared"),
        (F.l1_loss, "absolute"),
        (F.huber_loss, "huber"),
        (F.smooth_l1_loss, "huber"),
        (partial(F.huber_loss, delta=1.0), "huber"),
        (partial(F.mse_loss, reduction="none"), "squared"),
        (torch.nn.MSELoss(reduction="none"), "squared"),
        (lambda p, t: (p - t) ** 2, "squared"),
    ],
)
def test_expected_value_takes_callables(given_loss, named):
    made = make_input([0.1, 0.2, 0.3, 0.2, 0.2], [0.0, 1.0, 2.5, 4.0, 100.0], 3)
    assert_close(ExpectedValue(given_loss)(made), ExpectedValue(named)(made))


def test_smmd_without_squashing_accepts_equally_spaced_values():
    NumberTokenLoss(NumberVocabulary.from_mapping({0: 0, 1: 5}, vocab_size=3), SMMD(squash_factor=None))
