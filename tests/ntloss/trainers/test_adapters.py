"""PEFT's adapters on number-aware models, including adapters of the head."""

from typing import Any

import pytest
import torch
import trainer_cases as cases
from tolerances import assert_close
from torch.torch_version import TorchVersion
from trainer_cases import batch, gradients, number_aware_trainer

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")

ADAPTERS: dict[str, dict[str, Any]] = {
    "attention alone": {"target_modules": ["q_proj", "q"]},
    "head, too": {"target_modules": ["q_proj", "q", "lm_head"]},
    "DoRA of the head": {"target_modules": ["lm_head"], "use_dora": True},
    "tokens of the head": {
        "target_modules": ["q_proj", "q"],
        "trainable_token_indices": {"lm_head": [3, 4, 40]},
    },
    "head trained whole": {"target_modules": ["q_proj", "q"], "modules_to_save": ["lm_head"]},
}


def lora(adapter, **options):
    if adapter == "tokens of the head" and TorchVersion(peft.__version__) < TorchVersion("0.18"):
        pytest.skip("PEFT < 0.18 can only train tokens of an embedding")
    return peft.LoraConfig(r=2, lora_alpha=6, init_lora_weights=False, **ADAPTERS[adapter], **options)


def adapted(name, adapter):
    model = cases.MODELS[name]()
    torch.manual_seed(0)
    return peft.get_peft_model(model, lora(adapter)).train()


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("name", cases.MODELS)
def test_adapters_get_the_same_gradients_from_hidden_states_as_from_logits(name, adapter, tmp_path):
    model = adapted(name, adapter)
    loss, expected = gradients(number_aware_trainer(model, tmp_path), **batch())
    chunked = number_aware_trainer(model, tmp_path, "chunked")
    for _ in range(2):
        again, found = gradients(chunked, **batch())
        assert_close(again, loss)
        assert all(expected[key].abs().max() > 0 for key in expected)
        assert_close(found, expected)
    plain = number_aware_trainer(cases.MODELS[name](), tmp_path)
    with model.disable_adapter(), torch.no_grad():
        found = chunked.compute_loss(model, batch())
    assert_close(found, gradients(plain, **batch())[0])


@pytest.mark.parametrize("way", cases.WAYS)
@pytest.mark.parametrize("name", cases.MODELS)
def test_tokens_of_a_prompt_that_is_learned_are_left_out(name, way, tmp_path):
    kind = {"llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}[name]
    config = peft.PromptTuningConfig(task_type=kind, num_virtual_tokens=3)
    torch.manual_seed(0)
    model = peft.get_peft_model(cases.MODELS[name](), config).train()
    stock = model(**batch()).loss
    weights = torch.ones(4, cases.LENGTH)
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    loss, found = gradients(trainer, **batch(), loss_weights=weights, number_weights=weights)
    assert_close(loss, stock.detach())
    assert found.keys() == {name for name, weight in model.named_parameters() if weight.requires_grad}
