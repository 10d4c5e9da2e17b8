"""Which number of a text `parse_number` returns."""

import math

import pytest

from ntloss.numbers import parse_number
from ntloss.numbers.parsing import find_answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" -3.5 ", -3.5), ("3.", 3), ("1,000\n", 1000), ("+7", 7), ("50%", 50), ("5 €", 5), ("5 USD.", 5),
        ("67 million", 67e6), ("4 2", None), ("", None), ("x", None), ("42 apples", None),
        ("--3", None), ("-", None), (".", None), ("= 5", None), ("5-3", None), ("(5)", None),
    ],
)  # fmt: skip
def test_whole_accepts_only_texts_that_are_a_single_number(text, number):
    assert parse_number(text, "whole") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 42\n\nQuestion: what is 3 + 4?\nAnswer: 3+4=7\n#### 7", 42),
        ("It is 7. The answer is 42, not 41.", 42),
        ("<think>maybe the answer is 41</think> 42", 42),
        ("<THINK>#### 1</THINK>So. #### 42 #### 43", 42),
        ("<think>#### 41", None),
        ("<think>1</think> 2 <think>the answer is 41", None),
        ("<FINAL_ANSWER>42</FINAL_ANSWER>", 42),
        ("答案：42", 42),
        ("\\boxed{42} and 43", 42),
        ("It is 42.", None),
        ("Answer: none", None),
    ],
)
def test_after_is_the_first_number_behind_the_mark_of_the_answer(text, number):
    assert parse_number(text, "after") == number


def test_the_mark_of_an_answer_may_be_ones_own():
    text = "<think>Total: 1</think> Tax: 5. Total: 47. The answer is 3."
    assert parse_number(text, after=r"Total:") == 47
    assert parse_number("<think>1</think> 42", after="Total:") is None
    assert find_answer("It is 42.") is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("8/10", 8), ("Score: 8/10.", 8), ("8 / 10", 8), ("8 out of 10", 8), ("8 of 10", 8),
        ("8.5/10.0", 8.5), ("**8/10**", 8), ("(8/10)", 8), ("7", 7), ("9 of 10, so 9/10", 9),
        ("7/10 8/10", 8), ("8/10 100% sure", 100), ("In 2020 8/10", 8),
        ("8/100", None), ("1/8/10", None), ("8/10/2019", None), ("8/10,000", None), ("7-8/10", None),
        ("7/10-8/10", None), ("8/10:30", None), ("8/10ths", None), ("none", None),
    ],
)  # fmt: skip
def test_a_score_of_a_scale_may_be_written_as_a_ratio(text, score):
    assert parse_number(text, of=10) == score
    assert parse_number(text, "whole", of=10) in (score, None)


def test_the_largest_score_of_a_scale_may_have_separators():
    assert parse_number("850/1,000", of=1000) == parse_number("850/1000", of=1000) == 850


@pytest.mark.parametrize(
    ("text", "options", "error", "named"),
    [
        *[("8/10", {"of": of}, ValueError, "of=") for of in (0, -1, math.nan, math.inf, True, "5")],
        ("8/10", {"which": "middle"}, ValueError, "which"),
        *[(5, options, TypeError, "text|string") for options in ({}, {"of": 10}, {"which": "after"})],
    ],
)
def test_what_is_no_text_no_scale_or_no_choice_is_an_error(text, options, error, named):
    with pytest.raises(error, match=named):
        parse_number(text, **options)
