"""Parsing numbers in texts, by the tables of docs/numbers.md."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntloss.numbers.grammar import find_in_text, read_prefix
from ntloss.numbers.parsing import number_texts, parse_number, parse_numbers

quick = settings(deadline=None, max_examples=200, derandomize=True)
many = settings(quick, max_examples=1000)
PAGE = Path(__file__).parents[3] / "docs" / "numbers.md"
PIECES = [
    *"0123456789", *",.' -+%$€()[]/:x*^ekKMB½²\u2212\u2013\u00a0", "000", "234", ",234", " 200", " million",
    "bn", "e5", "{,}", "\\,", "\\!", "1/2", " and ", "ths", " thousand", "°", "kg", "π", "\\sqrt", "\u20e3",
    "USD", "h", "_", "}", "m2", "CO2", "D+05",
    ".e+05", "\u2009", " of ", " to ", "Milliarden", "mm", "CR",
    "<box>", "</box>", '"', "|", "\n", "\\bar{", "+-", "\u2213",
]  # fmt: skip


def rows_of_page():
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `(.*?)` \| (.*?)\| (.*?) \|", line):
            text = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), match[1])
            numbers = [float(number) for number in match[2].split(", ") if number.strip()]
            yield pytest.param(text, numbers, None if match[3] == "—" else float(match[3]), id=match[1])


@pytest.mark.parametrize(("text", "numbers", "last"), list(rows_of_page()))
def test_texts_are_read_as_the_page_says(text, numbers, last):
    assert parse_numbers(text) == numbers
    assert parse_number(text) == last
    whole = parse_number(text, "whole")
    assert whole in (last, None)
    if last is None:
        assert parse_number(text, "first") is None or len(numbers) > 2


@pytest.mark.parametrize(
    ("thousands", "text", "numbers"),
    [
        (",", "1,234 1 200 1.234,5", [1234, 1, 200, 1.234, 5]),
        (" ", "1 200,5 1,234", [1200.5, 1, 234]),
        (".", "1.234 3,14 1,234", [1234, 3.14, 1.234]),
        ("'", "1'234 1,234", [1234, 1, 234]),
        ("", "120 340 1,234", [120, 340, 1, 234]),
    ],
)
def test_a_separator_that_is_given_is_the_only_one(thousands, text, numbers):
    assert parse_numbers(text, thousands) == numbers


def test_number_texts_keep_digits_that_a_float_cannot_hold():
    text = "From \u22121,234.50 to 123456789012345678901, 1e400 or -.5E-2."
    assert number_texts(text) == ["-1234.50", "123456789012345678901", "1e400", "-.5e-2"]
    assert parse_numbers(text) == [-1234.5, 123456789012345678901.0, math.inf, -0.005]


def test_minus_zero_is_zero():
    assert math.copysign(1, parse_numbers("-0")[0]) == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" -3.5 ", -3.5), ("3.", 3), ("1,000\n", 1000), ("+7", 7), ("50%", 50), ("5 €", 5),
        ("67 million", 67e6), ("4 2", None), ("", None), ("x", None), ("42 apples", None),
        ("--3", None), ("-", None), (".", None),
        ("= 5", None), ("5-3", None), ("50%.", 50), ("5 €.", 5), ("1.299,- €", 1299), ("12,-5", None),
    ],
)  # fmt: skip
def test_whole_accepts_only_texts_that_are_a_single_number(text, number):
    assert parse_number(text, "whole") == number


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("8/10", 8), ("Score: 8/10.", 8), ("8 / 10", 8), ("8 out of 10", 8), ("**8**/10", 8),
        ("8.5/10.0", 8.5),
        ("\\frac{8}{10}", 8), ("\\frac8{10}", 8), ("8\\,/\\,10", 8),
        ("7", 7), ("9 of 10, so 9/10", 9), ("8/100", None), ("1/8/10", None),
        ("(8)", 8), ("**(8.5)**", 8.5), ("8.25(4)", None), ("(\\frac{8}{10})", 8),
        ("(8/10)", 8), ("8 (out of 10)", 8), ("8 stars out of 10", 8), ("8 on a scale of 1 to 10", 8),
        ("8/10/2019", None), ("8/10,000", None), ("7-8/10", None), ("none", None),
        ("7/10-8/10", None), ("8/10*2", None), ("8/10:30", None),
        ("8 out of max 10", 8), ("8 out of a maximum of 10", 8), ("8-out-of-10", 8),
        ("8 on a 10-point scale", 8), ("8 on a scale from one to 10", 8), ("8 on a scale of 1 - 10", 8),
        ("**8 out of** 10", 8), ("`8`/10", 8),
        ("$8$/10", 8), ("<b>8</b>/10", 8), ("8 marks out of 10", 8), ("8 из 10", 8), ("8 su 10", 8),
        # The scale is no part of a number that follows it, nor the score one of another number.
        ("8/10 100% sure", 100), ("8/10 500 reviews", 500), ("8/10 million", 8), ("7/10 8/10", 8),
        ("8/10e3", None), ("3\\frac{8}{10}", None), ("1 8/10 cups", None), ("8/10ths", None),
        ("In 2020 8/10", 8), ("Item 2 8 out of 10", 8),
    ],
)  # fmt: skip
def test_a_score_of_a_scale_may_be_written_as_a_ratio(text, score):
    assert parse_number(text, of=10) == score
    assert parse_number(text, "whole", of=10) in (score, None)


def test_the_largest_score_of_a_scale_may_have_separators():
    assert parse_number("850/1,000", of=1000) == parse_number("850/1000", of=1000) == 850


@pytest.mark.parametrize("of", [0, -1, math.nan, math.inf, True, "5"])
def test_a_scale_ends_at_a_number_above_0(of):
    with pytest.raises(ValueError, match="of="):
        parse_number("8/10", of=of)


def test_the_option_which_may_be_a_function_and_unknown_names_are_errors():
    text = "2 + 3 = 5"
    assert parse_number(text, lambda text: float(len(text))) == 9
    with pytest.raises(ValueError, match="which"):
        parse_number(text, "middle")
    with pytest.raises(ValueError, match="thousands"):
        parse_numbers(text, ";")


@pytest.mark.parametrize("given", [None, 5, b"5"])
def test_what_is_no_text_is_a_type_error(given):
    for of in (None, 10):
        with pytest.raises(TypeError, match="expected a text"):
            parse_number(given, of=of)


@quick
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{!r}", "{:e}", "{:f}", "{:,}"]))
def test_formatted_floats_are_parsed_exactly(value, form):
    text = form.format(value)
    expected = float(text.replace(",", ""))
    assert parse_number(f"it is {text}.") == parse_number(text, "whole") == expected


@quick
@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_can_be_parsed_and_surrounding_white_space_is_ignored(text):
    assert parse_numbers(f"\n{text}\n") == parse_numbers(text)
    whole = parse_number(text, "whole")
    if whole is not None:
        assert parse_numbers(text) == [whole] == [parse_number(text)]


@many
@given(
    st.sampled_from([None, ""]),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.sampled_from([*PIECES, "a", " "]), min_size=1, max_size=4).map("".join),
)
def test_a_prefix_that_is_not_open_keeps_its_number_whatever_follows(thousands, text, rest):
    now = read_prefix(text, thousands)
    if not now.open:
        assert read_prefix(text + rest, thousands) == now


@many
@given(
    st.sampled_from(["", "it is ", "共", "\\boxed{"]),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)
def test_the_number_that_a_text_begins_with_is_its_first_number(before, text):
    value, joined, _ = read_prefix(text)
    numbers = find_in_text(before + text)
    later = [number for number in numbers if number.start >= len(before)]
    if value is not None and not any(n.start < len(before) < n.end for n in numbers):
        assert later[0].value in (value, -value)  # parentheses of accountants
        if joined:
            assert not later[0].alone


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1,234", (1234, False, True)),
        ("5 Mill", (5, True, True)),
        ("5 Millionen.", (5, True, False)),
        ("5 Millimeter", (5, False, False)),
    ],
)
def test_a_prefix_is_open_while_characters_may_change_its_number(text, read):
    assert read_prefix(text) == read


def test_parsing_takes_linear_time_on_repetitive_texts():
    for text in (
        "1,234" * 20_000,
        "1 234" * 20_000,
        "1.234," * 20_000,
        "1e" * 20_000,
        "1/" * 20_000,
        "1 million " * 10_000,
        "9" * 100_000 + "x",
        "1e" + "5" * 20_000 + "x",
        "-" * 100_000,
        "(" * 100_000 + "1",
        "-" * 2_000 + "\n" + "Answer 5 and 6. " * 5_000,
        "(2019) " * 20_000,
        "[1,234," * 20_000,
        "(1,234 " * 20_000,
        "[" + "120,340," * 20_000,
        "[" + "120,340," * 20_000 + "x",
        "<a>1 234" * 10_000,
        "x1" * 20_000,
        "1 m " * 20_000,
    ):
        parse_numbers(text)
        read_prefix(text)
    assert parse_number("9" * 5_000) == math.inf
