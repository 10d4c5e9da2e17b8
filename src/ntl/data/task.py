"""What all datasets share: how settings are declared, examples, splits, and how numbers become texts."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from omegaconf import MISSING

from ntl.errors import UserError

PAPERS_CLIP = 1e10
BY_SETTINGS = "generated"  # the source of rows that the settings alone determine
Mode = StrEnum("Mode", "dataset_comparison")
Changes = Literal["model", "answers", "nothing"]


def setting(
    default: Any,
    help: str,
    changes: Changes = "model",
    *,
    least: float | None = None,
    is_share: bool = False,
) -> Any:
    """Declare a field of a settings class.

    Args:
        default: Its default. A list or a dictionary is copied for each instance.
        help: What it means; `ntl train GROUP=NAME --help` prints it beside the value.
        changes: What depends on the value: the `model` that is learned; the `answers` of a trained model
            alone; or `nothing` of a run, as of a path, a log, or a size of batches that are evaluated.
        least: The smallest value.
        is_share: Whether the value lies between 0 and 1, and is neither.
    """
    metadata = {"help": help, "changes": changes, "least": least, "is_share": is_share}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Settings:
    """Base of the settings classes: a value out of its range raises a UserError."""

    group: ClassVar[str] = ""
    """What stands before a key on the command line, such as `loss.`."""
    is_open: ClassVar[bool] = False
    """Whether it has any further key."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata.get("least")
            if not isinstance(value, int | float):
                continue
            if least is not None and value < least:
                raise UserError(f"{self.group}{each.name}={value}; expected at least {least}.")
            if each.metadata.get("is_share") and not 0 < value < 1:
                raise UserError(f"{self.group}{each.name}={value}; expected a share above 0 and below 1.")


class Example(NamedTuple):
    """A question and its answer, both text.

    Args:
        question: Text that the model reads.
        answer: Text that the model should write. Most tasks have numeric answers; MultiRC's are mostly in
            words.
        expected: The answer without noise, or None for tasks without noise.
        ratings: The answers of several people, of which `answer` is a summary; empty if there are none.
        known_by: What the row is recognized by besides its question, however that is written, such as the
            cells of a table's row.
    """

    question: str
    answer: str
    expected: float | None = None
    ratings: tuple[float, ...] = ()
    known_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskData:
    """The examples of one task.

    Each split is a list or, where files may be too large for one, a memory-mapped `ntl.data.files.Mapped`.

    Args:
        train: Training examples.
        validation: Held-out examples for learning curves.
        tests: Held-out examples by test set. The first test set is the main one.
        number_metrics: Whether answers are compared as numbers.
        final_answer_marker: Marker before the final answer (`####` in GSM8K), or None if solutions have no
            marked final answer.
        clip: Largest absolute value of the numbers that errors are computed of, None for no limit. Default:
            the paper's 1e10.
        note: What was left out or rounded when the data were read, or None.
        source: Digest of what a seed draws the rows from, such as all rows of a table; None if no seed draws
            them.
    """

    train: Sequence[Example]
    validation: Sequence[Example]
    tests: Mapping[str, Sequence[Example]]
    number_metrics: bool = True
    final_answer_marker: str | None = None
    clip: float | None = PAPERS_CLIP
    note: str | None = None
    source: str | None = None

    @property
    def parts(self) -> dict[str, Sequence[Example]]:
        """The sets that are answered, by name."""
        return {"validation": self.validation, **self.tests}

    @cached_property
    def digest(self) -> str:
        """Digest of all rows: those that are learned, and those that are answered."""
        every = {name: fingerprint(part) for name, part in {"train": self.train, **self.parts}.items()}
        return hashlib.sha256(repr(sorted(every.items())).encode()).hexdigest()[:16]


@dataclass
class Data(Settings, ABC):
    """A dataset: its settings, of which these are every dataset's, and what reads its examples."""

    group = "dataset_args."

    dataset_name: str = setting(MISSING, "name of the dataset, as in dataset_args=NAME")
    max_new_tokens: int = setting(64, "most tokens of an answer", "answers", least=1)
    data_dir: str | None = setting(None, "folder of the dataset's files; unused by a dataset without files")
    mode: Mode | None = setting(
        None,
        "one test for each module of mathematics_dataset; null: its two tests",
        "answers",
    )

    @property
    def title(self) -> str:
        """The dataset's name in reports."""
        return self.dataset_name

    @abstractmethod
    def read(self) -> TaskData:
        """Read or generate the examples.

        Raises:
            UserError: The files are invalid, or the settings do not fit them or each other.
        """


def fingerprint(examples: Iterable[Example]) -> str:
    """Hash all examples of one split, in order, with all that is known of each, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for question, answer, expected, ratings, _ in examples:
        more = [] if expected is None else [f"expected {expected!r}"]
        more += [f"ratings {ratings!r}"] if ratings else []
        digest.update("\t".join([question, answer, *more]).encode() + b"\n")
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
    from ntloss.numbers import parse_number  # slow: torch

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
