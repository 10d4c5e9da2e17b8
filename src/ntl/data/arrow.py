"""Cache examples in memory-mapped Arrow files.

The paper's mathematics mixture has 26 million pairs. As Python objects, they would take gigabytes in every
process. Memory-mapped, they are shared through the page cache, and a run starts at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset
from filelock import FileLock

from ntl.data import Example
from ntl.errors import UserError, describe, writing_to

FORMAT = 2  # version of the cache's format and of the readers; changing it invalidates all caches
ROWS = 10_000  # rows in an Arrow batch
# Settings that the examples of a file do not depend on.
INDEPENDENT = ("data_dir", "cache_dir", "max_new_tokens")


class ArrowExamples(Sequence[Example]):
    """Examples in an Arrow file, which `read_cached` wrote.

    Attributes:
        dataset: The examples as a `datasets.Dataset` with the columns question and answer.
        fingerprint: Hash of where the examples come from and how they were read.
    """

    def __init__(self, path: Path):
        self.dataset = Dataset.from_file(str(path))
        self.fingerprint = path.stem

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        found = self.dataset[index]
        if isinstance(index, slice):
            return list(map(Example, found["question"], found["answer"]))
        return Example(**found)

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), ROWS):
            yield from self[start : start + ROWS]


def read_cached(
    source: Sequence[Any], settings: Mapping[str, Any], read: Callable[[], Iterable[Example]]
) -> ArrowExamples:
    """Read examples into an Arrow file, unless they are cached already.

    If several processes request the same examples at once, one reads them and the others wait. An interrupted
    call leaves no partial file that a later call would use.

    Args:
        source: JSON values that identify the source, such as a file's path, size and modification time.
        settings: Section of the configuration, with `cache_dir`, the folder of the cache. The examples depend
            on its other settings too.
        read: Returns the examples; called only if they are not cached.

    Raises:
        UserError: The folder cannot be written, the source cannot be read, or `read` raises one.
    """
    folder = Path(settings["cache_dir"]).expanduser()
    depends_on = {key: value for key, value in settings.items() if key not in INDEPENDENT}
    path = folder / f"{cache_key([FORMAT, source, depends_on])}.arrow"
    # An existing file is complete, so it needs no lock and may be read-only.
    if not path.exists():
        with writing(folder), FileLock(path.with_suffix(".lock")):
            if not path.exists():
                _write(path, _read_source(read))
    with reading(path):
        return ArrowExamples(path)


def cache_key(identity: Any) -> str:
    """Hash the JSON values that identify cached data."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder of a cache; a UserError says why it cannot be written."""
    room = "a folder with room for a copy of the data"
    advice = "Pass for example dataset_args.cache_dir=some/folder."
    with writing_to(f"dataset_args.cache_dir={folder}", room, advice):
        folder.mkdir(parents=True, exist_ok=True)
        yield


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Open a file of a cache; a UserError says that it is damaged."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:  # pyarrow's errors are ValueErrors or OSErrors
        raise UserError(
            f"{path}, a file of the cache, cannot be read ({describe(error)}); expected what the lab wrote. "
            "Remove it, and repeat the command, which writes it again."
        ) from None


def _read_source(read: Callable[[], Iterable[Example]]) -> Iterator[Example]:
    """Yield the examples. An OSError becomes a UserError here, or `writing` would blame the cache."""
    try:
        yield from read()
    except OSError as error:
        raise UserError(
            f"the data cannot be read ({error}); expected files that stay readable until they are cached. "
            "Restore them, or choose other data."
        ) from error


def _write(path: Path, examples: Iterator[Example]) -> None:
    partial = path.with_suffix(".partial")
    schema = pa.schema({"question": pa.string(), "answer": pa.string()})
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            while rows := list(islice(examples, ROWS)):
                columns = [[e.question for e in rows], [e.answer for e in rows]]
                stream.write_batch(pa.record_batch(columns, schema=schema))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
