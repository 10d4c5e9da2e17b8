"""Read the official file formats, and find the files of a dataset in its folder."""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from ntl.data.task import Example, TaskData, fingerprint
from ntl.errors import UserError, describe

if TYPE_CHECKING:
    from datasets import Dataset

_AT_ONCE = 10_000  # rows of a memory-mapped file that are made examples at once

Parse = Callable[[str], Iterable[tuple[str, str]]]
"""Parses a line of a file into questions and answers."""


@dataclass(eq=False)
class Mapped(Sequence[Example]):
    """Examples in a memory-mapped file, without slices.

    The paper's mathematics mixture has 26 million pairs, which would take gigabytes as Python objects in
    every process. Memory-mapped, they are shared through the page cache, and a run starts at once.

    Attributes:
        dataset: The examples as a `datasets.Dataset` with the columns question and answer.
    """

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return Example(**self.dataset[index])

    def __iter__(self) -> Iterator[Example]:
        for rows in self.dataset.iter(_AT_ONCE):
            yield from map(Example, rows["question"], rows["answer"])


def map_pairs(path: Path) -> Mapped:
    """Read questions and answers on alternating lines, memory-mapped, as `read_pairs` does.

    `datasets` keeps what it has read in its own cache, by the path, the size and the time of modification.

    Raises:
        UserError: See `read_pairs`.
    """
    from datasets import Dataset, Features, Value  # slow

    features = Features({"question": Value("string"), "answer": Value("string")})
    found = path.stat()
    source = {"path": path, "size": found.st_size, "modified": found.st_mtime_ns}
    return Mapped(Dataset.from_generator(_pairs, features, gen_kwargs=source))


def _pairs(path: Path, size: int, modified: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a file; the size and the time of modification tell `datasets` which file it was."""
    for question, answer, *_ in read_pairs(path):
        yield {"question": question, "answer": answer}


def read_pairs(path: Path) -> Iterator[Example]:
    """Read questions and answers on alternating lines, the mathematics dataset's format.

    Raises:
        UserError: The file cannot be read, a line is empty, or the last answer has no line feed.
    """
    lines = read_lines(path)
    for number, question in enumerate(lines, start=1):
        answer = next(lines, "")
        if not question.strip() or not answer.strip() or not answer.endswith("\n"):
            raise UserError(
                f"{path}, line {2 * number}: found {answer[:40]!r} after {question[:40]!r}; expected a "
                "question and an answer that ends with a line feed. The file may be truncated."
            )
        yield Example(question.strip(), answer.strip())


def read_records(path: Path, parse: Parse) -> list[Example]:
    """Read a file with one record on each line; blank lines are left out.

    Raises:
        UserError: The file cannot be read, or a line is no such record or has an empty text.
    """
    examples: list[Example] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            found = [Example(question.strip(), answer.strip()) for question, answer in parse(line)]
            # Half of a surrogate pair cannot be encoded.
            if not all(text.encode() for example in found for text in example[:2]):
                raise ValueError("a text is empty")
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}, line {number}: {line[:80]!r} is no record of this dataset ({describe(error)}). The "
                "file may be truncated."
            ) from None
        examples += found
    return examples


def parse_pair(line: str) -> list[tuple[str, str]]:
    """Parse a JSON object with the texts `question` and `answer`."""
    record = json.loads(line)
    return [(record["question"], record["answer"])]


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 file, with their line endings. Files named *.gz are decompressed.

    Only a line feed ends a line, because jokes and passages contain other characters at which Python splits
    lines.

    Raises:
        UserError: The file cannot be read, or it is empty.
    """
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                number += 1
                yield line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read after line {number} ({error}); expected UTF-8.") from None
    if not number:
        raise UserError(f"{path} is empty; expected questions and answers.")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see it half written.

    Raises:
        OSError: The file cannot be written; an existing file is left unchanged.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        written = Path(folder, path.name)
        written.write_text(text, encoding="utf-8", newline="")
        os.replace(written, path)


class Layout(NamedTuple):
    """The files of a dataset, and how to read them.

    Args:
        files: Maps each split (`train`, `validation`, then the tests in order) to its file. Without
            `validation`, a share of the training examples is held out, as the settings `validation_share`
            and `split_seed` say.
        parse: Parses a line of a file. Default: questions and answers are on alternating lines.
        places: The folders in which each file is looked for, seen from the dataset's.
    """

    files: Mapping[str, str]
    parse: Parse | None = None
    places: Sequence[str] = (".",)


def load_files(
    settings: Any,
    layouts: Sequence[Layout],
    advice: str = "Put the official files there",
    group: Callable[[str], str] = str,
) -> TaskData:
    """Load a dataset from `data_dir`. `sample` is the sample that ships with the lab.

    Args:
        settings: Settings of the dataset.
        layouts: Layouts that the folder may have. The first complete one is read.
        advice: How to make the files, for the error message.
        group: Returns what questions share that are never divided between training and validation, such as
            their passage. Default: the question.

    Raises:
        UserError: No layout is complete (raised before anything is read), or a file is malformed.
    """
    folder = Path(settings.data_dir or "null")
    if settings.data_dir == "sample":
        folder = Path(__file__).parent / "sample" / settings.dataset_name
    advice += ", or pass another folder; dataset_args.data_dir=sample is the small sample of the lab."
    paths, parse = find_files("dataset_args.data_dir", folder, layouts, advice)
    splits: dict[str, Sequence[Example]] = {
        split: map_pairs(path) if parse is None else read_records(path, parse)
        for split, path in paths.items()
    }
    train, validation = splits.pop("train"), splits.pop("validation", None)
    if validation is not None:
        return TaskData(train, validation, splits)
    source = "".join(map(fingerprint, [train, *splits.values()]))
    groups = list(dict.fromkeys(group(example.question) for example in train))
    count = max(1, round(settings.validation_share * len(groups)))
    chosen = set(random.Random(settings.split_seed).sample(groups, count))
    validation = [example for example in train if group(example.question) in chosen]
    train = [example for example in train if group(example.question) not in chosen]
    return TaskData(train, validation, splits, source=source)


def find_files(
    key: str, folder: Path, layouts: Sequence[Layout], advice: str
) -> tuple[dict[str, Path], Parse | None]:
    """Find the files of the first complete layout in the folder that a setting names.

    Returns:
        The path of each split's file, and how its lines are parsed.

    Raises:
        UserError: No layout is complete. The message lists the files that the nearest one lacks, and the
            advice.
    """
    lacking: list[list[str]] = []
    for layout in layouts:
        found = {
            split: Path(path)
            for split, file in layout.files.items()
            for place in reversed(layout.places)
            # `..` of a folder that does not exist is found, too.
            if os.path.isfile(path := os.path.abspath(folder.expanduser() / place / file))
        }
        missing = [file for split, file in layout.files.items() if split not in found]
        if not missing:
            return found, layout.parse
        lacking.append(missing)
    nearest = min(reversed(lacking), key=len)  # official files come last
    raise UserError(f"{key}={folder} lacks {shorten(', '.join(nearest), 300)}. {advice}")
