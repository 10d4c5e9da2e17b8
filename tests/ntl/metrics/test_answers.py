"""Metrics of the numbers in answers."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tolerances import approx

from ntl.data import Example, TaskData
from ntl.metrics.answers import number_scores, paper_scores, reference_scores


def scores_of(predicted, true, **how):
    """The scores of numbers."""
    return number_scores([*map(str, predicted)], [*map(str, true)], **how)


def test_metrics_match_figures_computed_by_hand():
    texts = ["I say 10.", "no idea", " 3 ", "-8", "1,000"]
    result = number_scores(texts, ["10", "5", "3", "-4", "x"])
    expected = {
        "count": 5,
        "skipped": 1,  # "x"
        "invalid": 1,  # "no idea"
        "invalid_rate": 1 / 4,
        "exact_match": 1 / 5,  # only " 3 ": "I say 10." differs from "10"
        "exact_number": 2 / 4,
        "accuracy": 2 / 4,
        "accuracy_of_valid": 2 / 3,
        "mae": 4 / 3,
        "r2": 1 - 16 / 98,  # true numbers 10, 3, -4: mean 3
        "log_mae": (math.log10(9) - math.log10(5)) / 3,
    }
    assert {name: result[name] for name in expected} == approx(expected)


@pytest.mark.parametrize("clip", [None, 1e3])
def test_metrics_match_numpy_and_scipy(clip):
    generator = np.random.default_rng(0)
    true = generator.normal(size=500) * 10 ** generator.uniform(-3, 6, size=500)
    predicted = true * (1 + 0.1 * generator.normal(size=500))
    predicted[::7] = true[::7]
    predicted[1::50] = predicted[1]  # ties have their mean rank
    result = scores_of(predicted, true, clip=clip)

    assert result["accuracy"] == np.isclose(predicted, true).mean()
    limit = math.inf if clip is None else clip
    p, t = predicted.clip(-limit, limit), true.clip(-limit, limit)
    expected = {
        "medae": np.median(np.abs(p - t)),
        "pearson": stats.pearsonr(p, t).statistic,
        "spearman": stats.spearmanr(p, t).statistic,
    }
    logs = [np.sign(x) * np.log10(np.abs(x) + 1) for x in (p, t)]
    for prefix, (x, y) in {"": (p, t), "log_": logs}.items():
        expected[f"{prefix}mae"] = np.abs(x - y).mean()
        expected[f"{prefix}rmse"] = np.sqrt(np.mean((x - y) ** 2))
        expected[f"{prefix}r2"] = 1 - np.sum((x - y) ** 2) / np.sum((y - y.mean()) ** 2)
    assert {name: result[name] for name in expected} == approx(expected, dtype=torch.float64)


def test_correlations_of_constants_and_r2_of_constant_answers_are_nan():
    result = scores_of([1.0, 2.0, 4.0], [0.1, 0.1, 0.1])
    assert all(math.isnan(result[name]) for name in ("r2", "log_r2", "pearson", "spearman"))
    result = scores_of([3, 3, 3], [1, 2, 6])
    assert math.isnan(result["pearson"])
    assert result["r2"] == 0
    # Numbers that are far from zero and close together are not constant.
    assert scores_of([1e9, 1e9 + 1], [1e9, 1e9 + 1])["r2"] == 1


def test_infinity_is_clipped_and_invalid_without_a_limit():
    texts, answers = ["none", "1e400", "1"], ["1", "0", "1"]
    result = number_scores(texts, answers)
    assert (result["invalid"], result["mae"]) == (1, 5e9)
    result = number_scores(texts, answers, clip=None)
    assert (result["invalid"], result["mae"]) == (2, 0)
    assert number_scores(["-" + "9" * 5000], ["1"])["mae"] == 1e10 + 1


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
        ("1e99999999999999999999", "1", 0, 0),  # no Decimal
        ("none", "0", 0, 0),
    ],
)
def test_exact_number_compares_every_digit_and_accuracy_allows_rounding(predicted, true, exact, accurate):
    scores = number_scores([predicted], [true])
    assert (scores["exact_number"], scores["accuracy"]) == (exact, accurate)


def test_a_model_that_is_always_right_is_not_so_by_the_papers_clipping_of_predictions():
    answers = ["12", "-300000000000", "1e12", "7.5"]
    by_paper, ours = paper_scores(answers, answers), number_scores(answers, answers)
    assert by_paper == {"paper_accuracy": 0.5, "paper_log_mae": approx((math.log10(30) + 2) / 4)}
    assert (ours["accuracy"], ours["log_mae"]) == (1, 0)
    assert paper_scores(["", "2"], ["1", "2"]) == {"paper_accuracy": 0.5, "paper_log_mae": 0}
    assert all(map(math.isnan, paper_scores(["2"], ["two"]).values()))


def test_references_equal_values_computed_by_hand():
    def references(train, *examples):
        return reference_scores(TaskData([Example("", answer) for answer in train], [], {}), examples)

    found = references(["1", "2", "9"], Example("a", "4", 3.0), Example("b", "1", 3.0))
    assert (found["constant_mae"], found["noise_mae"]) == (1.5, 1.5)
    # |log10(5) - log10(3)| and |log10(2) - log10(3)|
    assert found["constant_log_mae"] == approx((math.log10(5 / 3) + math.log10(3 / 2)) / 2)
    assert set(references(["1"], Example("a", "4"))) == {"constant_mae", "constant_log_mae"}
    assert references([], Example("a", "4")) == {}
