"""rJokes: predict a joke's score from 0 to 11, the logarithm of its votes.

Source: Weller & Seppi, "The rJokes Dataset: a Large Scale Humor Collection", LREC 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntl.data import Example, TaskData, check_one_of
from ntl.data.files import FormatError, Layout, Part, load_files, prepared_layout, read_records

PREPARED = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}
HIGHEST = 11


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read the jokes.

    Args:
        settings: `data_dir` (folder of prepared files, or of the official train.tsv, dev.tsv and test.tsv,
            optionally compressed with gzip), `mode` (None) and `cache_dir`.

    Returns:
        Jokes as questions, scores as answers.

    Raises:
        UserError: A file is missing or malformed.
    """
    check_one_of(settings, "mode", [None])
    parts = load_files(settings, [prepared_layout(PREPARED), *official()])
    return TaskData(parts["train"], parts["validation"], {"test": parts["test"]})


def official() -> list[Layout]:
    """Return the layouts of the official files, uncompressed and compressed with gzip."""
    stems = {"train": "train", "validation": "dev", "test": "test"}
    return [
        {split: Part(f"{stem}{ending}", read_jokes, "rjokes-1") for split, stem in stems.items()}
        for ending in (".tsv", ".tsv.gz")
    ]


def read_jokes(path: Path) -> Iterable[Example]:
    """Read an official file, with a score, a tab and a joke on each line.

    Args:
        path: A UTF-8 file.

    Returns:
        The jokes, in the file's order.

    Raises:
        UserError: The file is missing or malformed.
    """
    return read_records(path, _joke)


def _joke(line: str) -> list[Example]:
    score, tab, text = line.partition("\t")
    # Tabs inside a joke are escaped with a backslash.
    text = text.replace("\\\t", " ").strip()
    if not tab or not text:
        raise FormatError(f"it is {line[:40]!r}; expected a score, a tab and a joke")
    if not score.isascii() or not score.isdigit() or int(score) > HIGHEST:
        raise FormatError(f"the score is {score[:40]!r}; expected a whole number from 0 to {HIGHEST}")
    return [Example(text, score)]
