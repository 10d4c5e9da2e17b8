"""Models are built from shapes, folders and names on the hub, and fail with advice."""

import pytest
from model_cases import (
    ANSWERS,
    GPT2,
    GREEDY,
    QUESTIONS,
    gradient,
    make,
    model_args,
    rows_of,
    save_pretrained,
    saved,
)
from tokenizers_like import tokenizer_like
from tolerances import assert_close, assert_identical
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from ntl.errors import UserError
from ntl.models import build
from ntl.models.source import get_shape
from ntl.settings import Weights

DECODER = {"family": "decoder_only"}


def pretrained(folder, trained_layers=None, **settings):
    weights = Weights(trained_layers=trained_layers)
    return build(model_args(family="pretrained", checkpoint=str(folder), **settings), weights)


def test_a_decoder_is_recognized_and_its_weights_are_unchanged(tmp_path):
    built = pretrained(save_pretrained(tmp_path))
    assert built.decodes_only
    original = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_identical(built.model.state_dict(), original.state_dict())


def test_an_encoder_decoder_other_than_t5_is_trained_saved_and_loaded(tmp_path):
    shape = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 98}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 1}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
    config = BartConfig(**shape, **heads, **layers, bos_token_id=None, forced_eos_token_id=None)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    make().tokenizer.save_pretrained(tmp_path / "bart")
    built = pretrained(tmp_path / "bart", trained_layers=1)
    gradients, loss = gradient(built, rows_of(built))
    assert loss > 0
    assert gradients.isfinite().all()
    other = saved(built, tmp_path / "run", {"family": "pretrained"})
    assert_identical(other.model.state_dict(), built.model.state_dict())
    assert other.answer(QUESTIONS[:2], *GREEDY) == built.answer(QUESTIONS[:2], *GREEDY)
    with pytest.raises(UserError, match="bart"):
        pretrained(tmp_path / "bart", encoding="xval")


@pytest.mark.parametrize(
    ("settings", "added"), [({"encoding": "rt"}, 320), ({"encoding": "xval"}, 1), ({"head": "regression"}, 0)]
)
def test_pretrained_weights_stay_and_get_tokens_and_a_head(settings, added, tmp_path):
    config = get_shape("t5-tiny") | {"decoder_start_token_id": 0, "dropout_rate": 0.0, "vocab_size": 98}
    original = T5ForConditionalGeneration(T5Config(**config))
    original.save_pretrained(tmp_path)
    make().tokenizer.save_pretrained(tmp_path)
    built = build(model_args(checkpoint=str(tmp_path), **settings))
    body = getattr(built.model, "transformer", built.model)
    assert_close(body.shared.weight[:98], original.shared.weight)
    assert len(body.shared.weight) == 98 + added
    assert_identical(body.encoder.block.state_dict(), original.encoder.block.state_dict())
    assert body.encoder.embed_tokens.weight is body.decoder.embed_tokens.weight
    for head in (built.model.number_head[0],) if "xval" in settings.values() else (built.head,):
        assert head is None or 0.5 < head.weight.std() * 64**0.5 < 2
    built.fit(ANSWERS)
    gradient(built, rows_of(built))


def test_a_pretrained_decoder_gets_a_head_and_keeps_its_other_weights(tmp_path):
    language = make("llama-tiny", **DECODER)
    built = pretrained(save_pretrained(tmp_path, language), trained_layers=1, head="regression")
    for key, value in built.model.model.state_dict().items():
        assert_identical(language.model.model.state_dict()[key], value)
    trained = {name for name, weight in built.model.named_parameters() if weight.requires_grad}
    assert {"score.weight", "model.norm.weight"} <= trained
    assert not any("layers.0" in name or "embed" in name for name in trained)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoding": "rt"},
        {"head": "regression"},
        {"encoding": "xval"},
        {"number_format": "plain"},
        {"number_format": "padded", "number_digits": 3},
        DECODER,
    ],
)
def test_a_checkpoint_of_another_model_is_refused_before_its_weights_are_read(settings, tmp_path):
    built = make(number_format="padded")
    built.tokenizer.save_pretrained(tmp_path)
    built.model.config.save_pretrained(tmp_path)  # without weights, which must not be read
    with pytest.raises(UserError, match=r"was trained with|decoder_only"):
        build(model_args(checkpoint=str(tmp_path), **settings))


def test_a_checkpoint_with_another_tokenizer_or_without_weights_is_refused(tmp_path):
    built = make()
    built.model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tokenizer_name_or_path"):
        build(model_args(checkpoint=str(tmp_path), tokenizer=tokenizer_like("t5")))
    (tmp_path / "model.safetensors").unlink()
    built.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="model_name_or_path"):
        build(model_args(checkpoint=str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"config": {"model_type": "t5", "d_modell": 8}}, "config_overrides.d_modell"),
        ({"config": {"model_type": "t5", "feed_forward_proj": "wavy"}}, "wavy"),
        ({"checkpoint": "/nowhere"}, "model_name_or_path=/nowhere.*make model"),
        (DECODER, "a t5 cannot be used with model_args.family=decoder_only"),
        ({"config": GPT2}, "a gpt2 cannot be used with model_args.family=t5"),
        ({**DECODER, "config": {"model_type": "llama", "hidden_siz": 8}}, "Did you mean .*hidden_size"),
        ({**DECODER, "config": {"model_type": "llama", "hidden_size": 30}}, "config_name=.*30"),
        ({**DECODER, "head": "regression", "config": get_shape("mamba-tiny")}, "config_name=.*Mamba"),
    ],
)
def test_invalid_settings_of_a_model_are_errors(settings, named):
    with pytest.raises(UserError, match=named):
        build(model_args(**settings))


@pytest.mark.parametrize(
    ("weights", "shape"), [({"lora": 2}, "mamba-tiny"), ({"trained_layers": 5}, "llama-tiny")]
)
def test_weights_that_cannot_be_trained_in_part_are_an_error(weights, shape):
    ((name, value),) = weights.items()
    with pytest.raises(UserError, match=f"weights.{name}=.*{value}"):
        make(shape, **DECODER, **weights)


def test_a_row_that_is_too_long_for_the_model_is_an_error():
    built = build(model_args(config={**GPT2, "n_positions": 16}, **DECODER))
    with pytest.raises(UserError, match="22"):
        built.encode(["1" * 18], ["42"])


def test_shapes_are_found_by_name_and_in_folders(tmp_path):
    assert get_shape("t5-base")["num_layers"] == 12
    make().model.save_pretrained(tmp_path)
    shape = get_shape(str(tmp_path))
    assert get_shape("t5-tiny").items() <= shape.items()
    assert "vocab_size" not in shape
    build(model_args(config=shape))
    with pytest.raises(UserError, match="t5-huge"):
        get_shape("t5-huge")


@pytest.mark.parametrize("encoding", ["digits", "auto", "rt", "xval"])
def test_a_model_with_t5s_tokenizer_is_the_same_after_saving_and_loading(encoding, tmp_path):
    built = make(encoding=encoding, tokenizer=tokenizer_like("t5"))
    built.fit(ANSWERS)
    other = saved(built, tmp_path, {"encoding": encoding})
    assert other.encode(QUESTIONS, ANSWERS) == built.encode(QUESTIONS, ANSWERS)
    assert other.model.config.ntl == built.model.config.ntl
