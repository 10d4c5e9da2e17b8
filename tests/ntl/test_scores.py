import math

import pytest
from tolerances import approx

from ntl.data import Example
from ntl.scores import (
    number_scores,
    paper_scores,
    reference_scores,
)


def test_a_model_that_is_always_right_is_not_so_by_the_papers_clipping_of_predictions():
    answers = ["12", "-300000000000", "1e12", "7.5"]
    by_paper, ours = paper_scores(answers, answers), number_scores(answers, answers)
    assert by_paper == {"paper_accuracy": 0.5, "paper_log_mae": approx((math.log10(30) + 2) / 4)}
    assert (ours["accuracy"], ours["log_mae"]) == (1, 0)
    assert paper_scores(["", "2"], ["1", "2"]) == {"paper_accuracy": 0.5, "paper_log_mae": 0}
    assert paper_scores([], []) == paper_scores(["2"], ["two"]) == dict.fromkeys(by_paper)


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


def test_references_equal_values_computed_by_hand():
    found = reference_scores(["1", "2", "9"], [Example("a", "4", 3.0), Example("b", "1", 3.0)])
    assert (found["constant_mae"], found["noise_mae"]) == (1.5, 1.5)
    # |log10(5) - log10(3)| and |log10(2) - log10(3)|
    assert found["constant_log_mae"] == approx((math.log10(5 / 3) + math.log10(3 / 2)) / 2)
    assert set(reference_scores(["1"], [Example("a", "4")])) == {"constant_mae", "constant_log_mae"}
    assert reference_scores([], [Example("a", "4")]) == {}
