import pytest
from approach_cases import NTL, model_args

from ntl.approaches import build_approach
from ntl.errors import UserError

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def test_a_row_that_is_too_long_for_the_model_is_an_error():
    config = {**GPT2, "n_positions": 16}
    approach = build_approach(model_args(family="decoder_only", config=config), NTL)
    with pytest.raises(UserError, match="take 22 tokens; this model takes at most 16"):
        approach.encode(["1" * 18], ["42"])
