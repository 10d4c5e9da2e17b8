"""MultiRC: given a passage and a question, write the correct answers, joined by ` | `, mostly in words.

The answers of SuperGLUE's test file are not public. So its validation file is the test set here, and the
validation questions are those about some passages of its training file. Questions without a correct answer
are omitted.

Source: Khashabi et al., "Looking Beyond the Surface", NAACL 2018; Wang et al., "SuperGLUE", NeurIPS 2019.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ntl.data.files import Layout, get_value, load_files, read_records
from ntl.data.task import Data, Example, Split, TaskData, setting

BETWEEN = "\n\nQuestion: "


@dataclass
class Multirc(Split, Data):
    """Passages with questions, answered mostly in words."""

    dataset_name: str = "multirc"
    data_dir: str | None = setting(
        "data/multirc/data/preprocessed",
        "folder of the paper's files or of SuperGLUE's, which may also be in the folder around it; sample: "
        "the small sample that ships with the lab",
    )
    max_new_tokens: int = setting(128, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Read the questions.

        Returns:
            The questions, whose answers are not compared as numbers.
        """
        data = load_files(self, [PREPARED, OFFICIAL, AROUND])
        return replace(data, number_metrics=False)


def parse_passage(record: Any) -> list[Example]:
    """Convert one passage of SuperGLUE's files.

    Args:
        record: An object whose `passage` has `text` and `questions`. Each question has `question` and
            `answers`; each answer has `text` and `label`.

    Returns:
        One example per question that has a correct answer.

    Raises:
        FormatError: A key is missing, or a value has the wrong type.
    """
    inside = get_value(record, "passage", dict)
    text = get_value(inside, "text")
    asked = [
        (get_value(entry, "question"), get_value(entry, "answers", list))
        for entry in get_value(inside, "questions", list)
    ]
    return [e for question, answers in asked for e in _example(text, question, answers, "text")]


def _example(text: str, question: str, answers: Iterable[Any], key: str) -> list[Example]:
    """Return a question's example in a list, which is empty if no answer is correct.

    `key` is that of an answer's text.
    """
    correct = [get_value(answer, key) for answer in answers if get_value(answer, "label", int) == 1]
    return [Example(f"{text}{BETWEEN}{question}", " | ".join(correct))] if correct else []


def _passage_of(example: Example) -> str:
    return example.question.rpartition(BETWEEN)[0]


PREPARED = Layout(
    {"train": "train_clean.jsonl", "validation": "val_clean.jsonl", "test": "test_clean.jsonl"},
    read_records,
)
OFFICIAL = Layout(
    {"train": "train.jsonl", "validation": "train.jsonl", "test": "val.jsonl"},
    partial(read_records, convert=parse_passage),
    _passage_of,
)
AROUND = OFFICIAL._replace(files={split: f"../{file}" for split, file in OFFICIAL.files.items()})
