"""Cache examples in memory-mapped files, with the library `datasets`.

The paper's mathematics mixture has 26 million pairs. As Python objects, they would take gigabytes in every
process. Memory-mapped, they are shared through the page cache, and a run starts at once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from ntl.config import Data
from ntl.data import Example
from ntl.errors import writing_to

FORMAT = 3  # version of the readers; changing it invalidates all caches
ROWS = 10_000  # rows that are read at once
FEATURES = Features({"question": Value("string"), "answer": Value("string")})
# Settings that the examples of a file do not depend on.
INDEPENDENT = ("data_dir", "cache_dir", "max_new_tokens", "shots")


class CachedExamples(Sequence[Example]):
    """Examples in a memory-mapped file.

    Attributes:
        dataset: The examples as a `datasets.Dataset` with the columns question and answer.
        fingerprint: Hash of where the examples come from and how they were read.
    """

    def __init__(self, dataset: Dataset, fingerprint: str):
        self.dataset, self.fingerprint = dataset, fingerprint

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
    source: Sequence[Any], settings: Data, read: Callable[[], Iterable[Example]]
) -> CachedExamples:
    """Read examples into a memory-mapped file, unless they are cached already.

    If several processes request the same examples at once, one reads them and the others wait. An interrupted
    call leaves no file that a later call would use.

    Args:
        source: JSON values that identify the source, such as a file's path, size and modification time.
        settings: Settings of the dataset, with `cache_dir`. The examples depend on the others, too.
        read: Returns the examples; called only if they are not cached.

    Raises:
        UserError: The folder cannot be written, the source cannot be read, or `read` raises one.
    """
    depends_on = {key: value for key, value in asdict(settings).items() if key not in INDEPENDENT}
    key = cache_key([FORMAT, source, depends_on])
    folder = Path(settings.cache_dir).expanduser()

    def rows() -> Iterator[dict[str, str]]:
        for example in read():
            yield {"question": example.question, "answer": example.answer}

    with writing(folder):
        try:
            dataset = Dataset.from_generator(rows, FEATURES, cache_dir=str(folder), fingerprint=key)
        except DatasetGenerationError as error:
            raise (error.__cause__ or error) from None
        except ValueError as error:
            if "no data" not in str(error):
                raise
            dataset = Dataset.from_dict({"question": [], "answer": []}, FEATURES)
    return CachedExamples(dataset, key)


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
