"""Resolve the names of models and tokenizers: a local folder, or a name on the Hugging Face hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache

from ntl.errors import UserError, describe
from ntloss.writing import digest_of_weights

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_SECONDS = 10.0
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer.model", "vocab.json")
BESIDE_WEIGHTS = (
    *TOKENIZERS, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "config.json", "generation_config.json",
)  # fmt: skip


def locate(name: str | Path, key: str, files: tuple[str, ...], instead: str) -> str:
    """Locate a model or a tokenizer before anything is loaded.

    Args:
        name: A folder, or a name on the hub.
        key: The user's name for this setting, used in error messages.
        files: Files that it may consist of. If the hub's cache holds one of them, no request is made.
        instead: Alternative that the error message suggests.

    Returns:
        The folder (in the hub's cache, if it is cached), or the name on the hub.
    """
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if isinstance(name, Path) or not _HUB_NAME.fullmatch(name):
        raise UserError(f"{key}={name} is neither a folder nor a name on the hub. Correct it, or {instead}.")
    for file in files:
        if isinstance(cached := try_to_load_from_cache(name, file), str):
            return str(Path(cached).parent)
    try:
        # transformers itself would try again for most of a minute.
        HfApi().model_info(name, timeout=_SECONDS)
    except Exception as error:  # network, hub or name: the user's remedy is the same
        raise UserError(
            f"{key}={name} is not a local folder, and cannot be loaded from the hub: {describe(error)}. "
            f"Pass a local folder, {key}=<folder>, or {instead}."
        ) from None
    return name


@contextmanager
def loading(key: str, name: str | Path, expected: str) -> Iterator[None]:
    """Turn any error of loading a model or a tokenizer into a `UserError`."""
    try:
        yield
    except Exception as error:  # the user's remedy is the same
        raise UserError(f"{key}={name} cannot be loaded ({describe(error)}); expected {expected}.") from error


def digest_of_files(name: str, key: str) -> str | None:
    """Return a short digest of the model and the tokenizer in a folder; None of a name on the hub.

    Args:
        name: A folder, or a name on the hub.
        key: The user's name for this setting, used in error messages.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    with loading(key, name, "complete files of weights"):
        digest = sha256(str(digest_of_weights(name)).encode())
        for file in filter(Path.is_file, (folder / each for each in BESIDE_WEIGHTS)):
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
