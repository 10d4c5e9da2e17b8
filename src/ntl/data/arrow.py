"""Cache examples in memory-mapped Arrow files.

The full mathematics dataset has 26 million pairs. As Python objects, they would take gigabytes in every
process. Memory-mapped, they are shared through the page cache, and a run starts at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
from datasets import Dataset
from filelock import FileLock

from ntl.data import Example
from ntl.errors import UserError

ROWS = 10_000  # rows in an Arrow batch
SCHEMA = pa.schema({"question": pa.string(), "answer": pa.string()})


class ArrowExamples(Sequence[Example]):
    """Examples in an Arrow file.

    Args:
        folder: A folder made by `read_cached`.

    Attributes:
        dataset: The examples as a `datasets.Dataset` with the columns question and answer. Results of its
            `map` are cached in the same folder.
        fingerprint: Hash of the content, see `ntl.data.fingerprint`.
    """

    def __init__(self, folder: Path):
        self.dataset = Dataset.from_file(str(folder / "examples.arrow"))
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        self.fingerprint: str = facts["fingerprint"]

    def __len__(self) -> int:
        return len(self.dataset)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        found = self.dataset[index]
        if isinstance(index, slice):
            return [Example(q, a) for q, a in zip(found["question"], found["answer"], strict=True)]
        return Example(found["question"], found["answer"])

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), ROWS):
            yield from self[start : start + ROWS]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrowExamples) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def read_cached(
    source: Sequence[Any], read: Callable[[], Iterable[Example]], cache_dir: str
) -> ArrowExamples:
    """Read examples into an Arrow file, unless it is cached already.

    If several processes request the same examples at once, one reads them and the others wait. An interrupted
    call leaves no partial file that a later call would use.

    Args:
        source: JSON values that the examples depend on, such as a file's path, size and modification time,
            and how it is read.
        read: Returns the examples; called only if they are not cached.
        cache_dir: Folder of the cache.

    Returns:
        The examples.

    Raises:
        UserError: The folder cannot be written, or `read` raises one.
    """
    key = hashlib.sha256(json.dumps([1, *source]).encode()).hexdigest()[:24]
    folder = Path(cache_dir).expanduser() / key
    # An existing folder is complete, so it needs no lock and may be read-only.
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock")):
                if not folder.is_dir():
                    _make(folder, read)
        except OSError as error:
            raise UserError(
                f"cache_dir={cache_dir} cannot be written ({error.strerror or error}); expected a folder "
                "with room for a copy of the data. Pass for example dataset_args.cache_dir=some/folder."
            ) from None
    return ArrowExamples(folder)


def _make(folder: Path, read: Callable[[], Iterable[Example]]) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    partial.mkdir()
    try:
        _write(partial, read())
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(folder: Path, examples: Iterable[Example]) -> None:
    digest = hashlib.sha256()
    with pa.OSFile(str(folder / "examples.arrow"), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as stream:
        for rows in _batches(examples):
            questions, answers = [e.question for e in rows], [e.answer for e in rows]
            # The same bytes as in `ntl.data.fingerprint`, so lists and files of equal content hash alike.
            digest.update("".join(f"{q}\t{a}\n" for q, a in zip(questions, answers, strict=True)).encode())
            stream.write_batch(pa.record_batch([pa.array(questions), pa.array(answers)], schema=SCHEMA))
    facts = {"fingerprint": digest.hexdigest()}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _batches(examples: Iterable[Example]) -> Iterator[list[Example]]:
    iterator = iter(examples)
    while rows := list(islice(iterator, ROWS)):
        yield rows
