"""Read the official file formats, and describe the layouts of dataset folders.

Every reader yields the examples of one file in order and checks them. Its errors name the file and the line,
and say what is wrong and what to do.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ntl.data import Example, check_at_least, sample_data_dir, setting_key
from ntl.errors import UserError

if TYPE_CHECKING:
    from ntl.data.arrow import ArrowExamples

LINES = 10_000  # lines read at once
LARGE_FILE = 50_000_000  # bytes above which reading a file is announced


class FormatError(ValueError):
    """A line is malformed. The reader catches this error and adds the file and the line number."""


class Part(NamedTuple):
    """Where the examples of one split come from.

    Args:
        file: Path of the file in the data folder.
        read: Reads the examples from the file's path.
        version: Version of `read`, which changes when the same file would give other examples.
    """

    file: str
    read: Callable[[Path], Iterable[Example]]
    version: str


# Maps each split to its part: `train`, `validation`, then the tests in order.
Layout = Mapping[str, Part]


def load_files(settings: Mapping[str, Any], layouts: Sequence[Layout]) -> dict[str, ArrowExamples]:
    """Load a dataset from `data_dir`, memory-mapped.

    Args:
        settings: The section of the configuration, with `data_dir`, `cache_dir` and the dataset's name.
        layouts: Layouts that the folder may have. The first complete one is read.

    Returns:
        Maps each split to its examples.

    Raises:
        UserError: No layout is complete (raised before anything is read), or a file is malformed.
    """
    # Imported here because importing datasets takes a second, which only programs that read files should pay.
    from ntl.data.arrow import read_cached

    folder, key, name = data_folder(settings), setting_key(settings, "data_dir"), settings["name"]
    advice = (
        f"Make them with `ntl prepare {name}` (see `ntl prepare --help`), or pass {key}=another/folder; "
        f"{key}=sample selects the small sample that ships with the lab."
    )
    examples = {}
    for split, (file, read, version) in choose_layout(folder, layouts, key, advice).items():
        path = (folder / file).resolve()
        status = path.stat()
        source = [str(path), status.st_size, status.st_mtime_ns, version]
        examples[split] = read_cached(source, partial(_read_and_announce, path, read), settings["cache_dir"])
    return examples


def _read_and_announce(path: Path, read: Callable[[Path], Iterable[Example]]) -> Iterable[Example]:
    size = path.stat().st_size
    if size > LARGE_FILE:
        print(f"Reading {path} ({size / 1e6:,.0f} MB); this happens only once.", file=sys.stderr, flush=True)
    return read(path)


def data_folder(settings: Mapping[str, Any]) -> Path:
    """Return the folder that `data_dir` names; `sample` names the small sample that ships with the lab.

    Raises:
        UserError: `data_dir` or `cache_dir` is not a path.
    """
    for name in ("data_dir", "cache_dir"):
        if not isinstance(settings[name], str) or not settings[name]:
            key = setting_key(settings, name)
            raise UserError(
                f"{key} is {settings[name]!r}; expected the path of a folder, such as {key}=folder."
            )
    if settings["data_dir"] == "sample":
        return sample_data_dir(settings["name"])
    return Path(settings["data_dir"]).expanduser()


def choose_layout(folder: Path, layouts: Sequence[Layout], key: str, advice: str) -> Layout:
    """Choose the layout of a folder by the names of its files.

    Args:
        folder: The data folder.
        layouts: Layouts that the folder may have.
        key: The setting that named the folder, for the error message.
        advice: What to do, for the error message.

    Returns:
        The first complete layout.

    Raises:
        UserError: No layout is complete. The message lists the missing files and those in the folder.
    """
    files = [list(dict.fromkeys(part.file for part in layout.values())) for layout in layouts]
    expected = "; or ".join(_join_names(names, 6) for names in files)
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is not a folder; expected one that holds {expected}. {advice}")
    missing = [[name for name in names if not (folder / name).is_file()] for names in files]
    for layout, absent in zip(layouts, missing, strict=True):
        if not absent:
            return layout
    # Report the layout that is closest to complete, which is most likely the intended one.
    nearest = min(range(len(layouts)), key=lambda i: len(missing[i]) / len(files[i]))
    raise UserError(
        f"{key}={folder} lacks {_join_names(missing[nearest])}; it has {contents(folder)}. "
        f"Expected {expected}. {advice}"
    )


def contents(folder: Path) -> str:
    """List the names in a folder, for an error message."""
    return _join_names(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())) or "nothing"


def _join_names(names: Sequence[str], limit: int = 12) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def read_pairs(path: Path) -> Iterator[Example]:
    """Read questions and answers on alternating lines, the mathematics dataset's format.

    Args:
        path: A UTF-8 file.

    Yields:
        The pairs, in the file's order.

    Raises:
        UserError: The file is missing or malformed.
    """
    question, number = None, 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        if not text:
            raise UserError(
                f"{path}, line {number}: the line is empty; expected "
                f"{'a question' if number % 2 else 'an answer'}. Remove the pair, or restore the file."
            )
        if question is None:
            question = text
            continue
        yield Example(question, text)
        question = None
    if question is not None or not number:
        raise UserError(
            f"{path}, line {number}: the file ends with a question that has no answer (or is empty); "
            "expected an even number of lines, at least two. Restore the file, which may be truncated."
        )


def read_json_lines(
    path: Path, convert: Callable[[Mapping[str, Any]], Iterable[Example]]
) -> Iterator[Example]:
    """Read a file with one JSON object per line.

    Args:
        path: A UTF-8 file.
        convert: Converts an object to its examples; raises FormatError if the object is malformed.

    Yields:
        The examples, in the file's order.

    Raises:
        UserError: The file is missing or malformed.
    """

    def parse(line: str) -> Iterable[Example]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise FormatError(f"it is not JSON ({error}); expected one object per line") from None
        if not isinstance(record, dict):
            raise FormatError(f"it is a {type(record).__name__}; expected one object per line")
        return convert(record)

    return read_records(path, parse)


def read_records(path: Path, parse: Callable[[str], Iterable[Example]]) -> Iterator[Example]:
    """Read a file with one record per line.

    Args:
        path: A UTF-8 file.
        parse: Parses a line into its examples; raises FormatError if the line is malformed.

    Yields:
        The examples, in the file's order.

    Raises:
        UserError: The file is missing or malformed, or holds no examples.
    """
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        try:
            examples = parse(line)
        except FormatError as error:
            raise UserError(
                f"{path}, line {number}: {error}. Correct or remove the line, or restore the file, which may "
                "be truncated."
            ) from None
        for example in examples:
            empty = False
            yield example
    if empty:
        raise UserError(f"{path} holds no examples; expected at least one. Restore the file.")


def prepared_layout(
    files: Mapping[str, str],
    clean: Callable[[Mapping[str, Any]], Iterable[Example]] | None = None,
    version: str = "question-answer-1",
) -> Layout:
    """Return the layout of prepared JSON files.

    Args:
        files: Maps each split to its file name.
        clean: Converts an object to its examples. Default: `question_and_answer`.
        version: Version of `clean`.

    Returns:
        The layout.
    """
    read = partial(read_json_lines, convert=clean or question_and_answer)
    return {split: Part(file, read, version) for split, file in files.items()}


def hold_out(
    examples: Iterable[Example],
    split: str,
    settings: Mapping[str, Any],
    group: Callable[[Example], str] = lambda example: example.question,
) -> Iterable[Example]:
    """Split an official training file into training and validation examples.

    Args:
        examples: Examples of one official file.
        split: `train` or `validation`. Any other value returns all examples.
        settings: `validation_share` (share of the groups, above 0 and below 1) and `split_seed`.
        group: Returns an example's group, which is never divided, such as the questions about one passage.

    Returns:
        The examples of the split, in their original order.
    """
    if split not in ("train", "validation"):
        return examples
    examples = list(examples)
    groups = list(dict.fromkeys(map(group, examples)))
    count = max(1, round(settings["validation_share"] * len(groups)))
    chosen = set(random.Random(settings["split_seed"]).sample(groups, count))
    return [example for example in examples if (group(example) in chosen) == (split == "validation")]


def check_split_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of `hold_out`.

    Raises:
        UserError: A setting is out of range.
    """
    check_at_least(settings, {"split_seed": 0})
    share, key = settings["validation_share"], setting_key(settings, "validation_share")
    if isinstance(share, bool) or not isinstance(share, float) or not 0 < share < 1:
        raise UserError(
            f"{key} is {share!r}; expected a number above 0 and below 1. Pass for example {key}=0.1."
        )


def question_and_answer(record: Mapping[str, Any]) -> list[Example]:
    """Convert an object of prepared data, with the texts `question` and `answer`.

    Raises:
        FormatError: A key is missing, or its value is not a text.
    """
    values = [get_text(record, key) for key in ("question", "answer")]
    return [Example(*values)]


def get_text(record: Any, key: str) -> str:
    """Get a text from a JSON object.

    Args:
        record: The object.
        key: Key of the text.

    Returns:
        The text, without surrounding white space.

    Raises:
        FormatError: `record` is not an object, the key is missing, or its value is not valid, non-empty text.
    """
    if not isinstance(record, Mapping):
        raise FormatError(f"found {str(record)[:40]!r}; expected an object with the key {key!r}")
    if key not in record:
        raise FormatError(f"the key {key!r} is missing; it has {', '.join(map(repr, record)) or 'none'}")
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise FormatError(f"{key!r} is {str(value)[:40]!r}; expected non-empty text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise FormatError(
            f"{key!r} holds half of a surrogate pair (\\ud800 to \\udfff); expected complete characters"
        )
    return value.strip()


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a file, which may be compressed with gzip.

    Only a line feed ends a line (a carriage return before it is dropped), because jokes and passages contain
    other characters at which Python splits lines.

    Args:
        path: A UTF-8 file, compressed if its name ends with .gz.

    Yields:
        The lines, without their line endings.

    Raises:
        UserError: The file cannot be read.
    """
    done = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while lines := list(islice(file, LINES)):
                try:
                    yield from [line.decode().rstrip("\r\n") for line in lines]
                except UnicodeDecodeError:
                    number = done + next(i for i, line in enumerate(lines, start=1) if not _is_text(line))
                    raise UserError(
                        f"{path}, line {number}: it cannot be read as UTF-8 text. Replace the file."
                    ) from None
                done += len(lines)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Correct the folder or the name.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}, after line {done}: the file cannot be read ({error}). Restore it; it may be truncated."
        ) from None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
