"""Numbers written with fixed width, read back, and the options of a format."""

from decimal import Decimal
from fractions import Fraction
from functools import partial

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
def test_all_numbers_have_the_same_length_and_are_read_back_exactly(numbers):
    number_format = NumberFormat.of(numbers)
    for number in numbers:
        written = number_format.write(number)
        assert len(written) == len(number_format.slots)
        assert all(c in slot for c, slot in zip(written, number_format.slots, strict=True))
        assert number_format.read(written) == Decimal(number)


@given(st.lists(plain_numbers().map(lambda text: text.lstrip("-")), min_size=1))
def test_padded_texts_sort_like_their_numbers(numbers):
    number_format = NumberFormat.of(numbers)
    by_text = sorted(numbers, key=number_format.write)
    assert [Decimal(n) for n in by_text] == sorted(Decimal(n) for n in numbers)


@given(plain_numbers(), st.integers(1, 32), st.integers(0, 22), st.booleans())
def test_a_number_is_written_only_if_no_digit_is_lost(number, width, decimals, signed):
    number_format = NumberFormat(width, decimals, signed)
    whole, _, after = number.lstrip("-").partition(".")
    fits = len(whole) <= width and len(after) <= decimals and (signed or number[0] != "-")
    assert number_format.fits(number) == fits
    if fits:
        assert number_format.read(number_format.write(number)) == Decimal(number)
    else:
        with pytest.raises(ValueError, match=f"'{number}' does not fit"):
            number_format.write(number)


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        (["188", "7", "0"], ["188", "007", "000"]),
        (["188", "-7", "0"], ["+188", "-007", "+000"]),
        (["0.5", "12", "-0.25"], ["+00.50", "+12.00", "-00.25"]),
        (["0", "-0", "-0.0"], ["0", "0", "0"]),
        ([" 007 ", "+12", "2.50"], ["07.0", "12.0", "02.5"]),
    ],
)
def test_answers_are_padded_to_the_smallest_common_format(answers, written):
    number_format = NumberFormat.of(answers)
    assert [number_format.write(answer) for answer in answers] == written


def test_both_zeros_are_read_as_zero():
    number_format = NumberFormat(2, 1, True)
    assert {number_format.read(text) for text in ("+00.0", "-00.0")} == {Decimal(0)}


def test_width_and_places_can_be_given():
    number_format = NumberFormat.of(["7", "-12"], digits=4, decimals=2)
    assert [number_format.write(number) for number in ("7", "-12")] == ["+0007.00", "-0012.00"]


@pytest.mark.parametrize(
    "answer", ["", "a dog | 2 cats", "2 + 3 = 5\n#### 5", "1,000", "1e3", "٣", "1 2", "."]
)
def test_an_answer_that_is_not_a_single_number_is_an_error(answer):
    assert not NumberFormat(9, 9, True).fits(answer)
    with pytest.raises(ValueError, match="is not a single number"):
        NumberFormat.of(["1", answer])


OTHER_WIDTHS = ["7", "-1234", "0.125", "20"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumberFormat.of([]), "expected at least one"),
        (
            lambda: NumberFormat.of(OTHER_WIDTHS, digits=3),
            "'-1234' does not fit .* point; expected at most 3",
        ),
        (lambda: NumberFormat.of(OTHER_WIDTHS, decimals=2), "'0.125' does not fit .* expected at most 2"),
        *[
            (partial(NumberFormat(3).read, text), "is not in the number format")
            for text in ("12", "+012", "0.12", "01x", "٠١٢")
        ],
        (lambda: NumberFormat(digits=0), "digits of 1 or more"),
        (lambda: NumberFormat.of(["5"], digits=0), "digits of 1 or more"),
    ],
)
def test_options_and_texts_that_do_not_fit_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("numbers", ["123", 123])
def test_one_text_or_number_is_not_several(numbers):
    with pytest.raises(TypeError, match="123"):
        NumberFormat.of(numbers)


def test_a_sign_that_is_always_written_leaves_no_number_without_one():
    digits = {i: str(i) for i in range(10)}
    vocabulary = NumberVocabulary.from_mapping({**digits, 10: "-", 11: "+"}, vocab_size=12)
    for plus, first in (("optional", {*range(12)}), ("written", {10, 11})):
        slots = NumberFormat(1, signed=True, plus=plus).tokens(vocabulary)
        assert {token for token, _ in slots[0]} == first
    with pytest.raises(ValueError, match="plus"):
        NumberFormat(1, plus="none")


@pytest.mark.parametrize(
    "numbers",
    [
        [7, 12.5], ["7", "12.5"], ["7", 12.5], np.array([7, 12.5]), np.array([7, 12.5], dtype=np.float32),
        torch.tensor([7, 12.5]), torch.tensor([7, 12.5], dtype=torch.bfloat16),
        [Decimal("7.0"), Decimal("12.5")],
        [np.int64(7), np.float32(12.5)], [7.0, 1.25e1], [Fraction(7), Fraction(25, 2)],
    ],
    ids=repr,
)  # fmt: skip
def test_a_format_of_numbers_is_that_of_their_texts(numbers):
    found = NumberFormat.of(numbers)
    assert found == NumberFormat(digits=2, decimals=1)
    assert [found.write(number) for number in numbers] == ["07.0", "12.5"]


def test_numbers_are_written_with_the_digits_that_their_type_holds():
    for number in (np.float32(12.3), torch.tensor(12.3), 12.3):
        assert NumberFormat.of([number]).write(number) == "12.3"
    assert NumberFormat(20).write(10**19 + 1) == "10000000000000000001"
    assert NumberFormat(1, 7).write(1e-7) == "0.0000001"
    assert not NumberFormat(2).fits(100)


@pytest.mark.parametrize(
    ("number", "error"), [(None, ValueError), ([1], TypeError), (float("nan"), ValueError)]
)
def test_what_is_no_number_is_an_error(number, error):
    with pytest.raises(error):
        NumberFormat.of([7, number])


@pytest.mark.parametrize("digits", [2.0, "2", None])
def test_digits_are_counted_in_whole_numbers(digits):
    with pytest.raises(TypeError, match="digits"):
        NumberFormat(digits=digits)
