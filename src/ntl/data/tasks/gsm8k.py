"""GSM8K: grade-school problems, answered with a solution and the final number after `####`.

As in the paper, the calculator annotations `<<48/2=24>>` are removed, and numbers are normalised: they have
no thousands separators, and `.5` becomes `0.5`.

Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ntl.data import Example, TaskData, check_one_of
from ntl.data.files import (
    FormatError,
    Layout,
    Part,
    check_split_settings,
    get_text,
    hold_out,
    load_files,
    prepared_layout,
    read_json_lines,
)
from ntl.data.hub import load_hub

MARKER = "####"
ANNOTATIONS = ("remove", "keep")
PREPARED = {"train": "train_t_clean.jsonl", "validation": "val_t_clean.jsonl", "test": "test_clean.jsonl"}
OFFICIAL = {"train": "train.jsonl", "validation": "train.jsonl", "test": "test.jsonl"}

_ANNOTATION = re.compile(r"<<[^<>]*>>")
# Match groups of three digits, but neither lists of numbers nor a count before a word ("12 200-gram bags").
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]\d)(?!\d)")
_SPACES = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})+(?! ?\d|-[a-zA-Z])")
_POINT = re.compile(r"(?<![\d.])\.(?=\d)")


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read the problems.

    Args:
        settings: `data_dir` (folder of prepared files, or of the official train.jsonl and test.jsonl), `hub`
            (a dataset on the hub to load instead, or None), `annotations` (`remove` or `keep`),
            `validation_share` (of the official training file), `split_seed`, `mode` (None) and `cache_dir`.

    Returns:
        Training, validation and test problems. With official files, the validation problems are drawn from
        the training file.

    Raises:
        UserError: A setting is out of range, a file is missing or malformed, or the hub cannot be reached.
    """
    check_one_of(settings, "mode", [None])
    layout = official(settings)
    annotations = settings["annotations"]
    convert = partial(problem, annotations=annotations)
    if settings["hub"] is not None:
        read = partial(_from_rows, convert=convert, settings=settings)
        parts = load_hub(settings, "main", {"train": "train", "validation": "train", "test": "test"}, read)
    else:
        parts = load_files(settings, [prepared_layout(PREPARED, convert, f"gsm8k-1-{annotations}"), layout])
    return TaskData(parts["train"], parts["validation"], {"test": parts["test"]}, True, MARKER)


def official(settings: Mapping[str, Any]) -> Layout:
    """Return the layout of the official files, with the validation problems drawn from the training file.

    Args:
        settings: `annotations`, `validation_share`, `split_seed`.

    Returns:
        The layout.

    Raises:
        UserError: A setting is out of range.
    """
    check_split_settings(settings)
    check_one_of(settings, "annotations", ANNOTATIONS)
    version = "gsm8k-1-{annotations}-{validation_share}-{split_seed}".format_map(settings)
    return {
        split: Part(file, partial(_from_file, split=split, settings=settings), f"{version}-{split}")
        for split, file in OFFICIAL.items()
    }


def problem(record: Mapping[str, Any], annotations: str = "remove") -> list[Example]:
    """Convert one problem.

    Args:
        record: An object with `question` and `answer`, as in the official files.
        annotations: Whether to `remove` or `keep` the calculator annotations.

    Returns:
        The problem with normalised numbers.

    Raises:
        FormatError: A key or the final answer is missing, or an annotation is not closed.

    Example:
        >>> problem({"question": "1,000 at $.5?", "answer": "It is 1 000*.5=$<<1000*.5=500>>500.\\n#### 500"})
        [Example(question='1000 at $0.5?', answer='It is 1000*0.5=$500.\\n#### 500', expected=None)]
    """
    question, answer = get_text(record, "question"), get_text(record, "answer")
    _, marker, final = answer.rpartition(MARKER)
    if not marker or not any(character.isdigit() for character in final):
        raise FormatError(f"'answer' ends with {answer[-40:]!r}; expected the final number after {MARKER!r}")
    without = _ANNOTATION.sub("", answer)
    if "<<" in without:
        raise FormatError(
            f"'answer' has an annotation that is not closed: {without[without.index('<<') :][:40]!r}"
        )
    return [Example(normalise(question), normalise(without if annotations == "remove" else answer))]


def normalise(text: str) -> str:
    """Normalise the numbers in a text.

    Args:
        text: Any text.

    Returns:
        The text without thousands separators (commas or spaces), and with a zero before a leading point.

    Example:
        >>> normalise("$1,234,567.50, 12 000 and -.5, but 4,5,6 and 12 200-gram bags")
        '$1234567.50, 12000 and -0.5, but 4,5,6 and 12 200-gram bags'
    """
    text = _COMMAS.sub(lambda match: match[0].replace(",", ""), text)
    text = _SPACES.sub(lambda match: match[0].replace(" ", ""), text)
    return _POINT.sub("0.", text)


def _from_file(path: Path, split: str, settings: Mapping[str, Any]) -> Iterable[Example]:
    convert = partial(problem, annotations=settings["annotations"])
    return hold_out(read_json_lines(path, convert), split, settings)


def _from_rows(
    rows: Iterable[Mapping[str, Any]],
    split: str,
    convert: Callable[[Mapping[str, Any]], list[Example]],
    settings: Mapping[str, Any],
) -> Iterable[Example]:
    return hold_out((example for row in rows for example in convert(row)), split, settings)
