"""Numbers written with fixed width, read back, and the options of a format."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat


@st.composite
def plain_numbers(draw):
    """Draw a number without leading zeros, and without trailing zeros after the point."""
    whole = str(draw(st.integers(0, 10**30)))
    decimals = draw(st.text("0123456789", max_size=20)).rstrip("0")
    text = whole + ("." + decimals if decimals else "")
    return "-" + text if draw(st.booleans()) and set(text) != {"0"} else text


@given(st.lists(plain_numbers(), min_size=1))
def test_all_numbers_have_one_length_are_read_back_exactly_and_sort_like_their_texts(numbers):
    number_format = NumberFormat.of(numbers)
    written = [number_format.write(number) for number in numbers]
    for number, text in zip(numbers, written, strict=True):
        assert len(text) == len(number_format.slots)
        assert all(c in slot for c, slot in zip(text, number_format.slots, strict=True))
        assert number_format.read(text) == Decimal(number)
    positive = sorted(text for text in written if text[0] != "-")
    assert [Decimal(text) for text in positive] == sorted(map(Decimal, positive))


@given(plain_numbers(), st.integers(1, 32), st.integers(0, 22), st.booleans())
def test_a_number_is_written_only_if_no_digit_is_lost(number, width, decimals, signed):
    number_format = NumberFormat(width, decimals, signed)
    whole, _, after = number.lstrip("-").partition(".")
    if len(whole) <= width and len(after) <= decimals and (signed or number[0] != "-"):
        assert Decimal(number_format.write(number)) == Decimal(number)
    else:
        with pytest.raises(ValueError, match=f"'{number}' does not fit"):
            number_format.write(number)


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        (["188", "-7", "0"], ["+188", "-007", "+000"]),
        (["0.5", "12", "-0.25"], ["+00.50", "+12.00", "-00.25"]),
        (["0", "-0", "-0.0"], ["0", "0", "0"]),
        ([" 007 ", "+12", "2.50"], ["07.0", "12.0", "02.5"]),
    ],
)
def test_answers_are_padded_to_the_smallest_common_format(answers, written):
    number_format = NumberFormat.of(answers)
    assert [number_format.write(answer) for answer in answers] == written


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NumberFormat.of([]), ValueError, "at least one"),
        (lambda: NumberFormat.of("123"), TypeError, "123"),
        (lambda: NumberFormat.of([7, [1]]), TypeError, "1"),
        (lambda: NumberFormat.of([7, float("nan")]), ValueError, "nan"),
        *[
            (lambda text=text: NumberFormat.of(["1", text]), ValueError, "single number")
            for text in ("", "a dog", "2 + 3 = 5\n#### 5", "1,000", "1e3", "٣", "1 2", ".", None)
        ],
        (lambda: NumberFormat(0), ValueError, "digits"),
        (lambda: NumberFormat(digits="2"), TypeError, "digits"),
        (lambda: NumberFormat(1, plus="none"), ValueError, "plus"),
        *[
            (lambda t=t: NumberFormat(3).read(t), ValueError, "format")
            for t in ("12", "+012", "0.12", "01x", "٠١٢")
        ],
    ],
)
def test_options_and_texts_that_do_not_fit_are_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_only_tokens_that_lead_to_a_complete_number_are_allowed():
    digits = {i: str(i) for i in range(10)}
    vocabulary = NumberVocabulary.from_mapping(
        {**digits, 10: "-", 11: "+", 12: "\u2212", 13: "12", 14: " 4", 15: "345", 16: "."}, vocab_size=17
    )
    for plus, first in (("optional", {*range(15)}), ("written", {10, 11, 12})):
        slots = NumberFormat(2, signed=True, plus=plus).tokens(vocabulary)
        assert {token for token, _ in slots[0]} == first
        assert {token for token, _ in slots[1]} == {*digits, 13}  # no space inside, nor three digits
    allowed, lengths = NumberFormat(1, 1, signed=True).masks(vocabulary)
    assert [row.nonzero()[:, 0].tolist() for row in allowed] == [[10, 11], [*digits], [16], [*digits]]
    assert lengths[[10, 3, 16]].tolist() == [1, 1, 1]
    pairs = NumberVocabulary.from_mapping({0: "12", 1: " 4"}, vocab_size=2)  # after 12, nothing fits
    assert [[token for token, _ in slot] for slot in NumberFormat(3).tokens(pairs)] == [[1], [0], []]


def test_numbers_of_any_type_are_written_with_the_digits_that_it_holds():
    for numbers in (
        ["7", 12.5], np.array([7, 12.5], dtype=np.float32), torch.tensor([7, 12.5], dtype=torch.bfloat16),
        [Decimal("7.0"), Decimal("12.5")], [np.int64(7), Fraction(25, 2)],
    ):  # fmt: skip
        found = NumberFormat.of(numbers)
        assert found == NumberFormat(digits=2, decimals=1)
        assert [found.write(number) for number in numbers] == ["07.0", "12.5"]
    for number in (np.float32(12.3), torch.tensor(12.3), 12.3):
        assert NumberFormat.of([number]).write(number) == "12.3"
    assert NumberFormat(20).write(10**19 + 1) == "10000000000000000001"
    assert NumberFormat(1, 7).write(1e-7) == "0.0000001"
    assert {NumberFormat(2, 1, True).read(text) for text in ("+00.0", "-00.0")} == {Decimal(0)}
