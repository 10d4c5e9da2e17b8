"""The part of the DeepMind mathematics dataset that the paper trained on: questions with numeric answers.

The mixture has 26 million pairs, too many to hold as Python objects. `ntl prepare` shuffles it in two
sequential passes. The first writes every pair to a random bucket file; the second shuffles each bucket in
memory and appends it to the output. All orders are equally likely, and memory holds only one source file or
one bucket. Permuting line offsets instead would cost 26 million disk seeks.

Source: Saxton et al., "Analysing Mathematical Reasoning Abilities of Neural Models", ICLR 2019.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
from tqdm import tqdm

from ntl.data.files import Layout, find_files, load_files, read_pairs
from ntl.data.task import Data, Example, Settings, TaskData, setting

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
PLACES = (".", ARCHIVE)
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
        layout = Layout(PREPARED)
        if self.mode == "dataset_comparison":
            tests = [*_files("interpolate", MODULES), *_files("extrapolate", EXTRAPOLATE_MODULES)]
            files = {split: PREPARED[split] for split in ("train", "validation")}
            layout = Layout(files | {Path(file).stem: file for file in tests}, places=PLACES)
        return load_files(self, [layout], "Make them with `ntl prepare mathematics_dataset`")


def _files(folder: str, modules: Iterable[str]) -> list[str]:
    return [f"{folder}/{module}.txt" for module in modules]


@dataclass
class Prepare(Settings, ABC):
    """Settings of `ntl prepare` for every dataset: where the files come from and go to."""

    modules: ClassVar[Sequence[str]]
    """The modules for training and interpolation."""
    longer: ClassVar[Sequence[str]]
    """The modules of extrapolation."""
    files: ClassVar[Mapping[str, str]]
    """The files that are written, by split."""

    source: str = setting(
        f"data/{ARCHIVE}", "folder of the official files, or the one that holds this folder"
    )
    destination: str = setting(f"data/{ARCHIVE}", "folder of the files that are written")
    overwrite: bool = setting(False, "replace existing files")
    split_seed: int = setting(0, "random seed that chooses the validation set and the order of the pairs")

    def find_archive(self) -> dict[str, list[Path]]:
        """Find the official files for training, of all difficulties, and of the two tests."""
        splits = {
            "train": [file for level in DIFFICULTIES for file in _files(f"train-{level}", self.modules)],
            "interpolate": _files("interpolate", self.modules),
            "extrapolate": _files("extrapolate", self.longer),
        }
        layout = Layout({file: file for files in splits.values() for file in files}, places=PLACES)
        advice = f"Pass --source FOLDER, the folder of the unpacked archive {ARCHIVE}."
        paths, _ = find_files("source", Path(self.source), [layout], advice)
        return {split: [paths[file] for file in files] for split, files in splits.items()}

    def make(
        self, archive: Mapping[str, list[Path]], scratch: Path
    ) -> Iterator[tuple[str, Iterable[Example]]]:
        """Yield each split with its examples, given the official files and a folder for temporary ones."""
        yield from self.split(archive["train"], scratch)
        for test in ("interpolate", "extrapolate"):
            yield test, (pair for path in archive[test] for pair in read_pairs(path))

    @abstractmethod
    def split(self, files: Sequence[Path], scratch: Path) -> Iterator[tuple[str, Iterable[Example]]]:
        """Yield the pairs for training and validation, each with the name of its split."""


@dataclass
class PrepareMathematicsDataset(Prepare):
    """The paper's mixture."""

    modules = MODULES
    longer = EXTRAPOLATE_MODULES
    files = PREPARED

    validation_share: float = setting(
        0.0005, "share of each training file that is for validation", is_share=True
    )

    def split(self, files: Sequence[Path], scratch: Path) -> Iterator[tuple[str, Iterable[Example]]]:
        """Hold out a share of each file, and shuffle the rest."""
        count = max(1, sum(path.stat().st_size for path in files) // BUCKET)
        buckets = [scratch / f"bucket-{i}" for i in range(count)]
        held_out: list[Example] = []
        with ExitStack() as stack:
            opened = [stack.enter_context(bucket.open("wb")) for bucket in buckets]
            for i, path in enumerate(tqdm(files, "reading", leave=False, disable=None)):
                held_out += _scatter(path, opened, self.validation_share, [self.split_seed, i])
        yield "validation", held_out
        yield "train", _gather(buckets, [self.split_seed, len(files)])


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
