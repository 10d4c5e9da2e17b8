"""LoRA's merged weights are those of the model, or its options are refused."""

import pytest
import torch
import trainer_cases as cases
from tolerances import TWO_PATHS, assert_close

from ntloss.writing import Lora

pytest.importorskip("peft")


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"bias": "all"}], ids=str)
def test_the_merged_weights_are_those_of_the_model(options):
    model, ids = cases.llama(attention_bias=True).eval(), cases.batch()["input_ids"]
    lora = Lora(model, {"r": 2, **options})
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.3)
        merged = cases.llama(attention_bias=True).eval()
        merged.load_state_dict(lora.weights(), strict=False)
        assert_close(merged(ids).logits, model(ids).logits, TWO_PATHS)


@pytest.mark.parametrize("option", ["use_dora", "lora_bias"])
def test_options_that_add_more_than_a_product_are_an_error(option):
    with pytest.raises(ValueError, match=option):
        Lora(cases.llama(), {"r": 2, option: True})
