import pytest

from ntl.encodings.digits import character_tokenizer, load_tokenizer, split_digits
from ntl.encodings.number_values import XvalEncoding
from ntl.encodings.regression_transformer import RegressionTransformerEncoding
from ntl.errors import UserError
from tests.ntl.conftest import shared


@pytest.fixture(scope="module", params=["shipped", "t5"])
def encoding(request):
    if request.param == "shipped":
        return XvalEncoding(character_tokenizer())
    return XvalEncoding(split_digits(load_tokenizer(shared("tokenizers/t5"))))


def test_a_text_that_contains_the_number_token_is_an_error(encoding):
    with pytest.raises(UserError, match="plain text"):
        encoding.encode(["what is [NUM]?"])


def test_a_text_with_a_special_token_that_has_a_digit_is_an_error():
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["<s7>"], special_tokens=True)
    with pytest.raises(UserError, match="contains digits or words"):
        RegressionTransformerEncoding(tokenizer).encode(["<s7>"])
