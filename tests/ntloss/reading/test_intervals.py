"""Scores that a share of new ones does not exceed, calibrated levels, and how good intervals are."""

import math

import pytest
import torch
from tolerances import approx

from ntloss.reading import interval_coverage, pinball_loss
from ntloss.reading.intervals import Calibration, conformal_score


def test_new_scores_do_not_exceed_a_conformal_one_with_the_requested_probability():
    generator = torch.Generator().manual_seed(0)
    for coverage in (0.5, 0.9):
        known, new = torch.randn(2, 200, 99, generator=generator, dtype=torch.float64)
        held = [(n <= conformal_score(k, coverage)).double().mean() for k, n in zip(known, new, strict=True)]
        # Over splits, it lies between c and c + 1 / (n + 1).
        assert coverage - 0.015 <= float(torch.stack(held).mean()) <= coverage + 0.01 + 0.015


def test_too_few_scores_for_a_coverage_give_an_infinite_one():
    assert math.isfinite(conformal_score([5.0] * 9, 0.9))
    assert conformal_score([5.0] * 9, 0.91) == math.inf


def test_rounding_errors_do_not_raise_the_rank():
    assert 100 * 0.07 > 7  # in float64
    assert conformal_score(torch.arange(99.0), 0.07) == 6


def test_python_floats_keep_their_digits():
    assert conformal_score([1e8 + 2] * 4, 0.6) == 1e8 + 2  # float32 holds multiples of 8 here


def test_a_column_of_pandas_is_read_by_place_whatever_its_index():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"low": [0, 0], "high": [10, 10], "true": [5, 11]}, index=[7, 3])
    assert interval_coverage(table["low"], table["high"], table["true"]) == 0.5


def test_pinball_loss_is_smallest_at_the_quantile():
    truths = torch.arange(1.0, 101.0)
    candidates = torch.arange(1.0, 101.0)
    for level in (0.05, 0.5, 0.9):
        losses = [pinball_loss(torch.full((100,), float(x)), truths, level).item() for x in candidates]
        assert candidates[losses.index(min(losses))].item() == approx(100 * level, scale=1.0, tolerance=0.01)
    both = pinball_loss([[1.0, 4.0], [2.0, 3.0]], [4.0, 7.0], (0.05, 0.5))
    assert both.tolist() == [approx(0.2), approx(1.0)]
    with pytest.raises(ValueError, match="levels"):
        pinball_loss([1.0], [1.0], 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([], [], []), "at least one example"),
        (([0.0], [1.0, 2.0], [0.5]), "shapes"),
        (([0.0, 0.0], [1.0, 2.0], [0.5, math.nan]), "1 of 2 truths"),
    ],
)
def test_impossible_input_is_an_error(given, message):
    with pytest.raises(ValueError, match=message):
        interval_coverage(*given)


def test_levels_of_answers_that_a_model_holds_for_impossible_are_in_order():
    impossible = torch.full((40,), 1e-12, dtype=torch.float64)
    calibration = Calibration(impossible, impossible)
    assert calibration.level(0.05) <= calibration.level(0.5) <= calibration.level(0.95)


def test_calibrated_levels_hold_their_share_of_new_numbers_of_an_overconfident_model():
    generator = torch.Generator().manual_seed(0)
    below = torch.rand(2000, 2, dtype=torch.float64, generator=generator)
    beliefs = (below > 0.5).double() * 0.9 + 0.1 * below  # far too many in both tails
    calibration = Calibration(beliefs[:, 0], beliefs[:, 0])
    for quantile in (0.05, 0.3, 0.7, 0.95):
        assert abs((beliefs[:, 1] <= calibration.level(quantile)).double().mean() - quantile) < 0.03
    assert calibration.covers(0.9)
    with pytest.raises(ValueError, match="held-out"):
        Calibration(below[:18, 0], below[:18, 0]).level(0.05)
