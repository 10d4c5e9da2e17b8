"""The protocol's splits, made from the official files: what `ntl prepare` writes.

The whole mathematics mixture has 26 million pairs, more than should be held as Python objects. It is shuffled
in two passes that read and write in order: every pair goes to one of many bucket files, drawn at random, then
each bucket is shuffled in memory and appended. All orders are equally likely, memory holds one source file or
one bucket, and no disk has to seek 26 million times, as it would with a permutation of line offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ntl.errors import UserError
from ntl.tasks import Example, gsm8k, key_of, multiplication, multirc, require_at_least, rjokes
from ntl.tasks.arithmetic import PREPARED as ARITHMETIC
from ntl.tasks.files import Layout, Part, choose_layout, read_pairs
from ntl.tasks.mathematics_dataset import ARCHIVE, DIFFICULTIES, EXTRAPOLATE_MODULES, MODULES
from ntl.tasks.mathematics_dataset import PREPARED as MATHEMATICS

BUCKET = 32 * 2**20  # bytes of text

# Told what is being read, or written, and which share of the whole is done.
Report = Callable[[str, float], None]


class Plan(NamedTuple):
    """What is to be made.

    Args:
        sources: The files it is made from, by their names in the source folder.
        outputs: The names of the files to be written.
        write: Into a folder; gives the number of pairs in each file.
    """

    sources: Mapping[str, Path]
    outputs: Sequence[str]
    write: Callable[[Path, Report], dict[str, int]]


def mathematics_dataset(settings: Mapping[str, Any]) -> Plan:
    """Plan the mathematics mixture: thirteen modules in three difficulties, shuffled, a small share held out.

    Args:
        settings: `source`, `validation_share` (of each file), `split_seed`.

    Returns:
        The plan.

    Raises:
        UserError: A file is missing, or a setting out of its range.
    """
    _require_share(settings)
    folder, files = _archive(settings, MODULES, EXTRAPOLATE_MODULES)
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


def arithmetic(settings: Mapping[str, Any]) -> Plan:
    """Plan the ablations' data: sums and differences in brackets, as many pairs from each difficulty.

    Args:
        settings: `source`, `train_per_difficulty`, `validation_per_difficulty`, `split_seed`.

    Returns:
        The plan.

    Raises:
        UserError: A file is missing, or a setting out of its range.
    """
    require_at_least(settings, {"train_per_difficulty": 1, "validation_per_difficulty": 1, "split_seed": 0})
    folder, files = _archive(
        settings, ("arithmetic__add_sub_multiple",), ("arithmetic__add_sub_multiple_longer",)
    )
    n_train, n_validation = settings["train_per_difficulty"], settings["validation_per_difficulty"]

    def write(destination: Path, report: Report) -> dict[str, int]:
        train: list[Example] = []
        validation: list[Example] = []
        for i, file in enumerate(files["train"]):
            report(file, 0.3 * i)
            pairs = _whole_pairs(folder / file)
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


def gsm8k_files(settings: Mapping[str, Any]) -> Plan:
    """Plan GSM8K: numbers normalised, validation problems drawn from the training file."""
    return _json(settings, [gsm8k.official(settings)], gsm8k.PREPARED)


def rjokes_files(settings: Mapping[str, Any]) -> Plan:
    """Plan rJokes: its own three splits."""
    return _json(settings, rjokes.official(), rjokes.PREPARED)


def multirc_files(settings: Mapping[str, Any]) -> Plan:
    """Plan MultiRC: validation questions from the training file, SuperGLUE's validation file as the test."""
    return _json(settings, [multirc.official(settings)], multirc.PREPARED)


def multiplication_files(settings: Mapping[str, Any]) -> Plan:
    """Plan multiplication: generated."""

    def write(destination: Path, report: Report) -> dict[str, int]:
        report("generating", 0.0)
        data = multiplication.generate(settings)
        parts = {"train": data.train, "validation": data.validation, **data.tests}
        return {
            file: _write_json(destination / file, parts[split])
            for split, file in multiplication.PREPARED.items()
        }

    return Plan({}, list(multiplication.PREPARED.values()), write)


def _json(settings: Mapping[str, Any], layouts: Sequence[Layout], outputs: Mapping[str, str]) -> Plan:
    folder = Path(settings["source"]).expanduser()
    layout = choose_layout(folder, layouts, "source", "Pass source=FOLDER, where the official files are.")

    def write(destination: Path, report: Report) -> dict[str, int]:
        counts = {}
        for i, (split, (file, read, _)) in enumerate(layout.items()):
            report(file, i / len(layout))
            counts[outputs[split]] = _write_json(destination / outputs[split], read(folder / file))
        return counts

    files = dict.fromkeys(part.file for part in layout.values())
    return Plan({file: folder / file for file in files}, list(outputs.values()), write)


def _archive(
    settings: Mapping[str, Any], modules: Sequence[str], longer: Sequence[str]
) -> tuple[Path, dict[str, list[str]]]:
    """The folder of the mathematics dataset's archive, and the files in it for training and each test."""
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
        folder, layouts, "source", f"Pass source=FOLDER, where the archive {ARCHIVE} is unpacked."
    )
    return folder / insides[layouts.index(chosen)], files


def _require_share(settings: Mapping[str, Any]) -> None:
    require_at_least(settings, {"split_seed": 0})
    share, key = settings["validation_share"], key_of(settings, "validation_share")
    if not 0 < share < 1:
        raise UserError(
            f"{key} is {share!r}; expected a number above 0 and below 1. Pass for example {key}=0.0005."
        )


def _whole_pairs(path: Path) -> list[Example]:
    """All pairs of an official file; one without its last line feed is cut off, perhaps inside an answer."""
    pairs = list(read_pairs(path))
    with path.open("rb") as file:
        file.seek(-1, 2)
        if file.read() != b"\n":
            raise UserError(
                f"{path}, line {2 * len(pairs)}: the line has no end: the file is cut off, perhaps inside "
                f"the answer {pairs[-1].answer[:40]!r}. Restore the file; where it is whole, end the line."
            )
    return pairs


def _scatter(path: Path, share: float, rng: np.random.Generator, buckets: Sequence[BinaryIO]) -> list[bytes]:
    """Write the pairs of a file to random buckets, but for those held out, which are given back."""
    pairs = _whole_pairs(path)
    # As published: the training pairs are rounded down, so that every file gives at least one.
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
        pairs = [pair for file in files[split] for pair in _whole_pairs(folder / file)]
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
