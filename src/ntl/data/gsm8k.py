"""GSM8K: grade-school problems, answered with a solution and the final number after `####`.

As in the paper, the calculator annotations `<<48/2=24>>` are removed, and numbers are normalized: they have
no thousands separators, and `.5` becomes `0.5`.

Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021.
"""

import re
from dataclasses import dataclass, replace

from ntl.data.files import Layout, load_files, parse_pair
from ntl.data.task import Data, TaskData, setting

MARKER = "####"
PREPARED = {"train": "train_t_clean.jsonl", "validation": "val_t_clean.jsonl", "test": "test_clean.jsonl"}
OFFICIAL = {"train": "train.jsonl", "test": "test.jsonl"}

_ANNOTATION = re.compile(r"<<[^<>]*>>")
# A lookbehind follows the first character, because a search for a character is fast.
# Match groups of three digits, but neither lists of numbers nor a count before a word ("12 200-gram bags").
_COMMAS = re.compile(r"\d(?<![\d.,]\d)\d{0,2}(?:,\d{3})+(?![\d,]\d)(?!\d)")
_SPACES = re.compile(r"\d(?<![\d.,]\d)(?<!\d \d)\d{0,2}(?: \d{3})+(?! ?\d|-[a-zA-Z])")
_POINT = re.compile(r"\.(?<![\d.]\.)(?=\d)")


@dataclass
class Gsm8k(Data):
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
    split_seed: int = setting(0, "random seed that chooses the validation set")
    max_new_tokens: int = setting(512, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Read the problems."""
        layouts = [Layout(PREPARED, parse_problem), Layout(OFFICIAL, parse_problem, (".", ".."))]
        return replace(load_files(self, layouts), final_answer_marker=MARKER)


def parse_problem(line: str) -> list[tuple[str, str]]:
    """Parse a problem, with normalized numbers and without calculator annotations.

    Raises:
        ValueError: The answer has no number after the marker.

    Example:
        >>> answer = r"It is 1 000*.5=$<<1000*.5=500>>500.\\n#### 500"
        >>> parse_problem(f'{{"question": "1,000 at $.5?", "answer": "{answer}"}}')
        [('1000 at $0.5?', 'It is 1000*0.5=$500.\\n#### 500')]
    """
    [(question, answer)] = parse_pair(line)
    _, marker, final = answer.rpartition(MARKER)
    if not marker or not any(character.isdigit() for character in final):
        raise ValueError(f"expected an answer that ends with its number after {MARKER}")
    return [(normalize(question), normalize(_ANNOTATION.sub("", answer)))]


def normalize(text: str) -> str:
    """Write the numbers of a text without thousands separators, and with a zero before a leading point.

    Example:
        >>> normalize("$1,234,567.50, 12 000 and -.5, but 4,5,6 and 12 200-gram bags")
        '$1234567.50, 12000 and -0.5, but 4,5,6 and 12 200-gram bags'
    """
    text = _COMMAS.sub(lambda match: match[0].replace(",", ""), text)
    text = _SPACES.sub(lambda match: match[0].replace(" ", ""), text)
    return _POINT.sub("0.", text)
