"""Rows and batches of writers, and the weights that are trained: upper layers, LoRA, and their digest."""

import shutil

import pytest
import tiny_tokenizers as tiny
import torch
import trainer_cases as cases
from reading_cases import make_model
from safetensors.torch import save_file
from tolerances import TWO_PATHS, assert_close
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from ntloss.numbers import NumberFormat
from ntloss.writing import Lora, UpperLayers, Writer, digest_of_weights


def test_a_tokenizer_without_tokens_for_padding_reads_batches_as_single_prompts():
    tokenizer = tiny.byte_level()
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (None, None)
    writer = Writer(make_model("llama", len(tokenizer)).double(), tokenizer, NumberFormat(2))
    prompts = [tokenizer.encode(text) for text in ("a", "the a")]
    single = [writer.quantiles([prompt], [0.5])[0] for prompt in prompts]
    assert_close(writer.quantiles(prompts, [0.5]), single)


GROUPED = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "llama": LlamaConfig(**GROUPED, num_hidden_layers=4, vocab_size=50, attention_dropout=0.5),
    "gpt2": GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=50),
    "gemma2": Gemma2Config(**GROUPED, head_dim=8, num_hidden_layers=4, vocab_size=50, pad_token_id=0),
    "opt": OPTConfig(
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        vocab_size=50,
    ),
    "bloom": BloomConfig(hidden_size=32, n_layer=4, n_head=4, vocab_size=50),
    "mamba": MambaConfig(hidden_size=32, num_hidden_layers=4, state_size=4, vocab_size=50),
}


def make(family):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family])


def left_padded(family):
    ids, mask = torch.randint(1, 50, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[0, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family not in ("bloom", "mamba"):
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_from_given_states_are_those_of_the_whole_model(family):
    model = make(family)
    frozen = UpperLayers(model, 2)
    inputs = left_padded(family)
    states = frozen.states(inputs)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    model.eval()
    whole = model(**inputs, use_cache=False).logits[inputs["attention_mask"].bool()]
    expected = torch.autograd.grad(whole.square().mean(), trained)
    other = {**inputs, "input_ids": torch.zeros_like(inputs["input_ids"])}  # the lower layers do not run
    given = model(**other, states=states, use_cache=False).logits[inputs["attention_mask"].bool()]
    assert_close(given, whole)
    for gradient, same in zip(torch.autograd.grad(given.square().mean(), trained), expected, strict=True):
        assert_close(gradient, same)
    # Afterwards the model is whole again, also without the hooks.
    for _ in range(2):
        assert_close(model(**inputs, use_cache=False).logits[inputs["attention_mask"].bool()], whole)
        frozen.remove()
    assert not model._forward_pre_hooks
    with pytest.raises(ValueError, match="4 layers"):
        UpperLayers(model, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_upper_layers_and_the_norm_behind_them_are_trained(family):
    model = make(family)
    UpperLayers(model, 1)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    in_layers = {name for name in trained if ".3." in name}
    assert in_layers
    assert all("norm" in name or ".ln_f." in name for name in trained - in_layers)
    assert not any("embed" in name or "lm_head" in name for name in trained)


def test_frozen_layers_have_no_dropout_while_the_others_are_trained():
    model = make("gpt2")
    frozen = UpperLayers(model, 1)
    model.train()
    inputs = left_padded("gpt2")
    assert_close(frozen.states(inputs), frozen.states(inputs))
    assert all(module.training for module in model.transformer.h[-1].modules())
    assert not any(module.training for module in model.transformer.h[0].modules())
    assert not model.transformer.drop.training


def test_the_encoder_and_the_lower_decoder_layers_of_an_encoder_decoder_are_frozen():
    config = T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=4, num_heads=4
    )
    model = T5ForConditionalGeneration(config)
    frozen = UpperLayers(model, 1)
    assert not frozen.can_be_kept
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all(name.startswith(("decoder.block.3.", "decoder.final_layer_norm.")) for name in trained)


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"bias": "all"}], ids=str)
def test_the_merged_weights_are_those_of_the_model(options):
    model, ids = cases.llama(attention_bias=True).eval(), cases.batch()["input_ids"]
    pytest.importorskip("peft")
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
    pytest.importorskip("peft")
    with pytest.raises(ValueError, match=option):
        Lora(cases.llama(), {"r": 2, option: True})


@pytest.mark.parametrize(
    ("file", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)]
)
def test_trained_weights_are_told_from_copied_ones(file, save, tmp_path):
    weights = {"embedding": torch.rand(3000, 40), "head": torch.rand(3), "norm": torch.rand(40)}
    folder, copy = tmp_path / "model", tmp_path / "copy"
    folder.mkdir()
    save(weights, folder / file)
    shutil.copytree(folder, copy)
    (copy / "metrics.json").write_text("{}")
    assert digest_of_weights(copy) == digest_of_weights(folder)
    for name in weights:
        save({**weights, name: weights[name] + 0.1}, copy / file)
        assert digest_of_weights(copy) != digest_of_weights(folder)


def test_a_name_on_the_hub_has_no_digest_and_a_damaged_file_is_an_error(tmp_path):
    assert digest_of_weights("HuggingFaceTB/SmolLM2-135M-Instruct") is None
    for damaged in (b"", b"half", b"version https://git-lfs", b"\x02" + bytes(7) + b"[]"):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=str(tmp_path)):
            digest_of_weights(tmp_path)
