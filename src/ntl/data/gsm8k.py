"""GSM8K: grade-school problems, answered with a solution and the final number after `####`.

As in the paper, the calculator annotations `<<48/2=24>>` are removed, and numbers are normalized: they have
no thousands separators, and `.5` becomes `0.5`.

Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ntl.data.files import FormatError, Layout, get_value, load_files, read_records
from ntl.data.task import Data, Example, Split, TaskData, setting

MARKER = "####"
PREPARED = {"train": "train_t_clean.jsonl", "validation": "val_t_clean.jsonl", "test": "test_clean.jsonl"}
OFFICIAL = {"train": "train.jsonl", "validation": "train.jsonl", "test": "test.jsonl"}
AROUND = {split: f"../{file}" for split, file in OFFICIAL.items()}  # of the published place

_ANNOTATION = re.compile(r"<<[^<>]*>>")
# A lookbehind follows the first character, because a search for a character is fast.
# Match groups of three digits, but neither lists of numbers nor a count before a word ("12 200-gram bags").
_COMMAS = re.compile(r"\d(?<![\d.,]\d)\d{0,2}(?:,\d{3})+(?![\d,]\d)(?!\d)")
_SPACES = re.compile(r"\d(?<![\d.,]\d)(?<!\d \d)\d{0,2}(?: \d{3})+(?! ?\d|-[a-zA-Z])")
_POINT = re.compile(r"\.(?<![\d.]\.)(?=\d)")


@dataclass
class Gsm8k(Split, Data):
    """Grade-school problems. The answer is the solution, with the final number after ####."""

    dataset_name: str = "gsm8k"
    data_dir: str | None = setting(
        "data/grade-school-math/grade_school_math/data/preprocessed",
        "folder of the paper's files or of the official ones, which may also be in the folder around it; "
        "sample: the small sample that ships with the lab",
    )
    validation_share: float = setting(
        0.15,
        "share of the official training file that is the validation set; the paper's files have their own",
        is_share=True,
    )
    max_new_tokens: int = setting(512, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Read the problems.

        Returns:
            Training, validation and test problems. With official files, the validation problems are drawn
            from the training file.
        """
        read = partial(read_records, convert=parse_problem)
        data = load_files(self, [Layout(files, read) for files in (PREPARED, OFFICIAL, AROUND)])
        return replace(data, final_answer_marker=MARKER)


def parse_problem(record: Any) -> list[Example]:
    """Convert one problem.

    Args:
        record: An object with `question` and `answer`, as in the official files.

    Returns:
        The problem with normalized numbers, without calculator annotations.

    Raises:
        FormatError: A key or the final answer is missing.

    Example:
        >>> answer = "It is 1 000*.5=$<<1000*.5=500>>500.\\n#### 500"
        >>> parse_problem({"question": "1,000 at $.5?", "answer": answer})[0][:2]
        ('1000 at $0.5?', 'It is 1000*0.5=$500.\\n#### 500')
    """
    question, answer = get_value(record, "question"), get_value(record, "answer")
    _, marker, final = answer.rpartition(MARKER)
    if not marker or not any(character.isdigit() for character in final):
        raise FormatError(f"'answer' ends with {answer[-40:]!r}; expected the final number after {MARKER!r}")
    return [Example(normalize(question), normalize(_ANNOTATION.sub("", answer)))]


def normalize(text: str) -> str:
    """Normalize the numbers in a text.

    Args:
        text: Any text.

    Returns:
        The text without thousands separators (commas or spaces), and with a zero before a leading point.

    Example:
        >>> normalize("$1,234,567.50, 12 000 and -.5, but 4,5,6 and 12 200-gram bags")
        '$1234567.50, 12000 and -0.5, but 4,5,6 and 12 200-gram bags'
    """
    text = _COMMAS.sub(lambda match: match[0].replace(",", ""), text)
    text = _SPACES.sub(lambda match: match[0].replace(" ", ""), text)
    return _POINT.sub("0.", text)
