"""Intervals widened so that they cover the share of truths that was asked for."""

import math

import pytest
import torch
from tolerances import approx

from ntloss.decoding import interval_margin
from ntloss.decoding.quantiles import _ranks


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_the_margin_reaches_the_requested_coverage_for_miscalibrated_models(scale, coverage):
    generator = torch.Generator().manual_seed(0)
    count, covered = 200, []
    for _ in range(200):
        truths = torch.randn(2 * count, generator=generator, dtype=torch.float64)
        # Intervals of the wrong width, and off to one side.
        lower, upper = torch.full_like(truths, -scale - 0.2), torch.full_like(truths, scale - 0.2)
        margin = interval_margin(lower[:count], upper[:count], truths[:count], coverage)
        inside = (lower - margin <= truths) & (truths <= upper + margin)
        covered.append(inside[count:].double().mean().item())
    mean = sum(covered) / len(covered)
    # Over splits, coverage lies between c and c + 1 / (n + 1); the deviation of one split is about 0.05.
    assert coverage - 0.01 <= mean <= coverage + 1 / (count + 1) + 0.01


def test_the_margin_is_the_smallest_score_with_enough_coverage():
    truths = [5.0, 9.0, 11.0, 14.0]
    scores = {0.2: -5.0, 0.4: -1.0, 0.6: 1.0, 0.8: 4.0}
    for coverage, score in scores.items():
        assert interval_margin([0.0] * 4, [10.0] * 4, truths, coverage) == approx(score)


def test_python_floats_keep_their_digits():
    ends, truths = [1e8] * 4, [1e8 + 2] * 4  # float32 holds multiples of 8 here
    assert interval_margin(ends, ends, truths, 0.6) == 2


def test_the_ranks_of_bounds_are_kept_for_a_bounded_number_of_samples():
    assert _ranks(100, 0.5) == (approx(0.4), approx(0.61))
    assert _ranks(0, 0.5) == (0, 2)
    assert _ranks.cache_info().maxsize is not None


def test_too_few_examples_for_a_coverage_give_an_infinite_margin():
    intervals = [0.0] * 9, [10.0] * 9
    assert math.isfinite(interval_margin(*intervals, [5.0] * 9, 0.9))
    assert interval_margin(*intervals, [5.0] * 9, 0.91) == math.inf


def test_rounding_errors_do_not_raise_the_rank():
    assert 100 * 0.07 > 7  # in float64
    truths = torch.arange(99.0)
    assert interval_margin(torch.zeros(99), torch.zeros(99), truths, 0.07) == 6


def test_an_interval_of_nan_is_a_miss():
    lower, upper = torch.zeros(4), torch.tensor([10.0, math.nan, 10.0, 10.0])
    assert interval_margin(lower, upper, [5.0] * 4, 0.6) == -5
    assert interval_margin(lower, upper, [5.0] * 4, 0.8) == math.inf


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([0.0], [1.0], [0.5], 1.0), "coverage=1.0"),
        (([], [], [], 0.5), "at least one example"),
        (([0.0], [1.0, 2.0], [0.5], 0.5), "shapes"),
        (([0.0, 0.0], [1.0, 2.0], [0.5, math.nan], 0.5), "1 of 2 truths"),
    ],
)
def test_impossible_input_is_an_error(given, message):
    with pytest.raises(ValueError, match=message):
        interval_margin(*given)
