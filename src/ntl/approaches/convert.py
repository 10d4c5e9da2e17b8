"""Write a pretrained model with its tokenizer into a folder, from which every run loads it.

A `.gguf` file takes much longer to load than such a folder, and its quantized weights cannot be trained.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from ntl.approaches import CHECKPOINT_KEY
from ntl.data.cache import cache_key
from ntl.data.files import write_json
from ntl.encodings.locate import WEIGHTS, loading, locate
from ntl.errors import UserError, writing_to

GGUF = ".gguf"
RECORD = "prepared.json"


def convert_gguf(file: str) -> str:
    """Convert a `.gguf` file, once, into a folder of the hub's cache, and return the folder."""
    folder = Path(constants.HF_HOME, "ntl", f"{Path(file).stem}-{cache_key(_identity(file))}")
    if write_model(file, folder, CHECKPOINT_KEY):
        print(f"{file} was converted into {folder}", file=sys.stderr)
    return str(folder)


def write_model(source: str, folder: Path, key: str) -> bool:
    """Write a model and its tokenizer into a folder, unless they are there; return whether it did.

    Args:
        source: A `.gguf` file, a folder or a name on the hub.
        folder: The folder to write: either all of the model's files are in it, or none.
        key: The user's name for `source`, for error messages.
    """
    folder, identity = folder.absolute(), _identity(source)
    partial, lock = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "lock"))
    with writing_to(folder, "a folder with room for the model", "Choose another one."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if folder.exists() and any(folder.iterdir()):
                record = folder / RECORD
                held = json.loads(record.read_text("utf-8")) if record.is_file() else "other files"
                if held != identity:
                    raise UserError(
                        f"{folder} holds {held}, not {identity}; expected a new folder. Choose one."
                    )
                return False
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
            for part in _load(source, key):
                part.save_pretrained(partial)
            write_json(partial / RECORD, identity)
            os.replace(partial, folder)
    return True


def _identity(source: str) -> dict[str, Any]:
    """Return what tells two sources apart; a file is known by its name and its size."""
    path = Path(source).expanduser()
    if path.is_file():
        return {"source": path.name, "bytes": path.stat().st_size}
    return {"source": Path(source).as_posix()}  # without a slash at its end


def _load(source: str, key: str) -> tuple[Any, Any]:
    """Load a model, which is no longer quantized, and its tokenizer."""
    path = Path(source).expanduser()
    if path.suffix == GGUF:
        if not path.is_file():
            raise UserError(
                f"{key}={source} is no file; expected one, a folder or a name on the hub. Correct it."
            )
        given = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    else:
        given = {"pretrained_model_name_or_path": locate(source, key, WEIGHTS, f"name a {GGUF} file")}
    with loading(key, source, f"a {GGUF} file, a folder or a name on the hub"):
        config = AutoConfig.from_pretrained(**given, trust_remote_code=False)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = kind.from_pretrained(**given, config=config, dtype=torch.float32, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(**given, trust_remote_code=False)
        if "gguf_file" in given:
            # transformers refuses to save a model whose configuration says that it is quantized.
            entries = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
            plain = kind.from_config(type(config).from_dict(entries))
            plain.load_state_dict(model.state_dict())
            plain.generation_config, model = model.generation_config, plain
    return model, tokenizer
