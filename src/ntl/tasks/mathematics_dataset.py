"""The part of the DeepMind mathematics dataset that the paper trained on: questions with numbers for answers.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ntl.tasks import Example, TaskData, require_at_least, require_one_of
from ntl.tasks.files import Layout, Part, load_files, read_pairs
from ntl.tasks.questions import questions

DIFFICULTIES = ("easy", "medium", "hard")
MODULES = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__sequence_next_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_sub_multiple",
    "arithmetic__mul",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__place_value",
    "numbers__round_number",
    "numbers__round_number_composed",
)
EXTRAPOLATE_MODULES = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
PREPARED = {
    "train": "train.txt",
    "validation": "val.txt",
    "interpolate": "test_interpolate.txt",
    "extrapolate": "test_extrapolate.txt",
}
# The name of the archive's own folder: unpacked in the data folder, the files lie one level deeper.
ARCHIVE = "mathematics_dataset-v1.0"


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read the questions.

    Args:
        settings: `data_dir` (prepared files), `mode` (None: the tests are the interpolation and the
            extrapolation file; `dataset_comparison`: one test per module, from the official files, which lie
            in `data_dir` or in a folder mathematics_dataset-v1.0 inside), `cache_dir`. A `data_dir` of None
            generates simpler questions: `train_per_module` and `validation_per_module` of each difficulty,
            `test_per_module`, `data_seed`.

    Returns:
        The questions.

    Raises:
        UserError: A file is missing or malformed.
    """
    require_one_of(settings, "mode", [None, "dataset_comparison"])
    if settings["data_dir"] is None:
        return generate(settings)
    layouts = [prepared_text(PREPARED)]
    if settings["mode"] == "dataset_comparison":
        layouts = [_by_module(inside) for inside in ("", f"{ARCHIVE}/")]
    parts = load_files(settings, layouts)
    train, validation = parts.pop("train"), parts.pop("validation")
    return TaskData(train, validation, parts)


def generate(settings: Mapping[str, Any]) -> TaskData:
    """Draw simpler questions of the same modules.

    Args:
        settings: See `load`.

    Returns:
        The questions. None of a test or of the validation set is in the training set, nor in each other.

    Raises:
        UserError: A setting is out of its range.
    """
    sizes = ("train_per_module", "validation_per_module", "test_per_module")
    require_at_least(settings, dict.fromkeys(sizes, 1) | {"data_seed": 0})
    rng = random.Random(settings["data_seed"])
    held_out: set[str] = set()

    def hold_out(split: str, modules: tuple[str, ...], size: int) -> list[Example]:
        examples = []
        for example in islice(questions(split, modules, rng, held_out), size * len(modules)):
            held_out.add(example.question)
            examples.append(example)
        return examples

    tests = {}
    for split, modules in (("interpolate", MODULES), ("extrapolate", EXTRAPOLATE_MODULES)):
        named = {m: hold_out(split, (m,), settings["test_per_module"]) for m in modules}
        if settings["mode"] == "dataset_comparison":
            tests |= named
        else:
            tests[split] = [example for examples in named.values() for example in examples]
    splits = [f"train-{difficulty}" for difficulty in DIFFICULTIES]
    validation = [e for split in splits for e in hold_out(split, MODULES, settings["validation_per_module"])]
    train = [
        e
        for split in splits
        for e in islice(questions(split, MODULES, rng, held_out), settings["train_per_module"] * len(MODULES))
    ]
    return TaskData(train, validation, tests)


def prepared_text(files: Mapping[str, str]) -> Layout:
    """The layout of prepared text files: split -> file name."""
    return {split: Part(file, read_pairs, "pairs-1") for split, file in files.items()}


def _by_module(inside: str) -> Layout:
    files = {split: PREPARED[split] for split in ("train", "validation")}
    for folder, modules in (("interpolate", MODULES), ("extrapolate", EXTRAPOLATE_MODULES)):
        files |= {module: f"{inside}{folder}/{module}.txt" for module in modules}
    return prepared_text(files)
