"""Pretrained models of any kind are loaded from folders and the hub, and fail with advice."""

import pytest
from model_cases import GREEDY, QUESTIONS, gradient, make, model_args, rows_of, saved
from tolerances import assert_identical
from transformers import AutoModelForCausalLM, BartConfig, BartForConditionalGeneration

from ntl.errors import UserError
from ntl.models import build
from ntl.models.decoder_only import DecoderOnly
from ntl.models.language_model import LanguageModel
from ntl.models.source import get_shape
from ntl.settings import Weights


def pretrained(folder, **settings):
    weights = Weights(trained_layers=settings.pop("trained_layers", None))
    return build(model_args(family="pretrained", checkpoint=str(folder), **settings), weights)


def test_a_decoder_is_recognized_and_its_weights_are_unchanged(tiny):
    built = pretrained(tiny)
    assert isinstance(built, DecoderOnly)
    original = AutoModelForCausalLM.from_pretrained(tiny)
    assert_identical(built.model.state_dict(), original.state_dict())


def test_an_encoder_decoder_other_than_t5_is_trained_saved_and_loaded(tmp_path):
    shape = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 98}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 1}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
    config = BartConfig(**shape, **heads, **layers, bos_token_id=None, forced_eos_token_id=None)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    make().tokenizer.save_pretrained(tmp_path / "bart")
    built = pretrained(tmp_path / "bart", trained_layers=1)
    assert type(built) is LanguageModel
    gradients, loss = gradient(built, rows_of(built))
    assert loss > 0
    assert gradients.isfinite().all()
    other = saved(built, tmp_path / "run", {"family": "pretrained"})
    assert_identical(other.model.state_dict(), built.model.state_dict())
    assert other.answer(QUESTIONS[:2], *GREEDY) == built.answer(QUESTIONS[:2], *GREEDY)


def test_a_model_that_is_not_there_is_an_error_with_advice():
    with pytest.raises(UserError, match="make model"):
        pretrained("no-such-folder/below/it")


def test_shapes_are_found_by_name_and_in_folders(tmp_path):
    assert get_shape("t5-base")["num_layers"] == 12
    make().model.save_pretrained(tmp_path)
    shape = get_shape(str(tmp_path))
    assert get_shape("t5-tiny").items() <= shape.items()
    assert "vocab_size" not in shape
    build(model_args(config=shape))
    with pytest.raises(UserError, match="t5-huge"):
        get_shape("t5-huge")
