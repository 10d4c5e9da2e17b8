"""Criteria that measure the distance from the label's value."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from criterion_cases import DIGITS, SPACED, make_input
from hypothesis import given
from hypothesis import strategies as st
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import (
    CRPS,
    SMMD,
    ExpectedValue,
    NTLCrossEntropyLoss,
    NumberLevel,
    NumberTokenLoss,
    NumberVocabulary,
    Wasserstein,
    ntil,
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


def test_expected_value_over_the_vocabulary_in_place_of_cross_entropy_is_the_loss_of_raft():
    logits = torch.randn(
        12, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    criterion = ExpectedValue("squared", over="vocabulary")
    loss = NTLCrossEntropyLoss(DIGITS, criterion, mode="replace")
    # Of three positions one counts.
    ours = loss(torch.stack([-logits, logits, 2 * logits]), torch.tensor([-100, 7, -100]))
    raft = (logits.softmax(-1)[:10] @ torch.arange(10.0, dtype=torch.float64) - 7) ** 2
    assert_close(ours, raft)
    assert_close(torch.autograd.grad(ours, logits)[0], torch.autograd.grad(raft, logits)[0])


def test_expected_value_over_the_vocabulary_needs_the_mass():
    x = make_input([0.5, 0.5, 0, 0, 0], SPACED, 0)
    with pytest.raises(ValueError, match=r"log_mass is None, but ExpectedValue.*all number tokens"):
        ExpectedValue(over="vocabulary")(replace(x, log_mass=None))


def test_expected_value_and_number_level_are_zero_if_the_mean_is_right():
    halves = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    halves[..., 3] = halves[..., 5] = 0.0
    labels = torch.tensor([[4, 4]])
    for criterion in (ExpectedValue(), NumberLevel()):
        assert NumberTokenLoss(DIGITS, criterion)(halves, labels) < TWO_PATHS[torch.float64]
    for criterion in (Wasserstein(), SMMD(), ntil()):
        assert NumberTokenLoss(DIGITS, criterion)(halves, labels) > 0.1


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
