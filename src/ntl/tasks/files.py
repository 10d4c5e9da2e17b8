"""Readers of the official formats, and the layouts of the folders that hold them.

Every reader gives the examples of one file in its order, one at a time, and checks what it reads: an error
names the file, the line, what is wrong and what to do.
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

from ntl.errors import UserError
from ntl.metrics import read_answer
from ntl.tasks import Example, key_of, require_at_least, sample_data_dir

if TYPE_CHECKING:
    from ntl.tasks.arrow import ArrowExamples

LINES = 10_000  # read at once
ANNOUNCED = 50_000_000  # bytes of a file that takes long enough to say so


class FormatError(ValueError):
    """A line is not what it should be; the reader of the file adds where it stands."""


class Part(NamedTuple):
    """Where the examples of one split come from.

    Args:
        file: Its path in the data folder.
        read: From the file's path to its examples.
        version: Another one where `read` would give other examples for the same file.
    """

    file: str
    read: Callable[[Path], Iterable[Example]]
    version: str


# Split -> part; `train`, `validation`, then the tests in their order.
Layout = Mapping[str, Part]


def load_files(settings: Mapping[str, Any], layouts: Sequence[Layout]) -> dict[str, ArrowExamples]:
    """Load a dataset from `data_dir`, memory-mapped.

    Args:
        settings: The section of the configuration, with `data_dir`, `cache_dir` and the dataset's name.
        layouts: What the folder may hold; the first one that is complete is read.

    Returns:
        Split -> its examples.

    Raises:
        UserError: No layout is complete (told before anything is read), or a file is malformed.
    """
    # Only here: importing datasets takes a second, which programs without files need not wait for.
    from ntl.tasks.arrow import cached

    folder, key, name = data_folder(settings), key_of(settings, "data_dir"), settings["name"]
    advice = (
        f"Make them with `ntl prepare {name}` (`ntl prepare --help`), or pass {key}=another/folder; "
        f"{key}=sample is the small sample that ships with the lab."
    )
    examples = {}
    for split, (file, read, version) in choose_layout(folder, layouts, key, advice).items():
        path = (folder / file).resolve()
        status = path.stat()
        source = [str(path), status.st_size, status.st_mtime_ns, version]
        examples[split] = cached(source, partial(_announced, path, read), settings["cache_dir"])
    return examples


def _announced(path: Path, read: Callable[[Path], Iterable[Example]]) -> Iterable[Example]:
    size = path.stat().st_size
    if size > ANNOUNCED:
        print(f"Reading {path} ({size / 1e6:,.0f} MB); this is done once.", file=sys.stderr, flush=True)
    return read(path)


def data_folder(settings: Mapping[str, Any]) -> Path:
    """The folder that `data_dir` names; `sample` is the small one that ships with the lab.

    Raises:
        UserError: `data_dir` or `cache_dir` is no name of a folder.
    """
    for name in ("data_dir", "cache_dir"):
        if not isinstance(settings[name], str) or not settings[name]:
            key = key_of(settings, name)
            raise UserError(
                f"{key} is {settings[name]!r}; expected the path of a folder, such as {key}=folder."
            )
    if settings["data_dir"] == "sample":
        return sample_data_dir(settings["name"])
    return Path(settings["data_dir"]).expanduser()


def choose_layout(folder: Path, layouts: Sequence[Layout], key: str, advice: str) -> Layout:
    """Choose the layout that a folder has, by the names of its files alone.

    Args:
        folder: The data folder.
        layouts: Those that are known.
        key: The setting that named the folder, for the message.
        advice: What to do, for the message.

    Returns:
        The first complete one.

    Raises:
        UserError: None is complete; the message says what is missing and what the folder has.
    """
    files = [list(dict.fromkeys(part.file for part in layout.values())) for layout in layouts]
    expected = "; or ".join(_some(names, 6) for names in files)
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is no folder; expected one that holds {expected}. {advice}")
    missing = [[name for name in names if not (folder / name).is_file()] for names in files]
    for layout, absent in zip(layouts, missing, strict=True):
        if not absent:
            return layout
    # The layout that lacks the least is what was meant.
    nearest = min(range(len(layouts)), key=lambda i: len(missing[i]) / len(files[i]))
    raise UserError(
        f"{key}={folder} lacks {_some(missing[nearest])}; it has {contents(folder)}. "
        f"Expected {expected}. {advice}"
    )


def contents(folder: Path) -> str:
    """The names in a folder, for a message."""
    return _some(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())) or "nothing"


def _some(names: Sequence[str], limit: int = 12) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def read_pairs(path: Path, numbers: bool = False) -> Iterator[Example]:
    """Read questions and answers on alternating lines: the mathematics dataset's format.

    Args:
        path: The file, UTF-8.
        numbers: Whether every answer has to be a number.

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
        if numbers and read_answer(text) is None:
            raise UserError(
                f"{path}, line {number}: the answer {text[:40]!r} is not a number. Choose modules whose "
                "answers are numbers (task.modules), or restore the file."
            )
        yield Example(question, text)
        question = None
    if question is not None or not number:
        raise UserError(
            f"{path}, line {number}: the file ends with a question that has no answer (or is empty); "
            "expected an even number of lines, at least two. Restore the file: it may be cut off."
        )


def read_json_lines(
    path: Path, convert: Callable[[Mapping[str, Any]], Iterable[Example]]
) -> Iterator[Example]:
    """Read a file with one JSON object per line.

    Args:
        path: The file, UTF-8.
        convert: From an object to its examples; raises FormatError where the object is odd.

    Yields:
        The examples, in the file's order.

    Raises:
        UserError: The file is missing or malformed.
    """

    def parse(line: str) -> Iterable[Example]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise FormatError(f"it is no JSON ({error}); expected one object per line") from None
        if not isinstance(record, dict):
            raise FormatError(f"it is {type(record).__name__}, not an object; expected one object per line")
        return convert(record)

    return read_records(path, parse)


def read_records(path: Path, parse: Callable[[str], Iterable[Example]]) -> Iterator[Example]:
    """Read a file with one record per line.

    Args:
        path: The file, UTF-8.
        parse: From a line to its examples; raises FormatError where the line is odd.

    Yields:
        The examples, in the file's order.

    Raises:
        UserError: The file is missing or malformed, or gives no example.
    """
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        try:
            examples = parse(line)
        except FormatError as error:
            raise UserError(
                f"{path}, line {number}: {error}. Mend or remove the line, or restore the file: it may "
                "be cut off."
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
    """The layout of prepared JSON files.

    Args:
        files: Split -> file name.
        clean: From an object to its examples; None: `question_and_answer`.
        version: Of `clean`.

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
    """Divide an official training file into training and validation examples.

    Args:
        examples: Of one official file.
        split: `train` or `validation`; any other takes the file as it is.
        settings: `validation_share` (of the groups, above 0 and below 1) and `split_seed`.
        group: What is never divided, such as the questions about one passage.

    Returns:
        The examples of the split, in their order.
    """
    if split not in ("train", "validation"):
        return examples
    examples = list(examples)
    groups = list(dict.fromkeys(map(group, examples)))
    count = max(1, round(settings["validation_share"] * len(groups)))
    chosen = set(random.Random(settings["split_seed"]).sample(groups, count))
    return [example for example in examples if (group(example) in chosen) == (split == "validation")]


def require_split_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of `hold_out`.

    Raises:
        UserError: One is out of its range.
    """
    require_at_least(settings, {"split_seed": 0})
    share, key = settings["validation_share"], key_of(settings, "validation_share")
    if isinstance(share, bool) or not isinstance(share, float) or not 0 < share < 1:
        raise UserError(
            f"{key} is {share!r}; expected a number above 0 and below 1. Pass for example {key}=0.1."
        )


def question_and_answer(record: Mapping[str, Any]) -> list[Example]:
    """Convert the prepared form of every JSON dataset: `question` and `answer`, both text."""
    values = [text_of(record, key) for key in ("question", "answer")]
    return [Example(*values)]


def text_of(record: Any, key: str) -> str:
    """A text in a JSON object.

    Args:
        record: The object.
        key: Of the text.

    Returns:
        The text, without spaces around it.

    Raises:
        FormatError: It is no object, the key is absent, or its value is no text, or empty.
    """
    if not isinstance(record, Mapping):
        raise FormatError(f"{str(record)[:40]!r} stands where an object with the key {key!r} is expected")
    if key not in record:
        raise FormatError(f"the key {key!r} is missing; it has {', '.join(map(repr, record)) or 'none'}")
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise FormatError(f"{key!r} is {str(value)[:40]!r}; expected text, not empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise FormatError(
            f"{key!r} holds half of a surrogate pair (\\ud800 to \\udfff); expected whole characters"
        )
    return value.strip()


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a file, plain or with gzip.

    Lines end with a line feed alone (a carriage return before it is dropped): jokes and passages hold other
    characters that Python would take for the end of a line.

    Args:
        path: The file, UTF-8; gzip where its name ends with .gz.

    Yields:
        The lines, without their ends.

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
            f"{path}, after line {done}: the file cannot be read ({error}). Restore it: it may be cut off."
        ) from None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
