"""Resolve the names of models and tokenizers: a local folder, or a name on the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache

from ntl.errors import UserError, describe
from ntloss.writing import digest_of_weights

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


def locate(name: str | Path, files: Sequence[str]) -> str:
    """Return the folder of a model or a tokenizer, also in the hub's cache, or its name on the hub.

    A name whose `files` are not in the cache is asked for once: transformers would try for most of a minute.
    Call it inside `loading`.
    """
    folder, name = Path(name).expanduser(), str(name)
    if folder.is_dir():
        return str(folder)
    for file in files:
        if isinstance(cached := try_to_load_from_cache(name, file), str):
            return str(Path(cached).parent)
    HfApi().model_info(name, timeout=10.0)
    return name


@contextmanager
def loading(key: str, name: str | Path, expected: str) -> Iterator[None]:
    """Turn any error of loading a model or a tokenizer into a `UserError`."""
    try:
        yield
    except Exception as error:  # network, hub, name or file: the user's remedy is the same
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
