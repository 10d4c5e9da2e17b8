"""Which weights does a folder hold? A digest tells a model from another one that takes its place."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FILES = ("*.safetensors", "pytorch_model*.bin")  # also of shards and adapters
_BLOCK = 2**16  # bytes
_BLOCKS = 1024  # of a file


def digest_of_weights(model: str | Path) -> str | None:
    """Return a digest of the files of weights in a folder, or None for a name on the hub.

    It depends on the names and sizes of the files, and on their bytes: on all of them up to 64 MiB, and on
    64 MiB in equally spaced blocks of 64 KiB of a larger file, which take a tenth of a second to read. A
    training changes whole matrices, which are larger than the gaps between blocks. Times of files are left
    out, because a copy of a folder holds the same model.
    """
    folder = Path(model)
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _FILES for file in folder.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for start in range(0, size, max(_BLOCK, size // _BLOCKS)):
                opened.seek(start)
                digest.update(opened.read(_BLOCK))
    return digest.hexdigest()
