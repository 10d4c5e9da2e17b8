import pytest
import torch
from model_cases import (
    ANSWERS,
    QUESTIONS,
    gradient,
    loss_of,
    make,
    model_args,
    rows_of,
    save_pretrained_t5,
    saved,
)
from tokenizers_like import tokenizer_like
from tolerances import assert_close

from ntl.encodings.regression_transformer import numerical_encodings
from ntl.errors import UserError
from ntl.models import build
from ntl.models.source import get_shape
from ntl.settings import LossSettings
from ntloss.criteria import CRITERIA


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_of_the_library_can_be_minimized(criterion):
    built = make()
    loss = LossSettings(criterion, {"sigma": 1.0} if criterion == "hl_gauss" else {})
    grads, found = gradient(built, rows_of(built), loss)
    assert grads.isfinite().all()
    assert found > loss_of(built, rows_of(built), LossSettings())


def test_the_regression_transformer_adds_its_encodings_in_encoder_and_decoder():
    built = make(encoding="rt")
    model, first = built.model, built.encoding.first_id
    tokens = torch.tensor([0, first - 1, first + 7, first + 319])
    for stack in (model.encoder, model.decoder):
        added = stack.embed_tokens(tokens) - model.shared.weight[tokens]
        assert not added[:2].any()
        assert_close(added[2:], numerical_encodings(model.config.d_model, log_scale=True)[[7, 319]])
    assert not any("encodings" in key for key in model.state_dict())


def test_pretrained_embeddings_are_enlarged_for_the_tokens_of_the_encoding(tmp_path):
    pretrained = save_pretrained_t5(tmp_path, vocab_size=101)
    built = build(model_args(checkpoint=str(tmp_path), encoding="rt"))
    assert_close(built.model.shared.weight[:98], pretrained.shared.weight[:98])
    assert built.model.shared.weight is built.model.decoder.embed_tokens.weight
    assert built.model.get_output_embeddings().weight is built.model.shared.weight
    assert len(built.model.shared.weight) == 98 + 320
    assert built.model.encoder.embed_tokens.encodings.any()
    gradient(built, rows_of(built))


@pytest.mark.parametrize(
    "settings", [{"encoding": "rt"}, {"head": "regression"}, {"encoding": "xval"}, {"family": "decoder_only"}]
)
def test_a_checkpoint_of_another_model_is_refused_before_its_weights_are_read(settings, tmp_path):
    built = make()
    built.tokenizer.save_pretrained(tmp_path)
    built.model.config.save_pretrained(tmp_path)  # without weights, which must not be read
    with pytest.raises(UserError, match=r"T5Config|was trained with"):
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
        ({"config": {"model_type": "llama"}}, "model_args.family"),
        ({"config": {"model_type": "t5", "d_modell": 8}}, "config_overrides.d_modell"),
        ({"config": {"model_type": "t5", "feed_forward_proj": "wavy"}}, "wavy"),
        ({"checkpoint": "/nowhere"}, "model_name_or_path=/nowhere"),
    ],
)
def test_invalid_settings_of_a_model_are_errors(settings, named):
    with pytest.raises(UserError, match=named):
        build(model_args(**{"config": get_shape("t5-tiny"), **settings}))


@pytest.mark.parametrize("encoding", ["digits", "auto", "rt", "xval"])
def test_a_model_with_t5s_tokenizer_is_the_same_after_saving_and_loading(encoding, tmp_path):
    built = make(encoding=encoding, tokenizer=tokenizer_like("t5"))
    built.fit(ANSWERS)
    other = saved(built, tmp_path, {"encoding": encoding})
    assert other.encode(QUESTIONS, ANSWERS) == built.encode(QUESTIONS, ANSWERS)
    assert other.model.config.ntl == built.model.config.ntl
