"""Noisy regression as text: the question is a few integers, the answer one number.

The answer is a weighted sum of the integers plus Gaussian noise. The noise makes the exact answer
unpredictable, so what matters is how *close* a prediction is, which is what a number token loss optimises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntl.data import Example, TaskData, check_at_least, invalid_setting
from ntl.errors import UserError


def load(settings: Mapping[str, Any]) -> TaskData:
    """Generate the examples.

    Args:
        settings: `weights` (one per integer in the question), `smallest` and `largest` (range of the
            integers), `noise` (standard deviation), `largest_answer` (answers are clipped to the range from 0
            to this value), `train_size`, `validation_size`, `test_size` and `data_seed`.

    Returns:
        Training, validation and one test set. No test or validation question is in the training set.
    """
    least = {"smallest": 0, "largest": 0, "largest_answer": 0, "data_seed": 0}
    check_at_least(settings, dict.fromkeys(("train_size", "validation_size", "test_size"), 1) | least)
    noise, weights = settings["noise"], settings["weights"]
    if isinstance(noise, bool) or not isinstance(noise, int | float) or noise < 0:
        raise invalid_setting(settings, "noise", "a number of at least 0", 25.0)
    if not isinstance(weights, list) or not weights:
        raise invalid_setting(settings, "weights", "one number per integer of the question", "[5,3,2]")
    low, high = settings["smallest"], settings["largest"]
    held_out = settings["validation_size"] + settings["test_size"]
    questions = (high - low + 1) ** len(weights) if high > low else 0
    if questions < 4 * held_out:
        raise UserError(
            f"{len(weights)} integers from dataset_args.smallest={low} to dataset_args.largest={high} make "
            f"{questions} questions; expected at least {4 * held_out}, four times the number held out. Widen "
            "the range, or lower dataset_args.validation_size and dataset_args.test_size."
        )

    rng = np.random.default_rng(settings["data_seed"])
    test = _draw(settings, settings["test_size"], rng, frozenset())
    validation = _draw(settings, settings["validation_size"], rng, frozenset())
    seen = frozenset(example.question for example in (*test, *validation))
    train = _draw(settings, settings["train_size"], rng, seen)
    return TaskData(train, validation, {"test": test})


def _draw(
    settings: Mapping[str, Any], size: int, rng: np.random.Generator, exclude: frozenset[str]
) -> list[Example]:
    weights = np.asarray(settings["weights"])
    examples: list[Example] = []
    while len(examples) < size:
        missing = size - len(examples)
        integers = rng.integers(
            settings["smallest"], settings["largest"], (missing, len(weights)), endpoint=True
        )
        expected = integers @ weights
        noisy = np.rint(expected + rng.normal(0.0, settings["noise"], missing))
        answers = np.clip(noisy, 0, settings["largest_answer"]).astype(int)
        for row, answer, mean in zip(integers, answers, expected, strict=True):
            question = " ".join(map(str, row))
            if question not in exclude:
                examples.append(Example(question, str(answer), float(mean)))
    return examples
