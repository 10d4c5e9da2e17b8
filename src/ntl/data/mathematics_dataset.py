"""The part of the DeepMind mathematics dataset that the paper trained on: questions with numeric answers.

The mixture has 26 million pairs, too many to hold as Python objects. `ntl prepare` shuffles it in two
sequential passes. The first writes every pair to a random bucket file; the second shuffles each bucket in
memory and appends it to the output. All orders are equally likely, and memory holds only one source file or
one bucket. Permuting line offsets instead would cost 26 million disk seeks.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from ntl.data.files import SPLIT_FILES, Layout, Plan, Prepare, find_layout, load_files, read_pairs
from ntl.data.task import Data, Example, TaskData, setting

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
PREPARED = Layout({split: f"{file}.txt" for split, file in SPLIT_FILES.items()})
# Top-level folder of the archive. If it is unpacked in the data folder, the files are one level deeper.
ARCHIVE = "mathematics_dataset-v1.0"
BUCKET = 32 * 2**20  # bytes of text


@dataclass
class MathematicsDataset(Data):
    """Thirteen modules of the DeepMind mathematics dataset, as the paper trained on them."""

    dataset_name: str = "mathematics_dataset"
    data_dir: str | None = setting(
        f"data/{ARCHIVE}",
        "folder that `ntl prepare mathematics_dataset` writes; sample: the small sample that ships with the "
        "lab",
    )

    def read(self) -> TaskData:
        """Read the questions, with a test of interpolation and one of extrapolation.

        If `mode` is `dataset_comparison`, there is instead one test per module, from the official files in
        `data_dir` or in its subfolder mathematics_dataset-v1.0.
        """
        layouts = [PREPARED]
        if self.mode == "dataset_comparison":
            layouts = [_by_module(inside) for inside in ("", f"{ARCHIVE}/")]
        return load_files(self, layouts, "Make them with `ntl prepare mathematics_dataset`")


@dataclass
class PrepareMathematicsDataset(Prepare):
    """The paper's mixture."""

    validation_share: float = setting(
        0.0005, "share of each training file that is for validation", is_share=True
    )

    def plan(self) -> Plan:
        """Plan the files: a small share is held out, the rest shuffled."""
        archive = find_archive(self, MODULES, EXTRAPOLATE_MODULES)

        def splits(scratch: Path) -> Iterator[tuple[str, Iterable[Example]]]:
            files, seed = archive.of("train"), self.split_seed
            count = max(1, sum(path.stat().st_size for path in files) // BUCKET)
            buckets = [scratch / f"bucket-{i}" for i in range(count)]
            held_out: list[Example] = []
            with ExitStack() as stack:
                opened = [stack.enter_context(bucket.open("wb")) for bucket in buckets]
                for i, path in enumerate(tqdm(files, "reading", leave=False, disable=None)):
                    held_out += _scatter(path, opened, self.validation_share, [seed, i])
            yield "validation", held_out
            yield "train", _gather(buckets, [seed, len(files)])
            yield from archive.read_tests()

        return Plan(PREPARED.files, splits)


def _by_module(inside: str) -> Layout:
    files = {split: PREPARED.files[split] for split in ("train", "validation")}
    for folder, modules in (("interpolate", MODULES), ("extrapolate", EXTRAPOLATE_MODULES)):
        files |= {module: f"{inside}{folder}/{module}.txt" for module in modules}
    return Layout(files)


class Archive(dict[str, Path]):
    """Maps the names of official files, such as `train-easy/arithmetic__mul.txt`, to their paths."""

    def of(self, folder: str) -> list[Path]:
        """Return the files of the folders whose names start with `folder`: `train`, `interpolate`, ..."""
        return [path for name, path in self.items() if name.startswith(folder)]

    def read_tests(self) -> Iterator[tuple[str, Iterable[Example]]]:
        """Yield the name and the examples of each test."""
        for test in ("interpolate", "extrapolate"):
            yield test, (pair for path in self.of(test) for pair in read_pairs(path))


def find_archive(settings: Prepare, modules: Sequence[str], longer: Sequence[str]) -> Archive:
    """Find the files of `modules`, and of the `longer` ones of extrapolation, in the unpacked archive.

    It is in `source` or in its subfolder.
    """
    names = [f"train-{difficulty}/{module}.txt" for difficulty in DIFFICULTIES for module in modules]
    names += [f"interpolate/{module}.txt" for module in modules]
    names += [f"extrapolate/{module}.txt" for module in longer]
    layouts = [Layout({name: inside + name for name in names}) for inside in ("", f"{ARCHIVE}/")]
    advice = f"Pass --source FOLDER, the folder of the unpacked archive {ARCHIVE}."
    folder = Path(settings.source).expanduser()
    layout = find_layout("source", folder, layouts, advice)
    return Archive({name: Path(path) for name, path in layout.files.items()})


def _scatter(path: Path, buckets: Sequence[BinaryIO], share: float, seed: list[int]) -> list[Example]:
    """Write the pairs of a file to random buckets, except those held out, which are returned."""
    pairs, rng = list(read_pairs(path)), np.random.default_rng(seed)
    # As published, the number of training pairs is rounded down: every file has at least one held-out pair.
    count = len(pairs) - int((1 - share) * len(pairs))
    chosen = set(rng.choice(len(pairs), count, replace=False).tolist())
    places = rng.integers(len(buckets), size=len(pairs)).tolist()
    for i, (pair, place) in enumerate(zip(pairs, places, strict=True)):
        if i not in chosen:
            buckets[place].write(f"{pair.question}\n{pair.answer}\n".encode())
    return [pairs[i] for i in sorted(chosen)]


def _gather(buckets: Sequence[Path], seed: list[int]) -> Iterator[Example]:
    """Yield the pairs of each bucket in random order."""
    for i, bucket in enumerate(tqdm(buckets, "shuffling", leave=False, disable=None)):
        lines = bucket.read_bytes().decode().split("\n")
        bucket.unlink()
        for j in np.random.default_rng([*seed, i]).permutation(len(lines) // 2).tolist():
            yield Example(lines[2 * j], lines[2 * j + 1])
