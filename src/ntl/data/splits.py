"""Make the paper's training, validation and test files from the official files, for `ntl prepare`.

The mathematics mixture has 26 million pairs, too many to hold as Python objects. It is shuffled in two
sequential passes. The first writes every pair to a random bucket file; the second shuffles each bucket in
memory and appends it to the output. All orders are equally likely, and memory holds only one source file or
one bucket. Permuting line offsets instead would cost 26 million disk seeks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ntl.data import Example, check_at_least, setting_key
from ntl.data.files import Layout, Part, choose_layout, read_pairs
from ntl.data.tasks import gsm8k, multiplication, multirc, rjokes
from ntl.data.tasks.arithmetic import PREPARED as ARITHMETIC
from ntl.data.tasks.mathematics_dataset import ARCHIVE, DIFFICULTIES, EXTRAPOLATE_MODULES, MODULES
from ntl.data.tasks.mathematics_dataset import PREPARED as MATHEMATICS
from ntl.errors import UserError

BUCKET = 32 * 2**20  # bytes of text

# Called with a description of the current step and the fraction of the work done.
Report = Callable[[str, float], None]


class Plan(NamedTuple):
    """How to prepare a dataset.

    Args:
        sources: Source files by their names in the source folder.
        outputs: Names of the files to write.
        write: Writes the files to a folder and returns the number of pairs in each.
    """

    sources: Mapping[str, Path]
    outputs: Sequence[str]
    write: Callable[[Path, Report], dict[str, int]]


def plan_mathematics_dataset(settings: Mapping[str, Any]) -> Plan:
    """Plan the mathematics mixture: thirteen modules in three difficulties, shuffled, a small share held out.

    Args:
        settings: `source`, `validation_share` (of each file), `split_seed`.

    Returns:
        The plan.

    Raises:
        UserError: A file is missing, or a setting is out of range.
    """
    _check_share(settings)
    folder, files = _find_archive(settings, MODULES, EXTRAPOLATE_MODULES)
    training = [folder / file for file in files["train"]]

    def write(destination: Path, report: Report) -> dict[str, int]:
        share, seed = settings["validation_share"], settings["split_seed"]
        count = max(1, sum(path.stat().st_size for path in training) // BUCKET)
        held_out: list[bytes] = []
        buckets = [destination / f"bucket-{i}" for i in range(count)]
        with ExitStack() as stack:
            opened = [stack.enter_context(path.open("wb")) for path in buckets]
            for i, path in enumerate(training):
                report(str(path.relative_to(folder)), 0.7 * i / len(training))
                held_out += _scatter(path, share, np.random.default_rng([seed, i]), opened)
        counts = {}
        with (destination / MATHEMATICS["train"]).open("wb") as file:
            counts[MATHEMATICS["train"]] = 0
            for i, bucket in enumerate(buckets):
                report(f"shuffling, part {i + 1} of {count}", 0.7 + 0.25 * i / count)
                pairs = _byte_pairs(bucket.read_bytes())
                order = np.random.default_rng([seed, len(training), i]).permutation(len(pairs))
                file.writelines(pairs[j] for j in order)
                counts[MATHEMATICS["train"]] += len(pairs)
                bucket.unlink()
        (destination / MATHEMATICS["validation"]).write_bytes(b"".join(held_out))
        counts[MATHEMATICS["validation"]] = len(held_out)
        return counts | _copy_tests(folder, files, MATHEMATICS, destination, report)

    sources = {file: folder / file for names in files.values() for file in names}
    return Plan(sources, list(MATHEMATICS.values()), write)


def plan_arithmetic(settings: Mapping[str, Any]) -> Plan:
    """Plan the ablations' data: sums and differences in brackets, equally many pairs of each difficulty.

    Args:
        settings: `source`, `train_per_difficulty`, `validation_per_difficulty`, `split_seed`.

    Returns:
        The plan.

    Raises:
        UserError: A file is missing, or a setting is out of range.
    """
    check_at_least(settings, {"train_per_difficulty": 1, "validation_per_difficulty": 1, "split_seed": 0})
    folder, files = _find_archive(
        settings, ("arithmetic__add_sub_multiple",), ("arithmetic__add_sub_multiple_longer",)
    )
    n_train, n_validation = settings["train_per_difficulty"], settings["validation_per_difficulty"]

    def write(destination: Path, report: Report) -> dict[str, int]:
        train: list[Example] = []
        validation: list[Example] = []
        for i, file in enumerate(files["train"]):
            report(file, 0.3 * i)
            pairs = _read_complete_pairs(folder / file)
            if len(pairs) < n_train + n_validation:
                raise UserError(
                    f"{folder / file} holds {len(pairs)} pairs; expected {n_train} for training + "
                    f"{n_validation} for validation. Lower train_per_difficulty or validation_per_difficulty."
                )
            order = np.random.default_rng([settings["split_seed"], i]).permutation(len(pairs))
            train += [pairs[j] for j in order[:n_train]]
            validation += [pairs[j] for j in order[n_train : n_train + n_validation]]
        _write_pairs(destination / ARITHMETIC["train"], train)
        _write_pairs(destination / ARITHMETIC["validation"], validation)
        counts = {ARITHMETIC["train"]: len(train), ARITHMETIC["validation"]: len(validation)}
        return counts | _copy_tests(folder, files, ARITHMETIC, destination, report)

    sources = {file: folder / file for names in files.values() for file in names}
    return Plan(sources, list(ARITHMETIC.values()), write)


def plan_gsm8k(settings: Mapping[str, Any]) -> Plan:
    """Plan GSM8K: numbers are normalised, and validation problems are drawn from the training file."""
    return _plan_json(settings, [gsm8k.official(settings)], gsm8k.PREPARED)


def plan_rjokes(settings: Mapping[str, Any]) -> Plan:
    """Plan rJokes, with its official three splits."""
    return _plan_json(settings, rjokes.official(), rjokes.PREPARED)


def plan_multirc(settings: Mapping[str, Any]) -> Plan:
    """Plan MultiRC: validation questions from the training file, SuperGLUE's validation file as the test."""
    return _plan_json(settings, [multirc.official(settings)], multirc.PREPARED)


def plan_multiplication(settings: Mapping[str, Any]) -> Plan:
    """Plan multiplication, which is generated."""

    def write(destination: Path, report: Report) -> dict[str, int]:
        report("generating", 0.0)
        data = multiplication.generate(settings)
        parts = {"train": data.train, "validation": data.validation, **data.tests}
        return {
            file: _write_json(destination / file, parts[split])
            for split, file in multiplication.PREPARED.items()
        }

    return Plan({}, list(multiplication.PREPARED.values()), write)


def _plan_json(settings: Mapping[str, Any], layouts: Sequence[Layout], outputs: Mapping[str, str]) -> Plan:
    folder = Path(settings["source"]).expanduser()
    layout = choose_layout(folder, layouts, "source", "Pass source=FOLDER, the folder of the official files.")

    def write(destination: Path, report: Report) -> dict[str, int]:
        counts = {}
        for i, (split, (file, read, _)) in enumerate(layout.items()):
            report(file, i / len(layout))
            counts[outputs[split]] = _write_json(destination / outputs[split], read(folder / file))
        return counts

    files = dict.fromkeys(part.file for part in layout.values())
    return Plan({file: folder / file for file in files}, list(outputs.values()), write)


def _find_archive(
    settings: Mapping[str, Any], modules: Sequence[str], longer: Sequence[str]
) -> tuple[Path, dict[str, list[str]]]:
    """Find the unpacked mathematics dataset, and list its files for training and each test."""
    files = {
        "train": [f"train-{difficulty}/{module}.txt" for difficulty in DIFFICULTIES for module in modules],
        "interpolate": [f"interpolate/{module}.txt" for module in modules],
        "extrapolate": [f"extrapolate/{module}.txt" for module in longer],
    }
    names = [name for group in files.values() for name in group]
    insides = ("", f"{ARCHIVE}/")
    layouts = [{name: Part(inside + name, read_pairs, "") for name in names} for inside in insides]
    folder = Path(settings["source"]).expanduser()
    chosen = choose_layout(
        folder, layouts, "source", f"Pass source=FOLDER, the folder of the unpacked archive {ARCHIVE}."
    )
    return folder / insides[layouts.index(chosen)], files


def _check_share(settings: Mapping[str, Any]) -> None:
    check_at_least(settings, {"split_seed": 0})
    share, key = settings["validation_share"], setting_key(settings, "validation_share")
    if not 0 < share < 1:
        raise UserError(
            f"{key} is {share!r}; expected a number above 0 and below 1. Pass for example {key}=0.0005."
        )


def _read_complete_pairs(path: Path) -> list[Example]:
    """Read all pairs of an official file, and check that the file is not truncated."""
    pairs = list(read_pairs(path))
    with path.open("rb") as file:
        file.seek(-1, 2)
        if file.read() != b"\n":
            raise UserError(
                f"{path}, line {2 * len(pairs)}: the line does not end with a line feed; the file may be "
                f"truncated inside the answer {pairs[-1].answer[:40]!r}. Restore the file or, if it is "
                "complete, end the line."
            )
    return pairs


def _scatter(path: Path, share: float, rng: np.random.Generator, buckets: Sequence[BinaryIO]) -> list[bytes]:
    """Write the pairs of a file to random buckets, except those held out, which are returned."""
    pairs = _read_complete_pairs(path)
    # As published, the number of training pairs is rounded down: every file has at least one held-out pair.
    held_out = len(pairs) - int((1 - share) * len(pairs))
    chosen = set(rng.choice(len(pairs), held_out, replace=False).tolist())
    kept = []
    for i, (pair, bucket) in enumerate(
        zip(pairs, rng.integers(len(buckets), size=len(pairs)).tolist(), strict=True)
    ):
        line = f"{pair.question}\n{pair.answer}\n".encode()
        if i in chosen:
            kept.append(line)
        else:
            buckets[bucket].write(line)
    return kept


def _byte_pairs(text: bytes) -> list[bytes]:
    lines = text.splitlines(keepends=True)
    return [question + answer for question, answer in zip(lines[::2], lines[1::2], strict=True)]


def _copy_tests(
    folder: Path,
    files: Mapping[str, Sequence[str]],
    outputs: Mapping[str, str],
    destination: Path,
    report: Report,
) -> dict[str, int]:
    counts = {}
    for split in ("interpolate", "extrapolate"):
        report(f"{split} test", 0.95)
        pairs = [pair for file in files[split] for pair in _read_complete_pairs(folder / file)]
        counts[outputs[split]] = _write_pairs(destination / outputs[split], pairs)
    return counts


def _write_pairs(path: Path, pairs: Sequence[Example]) -> int:
    path.write_bytes("".join(f"{pair.question}\n{pair.answer}\n" for pair in pairs).encode())
    return len(pairs)


def _write_json(path: Path, examples: Iterable[Example]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for example in examples:
            record = {"question": example.question, "answer": example.answer}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count
