"""rJokes: jokes and how they were received, as a score from 0 to 11 (the logarithm of the votes).

Source: Weller & Seppi, "The rJokes Dataset: a Large Scale Humor Collection", LREC 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntl.tasks import Example, TaskData, require_one_of
from ntl.tasks.files import FormatError, Layout, Part, load_files, prepared_layout, read_records

PREPARED = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}
HIGHEST = 11


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read the jokes.

    Args:
        settings: `data_dir` (prepared files; or the official train.tsv, dev.tsv, test.tsv, or the same with
            gzip), `mode` (None), `cache_dir`.

    Returns:
        Jokes as questions, scores as answers.

    Raises:
        UserError: A file is missing or malformed.
    """
    require_one_of(settings, "mode", [None])
    parts = load_files(settings, [prepared_layout(PREPARED), *official()])
    return TaskData(parts["train"], parts["validation"], {"test": parts["test"]})


def official() -> list[Layout]:
    """The layouts of the official files: plain, and with gzip."""
    stems = {"train": "train", "validation": "dev", "test": "test"}
    return [
        {split: Part(f"{stem}{ending}", read_jokes, "rjokes-1") for split, stem in stems.items()}
        for ending in (".tsv", ".tsv.gz")
    ]


def read_jokes(path: Path) -> Iterable[Example]:
    """Read an official file: score, tab, joke.

    Args:
        path: The file, UTF-8.

    Returns:
        The jokes, in the file's order.

    Raises:
        UserError: The file is missing or malformed.
    """
    return read_records(path, _joke)


def _joke(line: str) -> list[Example]:
    score, tab, text = line.partition("\t")
    # A tab inside a joke is written with a backslash before it.
    text = text.replace("\\\t", " ").strip()
    if not tab or not text:
        raise FormatError(f"it is {line[:40]!r}; expected a score, a tab and a joke")
    if not score.isascii() or not score.isdigit() or int(score) > HIGHEST:
        raise FormatError(f"the score is {score[:40]!r}; expected a whole number from 0 to {HIGHEST}")
    return [Example(text, score)]
