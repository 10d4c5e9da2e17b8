import math

import pytest
from tolerances import approx

from ntl.data import Example
from ntl.scores import (
    SPACED,
    SPACED_LEVELS,
    Distribution,
    describe_metrics,
    exact_share,
    final_answer_scores,
    number_scores,
    paper_scores,
    rater_crps,
    reading_scores,
    reference_scores,
    target_scores,
)


def test_a_model_that_is_always_right_is_not_so_by_the_papers_clipping_of_predictions():
    answers = ["12", "-300000000000", "1e12", "7.5"]
    by_paper, ours = paper_scores(answers, answers), number_scores(answers, answers)
    assert by_paper == {"paper_accuracy": 0.5, "paper_log_mae": approx((math.log10(30) + 2) / 4)}
    assert (ours["accuracy"], ours["log_mae"]) == (1, 0)
    assert paper_scores(["", "2"], ["1", "2"]) == {"paper_accuracy": 0.5, "paper_log_mae": 0}
    assert paper_scores([], []) == paper_scores(["2"], ["two"]) == dict.fromkeys(by_paper)


def test_a_close_number_is_accurate_but_not_exact():
    scores = number_scores(["1000001", "about 1,000,000"], ["1000000", "1000000"])
    assert (scores["exact_number"], scores["accuracy"], scores["exact_match"]) == (0.5, 1.0, 0.0)
    assert next(iter(scores)) == "exact_number"
    assert number_scores(["2 + 3 = 5"], ["5"])["exact_number"] == 1  # the last number


@pytest.mark.parametrize(
    ("predicted", "true", "exact", "accurate"),
    [
        ("1.50", "1.5", 1, 1),
        ("1e3", "1,000", 1, 1),
        ("-0", "0", 1, 1),
        ("123456789012345678901", "123456789012345678902", 0, 1),  # equal as float64
        ("20000000000", "20000000000", 1, 1),  # neither metric is clipped
        ("20000000000", "30000000000", 0, 0),
        ("1e400", "1e401", 0, 1),  # both are infinite as float64
        ("none", "0", 0, 0),
    ],
)
def test_exact_number_compares_every_digit_and_accuracy_allows_rounding(predicted, true, exact, accurate):
    scores = number_scores([predicted], [true])
    assert (scores["exact_number"], scores["accuracy"]) == (exact, accurate)


def test_exact_share_skips_answers_without_a_number():
    assert exact_share(["1", "2"], ["1", None]) == 1
    assert exact_share(["1"], [None]) is None


def test_a_close_final_answer_is_not_an_exact_one():
    answers = ["so #### 1000000"] * 2 + ["without one 5"]
    scores = final_answer_scores(["#### 1,000,001", "#### 1,000,000", "#### 5"], answers, "####")
    assert scores == {"exact_final_answer": 0.5, "final_answer_accuracy": 1.0}


def test_references_equal_values_computed_by_hand():
    found = reference_scores(["1", "2", "9"], [Example("a", "4", 3.0), Example("b", "1", 3.0)])
    assert (found["constant_mae"], found["noise_mae"]) == (1.5, 1.5)
    # |log10(5) - log10(3)| and |log10(2) - log10(3)|
    assert found["constant_log_mae"] == approx((math.log10(5 / 3) + math.log10(3 / 2)) / 2)
    assert set(reference_scores(["1"], [Example("a", "4")])) == {"constant_mae", "constant_log_mae"}
    assert reference_scores([], [Example("a", "4")]) == {}


def test_several_numbers_are_scored_one_by_one_and_coordinates_by_their_distance():
    texts = ["0, 0", "10, 179", "1", "90, 5"]
    answers = ["0, 1", "10, -179", "1, 2", "90, -100"]
    scores = target_scores(texts, answers, ("latitude", "longitude"))
    degree = 6371.0 * math.pi / 180
    around = 2 * 6371.0 * math.asin(math.cos(math.radians(10)) * math.sin(math.radians(1)))
    assert scores["answered"] == 3 / 4
    assert scores["latitude_mae"] == 0
    assert scores["longitude_mae"] == approx((1 + 358 + 105) / 3)
    assert scores["km"] == approx((degree + around + 0) / 3)
    swapped = target_scores(["0, 0"], ["1, 0"], ("longitude", "latitude"))
    assert swapped["km"] == approx(degree)
    assert target_scores(["no"], ["1, 2"], ("a", "b")) == {"answered": 0, "a_mae": None, "b_mae": None}


def distribution(low, high):
    """A uniform distribution; None for `low`: no number is written."""
    if low is None:
        return Distribution([math.nan] * SPACED, *[math.nan] * 4, 0.0)
    spaced = [low + level * (high - low) for level in SPACED_LEVELS]
    middle = (low + high) / 2
    return Distribution(spaced, low, middle, high, middle, 1.0)


def test_readings_and_intervals_equal_values_computed_by_hand():
    read = [distribution(0, 10), distribution(20, 40), distribution(None, None)]
    scores = reading_scores(read, ["5", "39", "7"], ("median",), 0.9)
    assert (scores["median_mae"], scores["median_invalid"]) == (approx(4.5), 1)
    assert "mean_mae" not in scores
    assert scores["number_mass"] == approx(2 / 3)
    assert (scores["interval_coverage"], scores["interval_width"]) == (1.0, 15.0)
    # The interval of 95 % of the second distribution ends at 39.5, that of 85 % at 38.5.
    assert [scores[f"coverage_{share}"] for share in (95, 85, 5)] == [1.0, 0.5, 0.5]
    alone = reading_scores(read[:1], ["5"], (), 0.9)["crps"]
    other = reading_scores(read[1:2], ["39"], (), 0.9)["crps"]
    assert scores["crps"] == approx((alone + other) / 2)


def test_ratings_are_scored_one_by_one_and_texts_without_a_distribution_are_left_out():
    read = [distribution(0, 10), distribution(None, None)]
    one_by_one = [reading_scores(read[:1], [rating], (), 0.9)["crps"] for rating in ("2", "9")]
    assert rater_crps(read, [[2.0, 9.0], [4.0]]) == approx(sum(one_by_one) / 2)
    assert rater_crps(read[1:], [[4.0]]) is None


def test_a_test_is_described_by_what_matters_for_it():
    places = {"count": 5, "exact_match": 0.0, "km": 12.0, "rougeL": 0.5, "mae": None}
    assert describe_metrics(places) == "5 questions, exact_match 0, km 12, rougeL 0.5"
