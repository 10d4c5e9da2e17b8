import math

import pytest
import torch
from tokenizers_like import tokenizer_like
from tolerances import assert_close

from ntl.encodings.digits import TextEncoding, character_tokenizer, load_tokenizer, split_digits
from ntl.encodings.regression_transformer import (
    PLACED_DIGITS,
    TOKENS,
    RegressionTransformerEncoding,
    numerical_encodings,
)
from ntl.errors import UserError

AWKWARD = (
    "12.3",
    "-0.50",
    "007 and 1.200",
    "(3)x=-7,8; 5-3 --2",
    "1.2.3. .5 5. 1e5",
    "12345678901234567890.123456789012",  # all 32 places
    "123456789012345678901 is too large, 0.1234567890123 too fine; 4",
    "0.000000000001 90000000000000000000",
    "a3b4, 10% of 1,234",
    "no number",
    "",
)


@pytest.fixture(scope="module", params=["shipped", "t5"])
def encoding(request):
    if request.param == "shipped":
        return RegressionTransformerEncoding(character_tokenizer())
    return RegressionTransformerEncoding(split_digits(load_tokenizer(tokenizer_like("t5"))))


def ids(encoding, *tokens):
    return encoding.tokenizer.convert_tokens_to_ids(list(tokens))


def test_digits_are_encoded_with_their_places(encoding):
    row = encoding.encode(["12.3"])[0]
    tokens = [t for t in encoding.tokenizer.convert_ids_to_tokens(row) if t.startswith("_")]
    assert tokens == ["_1_1_", "_2_0_", "_3_-1_"]
    assert len(TOKENS) == 320


@pytest.mark.parametrize("text", AWKWARD)
def test_unusual_numbers_are_restored_exactly(encoding, text):
    before = encoding.ill_formed
    assert encoding.decode(encoding.encode([text])) == [text]
    assert encoding.ill_formed == before


@pytest.mark.parametrize("text", ["４２", "x²", "٣ 7"])
def test_digits_of_other_scripts_are_text_unless_the_tokenizer_normalizes_them(encoding, text):
    plain = TextEncoding(encoding.tokenizer)
    assert encoding.decode(encoding.encode([text])) == plain.decode(plain.encode([text]))


def test_malformed_numbers_are_decoded_on_a_best_effort_basis_and_counted(encoding):
    def read(*tokens):
        before = encoding.ill_formed
        return encoding.decode([ids(encoding, *tokens)])[0], encoding.ill_formed - before

    assert read("_1_2_", "_2_1_") == ("120", 1)  # ends above place 0
    assert read("_1_2_", "_2_0_") == ("102", 1)  # skips a place
    assert read("_1_1_", "_2_-1_") == ("10.2", 1)
    assert read("_5_-2_") == ("0.05", 0)
    assert read("_1_0_", "_2_0_") == ("1 2", 0)  # a place that does not decrease starts the next number
    assert read("_1_0_", "_2_3_", "-", "_3_0_") == ("1 2000-3", 1)


def test_a_text_that_contains_a_token_of_the_encoding_is_an_error(encoding):
    with pytest.raises(UserError, match="plain text"):
        encoding.encode(["what is _4_2_?"])


def test_the_numerical_encodings_equal_the_published_ones():
    def row(table, digit, place):
        return table[PLACED_DIGITS.index((digit, place))]

    linear, log = numerical_encodings(6, False), numerical_encodings(6, True)
    value = 3e9
    assert_close(row(linear, 3, 9), torch.tensor([1, -1, 1 / 3, -1 / 3, 1 / 5, -1 / 5]) * 10)
    logs = [sign * math.log10(value / i + 1) / (math.log10(3e9) / 10) for i in (1, 3, 5) for sign in (1, -1)]
    assert_close(row(log, 3, 9), torch.tensor(logs))
    assert not row(log, 0, 5).any()
    assert row(linear, 9, 19)[0] > 10
    assert row(log, 4, -2)[0] > row(log, 3, -2)[0] > 0
