import json
from functools import partial
from pathlib import Path

import pytest
from tolerances import assert_identical
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from ntl.approaches.convert import convert_gguf
from ntl.cli import main as ntl
from ntl.prepare_model import main


def test_a_prepared_model_is_the_same_and_is_prepared_once(tiny, capsys):
    target = tiny.parent / "models" / "copy"
    assert ntl(["prepare", "model", str(tiny), str(target)]) == 0
    copied, original = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (target, tiny))
    assert_identical(copied, original)
    assert (
        AutoTokenizer.from_pretrained(target)("12").input_ids
        == AutoTokenizer.from_pretrained(tiny)("12").input_ids
    )
    written = (target / "model.safetensors").stat().st_mtime_ns
    assert main([f"{tiny}/", str(target)]) == 0
    assert "already: nothing to do" in capsys.readouterr().out
    assert (target / "model.safetensors").stat().st_mtime_ns == written


def test_preparing_over_another_model_is_an_error(tiny, capsys):
    assert main([str(tiny), str(tiny)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert main([str(tiny), str(tiny.parent / "copy")]) == 0
    assert main(["another", str(tiny.parent / "copy")]) == 2
    assert "expected a new folder" in capsys.readouterr().err


def test_an_interrupted_preparation_leaves_nothing_that_looks_complete(tiny, monkeypatch):
    target = tiny.parent / "copy"
    with monkeypatch.context() as patched:
        patched.setattr("ntl.approaches.convert.write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main([str(tiny), str(target)])
    assert not target.exists()
    assert main([str(tiny), str(target)]) == 0
    assert {path.name for path in tiny.parent.iterdir()} == {"tiny", "copy", ".copy.lock"}


def test_a_gguf_file_is_converted_once_into_a_model_that_can_be_saved(tiny, monkeypatch):
    monkeypatch.setattr("ntl.approaches.convert.constants.HF_HOME", str(tiny.parent))
    file = tiny.parent / "model.gguf"
    file.write_bytes(b"stands for a model, which is read below; `make model` reads a real one")
    model = LlamaForCausalLM.from_pretrained(tiny)
    model.config.quantization_config = {"quant_method": "gguf"}
    parts = {"AutoConfig": model.config, "AutoModelForCausalLM": model}
    parts["AutoTokenizer"] = AutoTokenizer.from_pretrained(tiny)
    read = []
    for name, part in parts.items():
        from_gguf = partial(lambda part, **given: read.append(given["gguf_file"]) or part, part)
        monkeypatch.setattr(f"ntl.approaches.convert.{name}.from_pretrained", from_gguf)
    folder = convert_gguf(str(file))
    assert convert_gguf(str(file)) == folder
    assert read == ["model.gguf"] * 3
    monkeypatch.undo()
    assert "quantization_config" not in json.loads(Path(folder, "config.json").read_text())
    assert_identical(LlamaForCausalLM.from_pretrained(folder).state_dict(), model.state_dict())
    assert AutoTokenizer.from_pretrained(folder)("12").input_ids == parts["AutoTokenizer"]("12").input_ids
