import math

import pytest
import torch
from tokenizers_like import tokenizer_like
from tolerances import CANCELLATION, approx, assert_close

from ntl.encodings.digits import character_tokenizer, load_tokenizer, split_digits
from ntl.encodings.number_values import XvalEncoding, embedding_scale, find_values


@pytest.fixture(scope="module", params=["shipped", "t5"])
def encoding(request):
    if request.param == "shipped":
        return XvalEncoding(character_tokenizer())
    return XvalEncoding(split_digits(load_tokenizer(tokenizer_like("t5"))))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("12.3", [12.3]),
        ("-7", [-7]),
        ("5-3 = 2, not -2.5", [5, 3, 2, -2.5]),
        ("(3)x=-7,8; --2 (-0.001)", [3, -7, 8, -2, -0.001]),
        ("1.2.3. .5 5.", [1.2, 3, 5, 5]),
        ("a3b4 x-3 10%-5", [3, 4, 3, 10, 5]),
        ("100000000000000000000 0.0000000000001", [1e20, 1e-13]),
        ("no number", []),
        ("", []),
    ],
)
def test_unusual_numbers_are_encoded_as_values_and_restored(encoding, text, values):
    rows = encoding.encode([text])
    assert [each for each in rows[0] if isinstance(each, float)] == values == find_values(text)
    assert encoding.decode(rows) == [text]


@pytest.mark.parametrize(
    ("text", "back"),
    [("007", "7"), ("1.50", "1.5"), ("2.0", "2"), ("12345678901234567890", "12345678901234567000")],
)
def test_zeros_at_the_ends_and_digits_beyond_float64_are_lost(encoding, text, back):
    assert encoding.decode(encoding.encode([text])) == [back]


def test_numbers_that_overflow_float64_keep_their_digits(encoding):
    text = "9" * 400 + " and 5"
    rows = encoding.encode([text])
    assert [each for each in rows[0] if isinstance(each, float)] == [5]
    assert encoding.decode(rows) == [text]


def test_the_embedding_scale_is_zero_at_the_documented_values():
    values = torch.tensor([-1.0, 0.0, 3e9, -3e9], dtype=torch.float64)
    log = embedding_scale(values, log_scale=True)
    assert log[1] == 0
    assert_close(log[2:], torch.tensor([10.0, -10.0], dtype=torch.float64), CANCELLATION)
    assert log[0].item() == approx(-math.log10(2) / (math.log10(3e9) / 10))
    assert embedding_scale(values, log_scale=False).tolist() == [0, 1, 3e9 + 1, -3e9 + 1]
    assert embedding_scale(torch.tensor([1e300], dtype=torch.float64), log_scale=False).float().isfinite()
