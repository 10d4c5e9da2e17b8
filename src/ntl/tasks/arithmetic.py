"""Arithmetic in the format of the DeepMind mathematics dataset.

Questions and answers stand on alternating lines: "Calculate -4 - (5 + (3 - 6))." and "-6". The examples come
from the official files where they lie in a folder, else from a seeded generator of the same kind of question.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ntl.errors import UserError
from ntl.metrics import read_answer
from ntl.tasks import Example, TaskData, require_at_least

DIFFICULTIES = ("easy", "medium", "hard")

# What the generator draws for each split: how many integers, and how large they are.
GENERATED = {
    "train-easy": ((2, 4), 10),
    "train-medium": ((3, 5), 40),
    "train-hard": ((3, 7), 120),
    "interpolate": ((3, 6), 40),
    "extrapolate": ((8, 11), 120),
}
TEMPLATES = ("{}", "Evaluate {}.", "Calculate {}.", "What is {}?", "What is the value of {}?")


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read or generate the examples.

    Args:
        settings: `data_dir` (folder that holds train-easy, train-medium, train-hard, interpolate and
            extrapolate; None generates), `modules`, `extrapolate_modules` (file names without .txt),
            `train_per_difficulty` and `validation_per_difficulty` (pairs from each module's file),
            `test_size` (pairs per test file), `data_seed` (for the generator).

    Returns:
        Training and validation examples of the three difficulties, an interpolation and an extrapolation
        test.

    Raises:
        UserError: A setting is out of its range, or a file is missing or malformed.
    """
    require_at_least(
        settings,
        {
            "train_per_difficulty": 1,
            "validation_per_difficulty": 1,
            "test_size": 1,
            "data_seed": 0,
        },
    )
    if settings["data_dir"] is None:
        return _generate(settings)
    return _read(settings, Path(settings["data_dir"]))


def _read(settings: Mapping[str, Any], folder: Path) -> TaskData:
    if not folder.is_dir():
        raise UserError(
            f"task.data_dir={folder} is no folder; expected one that holds train-easy, train-medium, "
            "train-hard, interpolate and extrapolate. Correct it, or leave it out: the questions are then "
            "generated."
        )
    if not settings["modules"]:
        raise UserError(
            "task.modules is empty; expected at least one file name without .txt. Pass for example "
            "task.modules=[arithmetic__add_sub_multiple]."
        )
    n_train, n_validation = settings["train_per_difficulty"], settings["validation_per_difficulty"]
    train: list[Example] = []
    validation: list[Example] = []
    for difficulty in DIFFICULTIES:
        for module in settings["modules"]:
            path = folder / f"train-{difficulty}" / f"{module}.txt"
            pairs = read_pairs(path, n_train + n_validation)
            if len(pairs) < n_train + n_validation:
                raise UserError(
                    f"{path} holds {len(pairs)} pairs; expected {n_train} for training + {n_validation} for "
                    "validation. Lower task.train_per_difficulty or task.validation_per_difficulty."
                )
            train += pairs[:n_train]
            validation += pairs[n_train:]
    tests = {}
    for split, modules in (
        ("interpolate", settings["modules"]),
        ("extrapolate", settings["extrapolate_modules"]),
    ):
        examples = [
            pair
            for module in modules
            for pair in read_pairs(folder / split / f"{module}.txt", settings["test_size"])
        ]
        if examples:
            tests[split] = examples
    return TaskData(train, validation, tests)


def read_pairs(path: Path, limit: int) -> list[Example]:
    """Read questions and answers on alternating lines.

    Args:
        path: The file, UTF-8.
        limit: The number of pairs after which reading stops.

    Returns:
        The pairs, in the file's order.

    Raises:
        UserError: The file is missing or malformed; the message names the file, the line and what is wrong.
    """
    try:
        with path.open(encoding="utf-8") as file:
            lines = [line.rstrip("\r\n") for line in islice(file, 2 * limit)]
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; expected a file of questions and answers on alternating lines. Correct "
            "task.data_dir or task.modules."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}. Replace the file.") from None

    examples = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UserError(
                f"{path}, line {number}: the line is empty; expected "
                f"{'a question' if number % 2 else 'an answer'}. Remove the pair, or restore the file."
            )
        if number % 2:
            question = line
        elif read_answer(line) is None:
            raise UserError(
                f"{path}, line {number}: the answer {line[:40]!r} is not a number. Choose modules whose "
                "answers are numbers (task.modules), or restore the file."
            )
        else:
            examples.append(Example(question, line.strip()))
    if not lines or len(lines) % 2:
        raise UserError(
            f"{path}, line {len(lines)}: the file ends with a question that has no answer (or is empty); "
            "expected an even number of lines, at least two. Restore the file: it may be cut off."
        )
    return examples


def _generate(settings: Mapping[str, Any]) -> TaskData:
    rng = random.Random(settings["data_seed"])
    seen: set[str] = set()
    # The tests are drawn first, so that no training question is among theirs.
    tests = {
        split: _draw(split, settings["test_size"], rng, seen) for split in ("interpolate", "extrapolate")
    }
    n_train, n_validation = settings["train_per_difficulty"], settings["validation_per_difficulty"]
    train: list[Example] = []
    validation: list[Example] = []
    for difficulty in DIFFICULTIES:
        pairs = _draw(f"train-{difficulty}", n_train + n_validation, rng, seen)
        train += pairs[:n_train]
        validation += pairs[n_train:]
    return TaskData(train, validation, tests)


def _draw(split: str, size: int, rng: random.Random, seen: set[str]) -> list[Example]:
    (fewest, most), largest = GENERATED[split]
    examples: list[Example] = []
    while len(examples) < size:
        expression, value = _expression(rng.randint(fewest, most), largest, rng)
        # Without the sentence around it: a test expression in another sentence would be the same question.
        if expression not in seen:
            seen.add(expression)
            examples.append(Example(rng.choice(TEMPLATES).format(expression), str(value)))
    return examples


def _expression(integers: int, largest: int, rng: random.Random) -> tuple[str, int]:
    """A random sum or difference of so many integers, in brackets where needed, and its value."""
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
