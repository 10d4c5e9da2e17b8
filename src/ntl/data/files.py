"""Read the official file formats, and describe the layouts of dataset folders.

Every reader yields the examples of one file in order and checks them. Its errors name the file and the line,
and say what is wrong and what to do.
"""

import gzip
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ntl.data import Example, TaskData
from ntl.errors import UserError, describe, writing_to

LOCK = ".lock"  # in a folder that one process writes to
UNFINISHED = ".partial"  # the ending of files that are not complete
# The files of datasets with tests of interpolation and extrapolation, without their endings.
SPLIT_FILES = {
    "train": "train",
    "validation": "val",
    "interpolate": "test_interpolate",
    "extrapolate": "test_extrapolate",
}
_SURROGATE = re.compile("[\ud800-\udfff]")


class FormatError(ValueError):
    """A record is malformed. The reader catches this error and adds the file and the line number."""


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
                "and an answer that ends with a line feed. Restore the file, which may be truncated."
            )
        yield Example(question.strip(), answer.strip())
    if not number:
        raise UserError(f"{path} is empty; expected questions and answers. Restore the file.")


def parse_pair(record: Any) -> list[Example]:
    """Convert a JSON object of prepared data, with the texts `question` and `answer`."""
    return [Example(get_value(record, "question"), get_value(record, "answer"))]


def read_records(
    path: Path,
    convert: Callable[[Any], Iterable[Example]] = parse_pair,
    parse: Callable[[str], Any] = json.loads,
) -> Iterator[Example]:
    """Read a file with one record per line.

    Args:
        path: A UTF-8 file.
        convert: Converts a record to its examples; raises FormatError if it is malformed.
        parse: Parses a line into a record. Default: each line is a JSON object.

    Raises:
        UserError: The file is missing, empty or malformed.
    """
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield from convert(parse(line))
        except ValueError as error:
            reason = error if isinstance(error, FormatError) else f"it is not JSON ({error})"
            raise UserError(
                f"{path}, line {number}: {reason}. Correct or remove the line, or restore the file, which "
                "may be truncated."
            ) from None
    if not number:
        raise UserError(f"{path} is empty; expected at least one line. Restore the file.")


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
    if kind is str and _SURROGATE.search(value):
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
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Correct the folder or the name.") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}, line {number}: the file cannot be read from here ({error}); expected UTF-8 text. "
            "Restore it; it may be truncated."
        ) from None


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see it half written.

    Raises:
        OSError: The file cannot be written; an existing file is left unchanged.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def only_writer(lock: Path, given: object) -> Iterator[None]:
    """Hold a lock that one process can hold at a time, until it ends or is killed.

    Args:
        lock: Path of the lock's file, in an existing folder.
        given: What is written to, as the user wrote it, for the error message.

    Raises:
        UserError: Another process holds it, or it cannot be written.
    """
    held = FileLock(lock, timeout=0)
    with writing_to(given, "a folder that can be written to", "Choose another one."):
        try:
            held.acquire()
        except Timeout:
            raise UserError(
                f"{given} is being written by another process; expected one at a time. Wait for it, or "
                "choose another one."
            ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps open files
            lock.unlink()  # before the release, so that no other process can hold it yet
        held.release()


@contextmanager
def only_writer_in(folder: Path) -> Iterator[None]:
    """Let only this process write to a folder, which is created if necessary; see `only_writer`."""
    with writing_to(folder, "a folder that can be written to", "Choose another one."):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(folder / LOCK, folder):
            yield
    finally:
        with suppress(OSError):  # as a rule it holds files
            folder.rmdir()


def is_leftover(path: Path) -> bool:
    """Return whether a killed process has left this lock or unfinished file."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(UNFINISHED))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, see `write_atomically`."""
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


class Layout(NamedTuple):
    """The files of a dataset's folder, or of the one around it (`../train.jsonl`), and how to read them.

    Args:
        files: Maps each split (`train`, `validation`, then the tests in order) to its file or, on the hub, to
            the hub's split. If `train` and `validation` share one, a share of its examples is held out, as
            the settings `validation_share` and `split_seed` say.
        read: Returns the examples of a file or of the rows of the hub's split.
        group: Returns an example's group, which is never divided between `train` and `validation`, such as
            the questions about one passage.
    """

    files: Mapping[str, str]
    read: Callable[[Any], Iterable[Example]] = read_pairs
    group: Callable[[Example], str] = lambda example: example.question

    def examples(self, split: str, source: Any, settings: Any) -> Iterable[Example]:
        """Read the examples of a split, in order.

        `source` is what `read` takes: a file's path or the hub's rows.
        """
        examples = self.read(source)
        if split not in ("train", "validation") or self.files["train"] != self.files["validation"]:
            return examples
        examples = list(examples)
        groups = list(dict.fromkeys(map(self.group, examples)))
        count = max(1, round(settings.validation_share * len(groups)))
        chosen = set(random.Random(settings.split_seed).sample(groups, count))
        return [example for example in examples if (self.group(example) in chosen) == (split == "validation")]


def load_files(
    settings: Any, layouts: Sequence[Layout], advice: str = "Put the official files there"
) -> TaskData:
    """Load a dataset from `data_dir`, memory-mapped. `sample` is the sample that ships with the lab.

    Args:
        settings: The section of the configuration, with `data_dir`, `cache_dir` and the dataset's name.
        layouts: Layouts that the folder may have. The first complete one is read.
        advice: How to make the files, for the error message.

    Raises:
        UserError: No layout is complete (raised before anything is read), or a file is malformed.
    """
    name, folder = settings.dataset_name, Path(settings.data_dir or "null").expanduser()
    if settings.data_dir == "sample":
        folder = Path(__file__).parent / "sample" / name
    layout = find_layout(
        "dataset_args.data_dir", folder, layouts,
        f"{advice}, or pass another folder; "
        "dataset_args.data_dir=sample selects the small sample that ships with the lab.",
    )  # fmt: skip

    def find(file: str) -> tuple[list[Any], Path]:
        path = _path(folder, file)
        return [str(path), path.stat().st_size, path.stat().st_mtime_ns], path

    return _load(settings, layout, find)


def load_hub(settings: Any, subset: str, layout: Layout) -> TaskData:
    """Load a dataset from the Hugging Face hub, memory-mapped.

    Args:
        settings: The section of the configuration, with `hub` (the dataset's id) and `cache_dir`.
        subset: Name of the dataset within its repository on the hub.
        layout: Maps our splits to the hub's, and reads their rows.

    Raises:
        UserError: The hub cannot be reached or has no such dataset, or a row is malformed.
    """
    from datasets import load_dataset

    def find(split: str) -> tuple[list[Any], Any]:
        rows = load_dataset(settings.hub, subset, split=split)
        return [rows._fingerprint], rows

    try:
        return _load(settings, layout, find)
    except (OSError, ValueError, RuntimeError) as error:  # a FormatError is a ValueError
        raise UserError(
            f"dataset_args.hub={settings.hub} cannot be loaded from the hub ({describe(error)}); expected "
            "the official dataset. For local files, pass dataset_args.hub=null dataset_args.data_dir=folder."
        ) from None


def _load(settings: Any, layout: Layout, find: Callable[[str], tuple[list[Any], Any]]) -> TaskData:
    """Load each split from what `find` returns for its file: what identifies it, and what is read."""
    from ntl.data.cache import read_cached  # datasets is slow to import

    parts = {}
    for split, file in layout.files.items():
        identity, source = find(file)
        read = partial(layout.examples, split, source, settings)
        parts[split] = read_cached([split, *identity], settings, read)
    return TaskData(parts.pop("train"), parts.pop("validation"), parts)


def find_layout(key: str, folder: Path, layouts: Sequence[Layout], advice: str) -> Layout:
    """Choose the first complete layout of a folder by the names of its files.

    Args:
        key: The user's name for the setting that names the folder.
        folder: The folder.
        layouts: Layouts that the folder may have.
        advice: What to do, for the error message.

    Raises:
        UserError: No layout is complete. The message lists the missing files and those in the folder.
    """
    lacking = []
    for layout in layouts:
        lacking.append([file for file in layout.files.values() if not _path(folder, file).is_file()])
        if not lacking[-1]:
            return layout
    expected = "; or ".join(_join(layout.files.values()) for layout in layouts)
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is not a folder; expected one that holds {expected}. {advice}")
    # Report the layout that is closest to complete, which is most likely the intended one.
    nearest = min(lacking, key=len)
    found = _join(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())) or "nothing"
    raise UserError(f"{key}={folder} lacks {_join(nearest)}; it has {found}. Expected {expected}. {advice}")


def _path(folder: Path, file: str) -> Path:
    """Return the path of a file, which may be named `../file` although the folder does not exist."""
    return Path(os.path.abspath(folder / file))


def _join(names: Iterable[str]) -> str:
    return shorten(", ".join(dict.fromkeys(names)), 300)


class Plan(NamedTuple):
    """How `ntl prepare` makes the files of a dataset.

    Args:
        sources: Official files by name.
        files: Maps each split to the file of pairs to write.
        splits: Yields each split with its examples, given a folder for temporary files.
    """

    sources: Mapping[str, Path]
    files: Mapping[str, str]
    splits: Callable[[Path], Iterable[tuple[str, Iterable[Example]]]]
