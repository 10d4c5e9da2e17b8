"""`ntl prepare`: make the paper's splits of the mathematics dataset from its official files.

    ntl prepare mathematics_dataset --source mathematics_dataset-v1.0
    ntl prepare arithmetic --source mathematics_dataset-v1.0

All files of a dataset are made before the first one is put in its place.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from ntl.data.arithmetic import PrepareArithmetic
from ntl.data.mathematics_dataset import Prepare, PrepareMathematicsDataset
from ntl.data.task import Example
from ntl.errors import UserError, writing_to

SETTINGS: dict[str, type[Prepare]] = {
    "arithmetic": PrepareArithmetic,
    "mathematics_dataset": PrepareMathematicsDataset,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the dataset that comes first, with its settings as options, and return the exit code.

    Raises:
        UserError: A setting is out of its range, or see `prepare`.
    """
    parser = argparse.ArgumentParser(
        prog="ntl prepare",
        description="Convert the official files of a dataset into training, validation and test files.",
    )
    datasets = parser.add_subparsers(dest="dataset", required=True)
    for name, kind in SETTINGS.items():
        options = datasets.add_parser(
            name, help=kind.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        for each in fields(kind):
            flag, about = f"--{each.name}", {"help": each.metadata["help"], "default": each.default}
            if isinstance(each.default, bool):
                options.add_argument(flag, action="store_true", **about)
            else:
                options.add_argument(flag, type=type(each.default), **about)
    given = vars(parser.parse_args(arguments))
    prepare(SETTINGS[given.pop("dataset")](**given))
    return 0


def prepare(settings: Prepare) -> None:
    """Make the files of a dataset, as its settings say, and print how many pairs each has.

    Raises:
        UserError: A source file is missing or malformed, the destination cannot be written, or it holds one
            of the files already. No existing file is changed.
    """
    archive = settings.find_archive()
    folder = Path(settings.destination).expanduser()
    existing = [file for file in settings.files.values() if (folder / file).exists()]
    if existing and not settings.overwrite:
        raise UserError(
            f"destination={folder} has {', '.join(existing)} already. Pass --overwrite to make these files "
            "again, or another --destination."
        )
    room, advice = "a folder with room for the data", "Pass another --destination."
    with writing_to(f"destination={folder}", room, advice):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".prepare-") as scratch:
            written = {
                settings.files[split]: _write(Path(scratch, settings.files[split]), examples)
                for split, examples in settings.make(archive, Path(scratch))
            }
            for file in written:
                os.replace(Path(scratch, file), folder / file)
    for file, count in written.items():
        print(f"{folder / file}: {count:,} pairs")


def _write(path: Path, examples: Iterable[Example]) -> int:
    """Write questions and answers on alternating lines, and return the number of examples."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for question, answer, *_ in examples:
            file.write(f"{question}\n{answer}\n")
            count += 1
    return count
