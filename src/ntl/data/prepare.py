"""`ntl prepare`: make the paper's splits from a dataset's official files.

    ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
    ntl prepare gsm8k source=grade-school-math/grade_school_math/data

Either all files of a dataset are written, or none. A second call finds them and does nothing.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ntl.data import DATASETS, splits
from ntl.data.splits import Plan
from ntl.errors import UserError
from ntl.training.run_folder import write_atomically

LINE_EVERY = 30.0  # seconds between two lines without a terminal
MATHEMATICS = "data/mathematics_dataset-v1.0"
GSM8K = "data/grade-school-math/grade_school_math/data"
SETTINGS: dict[str, dict[str, Any]] = {
    "mathematics_dataset": {
        "source": MATHEMATICS,
        "destination": MATHEMATICS,
        "validation_share": 0.0005,
        "split_seed": 0,
    },
    "arithmetic": {
        "source": MATHEMATICS,
        "destination": MATHEMATICS,
        "train_per_difficulty": 33333,
        "validation_per_difficulty": 1000,
        "split_seed": 0,
    },
    "gsm8k": {
        "source": GSM8K,
        "destination": f"{GSM8K}/preprocessed",
        "annotations": "remove",
        "validation_share": 0.15,
        "split_seed": 0,
    },
    "rjokes": {"source": "data/rjokes-dataset/data", "destination": "data/rjokes-dataset/data"},
    "multirc": {
        "source": "data/multirc/data",
        "destination": "data/multirc/data/preprocessed",
        "validation_share": 0.1,
        "split_seed": 0,
    },
    "multiplication": {
        "destination": "data/digit-multiplication/data",
        "digits": 4,
        "extrapolate_digits": 5,
        "train_size": 100000,
        "validation_size": 1000,
        "test_size": 1000,
        "data_seed": 0,
    },
}
PLANS: dict[str, Callable[[Mapping[str, Any]], Plan]] = {
    "mathematics_dataset": splits.plan_mathematics_dataset,
    "arithmetic": splits.plan_arithmetic,
    "gsm8k": splits.plan_gsm8k,
    "rjokes": splits.plan_rjokes,
    "multirc": splits.plan_multirc,
    "multiplication": splits.plan_multiplication,
}
HELP = """\
usage: ntl prepare DATASET [key=value ...]

Convert the official files of a dataset, in `source`, into training, validation and test files, and write them
to `destination`. Existing files are kept; overwrite=true replaces them.

examples:
  ntl prepare mathematics_dataset source=mathematics_dataset-v1.0
  ntl prepare arithmetic source=mathematics_dataset-v1.0
  ntl prepare gsm8k source=grade-school-math/grade_school_math/data split_seed=1

datasets, and their settings with defaults:
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: The dataset, then key=value. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 for success, 2 for a user-fixable error, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP + "\n".join(_describe()))
        return 0
    try:
        dataset, settings = read_settings(arguments)
        prepare(dataset, settings, Console())
        return 0
    except UserError as error:
        print(f"ntl prepare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ntl prepare: interrupted; nothing was changed", file=sys.stderr)
        return 130


def read_settings(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse the arguments of the command.

    Args:
        arguments: The dataset, then key=value.

    Returns:
        The dataset and all its settings.

    Raises:
        UserError: The dataset or a key is unknown, or a value has the wrong type.
    """
    dataset, *overrides = arguments
    if dataset not in DATASETS:
        raise UserError(f"the dataset {dataset!r} is unknown; expected one of: {', '.join(DATASETS)}.")
    settings = _all_settings()[dataset]
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override!r} cannot be read; expected key=value, such as split_seed=1.")
        if key not in settings:
            near = difflib.get_close_matches(key, settings, n=1)
            hint = f"Did you mean {near[0]}?" if near else "`ntl prepare --help` lists them."
            raise UserError(f"{key} is unknown; expected one of: {', '.join(settings)}. {hint}")
        settings[key] = _value(key, text, settings[key])
    return dataset, settings


def _value(key: str, text: str, default: Any) -> Any:
    """Parse a value of the same type as its default."""
    kind = type(default)
    try:
        value = {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        value = None
    if value is None or value == "":
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise UserError(f"{key} is {text!r}; expected {words}. Pass for example {key}={_text(default)}.")
    return value


def prepare(dataset: str, settings: Mapping[str, Any], console: Console) -> None:
    """Make the files of a dataset, unless they exist already.

    Args:
        dataset: Name of the dataset.
        settings: Settings from `read_settings`.
        console: Console for progress and results.

    Raises:
        UserError: A source file is missing or malformed, the destination cannot be written, or it holds files
            made in another way. No existing file is changed.
    """
    started = time.monotonic()
    plan = PLANS[dataset](settings)
    folder = Path(settings["destination"]).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{dataset}.lock"):
            counts = _make(dataset, plan, settings, folder, console)
    except OSError as error:
        raise UserError(
            f"destination={folder} cannot be written ({error.strerror or error}); expected a folder with "
            "room for the data. Pass destination=another/folder."
        ) from None
    if counts is None:
        console.print(f"{dataset} is already prepared in {folder}: nothing to do.", soft_wrap=True)
        return
    for name, count in counts.items():
        console.print(f"{folder / name}: {count:,} pairs", highlight=False, soft_wrap=True)
    console.print(f"{dataset} is prepared ({time.monotonic() - started:.1f} s).", highlight=False)


def _make(
    dataset: str, plan: Plan, settings: Mapping[str, Any], folder: Path, console: Console
) -> dict[str, int] | None:
    """Make the files, and return the number of pairs in each, or None if they exist already."""
    identity = {
        "settings": {k: v for k, v in settings.items() if k not in ("source", "destination", "overwrite")},
        "sources": {name: path.stat().st_size for name, path in plan.sources.items()},
    }
    record = folder / f".{dataset}.prepared.json"
    if not settings["overwrite"] and _is_prepared(plan, folder, record, identity):
        return None
    partial = folder / f".{dataset}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
    partial.mkdir()
    try:
        counts = _write(plan, partial, console)
        # If the run is killed after this point, the record marks the files as incomplete.
        write_atomically(record, json.dumps({**identity, "pairs": None}))
        for name in plan.outputs:
            os.replace(partial / name, folder / name)
        sizes = {name: (folder / name).stat().st_size for name in plan.outputs}
        write_atomically(record, json.dumps({**identity, "pairs": counts, "bytes": sizes}, indent=1))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _is_prepared(plan: Plan, folder: Path, record: Path, identity: Mapping[str, Any]) -> bool:
    """Return whether the files exist and were made with these settings.

    Raises:
        UserError: Other files of these names exist.
    """
    names = [name for name in plan.outputs if (folder / name).exists()]
    advice = "Pass another destination, or overwrite=true to replace them."
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found is None:
        if names:
            raise UserError(f"{folder} holds {', '.join(names)}, which `ntl prepare` did not write. {advice}")
        return False
    if found["pairs"] is None or not names:
        return False  # interrupted, or removed since
    differences = [
        f"{key} is {found[part].get(key)!r} there and {identity[part].get(key)!r} here"
        for part in ("settings", "sources")
        for key in sorted({*found[part], *identity[part]})
        if found[part].get(key) != identity[part].get(key)
    ]
    sizes = {name: (folder / name).stat().st_size for name in names}
    differences += [
        f"{name} has {sizes.get(name, 'no')} bytes, but {size} were written"
        for name, size in found["bytes"].items()
        if sizes.get(name) != size
    ]
    if differences:
        more = "; ..." if len(differences) > 5 else ""
        raise UserError(
            f"{folder} holds files that were prepared differently: {'; '.join(differences[:5])}{more}. "
            f"{advice}"
        )
    return True


def _write(plan: Plan, folder: Path, console: Console) -> dict[str, int]:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        last_line = time.monotonic()

        def report(what: str, share: float) -> None:
            nonlocal last_line
            bar.update(task, description=what, completed=share)
            if not console.is_terminal and time.monotonic() - last_line >= LINE_EVERY:
                last_line = time.monotonic()
                console.print(f"{share:4.0%} {what}", highlight=False, soft_wrap=True)

        return plan.write(folder, report)


def _all_settings() -> dict[str, dict[str, Any]]:
    return {dataset: {**settings, "overwrite": False} for dataset, settings in SETTINGS.items()}


def _describe() -> list[str]:
    return [
        line
        for dataset, settings in _all_settings().items()
        for line in (f"{dataset}:", *(f"  {key}={_text(value)}" for key, value in settings.items()))
    ]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
