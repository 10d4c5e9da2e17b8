"""Resolve the names of models and tokenizers: a local folder, or a name on the Hugging Face hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import HfApi, try_to_load_from_cache

from ntl.errors import UserError, describe

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_SECONDS = 10.0
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SAMPLED = 2**16  # bytes at either end of a tensor that its digest is made from
TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer.model", "vocab.json")


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


def digest_of_weights(name: str, key: str) -> str | None:
    """Return a digest of the weights in a local folder, None if there are none, as of a name on the hub.

    Names, shapes and the ends of all tensors count, which training changes, because reading gigabytes at each
    start would take too long. Dates do not count, so a copy of a folder is the same model.

    Args:
        name: A folder, or a name on the hub.
        key: The user's name for this setting, used in error messages.
    """
    folder = Path(name).expanduser()
    files = sorted([*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")])
    digest = sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with loading(key, name, "complete files of weights"), path.open("rb") as file:
            for start, end in _parts(file, path):
                for begin in (start, max(start, end - SAMPLED)):
                    file.seek(begin)
                    digest.update(file.read(min(SAMPLED, end - begin)))
    return digest.hexdigest()[:12] if files else None


def _parts(file: BinaryIO, path: Path) -> Iterator[tuple[int, int]]:
    """Yield where the header and the tensors of a file begin and end; of a pickle, where each MiB does."""
    if path.suffix == ".safetensors":
        begin = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(begin - 8))
        yield 0, begin
        for name in sorted(header.keys() - {"__metadata__"}):
            start, end = header[name]["data_offsets"]
            yield begin + start, begin + end
        return
    size = path.stat().st_size
    yield from ((start, min(start + 2**20, size)) for start in range(0, size, 2**20))
