"""PEFT's adapters on number-aware models, including adapters of the head."""

from typing import Any

import integration_cases as cases
import pytest
import torch
from integration_cases import DIGITS, batch, gradients, number_aware_trainer
from tolerances import TRAINED, assert_close
from torch.torch_version import TorchVersion

from ntloss.integrations.transformers import make_number_aware

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")

ADAPTERS: dict[str, dict[str, Any]] = {
    "attention alone": {"target_modules": ["q_proj", "q"]},
    "head, too": {"target_modules": ["q_proj", "q", "lm_head"]},
    "head, with a bias": {"target_modules": ["lm_head"], "lora_bias": True},
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


def adapted(name, adapter, model=None):
    model = cases.MODELS[name]() if model is None else model
    torch.manual_seed(0)
    return peft.get_peft_model(model, lora(adapter)).train()


@pytest.mark.parametrize("patched", ["before", "after"])
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("name", cases.MODELS)
def test_adapters_get_the_same_gradients_from_hidden_states_as_from_logits(name, adapter, patched):
    model = adapted(name, adapter)
    with make_number_aware(model, DIGITS):
        outputs, expected = gradients(model, **batch())
    if patched == "before":
        model = cases.MODELS[name]()
        make_number_aware(model, DIGITS, chunked=True)
        model = adapted(name, adapter, model)
    else:
        make_number_aware(model, DIGITS, chunked=True)
    for _ in range(2):
        again, found = gradients(model, **batch())
        assert_close(again.loss, outputs.loss)
        assert all(expected[key].abs().max() > 0 for key in expected)
        assert_close(found, expected)
    plain = cases.MODELS[name]()
    make_number_aware(plain, DIGITS)
    with model.disable_adapter():
        assert_close(model(**batch()).loss, plain(**batch()).loss)
    model.eval()
    assert model(**batch()).logits.shape[-1] == cases.VOCAB


@pytest.mark.parametrize("chunked", [False, True])
def test_merging_an_adapter_does_not_change_the_loss(chunked):
    model = adapted("llama", "head, too")
    make_number_aware(model, DIGITS, chunked=chunked)
    loss = model(**batch()).loss
    model.merge_adapter()
    assert_close(model(**batch()).loss, loss)


@pytest.mark.parametrize("way", ["own loss", "chunked"])
@pytest.mark.parametrize("name", cases.MODELS)
def test_only_adapters_are_trained(name, way, tmp_path):
    trained = []
    for accumulate in (1, 4):
        model = adapted(name, "head, too")
        before = {key: weight.clone() for key, weight in model.state_dict().items()}
        number_aware_trainer(model, tmp_path, way, accumulate=accumulate).train()
        after = model.state_dict()
        changed = {key for key, weight in after.items() if not torch.equal(weight, before[key])}
        assert changed == {key for key in after if "lora_" in key}
        trained.append({key: after[key].clone() for key in changed})
    assert_close(trained[1], trained[0], TRAINED)


def test_an_adapter_without_separate_low_rank_weights_needs_logits():
    config = peft.LoraConfig(r=2, target_modules=["lm_head"], use_dora=True)
    model = peft.get_peft_model(cases.llama(), config).train()
    handle = make_number_aware(model, DIGITS, chunked=True)
    with pytest.raises(ValueError, match=r"no variant such as DoRA.*Use chunked=False"):
        model(**batch())
    handle.undo()
    make_number_aware(model, DIGITS)
    assert model(**batch()).loss > 0
