"""Write a `.gguf` file's model and tokenizer into a folder, which loads at once and can be trained.

python tools/convert_gguf.py SmolLM2-135M-Instruct.Q4_1.gguf .models/smollm2
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """Write the folder as a whole, in place of an older one, so that it never lacks a file."""
    given = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    config = AutoConfig.from_pretrained(**given)
    model = AutoModelForCausalLM.from_pretrained(**given, config=config, dtype=torch.float32)
    # transformers refuses to save a model whose configuration says that it is quantized.
    entries = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(config).from_dict(entries))
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for part in (plain, AutoTokenizer.from_pretrained(**given)):
        part.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
