"""Arithmetic in the format of the DeepMind mathematics dataset.

Questions and answers are on alternating lines: "Calculate -4 - (5 + (3 - 6))." and "-6". The examples are
read from files or drawn from a seeded generator of similar questions.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ntl.data import Example, TaskData, check_at_least, check_one_of
from ntl.data.files import load_files
from ntl.data.tasks.mathematics_dataset import DIFFICULTIES, prepared_text
from ntl.data.tasks.questions import TEMPLATES, draw_expression

PREPARED = {
    "train": "arithmetic_train.txt",
    "validation": "arithmetic_val.txt",
    "interpolate": "arithmetic_test_interpolate.txt",
    "extrapolate": "arithmetic_test_extrapolate.txt",
}

# For each split, the range of the number of integers in a question, and the largest integer.
GENERATED = {
    "train-easy": ((2, 4), 10),
    "train-medium": ((3, 5), 40),
    "train-hard": ((3, 7), 120),
    "interpolate": ((3, 6), 40),
    "extrapolate": ((8, 11), 120),
}


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read or generate the examples.

    Args:
        settings: If `data_dir` is None, examples are generated with `train_per_difficulty`,
            `validation_per_difficulty`, `test_size` (numbers of questions) and `data_seed`. Otherwise it is a
            folder of prepared files, with `mode` (None) and `cache_dir`.

    Returns:
        Training and validation examples of the three difficulties, an interpolation and an extrapolation
        test.

    Raises:
        UserError: A setting is out of range, or a file is missing or malformed.
    """
    sizes = ("train_per_difficulty", "validation_per_difficulty", "test_size")
    check_at_least(settings, dict.fromkeys(sizes, 1) | {"data_seed": 0})
    check_one_of(settings, "mode", [None])
    if settings["data_dir"] is None:
        return generate(settings)
    parts = load_files(settings, [prepared_text(PREPARED)])
    return TaskData(parts.pop("train"), parts.pop("validation"), parts)


def generate(settings: Mapping[str, Any]) -> TaskData:
    """Generate the examples.

    Args:
        settings: `train_per_difficulty`, `validation_per_difficulty`, `test_size`, `data_seed`.

    Returns:
        The examples. The expressions of the training, validation and test sets are disjoint. Training
        expressions may repeat, as in the official files.
    """
    rng = random.Random(settings["data_seed"])
    held_out: set[str] = set()

    def draw(split: str, size: int) -> list[Example]:
        return list(islice(_questions(split, rng, held_out, hold_out=True), size))

    tests = {split: draw(split, settings["test_size"]) for split in ("interpolate", "extrapolate")}
    splits = [f"train-{difficulty}" for difficulty in DIFFICULTIES]
    validation = [e for split in splits for e in draw(split, settings["validation_per_difficulty"])]
    train = [
        e
        for split in splits
        for e in islice(_questions(split, rng, held_out, hold_out=False), settings["train_per_difficulty"])
    ]
    return TaskData(train, validation, tests)


def _questions(split: str, rng: random.Random, held_out: set[str], hold_out: bool) -> Iterator[Example]:
    (fewest, most), largest = GENERATED[split]
    while True:
        expression, value = draw_expression(rng.randint(fewest, most), largest, rng)
        # Compare without the sentence: the same expression in another sentence would be the same question.
        if expression not in held_out:
            if hold_out:
                held_out.add(expression)
            yield Example(rng.choice(TEMPLATES).format(expression), str(value))
