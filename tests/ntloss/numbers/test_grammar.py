"""The grammar of numbers: the table of docs/numbers.md, and what holds for any text."""

import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntloss.numbers import number_texts, parse_number, parse_numbers
from ntloss.numbers.grammar import NumberReader, find_numbers

quick = settings(deadline=None, max_examples=200, derandomize=True)
many = settings(quick, max_examples=400)
PAGE = Path(__file__).parents[3] / "docs" / "numbers.md"
PIECES = [
    *"0123456789", *",.' -+%$€()[]/:x*^ekKMB½²\u2212\u2013\u00a0", "000", "234", ",234", " 200", " million",
    "bn", "e5", "{,}", "\\,", "\\!", "1/2", " and ", "ths", " thousand", "°", "kg", "π", "\\sqrt", "USD", "_",
    "}", "m2", "CO2", "D+05", ".e+05", "\u2009", " of ", " Milliarden", "mm", '"', "|", "\n", "\\bar{", "+-",
]  # fmt: skip
READERS = st.builds(NumberReader, st.sampled_from([None, "", ",", ".", " ", "'"]), st.booleans())


def rows_of_page():
    """The texts of the page, with their numbers and whether each is alone: others are in parentheses."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `(.*?)` \| ?(.*?) ?\|$", line):
            text = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), match[1])
            written = match[2].split(", ") if match[2] else []
            numbers = [(float(number.strip("()")), number[0] != "(") for number in written]
            yield pytest.param(text, numbers, id=match[1])


@pytest.mark.parametrize(("text", "numbers"), list(rows_of_page()))
def test_texts_are_read_as_the_page_says(text, numbers):
    assert [(number.value, number.alone) for number in find_numbers(text)] == numbers
    assert parse_numbers(text) == [value for value, _ in numbers]
    last = numbers[-1][0] if numbers and numbers[-1][1] else None
    assert parse_number(text) == last
    assert parse_number(text, "whole") in (last, None)


@pytest.mark.parametrize(
    ("thousands", "text", "numbers"),
    [
        (",", "1,234 1 200 1.234,5", [1234, 1, 200, 1.234, 5]),
        (" ", "1 200,5 1,234", [1200.5, 1.234]),
        (".", "1.234 3,14 1,234", [1234, 3.14, 1.234]),
        ("'", "1'234 1,5", [1234, 1.5]),
        ("", "120 340 1,234", [120, 340, 1, 234]),
    ],
)
def test_a_separator_that_is_given_is_the_only_one(thousands, text, numbers):
    assert parse_numbers(text, thousands) == numbers
    if thousands == "":  # what separates numbers does not tie them
        assert [parse_number(text, which, thousands) for which in ("first", "last")] == [120, 234]


def test_number_texts_keep_digits_that_a_float_cannot_hold():
    text = "From \u22121,234.50 to 123456789012345678901, 1e400 or -.5E-2."
    assert number_texts(text) == ["-1234.50", "123456789012345678901", "1e400", "-.5e-2"]
    assert parse_numbers(text) == [-1234.5, 123456789012345678901.0, math.inf, -0.005]
    assert math.copysign(1, parse_numbers("-0")[0]) == 1


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


TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@many
@given(READERS, TEXTS, st.lists(st.sampled_from([*PIECES, "a"]), min_size=1, max_size=4).map("".join))
def test_a_number_that_is_not_open_stays_whatever_follows(reader, text, rest):
    now = reader.read(text)
    if not now.open:
        assert reader.read(text + rest) == now


@many
@given(READERS, TEXTS, st.sampled_from([*PIECES, "a", "mil", "liarde"]))
def test_after_a_text_the_same_follows_as_after_its_state(reader, text, piece):
    state = reader.state(text)
    assert reader.state(state) == state
    now, of_state = reader.read(text), reader.read(state)
    if now.open:
        then, of_then = reader.read(text + piece), reader.read(state + piece)
        for read, other in ((now, of_state), (then, of_then)):
            assert (read.value is None, read.tied, read.open) == (other.value is None, other.tied, other.open)


def test_texts_have_few_states():
    draw = random.Random(0)
    forms = [(10 ** draw.uniform(0, 9), draw.choice([",.0f", ",.2f", ".4f"])) for _ in range(3000)]
    numbers = [f"{number:{form}}" for number, form in forms]
    begun = {
        text[:n] for number in numbers for text in (number, f"{number} million") for n in range(len(text))
    }
    assert len(begun) > 10_000
    assert len({NumberReader().state(text) for text in begun}) < 100


@many
@given(st.sampled_from(["", "it is ", "共", "\\boxed{"]), TEXTS)
def test_the_number_that_a_text_begins_with_is_its_first_number(before, text):
    value, tied, _ = NumberReader().read(text)
    numbers = find_numbers(before + text)
    later = [number for number in numbers if number.start >= len(before)]
    is_name = re.match(r"\W*[0-9]+(?:_\w|[^\W\d_]+[0-9])", text)
    if value is not None and not is_name and not any(n.start < len(before) < n.end for n in numbers):
        assert later[0].value == value
        if tied:
            assert not later[0].alone


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1,234", (1234, False, True)),
        ("1,23", (1, True, True)),
        ("1,2345", (1, True, False)),
        ("1 200", (1, True, True)),
        ("5 Mill", (5, False, True)),
        ("5 Millionen.", (5, True, False)),
        ("5 Millimeter", (5, False, False)),
        ("5\udce2\udc80", (5, False, True)),
    ],
)
def test_a_number_is_open_while_characters_may_change_it(text, read):
    assert NumberReader().read(text) == read


def test_what_stands_before_a_number_decides_how_it_is_read():
    assert NumberReader.at("It costs $", 10) == (None, True)
    assert NumberReader.at("[120, 340]", 6) == ("", False)
    assert NumberReader.at("[120,", 5) == ("", False)
    assert NumberReader.at("(1,234 people)", 1) == (None, False)
    assert NumberReader(money=True).read("5m").value == 5e6


def test_what_is_no_text_or_no_separator_is_an_error():
    with pytest.raises(TypeError, match="text"):
        parse_numbers(5)
    with pytest.raises(ValueError, match="thousands"):
        parse_numbers("5", ";")


def test_parsing_takes_linear_time_on_repetitive_texts():
    for text in (
        "1,234" * 5_000, "1 234" * 5_000, "1.234," * 5_000, "1e" * 5_000, "1/" * 5_000,
        "1 million " * 2_500, "9" * 25_000 + "x", "1e" + "5" * 5_000 + "x", "-" * 25_000,
        "(" * 25_000 + "1", "(2019) " * 5_000, "[1,234," * 5_000, "(1,234 " * 5_000,
        "[" + "120,340," * 5_000 + "x", "x1" * 5_000, "1 m " * 5_000, "a-" * 12_000, "x^" * 12_000,
    ):  # fmt: skip
        parse_numbers(text)
        NumberReader().read(text[:1000])
    assert parse_number("9" * 5_000) == math.inf
