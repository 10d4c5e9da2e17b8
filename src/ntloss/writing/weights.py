"""Which weights does a folder hold? A digest tells a model from another one that takes its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FILES = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")  # also of shards
_SAMPLED = 2**16  # bytes at each end of a tensor
_BLOCK = 2**20  # bytes of a pickle, of which the ends are read, too


def digest_of_weights(model: str | Path) -> str | None:
    """Return a digest of the files of weights in a folder, or None if it holds none, as a name on the hub.

    It depends on the names and sizes of the files, on the names and shapes of the tensors, and on 64 KiB at
    both ends of each, which training changes. All of a large model is not read, because that would take too
    long before each run. Times of files are left out, because a copy of a folder holds the same model.

    Raises:
        OSError, ValueError: a file cannot be read, or is damaged.
    """
    folder, digest = Path(model).expanduser(), hashlib.sha256()
    files = sorted(file for pattern in _FILES for file in folder.glob(pattern))
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            for start, end in _parts(file, path):
                for begin in (start, max(start, end - _SAMPLED)):
                    file.seek(begin)
                    digest.update(file.read(min(_SAMPLED, end - begin)))
    return digest.hexdigest() if files else None


def _parts(file: BinaryIO, path: Path) -> Iterator[tuple[int, int]]:
    """Yield where the header and the tensors of a file begin and end; of a pickle, where each block does."""
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        begin = 8 + int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(begin - 8)) if begin <= size else {}
            places = [header[name]["data_offsets"] for name in sorted(header.keys() - {"__metadata__"})]
        except (ValueError, KeyError, TypeError, AttributeError):
            places = []
        if not places:  # damaged, or a pointer of Git LFS, which stands in place of the file
            raise ValueError(f"{path} is no complete file of weights")
        yield 0, begin
        yield from ((begin + start, begin + end) for start, end in places)
        return
    yield from ((start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))
