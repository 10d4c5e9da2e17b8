"""The data that models learn: one module per dataset in `ntl.data.tasks`, all with the same interface.

A dataset is a module with a function `load(settings) -> TaskData`, whose settings are a dataclass of
`ntl.config`. The same settings give the same examples in every process. A module may also define
`plan(settings) -> files.Plan`, for `ntl prepare`. Invalid files, and settings that do not fit them or each
other, raise a UserError.

    gsm8k                grade-school problems with their solutions
    mathematics_dataset  the thirteen modules of the DeepMind mathematics dataset that the paper trained on
    arithmetic           one of them: sums and differences with brackets
    multiplication       products of integers with up to a given number of digits
    rjokes               jokes and their scores
    multirc              passages with questions, answered mostly in words
    noisy_regression     weighted sums, or products, with noise
    tabular              any CSV file: the columns of a row, and its target
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from typing import NamedTuple

from ntl.config import Data
from ntl.errors import UserError

PAPERS_CLIP = 1e10


class Example(NamedTuple):
    """A question and its answer, both text.

    Args:
        question: Text that the model reads.
        answer: Text that the model should write. Most tasks have numeric answers; MultiRC's are mostly in
            words.
        expected: The answer without noise, or None for tasks without noise.
        ratings: The answers of several people, of which `answer` is a summary; empty if there are none.
    """

    question: str
    answer: str
    expected: float | None = None
    ratings: tuple[float, ...] = ()


@dataclass(frozen=True)
class TaskData:
    """The examples of one task.

    Each split is a list or, if it comes from files, a memory-mapped `ntl.data.cache.CachedExamples`.

    Args:
        train: Training examples.
        validation: Held-out examples for learning curves.
        tests: Held-out examples by test set. The first test set is the main one.
        number_metrics: Whether answers are compared as numbers.
        final_answer_marker: Marker before the final answer (`####` in GSM8K), or None if solutions have no
            marked final answer.
        targets: Names of the numbers in an answer, if there are several, separated by commas.
        columns: Columns that a question is made from, each `number`, `text` or, if its numbers are all
            written with two places after the point, `0.00`; empty if it is not made from columns.
        clip: Largest absolute value of the numbers that errors are computed of, None for no limit. Default:
            the paper's 1e10.
        note: What was left out or rounded when the data were read, or None.
    """

    train: Sequence[Example]
    validation: Sequence[Example]
    tests: Mapping[str, Sequence[Example]]
    number_metrics: bool = True
    final_answer_marker: str | None = None
    targets: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    clip: float | None = PAPERS_CLIP
    note: str | None = None

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each test set."""
        return {test: fingerprint(examples) for test, examples in self.tests.items()}


def load_task(settings: Data) -> TaskData:
    """Load the examples of a task; its `dataset_name` chooses the module.

    Raises:
        UserError: The files are invalid, or the settings do not fit them or each other.
    """
    data: TaskData = import_module(f"ntl.data.tasks.{settings.dataset_name}").load(settings)
    return data


def add_shots(data: TaskData, count: int, write: Callable[[Sequence[str]], list[str]]) -> TaskData:
    """Put the first `count` training examples before each question of the validation and test sets.

    Args:
        data: The task.
        count: Number of examples.
        write: Writes answers as the model should.
    """
    shots = list(data.train[:count])
    answers = write([example.answer for example in shots])
    texts = [f"{_until_answer(e.question)}{answer}\n\n" for e, answer in zip(shots, answers, strict=True)]
    before = "".join(texts)

    def add(examples: Sequence[Example]) -> list[Example]:
        return [example._replace(question=before + example.question) for example in examples]

    tests = {name: add(examples) for name, examples in data.tests.items()}
    return replace(data, validation=add(data.validation), tests=tests)


def _until_answer(question: str) -> str:
    return question if question[-1:].isspace() else f"{question}\n"


def fingerprint(examples: Iterable[Example]) -> str:
    """Hash the questions and answers of one split, in order, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.question}\t{example.answer}\n".encode())
    return digest.hexdigest()


def evenly_spaced(examples: Sequence[Example], count: int | None) -> Sequence[Example]:
    """Choose `count` examples in their order, evenly spaced because files hold one module after another.

    None, or more than there are, chooses all.
    """
    if count is None or count >= len(examples):
        return examples
    return [examples[i * len(examples) // count] for i in range(count)]


def single_number(answer: str, reader: str, advice: str) -> float:
    """Read an answer that has to be a number; a UserError quotes it if it is not a single one."""
    from ntloss.numbers.parsing import parse_number  # slow: torch

    number = parse_number(answer, "whole")
    if number is None:
        raise UserError(
            f"the answer {answer[:80]!r} is not a single number; {reader} expects answers such as -12.5. "
            f"Choose another dataset, or {advice}."
        )
    return number


def format_number(number: float | Decimal) -> str:
    """Write a number in the shortest form that is exact in its precision, without an exponent.

    Args:
        number: A finite number. A numpy float32 is written with the precision of float32.

    Returns:
        The text, without trailing zeros after the decimal point.

    Example:
        >>> format_number(42.0), format_number(-0.1), format_number(1e20), format_number(Decimal("2.50"))
        ('42', '-0.1', '100000000000000000000', '2.5')
    """
    text = format(Decimal(str(number)), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
