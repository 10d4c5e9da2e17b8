"""Arithmetic in the format of the DeepMind mathematics dataset.

Questions and answers are on alternating lines: "Calculate -4 - (5 + (3 - 6))." and "-6". The examples are
read from files or drawn from a seeded generator of similar questions.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ntl.data.files import SPLIT_FILES, Layout, Plan, Prepare, load_files, read_pairs
from ntl.data.mathematics_dataset import ARCHIVE, DIFFICULTIES, find_archive
from ntl.data.task import BY_SETTINGS, Data, Example, TaskData, setting
from ntl.errors import UserError

PREPARED = Layout({split: f"arithmetic_{file}.txt" for split, file in SPLIT_FILES.items()})

TEMPLATES = ("{}", "Evaluate {}.", "Calculate {}.", "What is {}?", "What is the value of {}?")
# For each split, the range of the number of integers in a question, and the largest integer.
GENERATED = {
    "train-easy": ((2, 4), 10),
    "train-medium": ((3, 5), 40),
    "train-hard": ((3, 7), 120),
    "interpolate": ((3, 6), 40),
    "extrapolate": ((8, 11), 120),
}


@dataclass
class Arithmetic(Data):
    """Sums and differences with brackets: the paper's ablations."""

    dataset_name: str = "arithmetic"
    data_dir: str | None = setting(
        f"data/{ARCHIVE}",
        "folder that `ntl prepare arithmetic` writes; sample: the small sample that ships with the lab; "
        "null: examples are generated",
    )
    max_new_tokens: int = setting(32, "most tokens of an answer", "answers", least=1)
    train_per_difficulty: int = setting(
        33333, "generated: number of training examples of each difficulty", least=1
    )
    validation_per_difficulty: int = setting(
        1000, "generated: number of validation examples of each difficulty", least=1
    )
    test_size: int = setting(1000, "generated: number of examples of each test", least=1)
    data_seed: int = setting(0, "generated: random seed of the examples")

    def read(self) -> TaskData:
        """Read or generate the examples.

        Returns:
            Training and validation examples of the three difficulties, an interpolation and an extrapolation
            test. Generated training, validation and test sets have no expression in common. Training
            expressions may repeat, as in the official files.
        """
        if self.data_dir is not None:
            return load_files(self, [PREPARED], "Make them with `ntl prepare arithmetic`")
        rng = random.Random(self.data_seed)
        held_out: set[str] = set()

        def draw(split: str, size: str, hold_out: bool = True) -> list[Example]:
            return list(islice(_questions(split, rng, held_out, hold_out), getattr(self, size)))

        tests = {split: draw(split, "test_size") for split in ("interpolate", "extrapolate")}
        splits = [f"train-{difficulty}" for difficulty in DIFFICULTIES]
        validation = [e for split in splits for e in draw(split, "validation_per_difficulty")]
        train = [e for split in splits for e in draw(split, "train_per_difficulty", hold_out=False)]
        return TaskData(train, validation, tests, source=BY_SETTINGS)


@dataclass
class PrepareArithmetic(Prepare):
    """The same number of pairs of each difficulty."""

    train_per_difficulty: int = setting(33333, "number of training pairs of each difficulty", least=1)
    validation_per_difficulty: int = setting(1000, "number of validation pairs of each difficulty", least=1)

    def plan(self) -> Plan:
        """Plan the files of `ntl prepare arithmetic`: the same number of pairs of each difficulty.

        Raises:
            UserError: A file is missing. Reading the splits raises one too, if a file is malformed or too
                short.
        """
        archive = find_archive(
            self, ("arithmetic__add_sub_multiple",), ("arithmetic__add_sub_multiple_longer",)
        )
        n_train, n_validation = self.train_per_difficulty, self.validation_per_difficulty

        def splits(scratch: Path) -> Iterator[tuple[str, Iterable[Example]]]:
            train: list[Example] = []
            validation: list[Example] = []
            for i, path in enumerate(archive.of("train")):
                pairs = list(read_pairs(path))
                if len(pairs) < n_train + n_validation:
                    raise UserError(
                        f"{path} holds {len(pairs)} pairs; expected {n_train} for training + {n_validation} "
                        "for validation. Lower train_per_difficulty or validation_per_difficulty."
                    )
                order = np.random.default_rng([self.split_seed, i]).permutation(len(pairs))
                train += [pairs[j] for j in order[:n_train]]
                validation += [pairs[j] for j in order[n_train : n_train + n_validation]]
            yield "train", train
            yield "validation", validation
            yield from archive.read_tests()

        return Plan(PREPARED.files, splits)


def _questions(split: str, rng: random.Random, held_out: set[str], hold_out: bool) -> Iterator[Example]:
    (fewest, most), largest = GENERATED[split]
    while True:
        expression, value = _expression(rng.randint(fewest, most), largest, rng)
        # Compare without the sentence: the same expression in another sentence would be the same question.
        if expression not in held_out:
            if hold_out:
                held_out.add(expression)
            yield Example(rng.choice(TEMPLATES).format(expression), str(value))


def _expression(integers: int, largest: int, rng: random.Random) -> tuple[str, int]:
    """Draw an expression of sums and differences of `integers` integers, and return it with its value."""
    if integers == 1:
        value = rng.randint(-largest, largest)
        return str(value), value
    left = rng.randint(1, integers - 1)
    left_text, left_value = _expression(left, largest, rng)
    right_text, right_value = _expression(integers - left, largest, rng)
    if integers - left > 1:
        right_text = f"({right_text})"
    if rng.random() < 0.5:
        return f"{left_text} + {right_text}", left_value + right_value
    return f"{left_text} - {right_text}", left_value - right_value
