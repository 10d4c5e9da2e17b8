"""`make model` writes a model that can be saved, loaded and trained."""

import json
from functools import partial

import regression_cases
from tolerances import assert_identical
from transformers import AutoTokenizer, LlamaForCausalLM

from tools import convert_gguf


def test_a_converted_model_is_whole_and_no_longer_quantized(tmp_path, monkeypatch):
    tiny = regression_cases.save_tiny_model(tmp_path / "tiny")
    model, tokenizer = LlamaForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    model.config.quantization_config = {"quant_method": "gguf"}
    parts = {"AutoConfig": model.config, "AutoModelForCausalLM": model, "AutoTokenizer": tokenizer}
    for name, part in parts.items():
        from_gguf = partial(lambda part, **given: part, part)
        monkeypatch.setattr(f"tools.convert_gguf.{name}.from_pretrained", from_gguf)
    for _ in ("first", "again, after an update"):
        convert_gguf.convert(tmp_path / "model.gguf", tmp_path / "copy")
    monkeypatch.undo()
    assert "quantization_config" not in json.loads((tmp_path / "copy" / "config.json").read_text())
    assert_identical(LlamaForCausalLM.from_pretrained(tmp_path / "copy").state_dict(), model.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "copy")("12").input_ids == tokenizer("12").input_ids
