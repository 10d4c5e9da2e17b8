"""What is pointed out about a table, and how answers are written that may have errors among them."""

import numpy as np
import pandas as pd
import pytest

from ntloss.numbers import NumberFormat
from ntloss.regression.answers import AnswerFormat, find_errors, find_leaks

RANDOM = np.random.default_rng(0)
ANSWERS = (10 + 350 * RANDOM.random(60)).round(1)
OTHER = RANDOM.integers(1, 300, 60).astype(float)
STARTS = pd.Timestamp("2024-01-01") + pd.to_timedelta(RANDOM.integers(0, 300, 60), "D")


def leaks(columns, answers):
    numbers = {name: cells for name, cells in columns.items() if isinstance(cells[0], float)}
    return find_leaks(pd.DataFrame(columns), numbers, answers)


@pytest.mark.parametrize(
    "column",
    [
        np.log(ANSWERS),
        ANSWERS.argsort().argsort().astype(float),
        -(ANSWERS**2),
        ANSWERS + 7,
        (ANSWERS / 10).round(),
        np.where(np.arange(60) % 3, ANSWERS**0.5, np.nan),
        [f"{n:.0f} to {n + 50:.0f}" for n in ANSWERS // 50 * 50],
    ],
)
def test_columns_that_rise_or_fall_exactly_with_the_answer_are_named(column):
    (found,) = leaks({"other": OTHER, "leak it": column}, ANSWERS)
    assert "'leak it'" in found
    assert "--drop 'leak it'" in found


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ((OTHER, ANSWERS), OTHER + ANSWERS),
        ((OTHER, ANSWERS), (OTHER / 2 + ANSWERS / 2).round(1)),
        ((OTHER, ANSWERS), OTHER * ANSWERS),
        ((OTHER, ANSWERS), ANSWERS / OTHER),
        ((STARTS, STARTS + pd.to_timedelta(ANSWERS.round(), "D")), ANSWERS.round()),
    ],
)
def test_sums_and_products_of_columns_are_named_without_others(parts, answers):
    noise = RANDOM.random((2, 60))
    columns = {"noise": noise[0], "a": parts[0], "more": noise[1], "b": parts[1]}
    (found,) = leaks(columns, answers)
    assert "'a' and 'b'" in found
    assert "noise" not in found


def test_good_predictors_are_no_leaks():
    near = ANSWERS + RANDOM.normal(0, 5, 60)
    assert leaks({"near": near, "other": OTHER, "half": (ANSWERS > 100) * 1.0}, ANSWERS) == []
    assert leaks({"near": near, "other": OTHER}, (near + OTHER + RANDOM.normal(0, 3, 60)).round(1)) == []
    assert leaks({"few": np.where(np.arange(60) < 10, ANSWERS, np.nan)}, ANSWERS) == []
    assert leaks({"text": [f"text {n}" for n in ANSWERS], "shop": [*"abcdef"] * 10}, ANSWERS) == []


@pytest.mark.parametrize(
    ("answers", "errors"),
    [
        ([*range(10, 76), *[-1] * 14], {-1}),
        ([*range(500, 9000, 100), *[9999] * 12], {9999}),
        ([*range(-5, 60)], set()),
        ([*range(0, 60), -7.5], set()),
        ([*range(20, 80), 99], set()),
        ([0, 1] * 30, set()),
        ([*range(9990, 10_050), *[0] * 20], set()),
        ([*range(9990, 10_050), 0], {0}),
        ([*range(9990, 10_050), 0, 0, -999], {-999}),
        ([*range(1, 21), *[0] * 70], set()),  # a quarter of all answers would be far from the quartiles
        ([*np.exp(np.linspace(-4, 6, 60))], set()),  # large ones of a long tail
        ([*[5] * 50, 3, 4, 4.5, 5.5, 6, 7, 8, 5e6], {5e6}),
        ([*range(20, 300, 10), 1e6], {1e6}),
    ],
)
def test_answers_far_from_all_others_and_marks_of_gaps_may_be_errors(answers, errors):
    answers = np.array(answers, float)
    assert {*answers[find_errors(answers)]} == errors


def test_an_answer_that_may_be_an_error_takes_no_decimals_and_no_scale_from_the_others():
    answers = np.array([round(2.4 + i % 12 / 10, 1) for i in range(119)])
    forms = [
        AnswerFormat.choose(each) for each in (answers, np.append(answers, 1e7), np.append(answers[:30], 1e7))
    ]
    assert [(form.numbers.decimals, form.log) for form in forms] == [(1, False)] * 3


@pytest.mark.parametrize("number", [99.6, 123.0, -5.0, float("nan"), float("inf")])
def test_answers_that_do_not_fit_are_refused(number):
    assert AnswerFormat(NumberFormat(2)).write([99.4]) == ["99"]
    with pytest.raises(ValueError):  # noqa: PT011
        AnswerFormat(NumberFormat(2)).write([7.0, number])
