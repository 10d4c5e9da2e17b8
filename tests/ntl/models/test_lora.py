"""LoRA is exact: the model is the same before training, and after its products are merged."""

import pytest
import torch
from model_cases import logits_of, make, rows_of
from tolerances import ONE_COMPUTATION, TWO_PATHS, assert_close

from ntl.errors import UserError

FAMILIES = {"llama-tiny": "decoder_only", "t5-tiny": "t5"}


def logits(built):
    with torch.no_grad():
        return logits_of(built, rows_of(built), built.model.eval())[0]


@pytest.mark.parametrize("shape", FAMILIES)
def test_a_model_with_lora_computes_the_same_until_it_is_trained_and_after_merging(shape):
    plain, adapted = (make(shape, family=FAMILIES[shape], lora=rank) for rank in (None, 2))
    assert_close(logits(adapted), logits(plain), ONE_COMPUTATION)
    assert all("lora_" in n for n, w in adapted.model.named_parameters() if w.requires_grad)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    trained = logits(adapted)
    assert (trained - logits(plain)).abs().max() > 0.01
    plain.model.load_state_dict(adapted.lora.weights(), strict=False)
    assert_close(logits(plain), trained, TWO_PATHS)
    adapted.lora.merge()
    assert_close(logits(adapted), trained, TWO_PATHS)
    assert {*adapted.model.state_dict()} == {*plain.model.state_dict()}


def test_a_model_that_lora_does_not_support_is_an_error():
    with pytest.raises(UserError, match="lora="):
        make("mamba-tiny", family="decoder_only", lora=2)


def test_a_number_of_layers_that_the_model_does_not_have_is_an_error():
    with pytest.raises(UserError, match="trained_layers=5"):
        make("llama-tiny", family="decoder_only", trained_layers=5)
