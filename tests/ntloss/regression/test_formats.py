"""How a regressor writes answers: what is far out, how many digits, and logarithms."""

import numpy as np
import pytest

from ntloss.numbers import NumberFormat
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.report import Report
from ntloss.regression.rows import divide
from ntloss.regression.suspects import far_out


def test_marks_of_gaps_in_many_rows_are_far_out():
    answers = np.array([9999.0 if i % 3 == 0 else 10 + i % 7 for i in range(60)])
    assert (far_out(answers) == (answers == 9999)).all()
    assert not far_out(np.array([0.0, 1] * 30)).any()
    assert not far_out(np.array([0.0] * 40 + [1, 2, 3, 4, 5] * 4)).any()


@pytest.mark.parametrize(
    ("usual", "others", "errors"),
    [
        (np.arange(9990.0, 10_050), [0] * 20, []),
        (np.arange(9990.0, 10_050), [0], [0]),
        (np.arange(9990.0, 10_050), [0, 0, -999], [-999]),
        (np.arange(1.0, 21), [0] * 70, []),  # a quarter of all answers would be far from the quartiles
        (np.exp(np.linspace(-4, 6, 60)), [], []),  # large ones of a long tail, which is written as logarithms
        (np.arange(2.4, 3.5, 0.02), [1e7], [1e7]),
        (np.arange(190) % 5 + 1.0, [999] * 10, [999]),  # which would make a long tail
        (np.arange(20.0, 300, 10), [1e6], [1e6]),
    ],
)
def test_zeros_and_long_tails_are_not_taken_for_errors(usual, others, errors, capsys):
    answers = np.array([*usual, *others])
    Report(True).plan(["question"], divide(1), [], answers, AnswerFormat.choose(answers), {}, [])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("far out")]
    assert bool(said) == bool(errors)
    assert all(f"such as {error:.15g}," in said[0] for error in errors)


def test_an_answer_that_is_far_out_takes_no_decimals_from_the_others():
    answers = np.array([round(2.4 + i % 12 / 10, 1) for i in range(119)])
    assert (
        AnswerFormat.choose(np.append(answers, 1e7)).numbers.decimals
        == AnswerFormat.choose(answers).numbers.decimals
        == 1
    )
    few = np.append(answers[:30], 1e7)  # one of thirty makes a long tail
    assert not AnswerFormat.choose(few).log


@pytest.mark.parametrize("number", [99.6, 123.0, -5.0, float("nan"), float("inf")])
def test_answers_that_do_not_fit_are_refused(number):
    assert AnswerFormat(NumberFormat(2)).write([99.4]) == ["99"]
    with pytest.raises(ValueError):  # noqa: PT011
        AnswerFormat(NumberFormat(2)).write([7.0, number])
