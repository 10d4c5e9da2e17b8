"""Warnings name the line of the user's program, from whichever function they come."""

import pytest
import tiny_tokenizers as tiny
from reading_cases import make_model

from ntloss import NTLoss
from ntloss.reading import UnlikelyNumberWarning, number_quantiles, read_number


def test_a_warning_of_left_out_tokens_points_at_the_call():
    with pytest.warns(UserWarning, match="left out") as warned:
        NTLoss(tiny.byte_level())
    assert {each.filename for each in warned} == {__file__}


def test_a_warning_of_unlikely_numbers_points_at_the_call():
    tokenizer = tiny.byte_level()
    model = make_model("llama", len(tokenizer))
    inputs = tokenizer("a", return_tensors="pt")
    for call in (
        lambda: read_number(model, tokenizer, "a"),
        lambda: number_quantiles(model, dict(inputs), tokenizer),
    ):
        with pytest.warns(UnlikelyNumberWarning) as warned:
            call()
        assert {each.filename for each in warned} == {__file__}
