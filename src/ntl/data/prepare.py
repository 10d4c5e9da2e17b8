"""`ntl prepare`: make the paper's splits of the mathematics dataset from its official files.

    ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
    ntl prepare arithmetic source=mathematics_dataset-v1.0

All files of a dataset are made before the first one is put in its place.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.data.arithmetic import PrepareArithmetic
from ntl.data.mathematics_dataset import Prepare, PrepareMathematicsDataset
from ntl.data.task import Example
from ntl.errors import UserError, unknown_key, writing_to
from ntl.terminal import print_keys

HELP = """\
usage: ntl prepare DATASET [key=value ...]

Convert the official files of a dataset into training, validation and test files.

  ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
  ntl prepare arithmetic source=mathematics_dataset-v1.0

--help after a dataset lists its keys with their defaults: ntl prepare arithmetic --help

datasets:
"""
SETTINGS: dict[str, type[Prepare]] = {
    "arithmetic": PrepareArithmetic,
    "mathematics_dataset": PrepareMathematicsDataset,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the dataset that comes first, with settings as key=value, and return the exit code.

    Raises:
        UserError: The dataset or a setting is unknown, or see `prepare`.
    """
    dataset, *given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if dataset in ("-h", "--help"):
        print(HELP, end="")
        for name, kind in SETTINGS.items():
            print(f"  {name:21}{kind.__doc__}")
        return 0
    if dataset not in SETTINGS:
        raise unknown_key("ntl prepare ", dataset, [*SETTINGS])
    defaults = OmegaConf.structured(SETTINGS[dataset])
    if {"-h", "--help"} & {*given}:
        values = {str(key): value for key, value in defaults.items()}
        print_keys(f"ntl prepare {dataset}", SETTINGS[dataset], values)
        return 0
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(defaults, OmegaConf.from_dotlist([*given])))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a setting"
        raise UserError(f"{key}: {str(error).splitlines()[0]}. See `ntl prepare {dataset} --help`.") from None
    assert isinstance(settings, Prepare)
    prepare(settings)
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
            f"destination={folder} has {', '.join(existing)} already. Pass overwrite=true to make these "
            "files again, or another destination."
        )
    room, advice = "a folder with room for the data", "Pass destination=another/folder."
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
