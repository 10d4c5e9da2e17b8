"""The data that models learn: one module per dataset in `ntl.data.tasks`, all with the same interface.

A dataset is a module with a function `load(settings) -> TaskData`. `settings` is the section `dataset_args`
of the configuration, with an additional `name`. The same settings give the same examples in every process.

    gsm8k                grade-school problems with their solutions
    mathematics_dataset  the thirteen modules of the DeepMind mathematics dataset that the paper trained on
    arithmetic           one of them: sums and differences in brackets
    multiplication       products of integers with up to a given number of digits
    rjokes               jokes and their scores
    multirc              passages with questions, answered in words
    noisy_regression     weighted sums, or products, with noise
    tabular              any CSV file: the columns of a row, and its target
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ntl.errors import UserError

# Datasets that are read from files; a sample of each ships with the lab.
DATASETS = ("mathematics_dataset", "arithmetic", "gsm8k", "rjokes", "multirc", "multiplication")


class Example(NamedTuple):
    """A question and its answer, both text.

    Args:
        question: Text that the model reads.
        answer: Text that the model should write. Most tasks have numeric answers; MultiRC answers in words.
        expected: The answer without noise, or None for tasks without noise.
    """

    question: str
    answer: str
    expected: float | None = None


@dataclass(frozen=True)
class TaskData:
    """The examples of one task.

    Each split is a list or, if it comes from files, a memory-mapped `ntl.data.arrow.ArrowExamples`.

    Args:
        train: Training examples.
        validation: Held-out examples for learning curves.
        tests: Held-out examples by test set. The first test set is the main one.
        number_metrics: Whether answers are compared as numbers.
        final_answer_marker: Marker before the final answer (`####` in GSM8K), or None if solutions have no
            marked final answer.
    """

    train: Sequence[Example]
    validation: Sequence[Example]
    tests: Mapping[str, Sequence[Example]]
    number_metrics: bool = True
    final_answer_marker: str | None = None

    @property
    def fingerprint(self) -> str:
        """A short hash of all examples, which identifies the data regardless of its location."""
        parts = [self.train, self.validation, *self.tests.values()]
        hashes = [getattr(part, "fingerprint", None) or fingerprint(part) for part in parts]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def fingerprint(examples: Iterable[Example]) -> str:
    """Hash the questions and answers of one split, in order.

    Args:
        examples: Examples of the split.

    Returns:
        A string of 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.question}\t{example.answer}\n".encode())
    return digest.hexdigest()


def sample_data_dir(name: str) -> Path:
    """Return the folder of a dataset's sample that ships with the lab, in the layout of prepared data.

    Args:
        name: One of `DATASETS`.

    Returns:
        The folder. SOURCES.md next to it documents the samples.

    Raises:
        UserError: The dataset is unknown.
    """
    if name not in DATASETS:
        raise UserError(f"dataset {name!r} is unknown; expected one of: {', '.join(DATASETS)}.")
    return Path(__file__).parent / "sample" / name


def load_task(settings: Mapping[str, Any]) -> TaskData:
    """Load the examples of a task.

    Args:
        settings: A section of the configuration. Its `name` chooses the task.

    Returns:
        The examples.

    Raises:
        UserError: The settings or the files are invalid.
    """
    name = settings["name"]
    known = sorted((*DATASETS, "noisy_regression", "tabular"))
    if name not in known:
        raise UserError(f"the dataset {name!r} is unknown; expected one of: {', '.join(known)}.")
    return import_module(f"ntl.data.tasks.{name}").load(settings)


def setting_key(settings: Mapping[str, Any], name: str) -> str:
    """Return a setting's full key: in `dataset_args` or, for `ntl prepare`, without a section."""
    return f"dataset_args.{name}" if "name" in settings else name


def check_at_least(settings: Mapping[str, Any], least: Mapping[str, float]) -> None:
    """Check that settings of a task are numbers with given minimum values.

    Args:
        settings: A section of the configuration.
        least: Maps each setting's name to its minimum. If the minimum is an int, the setting must be one.

    Raises:
        UserError: A setting is not a number, or is too small.
    """
    for name, smallest in least.items():
        value = settings[name]
        kind = int if isinstance(smallest, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or value < smallest:
            word = "a whole number" if kind is int else "a number"
            key = setting_key(settings, name)
            raise UserError(
                f"{key} is {value!r}; expected {word} of at least {smallest}. Pass for example "
                f"{key}={max(smallest, 1)}."
            )


def check_one_of(settings: Mapping[str, Any], name: str, choices: Sequence[Any]) -> None:
    """Check that a setting is one of several choices.

    Args:
        settings: A section of the configuration.
        name: Name of the setting.
        choices: Valid values.

    Raises:
        UserError: The setting has another value.
    """
    if settings[name] not in choices:
        words = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise UserError(
            f"{setting_key(settings, name)} is {settings[name]!r}; expected one of: {words}. "
            "Pass one of them."
        )
