"""Names of models and tokenizers: a local folder, or a name on the hub, which is asked once."""

from __future__ import annotations

import os
import re
from pathlib import Path

from huggingface_hub import HfApi, constants, try_to_load_from_cache

from ntl.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_SECONDS = 10.0
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer.model", "vocab.json")


def locate(name: str | Path, key: str, files: tuple[str, ...], instead: str) -> str:
    """Find out where a model or a tokenizer is, before anything is loaded.

    Args:
        name: A folder, or a name on the hub.
        key: What the user calls this setting, for messages.
        files: What it is made of; one of them in the hub's cache means that no request is needed.
        instead: What to do where it cannot be had.

    Returns:
        The folder (of the hub's cache, for what is there), or the name on the hub.

    Raises:
        UserError: There is no such folder, and no such name on the hub, or the hub cannot be reached.
    """
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if isinstance(name, Path) or not _HUB_NAME.fullmatch(name):
        raise UserError(f"{key}={name} is no folder. Correct it, or {instead}.")
    for file in files:
        cached = try_to_load_from_cache(name, file)
        if isinstance(cached, str):
            return str(Path(cached).parent)
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        reason = "the hub is switched off (HF_HUB_OFFLINE)"
    else:
        try:
            HfApi().model_info(name, timeout=_SECONDS)
            return name
        except Exception as error:  # of the network, of the hub, of the name: all mean the same to the user
            reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise UserError(
        f"{key}={name} is no folder here, and cannot be had from the hub: {reason}. Correct it, name a local "
        f"folder, {key}=<folder>, or {instead}."
    )
