"""Intervals widened so that they cover the share of truths that was asked for, and how good they are."""

import math

import pytest
import torch
from tolerances import approx

from ntloss.reading import interval_coverage, interval_margin, pinball_loss, widen
from ntloss.reading.intervals import Calibration


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
        low, high = widen(lower[count:], (lower + upper)[count:] / 2, upper[count:], margin)
        covered.append(interval_coverage(low, high, truths[count:]))
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


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_of_numpy_are_taken_without_a_warning():
    numpy = pytest.importorskip("numpy")
    was_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # PyTorch gives some warnings once in a process
    try:
        arrays = [numpy.array(values) for values in ([0.0, 0.0], [10, 10], [5.0, 11.0])]
        for array in arrays:
            array.flags.writeable = False
        assert interval_coverage(*arrays) == 0.5
    finally:
        torch.set_warn_always(was_always)


def test_a_column_of_pandas_is_read_by_place_whatever_its_index():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"low": [0, 0], "high": [10, 10], "true": [5, 11]}, index=[7, 3])
    assert interval_coverage(table["low"], table["high"], table["true"]) == 0.5


def test_a_negative_margin_moves_the_ends_at_most_to_the_median():
    low, high = widen([49, 20], [50, 50], [51, 90], -5)
    assert (low.tolist(), high.tolist()) == ([50, 25], [50, 85])
    assert [end.item() for end in widen(49, 50, 51, -50)] == [50, 50]
    assert [end.item() for end in widen(49, 50, 51, 2)] == [47, 53]


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
