"""MultiRC: given a passage and a question, write the correct answers, joined by ` | `, mostly in words.

The answers of SuperGLUE's test file are not public. So its validation file is the test set here, and the
validation questions are those about some passages of its training file. Questions without a correct answer
are omitted.

Source: Khashabi et al., "Looking Beyond the Surface", NAACL 2018; Wang et al., "SuperGLUE", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
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

PREPARED = {"train": "train_clean.jsonl", "validation": "val_clean.jsonl", "test": "test_clean.jsonl"}
OFFICIAL = {"train": "train.jsonl", "validation": "train.jsonl", "test": "val.jsonl"}
BETWEEN = "\n\nQuestion: "


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read the questions.

    Args:
        settings: `data_dir` (folder of prepared files, or of SuperGLUE's train.jsonl and val.jsonl), `hub` (a
            dataset on the hub to load instead, or None), `validation_share` (of the passages of the official
            training file), `split_seed`, `mode` (None) and `cache_dir`.

    Returns:
        The questions, whose answers are not compared as numbers.

    Raises:
        UserError: A setting is out of range, a file is missing or malformed, or the hub cannot be reached.
    """
    check_one_of(settings, "mode", [None])
    layout = official(settings)
    if settings["hub"] is not None:
        splits = {"train": "train", "validation": "train", "test": "validation"}
        parts = load_hub(settings, "multirc", splits, partial(_from_rows, settings=settings))
    else:
        parts = load_files(settings, [prepared_layout(PREPARED), layout])
    return TaskData(parts["train"], parts["validation"], {"test": parts["test"]}, number_metrics=False)


def official(settings: Mapping[str, Any]) -> Layout:
    """Return the layout of SuperGLUE's files, with the validation questions drawn from the training file.

    Args:
        settings: `validation_share`, `split_seed`.

    Returns:
        The layout.

    Raises:
        UserError: A setting is out of range.
    """
    check_split_settings(settings)
    version = "multirc-1-{validation_share}-{split_seed}".format_map(settings)
    return {
        split: Part(file, partial(_from_file, split=split, settings=settings), f"{version}-{split}")
        for split, file in OFFICIAL.items()
    }


def passage(record: Mapping[str, Any]) -> list[Example]:
    """Convert one passage of SuperGLUE's files.

    Args:
        record: An object whose `passage` has `text` and `questions`. Each question has `question` and
            `answers`; each answer has `text` and `label`.

    Returns:
        One example per question that has a correct answer.

    Raises:
        FormatError: A key is missing, or a value has the wrong type.
    """
    inside = _get_typed(record, "passage", dict)
    text = get_text(inside, "text")
    examples = []
    for entry in _get_typed(inside, "questions", list):
        question = get_text(entry, "question")
        answers = [a for a in _get_typed(entry, "answers", list) if _get_typed(a, "label", int) == 1]
        if answers:
            joined = " | ".join(get_text(answer, "text") for answer in answers)
            examples.append(Example(f"{text}{BETWEEN}{question}", joined))
    return examples


def _get_typed(record: Any, key: str, kind: type) -> Any:
    if not isinstance(record, Mapping):
        raise FormatError(f"found {str(record)[:40]!r}; expected an object with the key {key!r}")
    if key not in record:
        missing = "; SuperGLUE's test file has no labels, use its val.jsonl" if key == "label" else ""
        raise FormatError(
            f"the key {key!r} is missing; it has {', '.join(map(repr, record)) or 'none'}{missing}"
        )
    if not isinstance(record[key], kind):
        raise FormatError(f"{key!r} is {str(record[key])[:40]!r}; expected {kind.__name__}")
    return record[key]


def _from_file(path: Path, split: str, settings: Mapping[str, Any]) -> Iterable[Example]:
    return hold_out(read_json_lines(path, passage), split, settings, _passage_of)


def _from_rows(
    rows: Iterable[Mapping[str, Any]], split: str, settings: Mapping[str, Any]
) -> Iterable[Example]:
    """Convert the hub's rows, which hold one answer each, with the answers to a question in succession."""
    return hold_out(_questions(rows), split, settings, _passage_of)


def _questions(rows: Iterable[Mapping[str, Any]]) -> Iterator[Example]:
    for (text, question), answers in groupby(
        rows, lambda row: (get_text(row, "paragraph"), get_text(row, "question"))
    ):
        correct = [get_text(answer, "answer") for answer in answers if _get_typed(answer, "label", int) == 1]
        if correct:
            yield Example(f"{text}{BETWEEN}{question}", " | ".join(correct))


def _passage_of(example: Example) -> str:
    return example.question.rpartition(BETWEEN)[0]
