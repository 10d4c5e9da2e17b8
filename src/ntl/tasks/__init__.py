"""What the models learn: one module per task, all with the same small interface.

A task is a module in this package with one function, `load(settings) -> TaskData`. `settings` is the
`task` section of the configuration; the same settings give the same examples, in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from ntl.errors import UserError

TASKS = ("arithmetic", "noisy_regression")


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
        return max(len(e.answer) for part in self._parts() for e in part)

    @property
    def fingerprint(self) -> str:
        """A short hash of every example: two runs with the same one saw the same data."""
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(f"{len(part)}\n".encode())
            digest.update("".join(f"{e.question}\t{e.answer}\n" for e in part).encode())
        return digest.hexdigest()[:16]

    def _parts(self) -> list[Sequence[Example]]:
        return [self.train, self.validation, *self.tests.values()]


def load_task(settings: Mapping[str, Any]) -> TaskData:
    """Load the examples of a task.

    Args:
        settings: The `task` section of the configuration; its `name` chooses the task.

    Returns:
        The examples.

    Raises:
        UserError: The settings or the files cannot be used.
    """
    task = import_module(f"ntl.tasks.{settings['name']}")
    return task.load(settings)


def require_at_least(settings: Mapping[str, Any], least: Mapping[str, float]) -> None:
    """Check that settings of a task are numbers of at least a given size.

    Args:
        settings: The `task` section of the configuration.
        least: Name of a setting -> its smallest value; where that is an int, the setting must be one.

    Raises:
        UserError: One is not.
    """
    for name, smallest in least.items():
        value = settings[name]
        kind = int if isinstance(smallest, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or value < smallest:
            word = "a whole number" if kind is int else "a number"
            raise UserError(
                f"task.{name} is {value!r}; expected {word} of at least {smallest}. Pass for example "
                f"task.{name}={max(smallest, 1)}."
            )
