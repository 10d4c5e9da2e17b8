"""Read the official file formats, and describe the layouts of dataset folders.

Every reader yields the examples of one file in order and checks them. Its errors name the file and the line,
and say what is wrong and what to do.
"""

import gzip
import json
import os
import random
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ntl.data import Example, TaskData
from ntl.errors import UserError, writing_to

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
    question, line, number = None, "", 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        if not text:
            raise UserError(
                f"{path}, line {number}: the line is empty; expected "
                f"{'a question' if number % 2 else 'an answer'}. Remove the pair, or restore the file."
            )
        if question is None:
            question = text
        else:
            yield Example(question, text)
            question = None
    if question is not None or not number:
        raise UserError(
            f"{path}, line {number}: the file ends with a question that has no answer (or is empty); "
            "expected an even number of lines, at least two. Restore the file, which may be truncated."
        )
    if not line.endswith("\n"):
        raise UserError(
            f"{path}, line {number}: the line does not end with a line feed; the file may be truncated "
            f"inside the answer {line[:40]!r}. Restore the file or, if it is complete, end the line."
        )


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
    if not isinstance(record, Mapping):
        raise FormatError(f"found {str(record)[:40]!r}; expected an object with the key {key!r}")
    if key not in record:
        raise FormatError(
            f"the key {key!r} is missing; the object has {', '.join(map(repr, record)) or 'none'}"
        )
    value = record[key].strip() if isinstance(record[key], str) else record[key]
    if not isinstance(value, kind) or value == "":
        words = "non-empty text" if kind is str else kind.__name__
        raise FormatError(f"{key!r} is {str(record[key])[:40]!r}; expected {words}")
    if kind is str and _SURROGATE.search(value):
        raise FormatError(
            f"{key!r} holds half of a surrogate pair (\\ud800 to \\udfff); expected complete characters"
        )
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
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not line.isascii() and _SURROGATE.search(line):
                    raise UserError(
                        f"{path}, line {number}: it cannot be read as UTF-8 text. Replace the file."
                    )
                yield line
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Correct the folder or the name.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}, after line {number}: the file cannot be read ({error}). Restore it; it may be "
            "truncated."
        ) from None


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see it half written.

    Raises:
        OSError: The file cannot be written; an existing file is left unchanged.
    """
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(unfinished, stat.S_IMODE(path.stat().st_mode) if path.exists() else _new_file_mode())
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _new_file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


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
    """The files of a dataset's folder, and how to read them.

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


def load_files(settings: Any, layouts: Sequence[Layout]) -> TaskData:
    """Load a dataset from `data_dir`, memory-mapped. `sample` is the sample that ships with the lab.

    Args:
        settings: The section of the configuration, with `data_dir`, `cache_dir` and the dataset's name.
        layouts: Layouts that the folder may have. The first complete one is read.

    Raises:
        UserError: No layout is complete (raised before anything is read), or a file is malformed.
    """
    # Imported here because importing datasets takes a second, which only programs that read files should pay.
    from ntl.data.cache import read_cached

    name, folder = settings.dataset_name, Path(settings.data_dir or "null").expanduser()
    if settings.data_dir == "sample":
        folder = Path(__file__).parent / "sample" / name
    layout = find_layout(
        "dataset_args.data_dir", folder, layouts,
        f"Make them with `ntl prepare {name}` (see `ntl prepare --help`), or pass another folder; "
        "dataset_args.data_dir=sample selects the small sample that ships with the lab.",
    )  # fmt: skip

    parts = {}
    for split, file in layout.files.items():
        path = (folder / file).resolve()
        status = path.stat()
        source = [split, str(path), status.st_size, status.st_mtime_ns]
        parts[split] = read_cached(source, settings, partial(layout.examples, split, path, settings))
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
    missing = [
        [file for file in layout.files.values() if not (folder / file).is_file()] for layout in layouts
    ]
    for layout, absent in zip(layouts, missing, strict=True):
        if not absent:
            return layout
    expected = "; or ".join(_join(layout.files.values(), 6) for layout in layouts)
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is not a folder; expected one that holds {expected}. {advice}")
    # Report the layout that is closest to complete, which is most likely the intended one.
    nearest = min(missing, key=len)
    found = _join(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())) or "nothing"
    raise UserError(f"{key}={folder} lacks {_join(nearest)}; it has {found}. Expected {expected}. {advice}")


def _join(names: Iterable[str], limit: int = 12) -> str:
    names = list(dict.fromkeys(names))
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


class Plan(NamedTuple):
    """How `ntl prepare` makes the files of a dataset.

    Args:
        sources: Official files by name.
        files: Maps each split to the file to write: .txt for pairs, .jsonl for JSON lines.
        splits: Yields each split with its examples, given a folder for temporary files.
    """

    sources: Mapping[str, Path]
    files: Mapping[str, str]
    splits: Callable[[Path], Iterable[tuple[str, Iterable[Example]]]]


def plan_files(settings: Any, layouts: Sequence[Layout], files: Mapping[str, str]) -> Plan:
    """Plan the `files` of a dataset. Its splits are read from the folder `source`, in one of the `layouts`.

    Raises:
        UserError: No layout is complete.
    """
    folder = Path(settings.source).expanduser()
    layout = find_layout("source", folder, layouts, "Pass source=FOLDER, the folder of the official files.")

    def splits(scratch: Path) -> Iterator[tuple[str, Iterable[Example]]]:
        for split, file in layout.files.items():
            yield split, layout.examples(split, folder / file, settings)

    return Plan({file: folder / file for file in layout.files.values()}, files, splits)
