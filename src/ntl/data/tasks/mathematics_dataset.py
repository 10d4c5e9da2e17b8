"""The part of the DeepMind mathematics dataset that the paper trained on: questions with numeric answers.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ntl.data import Example, TaskData, check_at_least, check_one_of
from ntl.data.files import Layout, Part, load_files, read_pairs
from ntl.data.tasks.questions import questions

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
# Top-level folder of the archive. If it is unpacked in the data folder, the files are one level deeper.
ARCHIVE = "mathematics_dataset-v1.0"


def load(settings: Mapping[str, Any]) -> TaskData:
    """Read or generate the questions.

    Args:
        settings: `data_dir` (folder of prepared files), `mode` and `cache_dir`. If `mode` is None, the tests
            are the interpolation and the extrapolation file. If it is `dataset_comparison`, there is one test
            per module, from the official files in `data_dir` or in its subfolder mathematics_dataset-v1.0. If
            `data_dir` is None, simpler questions are generated with `train_per_module` and
            `validation_per_module` (per difficulty), `test_per_module` and `data_seed`.

    Returns:
        The questions.

    Raises:
        UserError: A setting is out of range, or a file is missing or malformed.
    """
    check_one_of(settings, "mode", [None, "dataset_comparison"])
    if settings["data_dir"] is None:
        return generate(settings)
    layouts = [prepared_text(PREPARED)]
    if settings["mode"] == "dataset_comparison":
        layouts = [_by_module(inside) for inside in ("", f"{ARCHIVE}/")]
    parts = load_files(settings, layouts)
    train, validation = parts.pop("train"), parts.pop("validation")
    return TaskData(train, validation, parts)


def generate(settings: Mapping[str, Any]) -> TaskData:
    """Generate simpler questions of the same modules.

    Args:
        settings: See `load`.

    Returns:
        The questions. The training, validation and test sets are disjoint.

    Raises:
        UserError: A setting is out of range.
    """
    sizes = ("train_per_module", "validation_per_module", "test_per_module")
    check_at_least(settings, dict.fromkeys(sizes, 1) | {"data_seed": 0})
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
    """Return the layout of prepared text files, given the file name of each split."""
    return {split: Part(file, read_pairs, "pairs-1") for split, file in files.items()}


def _by_module(inside: str) -> Layout:
    files = {split: PREPARED[split] for split in ("train", "validation")}
    for folder, modules in (("interpolate", MODULES), ("extrapolate", EXTRAPOLATE_MODULES)):
        files |= {module: f"{inside}{folder}/{module}.txt" for module in modules}
    return prepared_text(files)
