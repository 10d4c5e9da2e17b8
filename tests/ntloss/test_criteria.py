"""The criteria as pure functions of a record."""

from __future__ import annotations

from functools import partial

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tolerances import CANCELLATION, approx, assert_close
from torch import Tensor

from ntloss import CriterionInput, ExpectedValue, Wasserstein
from ntloss.criteria import reweigh_by_mass
from ntloss.criteria.transport import squashed

value_sets = st.lists(
    st.integers(-1000, 1000).map(lambda i: i / 8), min_size=3, max_size=12, unique=True
).filter(lambda values: len({b - a for a, b in zip(sorted(values), sorted(values)[1:], strict=False)}) >= 1)


def record_of(values: list[float], seed: int, rows: int = 4) -> CriterionInput:
    generator = torch.Generator().manual_seed(seed)
    ascending = torch.tensor(sorted(values), dtype=torch.float64)
    logits = 3 * torch.randn(rows, len(values), generator=generator, dtype=torch.float64)
    target = torch.randint(len(values), (rows,), generator=generator)
    return CriterionInput(logits.log_softmax(-1), ascending, target)


def certain_of(values: list[float], prediction: int, target: int) -> CriterionInput:
    log_probs = torch.full((1, len(values)), -torch.inf, dtype=torch.float64)
    log_probs[0, prediction] = 0
    return CriterionInput(log_probs, torch.tensor(values, dtype=torch.float64), torch.tensor([target]))


class TestWasserstein:
    @given(values=value_sets, seed=st.integers(0, 999), squash=st.sampled_from([None, 1.5, 9.0]))
    def test_is_the_expected_cost(self, values: list[float], seed: int, squash: float | None) -> None:
        record = record_of(values, seed)
        costs = oracle.distance_matrix(record.values.numpy(), squash)
        wanted = (record.probs.numpy() * costs[record.target.numpy()]).sum(-1)
        assert_close(Wasserstein(squash)(record), wanted)

    @given(values=value_sets, squash=st.sampled_from([None, 1.5, 9.0]))
    def test_worst_is_the_largest_cost_of_one_value(self, values: list[float], squash: float | None) -> None:
        ascending = torch.tensor(sorted(values), dtype=torch.float64)
        wanted = oracle.distance_matrix(ascending.numpy(), squash).max()
        assert Wasserstein(squash).worst(ascending) == approx(wanted)

    @given(values=value_sets, seed=st.integers(0, 999))
    def test_smallest_exactly_at_the_target(self, values: list[float], seed: int) -> None:
        record = record_of(values, seed)
        assert (Wasserstein()(record) > 0).all()
        for target in range(len(values)):
            assert Wasserstein()(certain_of(sorted(values), target, target)).item() == 0

    @given(values=value_sets, factor=st.sampled_from([2.0, 10.0]))
    def test_squashing_spans_one_to_the_factor_in_order(self, values: list[float], factor: float) -> None:
        ascending = torch.tensor(sorted(values), dtype=torch.float64)
        gaps = (ascending[:, None] - ascending).abs()
        costs = squashed(gaps, ascending, factor)
        off = gaps > 0
        if gaps[off].min() == gaps.max():
            return
        assert (costs[~off] == 0).all()
        assert costs[off].min().item() == approx(1)
        assert costs.max().item() == approx(factor)
        order = gaps.flatten().argsort(stable=True)
        assert (costs.flatten()[order].diff() >= -CANCELLATION).all()

    @pytest.mark.parametrize("factor", [1, 1.0, 0.5, 0, -3, float("inf"), float("nan")])
    def test_a_squash_factor_is_above_one(self, factor: float) -> None:
        with pytest.raises(ValueError, match=f"squash_factor={factor}.*above 1"):
            Wasserstein(factor)

    @pytest.mark.parametrize("values", [[5.0], [0.0, 9.0]])
    def test_squashing_needs_distances_that_differ(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match=r"squash_factor=3.*three distinct values"):
            Wasserstein(3).worst(torch.tensor(values, dtype=torch.float64))

    def test_mistakes_that_are_farther_off_cost_more(self) -> None:
        values = [float(d) for d in range(10)]
        losses = [Wasserstein()(certain_of(values, d, 4)).item() for d in range(10)]
        assert losses == [4, 3, 2, 1, 0, 1, 2, 3, 4, 5]


def asymmetric(prediction: Tensor, target: Tensor) -> Tensor:
    return torch.where(prediction > target, 5 * (prediction - target), target - prediction)


class TestExpectedValue:
    @given(
        values=value_sets, seed=st.integers(0, 999), name=st.sampled_from(["squared", "absolute", "huber"])
    )
    def test_is_the_loss_of_the_mean(self, values: list[float], seed: int, name: str) -> None:
        record = record_of(values, seed)
        loss = oracle.REGRESSION[name][0]
        means = (record.probs.numpy() * record.values.numpy()).sum(-1)
        targets = record.values.numpy()[record.target.numpy()]
        wanted = np.array([loss(m, v) for m, v in zip(means, targets, strict=True)])
        assert_close(ExpectedValue(name)(record), wanted, scale=1e-3)

    @given(values=value_sets, name=st.sampled_from(["squared", "absolute", "huber"]))
    def test_worst_takes_one_end_for_the_other(self, values: list[float], name: str) -> None:
        ascending = np.array(sorted(values))
        wanted = oracle.worst_cost(ascending, oracle.Objective(name))
        assert ExpectedValue(name).worst(torch.from_numpy(ascending)) == approx(wanted)

    def test_worst_of_digits_is_81(self) -> None:
        assert ExpectedValue().worst(torch.arange(10.0, dtype=torch.float64)) == 81

    def test_worst_of_an_asymmetric_loss_is_the_larger_side(self) -> None:
        assert ExpectedValue(asymmetric).worst(torch.arange(10.0, dtype=torch.float64)) == 45

    def test_blind_to_a_mean_that_is_right_by_chance(self) -> None:
        record = CriterionInput(
            torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.float64).log(),
            torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64),
            torch.tensor([1]),
        )
        assert ExpectedValue()(record).item() == 0
        assert Wasserstein()(record).item() == 1

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
            (lambda p, t: (p - t).abs(), "absolute"),
        ],
    )
    def test_takes_callables(self, given_loss: object, named: str) -> None:
        record = record_of([0.0, 1.0, 2.5, 100.0], 3)
        assert_close(ExpectedValue(given_loss)(record), ExpectedValue(named)(record))

    @pytest.mark.parametrize("reducing", [torch.nn.MSELoss(), lambda p, t: ((p - t) ** 2).mean()])
    def test_refuses_a_callable_that_reduces(self, reducing: object) -> None:
        with pytest.raises(ValueError, match=r"gave shape \(\).*\(4,\).*one loss for each"):
            ExpectedValue(reducing)(record_of([0.0, 1.0, 2.0], 0))

    @pytest.mark.parametrize("unknown", ["mse", "", None, 3])
    def test_refuses_unknown_losses(self, unknown: object) -> None:
        with pytest.raises(ValueError, match=r"(?s)loss=.*absolute.*huber.*squared"):
            ExpectedValue(unknown)


class TestReweigh:
    @given(mass=st.floats(0, 1), loss=st.floats(0, 9), worst=st.floats(0, 100))
    def test_moves_between_the_loss_and_more_than_the_worst(
        self, mass: float, loss: float, worst: float
    ) -> None:
        log_mass = torch.tensor([mass], dtype=torch.float64).log()
        wanted = mass * loss + 1.01 * worst * (1 - mass)
        got = reweigh_by_mass(torch.tensor([loss], dtype=torch.float64), log_mass, worst)
        assert_close(got, np.array([wanted]))

    def test_sees_a_mass_that_is_almost_one(self) -> None:
        # 1 - exp(x) in float32 would be 0 here.
        got = reweigh_by_mass(torch.zeros(1), torch.tensor([-1e-9]), 9.0)
        assert got.item() == approx(9.09e-9)

    @pytest.mark.parametrize("log_mass", [-1e-6, -0.1, -1.0, -5.0, -18.0, -25.0, -60.0])
    def test_gradient_is_right_however_little_the_mass(self, log_mass: float) -> None:
        # At the start of a training little mass is on numbers; what there is must pull the right way.
        x = torch.tensor([log_mass], requires_grad=True)
        reweigh_by_mass(torch.tensor([2.0]), x, 9.0).sum().backward()
        assert x.grad.item() == approx((2.0 - 9.09) * np.exp(log_mass))

    def test_no_mass_on_numbers_is_finite(self) -> None:
        log_mass = torch.tensor([-torch.inf, -1e30], requires_grad=True)
        loss = reweigh_by_mass(torch.ones(2), log_mass, 9.0)
        loss.sum().backward()
        assert loss.tolist() == approx([9.09, 9.09])
        assert (log_mass.grad == 0).all()
