"""Parsing numbers in texts."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntloss.numbers.parsing import number_texts, parse_number, parse_numbers

quick = settings(deadline=None, max_examples=200, derandomize=True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", []),
        ("no number, nan, inf, ², ٣, ４, ½", []),
        ("The answer is 42.", [42]),
        ("3.14.15", [3.14, 15]),
        ("1.2.3", [1.2, 3]),
        ("v.5 and .5 and -.5", [5, 0.5, -0.5]),
        ("3..5", [3, 5]),
        ("3.", [3]),
        # signs
        ("-3 +4 \u22125", [-3, 4, -5]),
        ("5-3, 5 -3, 5 - 3, 5--3", [5, 3, 5, -3, 5, 3, 5, -3]),
        ("x-3, x=-3, (-3), (2)-3, 5%-3%", [3, -3, -3, 2, 3, 5, 3]),
        ("2019-05-01", [2019, 5, 1]),
        # thousands
        ("1,234 -1,234,567.5 12,345", [1234, -1234567.5, 12345]),
        ("1,23 0,123 1234,567 1,2345", [1, 23, 0, 123, 1234, 567, 1, 2345]),
        ("12,34,567 12,345,67", [12, 34, 567, 12, 345, 67]),
        ("1, 234", [1, 234]),
        ("1 000, 1'000, 1_000", [1, 0, 1, 0, 1, 0]),
        # exponents
        ("1.5e3 2E-1 -1e+2 1,000e1 2e\u22121", [1500, 0.2, -100, 10000, 0.2]),
        ("2e 3ex 4e5x 6e-", [2, 3, 4, 5, 6]),
        ("1e400 -1e400", [math.inf, -math.inf]),
        ("$5, 10%, 12km, 3rd, #### 7", [5, 10, 12, 3, 7]),
        ("007", [7]),
    ],
)  # fmt: skip
def test_numbers_are_found_by_the_documented_rule(text, numbers):
    assert parse_numbers(text) == numbers


def test_number_texts_keep_digits_that_a_float_cannot_hold():
    text = "From \u22121,234.50 to 123456789012345678901, 1e400 or -.5E-2."
    assert number_texts(text) == ["-1234.50", "123456789012345678901", "1e400", "-.5E-2"]
    assert parse_numbers(text) == [-1234.5, 123456789012345678901.0, math.inf, -0.005]


def test_minus_zero_is_zero():
    assert math.copysign(1, parse_numbers("-0")[0]) == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" -3.5 ", -3.5), ("3.", 3), (".5", 0.5), ("1,000\n", 1000), ("2e3", 2000), ("+7", 7),
        ("\u22127", -7),
        ("4 2", None), ("", None), ("x", None), ("5-3", None), ("1_000", None), ("٣", None), ("1２", None),
        ("nan", None), ("inf", None), ("1,00", None), ("42 apples", None), ("--3", None),
        ("-", None), (".", None),
    ],
)  # fmt: skip
def test_whole_accepts_only_texts_that_are_a_single_number(text, number):
    assert parse_number(text, "whole") == number


def test_the_option_which_may_be_a_function_and_unknown_names_are_errors():
    text = "2 + 3 = 5"
    assert parse_number(text, lambda text: float(len(text))) == 9
    assert parse_number("none") is None
    with pytest.raises(ValueError, match="'last', 'first', 'whole'"):
        parse_number(text, "middle")


@quick
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{!r}", "{:e}", "{:f}", "{:,}"]))
def test_formatted_floats_are_parsed_exactly(value, form):
    text = form.format(value)
    expected = float(text.replace(",", ""))
    assert parse_number(f"it is {text}.") == parse_number(text, "whole") == expected


@quick
@given(st.text(alphabet="0123456789.,-+eE %x)\u2212"))
def test_any_text_can_be_parsed_and_surrounding_white_space_is_ignored(text):
    assert parse_numbers(f" {text}\n") == parse_numbers(text)
    whole = parse_number(text, "whole")
    if whole is not None:
        assert parse_numbers(text) == [whole]


def test_parsing_takes_linear_time_on_repetitive_texts():
    for text in (
        "1,234" * 20_000,
        "1e" * 20_000,
        "9" * 100_000 + "x",
        "1e" + "5" * 20_000 + "x",
        "-" * 100_000,
    ):
        parse_numbers(text)
    assert parse_number("9" * 5_000) == math.inf
