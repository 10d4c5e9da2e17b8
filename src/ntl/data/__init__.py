"""The data that models learn: one module per dataset in `ntl.data.tasks`, all with the same interface.

A dataset is a module with a function `load(settings) -> TaskData`. `settings` is the section `dataset_args`
of the configuration, with an additional `name`. The same settings give the same examples in every process.
A module may also define `plan(settings) -> files.Plan`, for `ntl prepare` with `config/prepare/<name>.yaml`,
and `MODES`, the valid values of the setting `mode`. Invalid settings and files raise a UserError.

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
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

from ntl.errors import UserError

TASKS = sorted(module.name for module in iter_modules([str(Path(__file__).parent / "tasks")]))


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

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each test set."""
        return {test: fingerprint(examples) for test, examples in self.tests.items()}


def load_task(settings: Mapping[str, Any]) -> TaskData:
    """Load the examples of a task.

    Args:
        settings: A section of the configuration. Its `name` chooses the task.

    Returns:
        The examples.

    Raises:
        UserError: The settings or the files are invalid.
    """
    check_one_of(settings, "name", TASKS)
    task = import_module(f"ntl.data.tasks.{settings['name']}")
    if "mode" in settings:
        check_one_of(settings, "mode", getattr(task, "MODES", (None,)))
    data: TaskData = task.load(settings)
    return data


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


def setting_key(settings: Mapping[str, Any], name: str) -> str:
    """Return a setting's full key: in `dataset_args` or, for `ntl prepare`, without a section."""
    return f"dataset_args.{name}" if "name" in settings else name


def invalid_setting(settings: Mapping[str, Any], name: str, expected: str, example: Any) -> UserError:
    """Return the error for an invalid setting, which says what was given and what is expected."""
    key = setting_key(settings, name)
    return UserError(f"{key} is {settings[name]!r}; expected {expected}. Pass for example {key}={example}.")


def check_at_least(settings: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Check that settings are whole numbers of at least the given minimum of each."""
    for name, smallest in least.items():
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            expected = f"a whole number of at least {smallest}"
            raise invalid_setting(settings, name, expected, max(smallest, 1))


def check_one_of(settings: Mapping[str, Any], name: str, choices: Sequence[Any]) -> None:
    """Check that a setting is one of several choices."""
    if settings[name] not in choices:
        words = ["null" if choice is None else str(choice).lower() for choice in choices]
        raise invalid_setting(settings, name, f"one of: {', '.join(words)}", words[0])


def check_folder(settings: Mapping[str, Any], name: str) -> Path:
    """Return the path in a setting, after checking that it is one."""
    if not isinstance(settings[name], str) or not settings[name]:
        raise invalid_setting(settings, name, "the path of a folder", "folder")
    return Path(settings[name]).expanduser()
