"""Read the official file formats, and find the files of a dataset in its folder.

Every reader checks the records of a file in order. Its errors name the file and the line.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from ntl.data.task import Example, Settings, TaskData, fingerprint, setting
from ntl.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

# The files of datasets with tests of interpolation and extrapolation, without their endings.
SPLIT_FILES = {
    "train": "train",
    "validation": "val",
    "interpolate": "test_interpolate",
    "extrapolate": "test_extrapolate",
}
_AT_ONCE = 10_000  # rows of a memory-mapped file that are made examples at once
_SURROGATE = re.compile("[\ud800-\udfff]")


class FormatError(ValueError):
    """A record is malformed. The reader catches this error and adds the file and the line number."""


@dataclass(eq=False)
class Mapped(Sequence[Example]):
    """Examples in a memory-mapped file.

    The paper's mathematics mixture has 26 million pairs, which would take gigabytes as Python objects in
    every process. Memory-mapped, they are shared through the page cache, and a run starts at once.

    Attributes:
        dataset: The examples as a `datasets.Dataset` with the columns question and answer.
    """

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int | slice) -> Any:
        found = self.dataset[index]
        if isinstance(index, slice):
            return list(map(Example, found["question"], found["answer"]))
        return Example(**found)

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]


def map_pairs(path: Path) -> Mapped:
    """Read questions and answers on alternating lines, memory-mapped, as `read_pairs` does.

    `datasets` keeps what it has read in its own cache, by the path, the size and the time of modification.

    Raises:
        UserError: See `read_pairs`.
    """
    from datasets import Dataset, Features, Value  # slow
    from datasets.exceptions import DatasetGenerationError

    features = Features({"question": Value("string"), "answer": Value("string")})
    found = path.stat()
    source = {"path": str(path), "size": found.st_size, "modified": found.st_mtime_ns}
    try:
        return Mapped(Dataset.from_generator(_pairs, features, gen_kwargs=source))
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def _pairs(path: str, size: int, modified: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a file; the size and the time of modification tell `datasets` which file it was."""
    for question, answer, *_ in read_pairs(Path(path)):
        yield {"question": question, "answer": answer}


def read_pairs(path: Path) -> Iterator[Example]:
    """Read questions and answers on alternating lines, the mathematics dataset's format.

    Raises:
        UserError: The file is missing or malformed, or its last line has no line feed.
    """
    lines, number = read_lines(path), 0
    for question in lines:
        answer, number = next(lines, ""), number + 2
        if not question.strip() or not answer.strip() or not answer.endswith("\n"):
            raise UserError(
                f"{path}, line {number}: found {answer[:40]!r} after {question[:40]!r}; expected a question "
                "and an answer that ends with a line feed. The file may be truncated."
            )
        yield Example(question.strip(), answer.strip())
    if not number:
        raise UserError(f"{path} is empty; expected questions and answers.")


def parse_pair(record: Any) -> list[Example]:
    """Convert a JSON object of prepared data, with the texts `question` and `answer`."""
    return [Example(get_value(record, "question"), get_value(record, "answer"))]


def read_records(
    path: Path,
    convert: Callable[[Any], Iterable[Example]] = parse_pair,
    parse: Callable[[str], Any] = json.loads,
) -> list[Example]:
    """Read a file with one record on each line; blank lines are left out.

    Args:
        path: A UTF-8 file.
        convert: Converts a record to its examples; raises FormatError if it is malformed.
        parse: Parses a line into a record. Default: each line is a JSON object.

    Raises:
        UserError: The file is missing, empty or malformed.
    """
    examples: list[Example] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            examples += convert(parse(line))
        except ValueError as error:
            reason = error if isinstance(error, FormatError) else f"it is not JSON ({error})"
            raise UserError(f"{path}, line {number}: {reason}. The file may be truncated.") from None
    if not examples:
        raise UserError(f"{path} has no examples; expected at least one line.")
    return examples


def get_value(record: Any, key: str, kind: type = str) -> Any:
    """Get a value from a JSON object; a text without surrounding white space.

    Raises:
        FormatError: `record` is not an object, the key is missing, its value has another type, or it is a
            text that is empty or not valid Unicode.
    """
    if not isinstance(record, Mapping) or key not in record:
        raise FormatError(f"found {str(record)[:80]}; expected an object with the key {key!r}")
    value = record[key].strip() if isinstance(record[key], str) else record[key]
    if not isinstance(value, kind) or value == "":
        words = "non-empty text" if kind is str else kind.__name__
        raise FormatError(f"{key!r} is {str(record[key])[:40]!r}; expected {words}")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise FormatError(f"{key!r} holds half of a surrogate pair; expected complete characters")
    return value


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 file, with their line endings. Files named *.gz are decompressed.

    Only a line feed ends a line, because jokes and passages contain other characters at which Python splits
    lines.

    Raises:
        UserError: The file cannot be read.
    """
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8" if number > 1 else "utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}, line {number or 1}: the file cannot be read from here ({error}); expected UTF-8 text."
        ) from None


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see it half written.

    Raises:
        OSError: The file cannot be written; an existing file is left unchanged.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        written = Path(folder, path.name)
        written.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            shutil.copymode(path, written)
        os.replace(written, path)


class Layout(NamedTuple):
    """The files of a dataset's folder, or of the one around it (`../train.jsonl`), and how to read them.

    Args:
        files: Maps each split (`train`, `validation`, then the tests in order) to its file. If `train` and
            `validation` share one, a share of its examples is held out, as the settings `validation_share`
            and `split_seed` say.
        read: Returns the examples of a file.
        group: Returns an example's group, which is never divided between `train` and `validation`, such as
            the questions about one passage.
    """

    files: Mapping[str, str]
    read: Callable[[Any], Sequence[Example]] = map_pairs
    group: Callable[[Example], str] = lambda example: example.question


def load_files(
    settings: Any, layouts: Sequence[Layout], advice: str = "Put the official files there"
) -> TaskData:
    """Load a dataset from `data_dir`. `sample` is the sample that ships with the lab.

    Args:
        settings: Settings of the dataset.
        layouts: Layouts that the folder may have. The first complete one is read.
        advice: How to make the files, for the error message.

    Raises:
        UserError: No layout is complete (raised before anything is read), or a file is malformed.
    """
    folder = Path(settings.data_dir or "null").expanduser()
    if settings.data_dir == "sample":
        folder = Path(__file__).parent / "sample" / settings.dataset_name
    layout = find_layout(
        "dataset_args.data_dir", folder, layouts,
        f"{advice}, or pass another folder; "
        "dataset_args.data_dir=sample selects the small sample that ships with the lab.",
    )  # fmt: skip
    of_file = {file: layout.read(Path(file)) for file in dict.fromkeys(layout.files.values())}
    splits = {split: of_file[file] for split, file in layout.files.items()}
    train, validation = splits.pop("train"), splits.pop("validation")
    source = None
    if train is validation:
        groups = list(dict.fromkeys(map(layout.group, train)))
        count = max(1, round(settings.validation_share * len(groups)))
        chosen = set(random.Random(settings.split_seed).sample(groups, count))
        validation = [example for example in train if layout.group(example) in chosen]
        train = [example for example in train if layout.group(example) not in chosen]
        source = "".join(map(fingerprint, of_file.values()))
    return TaskData(train, validation, splits, source=source)


def find_layout(key: str, folder: Path, layouts: Sequence[Layout], advice: str) -> Layout:
    """Choose the first complete layout of a folder by the names of its files.

    Args:
        key: The user's name for the setting that names the folder.
        folder: The folder.
        layouts: Layouts that the folder may have.
        advice: What to do, for the error message.

    Returns:
        The layout, whose files are paths.

    Raises:
        UserError: No layout is complete. The message lists the missing files and those in the folder.
    """
    lacking = []
    for layout in layouts:
        # `../file` is found although the folder does not exist.
        paths = {split: os.path.abspath(folder / file) for split, file in layout.files.items()}
        missing = [split for split, path in paths.items() if not os.path.isfile(path)]
        if not missing:
            return layout._replace(files=paths)
        lacking.append([layout.files[split] for split in missing])
    expected = "; or ".join(_join(layout.files.values()) for layout in layouts)
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is not a folder; expected one that holds {expected}. {advice}")
    # Report the layout that is closest to complete, which is most likely the intended one.
    nearest = min(lacking, key=len)
    found = _join(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())) or "nothing"
    raise UserError(f"{key}={folder} lacks {_join(nearest)}; it has {found}. Expected {expected}. {advice}")


def _join(names: Iterable[str]) -> str:
    return shorten(", ".join(dict.fromkeys(names)), 300)


@dataclass
class Prepare(Settings, ABC):
    """Settings of `ntl prepare` for every dataset: where the files come from and go to."""

    source: str = setting(
        "data/mathematics_dataset-v1.0", "folder of the official files, or the one that holds this folder"
    )
    destination: str = setting("data/mathematics_dataset-v1.0", "folder of the files that are written")
    overwrite: bool = setting(False, "true: existing files are replaced")
    split_seed: int = setting(0, "random seed that chooses the validation set and the order of the pairs")

    @abstractmethod
    def plan(self) -> Plan:
        """Find the official files, and say which files are made of them."""


class Plan(NamedTuple):
    """How `ntl prepare` makes the files of a dataset.

    Args:
        files: Maps each split to the file of pairs to write.
        splits: Yields each split with its examples, given a folder for temporary files.
    """

    files: Mapping[str, str]
    splits: Callable[[Path], Iterable[tuple[str, Iterable[Example]]]]
