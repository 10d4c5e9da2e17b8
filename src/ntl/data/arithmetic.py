"""Arithmetic of the DeepMind mathematics dataset, or similar: "Calculate -4 - (5 + (3 - 6))." -> "-6".

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ntl.data.files import Layout, load_files, read_pairs
from ntl.data.mathematics_dataset import ARCHIVE, DIFFICULTIES, PREPARED, Prepare
from ntl.data.task import BY_SETTINGS, Data, Example, TaskData, setting
from ntl.errors import UserError

FILES = {split: f"arithmetic_{file}" for split, file in PREPARED.items()}
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
        """Read or generate examples of the three difficulties, and the tests of inter- and extrapolation.

        Generated training, validation and test sets have no expression in common. Training expressions may
        repeat, as in the official files.
        """
        if self.data_dir is not None:
            return load_files(self, [Layout(FILES)], "Make them with `ntl prepare arithmetic`")
        rng = random.Random(self.data_seed)
        held_out: set[str] = set()

        def draw(split: str, count: int, is_held_out: bool = True) -> list[Example]:
            examples: list[Example] = []
            (fewest, most), largest = GENERATED[split]
            while len(examples) < count:
                expression, value = _expression(rng.randint(fewest, most), largest, rng)
                # Compare without the sentence: the same expression in another one is the same question.
                if expression not in held_out:
                    held_out.update([expression] if is_held_out else [])
                    examples.append(Example(rng.choice(TEMPLATES).format(expression), str(value)))
            return examples

        tests = {split: draw(split, self.test_size) for split in ("interpolate", "extrapolate")}
        levels = [f"train-{difficulty}" for difficulty in DIFFICULTIES]
        validation = [e for level in levels for e in draw(level, self.validation_per_difficulty)]
        train = [e for level in levels for e in draw(level, self.train_per_difficulty, is_held_out=False)]
        return TaskData(train, validation, tests, source=BY_SETTINGS)


@dataclass
class PrepareArithmetic(Prepare):
    """The same number of pairs of each difficulty."""

    modules = ("arithmetic__add_sub_multiple",)
    longer = ("arithmetic__add_sub_multiple_longer",)
    files = FILES

    train_per_difficulty: int = setting(33333, "number of training pairs of each difficulty", least=1)
    validation_per_difficulty: int = setting(1000, "number of validation pairs of each difficulty", least=1)

    def split(self, files: Sequence[Path], scratch: Path) -> Iterator[tuple[str, list[Example]]]:
        """Draw the pairs of each difficulty.

        Raises:
            UserError: A file is malformed or too short.
        """
        n_train, n_validation = self.train_per_difficulty, self.validation_per_difficulty
        train: list[Example] = []
        validation: list[Example] = []
        for i, path in enumerate(files):
            pairs = list(read_pairs(path))
            if len(pairs) < n_train + n_validation:
                raise UserError(
                    f"{path} holds {len(pairs)} pairs; expected {n_train} for training + {n_validation} for "
                    "validation. Lower train_per_difficulty or validation_per_difficulty."
                )
            order = np.random.default_rng([self.split_seed, i]).permutation(len(pairs))
            train += [pairs[j] for j in order[:n_train]]
            validation += [pairs[j] for j in order[n_train : n_train + n_validation]]
        yield "train", train
        yield "validation", validation


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
