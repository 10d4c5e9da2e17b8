from __future__ import annotations

import math

import pytest
from tolerances import approx

from ntl.metrics import exact_share, final_answer_scores, mean_and_error, number_scores, read_answer, score


@pytest.mark.parametrize(
    ("text", "number"),
    [("42", 42.0), (" -7 ", -7.0), ("+3.5", 3.5), (".5", 0.5), ("3.", 3.0), ("007", 7.0), ("1e3", 1000.0)],
)
def test_a_text_that_is_one_number_is_parsed(text, number):
    assert read_answer(text) == number


@pytest.mark.parametrize("text", ["", "-", ".", "4 2", "nan", "inf", "1_000", "١", "4a", "--4", "1.2.3"])
def test_a_text_that_is_not_one_number_is_invalid(text):
    assert read_answer(text) is None


def test_metrics_equal_values_computed_by_hand():
    # Errors 0, 2, -3 around true values 1, 2, 6 (mean 3, squared deviations 4 + 1 + 9 = 14).
    result = score([1.0, 4.0, 3.0, None], [1.0, 2.0, 6.0, 100.0])
    assert result["mae"] == approx(5 / 3)
    assert result["rmse"] == approx(math.sqrt(13 / 3))
    assert result["r2"] == approx(1 - 13 / 14)
    # Deviations of the predictions from their mean 8/3: -5/3, 4/3, 1/3; with -2, -1, 3: 3 / sqrt(14/3 * 14).
    assert result["pearson"] == approx(3 / math.sqrt(14 / 3 * 14))
    assert result["accuracy"] == approx(1 / 3)
    assert result["exact"] == 1 / 4  # of all
    assert result["invalid"] == 1


def test_a_close_number_is_accurate_but_not_exact():
    scores = number_scores(["1000001", "about 1,000,000"], ["1000000", "1000000"])
    assert (scores["exact_number"], scores["accuracy"], scores["exact_match"]) == (0.5, 1.0, 0.0)
    assert next(iter(scores)) == "exact_number"
    assert score([1000001.0], [1000000.0])["exact"] == 0
    assert score([1000001.0], [1000000.0])["accuracy"] == 1


@pytest.mark.parametrize(
    ("predicted", "true", "exact", "accurate"),
    [
        ("1.50", "1.5", 1, 1),
        ("1e3", "1,000", 1, 1),
        ("-0", "0", 1, 1),
        ("123456789012345678901", "123456789012345678902", 0, 1),  # equal as float64
        ("20000000000", "20000000000", 1, 1),  # neither metric is clipped
        ("20000000000", "30000000000", 0, 0),
        ("1e400", "1e400", 1, 0),  # infinite as a float: exact, never close
        ("1e400", "1e401", 0, 0),
        ("1e99999999999999999999", "1e99999999999999999999", 1, 0),
        ("1e99999999999999999999", "1e99999999999999999998", 0, 0),
        ("none", "0", 0, 0),
    ],
)
def test_exact_compares_every_digit_and_accurate_allows_rounding(predicted, true, exact, accurate):
    scores = number_scores([predicted], [true])
    assert (scores["exact_number"], scores["accuracy"]) == (exact, accurate)


def test_exact_share_skips_answers_without_a_number():
    assert exact_share(["1", "2"], ["1", None]) == 1
    assert exact_share(["1"], [None]) is None


def test_a_close_final_answer_is_not_an_exact_one():
    answers = ["so #### 1000000"] * 2 + ["without one 5"]
    scores = final_answer_scores(["#### 1,000,001", "#### 1,000,000", "#### 5"], answers, "####")
    assert scores == {"exact_final_answer": 0.5, "final_answer_accuracy": 1.0}


def test_without_a_valid_prediction_only_the_count_is_defined():
    assert score([None, None], [1.0, 2.0]) == {
        "exact": 0.0, "mae": None, "rmse": None, "r2": None, "pearson": None, "accuracy": None, "invalid": 2,
    }  # fmt: skip


def test_constant_predictions_have_no_pearson_and_no_warning(recwarn):
    result = score([3.0, 3.0], [1.0, 2.0])
    assert result["pearson"] is None
    assert result["r2"] == approx(1 - 5 / 0.5)
    assert not recwarn


def test_constant_targets_have_no_r2():
    assert score([3.0, 4.0], [1.0, 1.0])["r2"] is None


def test_unequal_lengths_are_an_error():
    with pytest.raises(ValueError, match="1 predictions for 2 targets"):
        score([1.0], [1.0, 2.0])


def test_standard_error_is_the_sample_deviation_over_the_root_of_the_seeds():
    mean, error = mean_and_error([1.0, 2.0, 6.0])
    assert mean == approx(3.0)
    assert error == approx(math.sqrt(7 / 3))  # variance 14 / 2 = 7, over 3 seeds
    assert mean_and_error([5.0]) == (5.0, None)
    assert mean_and_error([1.0, None]) == (None, None)
