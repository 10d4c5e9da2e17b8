"""Criteria of your own, and probability on text."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from criterion_cases import SPACED, make_input
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx, assert_close

from ntloss import (
    SMMD,
    CriterionInput,
    Dist2,
    GaussianCrossEntropy,
    Reweighed,
)
from ntloss.criteria import SmoothedWasserstein, bind


@dataclass
class Constant:
    loss: float
    largest: float

    def __call__(self, x):
        return torch.full_like(x.log_probs[:, 0], self.loss)

    def worst(self, values):
        return self.largest


def reweighed(loss, log_mass, worst):
    log_probs, values = log_mass.new_zeros(len(log_mass), 1), torch.zeros(1)
    x = CriterionInput(log_probs.detach(), values, torch.zeros(len(log_mass), dtype=torch.int64), log_mass)
    return Reweighed(Constant(loss, worst))(x)


class TestReweighed:
    @given(mass=st.floats(0, 1), loss=st.floats(0, 9), worst=st.floats(0, 100))
    def test_interpolates_between_the_loss_and_more_than_the_worst_cost(self, mass, loss, worst):
        log_mass = torch.tensor([mass], dtype=torch.float64).log()
        wanted = mass * loss + 1.01 * worst * (1 - mass)
        got = reweighed(loss, log_mass, worst)
        assert_close(got, np.array([wanted]))

    def test_is_exact_for_a_mass_near_one(self):
        # 1 - exp(x) in float32 would be 0 here.
        got = reweighed(0.0, torch.tensor([-1e-9]), 9.0)
        assert got.item() == approx(9.09e-9)

    @pytest.mark.parametrize("log_mass", [-1e-6, -0.1, -1.0, -5.0, -18.0, -25.0, -60.0])
    def test_gradient_is_exact_for_a_small_mass(self, log_mass):
        # At the start of training, little mass is on numbers.
        x = torch.tensor([log_mass], requires_grad=True)
        reweighed(2.0, x, 9.0).sum().backward()
        assert x.grad.item() == approx((2.0 - 9.09) * np.exp(log_mass))

    def test_is_finite_without_mass_on_numbers(self):
        log_mass = torch.tensor([-torch.inf, -1e30], requires_grad=True)
        loss = reweighed(1.0, log_mass, 9.0)
        loss.sum().backward()
        assert loss.tolist() == approx([9.09, 9.09])
        assert (log_mass.grad == 0).all()


def test_a_criterion_that_is_not_bound_computes_its_tables():
    made = make_input([0.2, 0.2, 0.2, 0.2, 0.2], SPACED, 1)
    for criterion in (SMMD(), Dist2(), SmoothedWasserstein(), GaussianCrossEntropy()):
        assert_close(criterion(made), bind(criterion, made.values, made.log_probs)(made))
