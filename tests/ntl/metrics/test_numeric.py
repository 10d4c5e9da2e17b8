"""Metrics of predicted numbers."""

import math
import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tolerances import ONE_COMPUTATION, approx

from ntl.metrics import METRICS, NumericMetrics

quick = settings(deadline=None, max_examples=40, derandomize=True)

numbers = st.one_of(
    st.integers(-50, 50).map(float),
    st.floats(-1e6, 1e6),
    st.sampled_from([1e300, -1e300, math.inf, math.nan]),
)
pairs = st.lists(st.tuples(st.one_of(numbers, st.none()), numbers), max_size=25)


def compute(predictions, targets, **options):
    return NumericMetrics(**options).update(predictions, targets).compute()


def same(one, other):
    """Whether both have the same metrics in the same order; NaN equals NaN."""
    return list(one) == list(other) and one == approx(other, ONE_COMPUTATION, dtype=torch.float64)


# --- definitions ------------------------------------------------------------------------------------------


def test_metrics_match_figures_computed_by_hand():
    texts = ["I say 10.", "no idea", " 3 ", "-8", "1,000"]
    result = compute(texts, ["10", "5", "3", "-4", "x"])
    expected = {
        "count": 5,
        "skipped": 1,  # "x"
        "invalid": 1,  # "no idea"
        "invalid_rate": 1 / 4,
        "exact_match": 1 / 5,  # only " 3 ": "I say 10." differs from "10"
        "accuracy": 2 / 4,
        "accuracy_of_valid": 2 / 3,
        "mae": 4 / 3,
        "medae": 0,
        "rmse": math.sqrt(16 / 3),
        "r2": 1 - 16 / 98,  # targets 10, 3, -4: mean 3
        "log_mae": (math.log10(9) - math.log10(5)) / 3,
        "log_rmse": (math.log10(9) - math.log10(5)) / math.sqrt(3),
        "spearman": 1,
    }
    assert list(result) == list(METRICS)
    assert {name: result[name] for name in expected} == approx(expected)


@pytest.mark.parametrize("count", [500, 501])  # the median of an even number of errors is between two
@pytest.mark.parametrize("clip", [None, 1e10, 1e3])
def test_metrics_match_numpy_and_scipy(clip, count):
    generator = np.random.default_rng(0)
    true = generator.normal(size=count) * 10 ** generator.uniform(-3, 6, size=count)
    predicted = true * (1 + 0.1 * generator.normal(size=count))
    predicted[::7] = true[::7]
    predicted[1::50] = predicted[1]  # ties have their mean rank
    result = compute(predicted, true, clip=clip)

    limit = math.inf if clip is None else clip
    assert result["accuracy"] == np.isclose(predicted, true).mean()
    p, t = predicted.clip(-limit, limit), true.clip(-limit, limit)
    expected = {
        "mae": np.abs(p - t).mean(),
        "medae": np.median(np.abs(p - t)),
        "rmse": np.sqrt(np.mean((p - t) ** 2)),
        "r2": 1 - np.sum((p - t) ** 2) / np.sum((t - t.mean()) ** 2),
        "pearson": stats.pearsonr(p, t).statistic,
        "spearman": stats.spearmanr(p, t).statistic,
    }
    p, t = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (p, t))
    expected["log_mae"] = np.abs(p - t).mean()
    expected["log_rmse"] = np.sqrt(np.mean((p - t) ** 2))
    expected["log_r2"] = 1 - np.sum((p - t) ** 2) / np.sum((t - t.mean()) ** 2)
    assert {name: result[name] for name in expected} == approx(expected, dtype=torch.float64)


@pytest.mark.parametrize(
    "one",
    [1, True, 1.0, np.int64(1), np.float32(1), np.bool_(True), torch.tensor(1), Decimal(1), Fraction(1)],
)
def test_numbers_of_any_type_are_read(one):
    assert compute([one, None], ["1", "1"])["accuracy"] == 1 / 2
    assert compute(["1", None], [one, one])["exact_match"] == 1 / 2


NINES = "9" * 400


@pytest.mark.parametrize(
    ("prediction", "target", "right"),
    [
        (NINES, NINES, 1),
        (NINES, 10**400 - 1, 1),
        (10**400 - 1, NINES, 1),
        (10**400, 10**400, 1),
        ("1e400", 10**400, 1),
        ("-1e400", 10**400, 0),
        (10**400, 10**400 - 1, 0),
        (NINES, 10**400, 0),
        (5, NINES, 0),
        (math.inf, 10**400, 0),
    ],
)
def test_numbers_too_large_for_float64_are_right_if_all_digits_are(prediction, target, right):
    result = compute([prediction], [target])
    assert (result["accuracy"], result["accuracy_of_valid"], result["invalid"]) == (right, right, 0)


# --- edge cases -------------------------------------------------------------------------------------------


def test_no_pairs_give_nan():
    for result in (NumericMetrics().compute(), compute([], []), compute([], torch.empty(0))):
        assert [result[name] for name in ("count", "skipped", "invalid")] == [0, 0, 0]
        assert all(math.isnan(value) for value in list(result.values())[3:])


def test_invalid_predictions_count_as_wrong_and_have_no_error():
    result = compute(["", "none"], ["1", "2"])
    assert result["invalid_rate"] == 1
    assert result["accuracy"] == result["exact_match"] == 0
    assert all(math.isnan(result[name]) for name in METRICS[6:])


def test_correlations_of_constants_and_r2_of_constant_targets_are_nan():
    result = compute([1.0, 2.0, 4.0], [3.0, 3.0, 3.0])
    assert all(math.isnan(result[name]) for name in ("r2", "log_r2", "pearson", "spearman"))
    assert result["mae"] == approx(4 / 3)
    result = compute([3.0, 3.0, 3.0], [1.0, 2.0, 6.0])
    assert math.isnan(result["pearson"])
    assert result["r2"] == 0
    # Numbers that are far from zero and close together are not constant.
    assert compute([1e9, 1e9 + 1], [1e9, 1e9 + 1])["r2"] == 1
    assert math.isnan(compute([1.0], [1.0])["r2"])


def test_nan_is_invalid_and_infinity_is_clipped():
    result = compute([math.nan, math.inf, 1.0], [1.0, 0.0, 1.0])
    assert (result["invalid"], result["mae"]) == (1, 5e9)
    result = compute([math.nan, math.inf, 1.0], [1.0, 0.0, 1.0], clip=None)
    assert (result["invalid"], result["mae"]) == (2, 0)
    # Numbers too large for a float are clipped too, in a text or as an int.
    assert compute(["9" * 5000], ["1"])["mae"] == 1e10 - 1
    assert compute([-(10**400)], [1])["mae"] == 1e10 + 1
    # Clipping does not make two numbers equal.
    assert compute([math.inf], [-math.inf])["accuracy"] == 0
    assert compute([math.inf], [1e308])["accuracy"] == 0
    assert compute([2e10], [3e10])["accuracy"] == 0


def test_huge_and_tiny_numbers_neither_overflow_nor_underflow():
    for scale in (1e300, 1e-300):
        result = compute([1 * scale, 3 * scale, 5 * scale], [2 * scale, 3 * scale, 4 * scale], clip=None)
        assert result["rmse"] == approx(math.sqrt(2 / 3) * scale, dtype=torch.float64)
        assert result["r2"] == approx(0)
        assert result["pearson"] == approx(1)
    assert compute([1.7e308] * 3, [1.6e308] * 3, clip=None)["mae"] == approx(1e307)


# --- inputs -----------------------------------------------------------------------------------------------


def test_texts_lists_arrays_and_tensors_give_the_same_metrics():
    floats = [12.0, -3.0, None]
    nan = [12.0, -3.0, math.nan]
    targets = [12.0, 5.0, 1.0]
    expected = compute(floats, targets)
    for form in (
        ["12", "-3", ""],
        nan,
        np.array(nan),
        torch.tensor(nan),
        torch.tensor(nan, dtype=torch.float64, requires_grad=True),
    ):
        assert same(compute(form, targets), expected)
    assert same(compute([12, -3, None], np.array([12, 5, 1])), expected)
    assert same(compute(np.array(["12", "-3", ""]), targets), expected)


def test_the_option_which_applies_to_predictions_and_targets():
    assert compute(["1 2", "3 4"], ["1 5", "3 6"], which="first")["accuracy"] == 1
    assert compute(["1 2"], ["1 2"], which="whole")["skipped"] == 1
    assert compute(["abc"], ["a"], which=lambda text: float(len(text)))["mae"] == 2
    assert compute(["abc"], ["a"], which=lambda text: float(ord(text[0])))["mae"] == 0  # only of given texts


@pytest.mark.parametrize(
    ("predictions", "targets", "error", "message"),
    [
        ([1.0, 2.0], [1.0], ValueError, "2 predictions for 1 targets"),
        (torch.zeros(2, 3), [1.0, 2.0], ValueError, r"\[2, 3\]"),
        ([[1, 2], [3, 4]], [1.0, 2.0], ValueError, r"predictions of shape \[2, 2\]: expected \[batch\]"),
        ([1.0, 2.0], [[1, 2], [3]], ValueError, "targets: expected sequence of length 2"),
        ("12", ["1", "2"], TypeError, "list of texts"),
        (5, [1.0], TypeError, "predictions: given 5; expected a list"),
        ([1.0], None, TypeError, "targets: given None; expected a list"),
        ([b"1"], [1.0], TypeError, "expected a number or None, given b'1'"),
        (torch.tensor([1 + 2j]), [1.0], TypeError, "expected a number or None"),
        ({1: 2}, [1.0], TypeError, "list of texts"),
    ],
)
def test_invalid_batches_are_errors(predictions, targets, error, message):
    with pytest.raises(error, match=message):
        compute(predictions, targets)


@pytest.mark.parametrize("options", [{"metrics": ["mse"]}, {"metrics": "mae"}, {"clip": 0}, {"which": "any"}])
def test_invalid_options_are_errors(options):
    with pytest.raises(ValueError, match="expected"):
        NumericMetrics(**options)


def test_only_the_named_metrics_are_computed():
    assert list(compute([1.0, 2.0], [1.0, 3.0], metrics=["rmse", "mae"])) == ["mae", "rmse"]


# --- streaming ----------------------------------------------------------------------------------------------


@quick
@given(pairs, st.integers(1, 7), st.integers(0, 100), st.sampled_from([None, 1e10]))
def test_results_do_not_depend_on_batches_or_their_order(rows, size, seed, clip):
    at_once = compute([p for p, _ in rows], [t for _, t in rows], clip=clip)
    random.Random(seed).shuffle(rows)
    streamed = NumericMetrics(clip=clip)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        streamed.update([p for p, _ in part], [t for _, t in part])
        streamed.compute()  # intermediate results change nothing
    assert same(streamed.compute(), at_once)


def test_tensors_stay_on_their_device_until_compute():
    # Tensors on "meta" have no values: reading one raises an error.
    metrics = NumericMetrics()
    metrics.update(torch.empty(3, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"))
    with pytest.raises(NotImplementedError):
        metrics.compute()
