"""What the models learn: one module per task, all with the same small interface.

A task is a module in this package with one function, `load(settings) -> TaskData`. `settings` is a section of
the configuration: `task` (of `ntl compare`), or `dataset_args` together with `name`. The same settings give
the same examples, in every process.

    gsm8k                grade-school problems with their solutions
    mathematics_dataset  the thirteen modules of the DeepMind mathematics dataset that the paper trained on
    arithmetic           one of them: sums and differences in brackets
    multiplication       products of integers, by their numbers of digits
    rjokes               jokes and their scores
    multirc              passages with questions, answered in words
    noisy_regression     weighted sums with noise, for `ntl compare`
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ntl.errors import UserError

TASKS = ("arithmetic", "noisy_regression")
DATASETS = ("mathematics_dataset", "arithmetic", "gsm8k", "rjokes", "multirc", "multiplication")


class Example(NamedTuple):
    """One question and its answer, both text.

    Args:
        question: What the encoder reads.
        answer: The number that the decoder should write.
        expected: The answer without its noise; None for tasks that have none.
    """

    question: str
    answer: str
    expected: float | None = None


@dataclass(frozen=True)
class TaskData:
    """The examples of one task.

    A part is a list, or a memory-mapped `ntl.tasks.arrow.ArrowExamples` where it comes from files.

    Args:
        train: What the models are trained on.
        validation: Held out; the learning curves are measured on it.
        tests: Held out; name of the test set -> its examples. The first one is the main one.
        number_metrics: Whether answers are to be compared as numbers.
        final_answer_marker: What stands before the number that counts (`####` in GSM8K); None where the last
            number of an answer does.
    """

    train: Sequence[Example]
    validation: Sequence[Example]
    tests: Mapping[str, Sequence[Example]]
    number_metrics: bool = True
    final_answer_marker: str | None = None

    @property
    def longest_answer(self) -> int:
        """The length of the longest answer, in characters."""
        return max(
            part.longest_answer if hasattr(part, "longest_answer") else max(len(e.answer) for e in part)
            for part in self._parts()
        )

    @property
    def fingerprint(self) -> str:
        """A short hash of every example: two runs with the same one saw the same data, wherever it lies."""
        parts = [
            part.fingerprint if hasattr(part, "fingerprint") else fingerprint(part) for part in self._parts()
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def _parts(self) -> list[Sequence[Example]]:
        return [self.train, self.validation, *self.tests.values()]


def fingerprint(examples: Iterable[Example]) -> str:
    """A hash of the questions and answers of one part, in their order.

    Args:
        examples: The part.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.question}\t{example.answer}\n".encode())
    return digest.hexdigest()


def sample_data_dir(name: str) -> Path:
    """The folder of the small sample of a dataset that ships with the lab, in the layout of prepared data.

    Args:
        name: One of `DATASETS`.

    Returns:
        The folder; see SOURCES.md beside it.

    Raises:
        UserError: There is no such dataset.
    """
    if name not in DATASETS:
        raise UserError(f"dataset {name!r} is unknown; expected one of: {', '.join(DATASETS)}.")
    return Path(__file__).parents[1] / "sample_data" / name


def load_task(settings: Mapping[str, Any]) -> TaskData:
    """Load the examples of a task.

    Args:
        settings: A section of the configuration; its `name` chooses the task.

    Returns:
        The examples.

    Raises:
        UserError: The settings or the files cannot be used.
    """
    name = settings["name"]
    known = sorted({*TASKS, *DATASETS})
    if name not in known:
        raise UserError(f"the dataset {name!r} is unknown; expected one of: {', '.join(known)}.")
    return import_module(f"ntl.tasks.{name}").load(settings)


def key_of(settings: Mapping[str, Any], name: str) -> str:
    """Write a setting as its user does: in `dataset_args` or `task`, or, for `ntl prepare`, in no section."""
    if "dataset_name" in settings:
        return f"dataset_args.{name}"
    return f"task.{name}" if "name" in settings else name


def require_at_least(settings: Mapping[str, Any], least: Mapping[str, float]) -> None:
    """Check that settings of a task are numbers of at least a given size.

    Args:
        settings: A section of the configuration.
        least: Name of a setting -> its smallest value; where that is an int, the setting must be one.

    Raises:
        UserError: One is not.
    """
    for name, smallest in least.items():
        value = settings[name]
        kind = int if isinstance(smallest, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or value < smallest:
            word = "a whole number" if kind is int else "a number"
            key = key_of(settings, name)
            raise UserError(
                f"{key} is {value!r}; expected {word} of at least {smallest}. Pass for example "
                f"{key}={max(smallest, 1)}."
            )


def require_one_of(settings: Mapping[str, Any], name: str, choices: Sequence[Any]) -> None:
    """Check that a setting is one of a few.

    Args:
        settings: A section of the configuration.
        name: Of the setting.
        choices: What it may be.

    Raises:
        UserError: It is something else.
    """
    if settings[name] not in choices:
        words = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise UserError(
            f"{key_of(settings, name)} is {settings[name]!r}; expected one of: {words}. Pass one of them."
        )
