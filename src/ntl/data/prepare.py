"""`ntl prepare`: make the paper's splits of the mathematics dataset from its official files.

    ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
    ntl prepare arithmetic source=mathematics_dataset-v1.0

Either all files of a dataset are written, or none. A second call finds them and does nothing.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

from filelock import FileLock
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.config import check_ranges
from ntl.data import Example
from ntl.data.files import Plan, write_json
from ntl.errors import UserError, unknown_key, writing_to
from ntl.program import HELP_OPTIONS, run_program
from ntl.terminal import print_keys

HELP = """\
usage: ntl prepare DATASET [key=value ...]

Convert the official files of a dataset into training, validation and test files.

  ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
  ntl prepare gsm8k source=grade-school-math

--help after a dataset lists its keys with their defaults: ntl prepare arithmetic --help

datasets:
"""


@dataclass
class Prepare:
    """Where the files come from and go to."""

    source: str = "data/mathematics_dataset-v1.0"  # folder of the official files, or of the unpacked archive
    destination: str = "data/mathematics_dataset-v1.0"
    overwrite: bool = False  # replace existing files, which are kept otherwise
    split_seed: int = 0  # chooses the validation set

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass
class PrepareArithmetic(Prepare):
    """The same number of pairs of each difficulty."""

    train_per_difficulty: int = 33333
    validation_per_difficulty: int = 1000


@dataclass
class PrepareMathematicsDataset(Prepare):
    """The paper's mixture."""

    validation_share: float = 0.0005  # of each training file


SETTINGS = {"arithmetic": PrepareArithmetic, "mathematics_dataset": PrepareMathematicsDataset}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on a dataset's name and key=value settings; see `ntl.program.run_program`."""
    return run_program("ntl prepare", _prepare, arguments, "Nothing was changed.")


def _prepare(arguments: Sequence[str]) -> int:
    """Prepare the dataset that comes first; a UserError says why it cannot be prepared."""
    dataset, *given = arguments or ["--help"]
    if dataset in HELP_OPTIONS:
        print(HELP, end="")
        for name, kind in SETTINGS.items():
            print(f"  {name:21}{kind.__doc__}")
        return 0
    if dataset not in SETTINGS:
        raise unknown_key("ntl prepare ", dataset, [*SETTINGS, "model"])
    if HELP_OPTIONS & {*given}:
        values = OmegaConf.to_container(OmegaConf.structured(SETTINGS[dataset]), enum_to_str=True)
        print_keys(f"ntl prepare {dataset}", SETTINGS[dataset], values)
        return 0
    try:
        settings = OmegaConf.merge(OmegaConf.structured(SETTINGS[dataset]), OmegaConf.from_dotlist([*given]))
        prepare(dataset, OmegaConf.to_object(settings))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a setting"
        raise UserError(f"{key}: {str(error).splitlines()[0]}. See `ntl prepare {dataset} --help`.") from None
    return 0


def prepare(dataset: str, settings: Any) -> None:
    """Make the files of a dataset, unless they exist already, and print how many pairs each has.

    `settings` are those of the dataset in `SETTINGS`.

    Raises:
        UserError: A source file is missing or malformed, the destination cannot be written, or it holds files
            made in another way. No existing file is changed.
    """
    folder = Path(settings.destination).expanduser()
    plan: Plan = import_module(f"ntl.data.tasks.{dataset}").plan(settings)
    outputs = {name: folder / name for name in plan.files.values()}
    record = folder / f".{dataset}.prepared.json"
    made_from = {k: v for k, v in asdict(settings).items() if k not in ("source", "destination", "overwrite")}
    made_from |= _sizes(plan.sources)
    room, advice = "a folder with room for the data", "Pass destination=another/folder."
    with writing_to(f"destination={folder}", room, advice):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{dataset}.lock"):
            if _sizes(outputs) and not settings.overwrite:
                _check_record(record, _sizes(outputs) | made_from)
                print(f"{dataset} is already prepared in {folder}: nothing to do.")
                return
            counts = _write(plan, record, outputs)
            write_json(record, _sizes(outputs) | made_from)
    for name, count in counts.items():
        print(f"{folder / name}: {count:,} pairs")


def _sizes(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: f"{path.stat().st_size} bytes" for name, path in files.items() if path.exists()}


def _check_record(record: Path, now: Mapping[str, Any]) -> None:
    """Raise a UserError unless existing files are complete and were made in this way, by their record."""
    then = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    changed = [
        f"{key} is {now.get(key, 'absent')} and was {then.get(key, 'not recorded')}"
        for key in now | then
        if now.get(key) != then.get(key)
    ]
    if changed:
        raise UserError(
            f"{record.parent} holds files that were prepared differently, or not by `ntl prepare`: "
            f"{shorten('; '.join(changed), 300)}. Pass another destination, or overwrite=true to replace "
            "them."
        )


def _write(plan: Plan, record: Path, outputs: Mapping[str, Path]) -> dict[str, int]:
    """Write all files to a temporary folder, then move them, and return the number of pairs in each."""
    partial = record.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
    partial.mkdir()
    try:
        counts = {
            plan.files[split]: _write_examples(partial / plan.files[split], examples)
            for split, examples in plan.splits(partial)
        }
        record.unlink(missing_ok=True)  # if the run is killed below, no record vouches for the files
        for name, path in outputs.items():
            os.replace(partial / name, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write questions and answers on alternating lines, and return the number of examples."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for question, answer, *_ in examples:
            file.write(f"{question}\n{answer}\n")
            count += 1
    return count
