"""MultiRC: given a passage and a question, write the correct answers, joined by ` | `, mostly in words.

The answers of SuperGLUE's test file are not public. So its validation file is the test set here, and the
validation questions are those about some passages of its training file. Questions without a correct answer
are omitted.

Source: Khashabi et al., "Looking Beyond the Surface", NAACL 2018; Wang et al., "SuperGLUE", NeurIPS 2019.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ntl.data.files import Layout, load_files, parse_pair
from ntl.data.task import Data, TaskData, setting

PREPARED = Layout(
    {"train": "train_clean.jsonl", "validation": "val_clean.jsonl", "test": "test_clean.jsonl"}, parse_pair
)
BETWEEN = "\n\nQuestion: "


@dataclass
class Multirc(Data):
    """Passages with questions, answered mostly in words."""

    dataset_name: str = "multirc"
    data_dir: str | None = setting(
        "data/multirc/data/preprocessed",
        "folder of the paper's files or of SuperGLUE's, which may also be in the folder around it; sample: "
        "the small sample that ships with the lab",
    )
    validation_share: float = setting(
        0.1,
        "share of the passages of SuperGLUE's training file that is the validation set; the paper's files "
        "have their own",
        is_share=True,
    )
    split_seed: int = setting(0, "random seed that chooses the validation set")
    max_new_tokens: int = setting(128, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Read the questions, whose answers are not compared as numbers."""
        official = Layout({"train": "train.jsonl", "test": "val.jsonl"}, parse_passage, (".", ".."))
        data = load_files(self, [PREPARED, official], group=lambda question: question.rpartition(BETWEEN)[0])
        return replace(data, number_metrics=False)


def parse_passage(line: str) -> Iterator[tuple[str, str]]:
    """Parse a passage of SuperGLUE's files into its questions that have a correct answer."""
    passage = json.loads(line)["passage"]
    for question in passage["questions"]:
        correct = [answer["text"].strip() for answer in question["answers"] if answer["label"] == 1]
        if correct:
            yield f"{passage['text'].strip()}{BETWEEN}{question['question'].strip()}", " | ".join(correct)
