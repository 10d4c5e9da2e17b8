"""Arithmetic in the format of the DeepMind mathematics dataset.

Questions and answers are on alternating lines: "Calculate -4 - (5 + (3 - 6))." and "-6". The examples are
read from files or drawn from a seeded generator of similar questions.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ntl.errors import UserError
from ntl.tasks import Example, TaskData, check_at_least, check_one_of
from ntl.tasks.files import load_files, read_pairs
from ntl.tasks.mathematics_dataset import DIFFICULTIES, prepared_text
from ntl.tasks.questions import TEMPLATES, draw_expression

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
            `validation_per_difficulty`, `test_size` (numbers of questions) and `data_seed`. In the section
            `dataset_args`, `data_dir` is a folder of prepared files, with `mode` (None) and `cache_dir`. In
            the section `task`, it is a folder of official files with the subfolders train-easy, train-medium,
            train-hard, interpolate and extrapolate. `modules` and `extrapolate_modules` are then file names
            without .txt, and the sizes count pairs from each file.

    Returns:
        Training and validation examples of the three difficulties, an interpolation and an extrapolation
        test.

    Raises:
        UserError: A setting is out of range, or a file is missing or malformed.
    """
    sizes = ("train_per_difficulty", "validation_per_difficulty", "test_size")
    check_at_least(settings, dict.fromkeys(sizes, 1) | {"data_seed": 0})
    if "mode" in settings:
        check_one_of(settings, "mode", [None])
    if settings["data_dir"] is None:
        return generate(settings)
    if "modules" in settings:
        return _read(settings, Path(settings["data_dir"]))
    parts = load_files(settings, [prepared_text(PREPARED)])
    return TaskData(parts.pop("train"), parts.pop("validation"), parts)


def _read(settings: Mapping[str, Any], folder: Path) -> TaskData:
    if not folder.is_dir():
        raise UserError(
            f"task.data_dir={folder} is not a folder; expected one that holds train-easy, train-medium, "
            "train-hard, interpolate and extrapolate. Correct it, or omit it to generate the questions."
        )
    if not settings["modules"]:
        raise UserError(
            "task.modules is empty; expected at least one file name without .txt. Pass for example "
            "task.modules=[arithmetic__add_sub_multiple]."
        )
    training = [
        folder / f"train-{difficulty}" / f"{module}.txt"
        for difficulty in DIFFICULTIES
        for module in settings["modules"]
    ]
    tests = {
        split: [folder / split / f"{module}.txt" for module in settings[modules]]
        for split, modules in (("interpolate", "modules"), ("extrapolate", "extrapolate_modules"))
        if settings[modules]
    }
    for path in [*training, *(path for paths in tests.values() for path in paths)]:
        if not path.is_file():
            raise UserError(
                f"{path} does not exist; expected a file of questions and answers on alternating lines. "
                "Correct task.data_dir or task.modules."
            )
    n_train, n_validation = settings["train_per_difficulty"], settings["validation_per_difficulty"]
    train: list[Example] = []
    validation: list[Example] = []
    for path in training:
        pairs = list(islice(read_pairs(path, numbers=True), n_train + n_validation))
        if len(pairs) < n_train + n_validation:
            raise UserError(
                f"{path} holds {len(pairs)} pairs; expected {n_train} for training + {n_validation} for "
                "validation. Lower task.train_per_difficulty or task.validation_per_difficulty."
            )
        train += pairs[:n_train]
        validation += pairs[n_train:]
    return TaskData(
        train,
        validation,
        {
            split: [
                pair
                for path in paths
                for pair in islice(read_pairs(path, numbers=True), settings["test_size"])
            ]
            for split, paths in tests.items()
        },
    )


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
