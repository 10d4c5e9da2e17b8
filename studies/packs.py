"""Runs of small models that are made in pieces, and packs of them, which the lab's own analysis reads."""

import argparse
import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ntl.data.files import write_atomically
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import PACKED
from ntl.report.tables import contrast_columns, markdown_table

STUDIES = Path(__file__).parent


def make_runs(
    arguments: Sequence[str] | None,
    description: str | None,
    arms: Sequence[str],
    steps: int,
    outputs: Path,
    make_run: Callable[[str, int, int, Path], Mapping[str, Any]],
) -> None:
    """Make the runs that are missing, seed by seed, each of which writes one file at its end.

    `fine_tuning.make_runs` is for runs of an hour, which are continued where they were cut.

    Args:
        arguments: The command line: `--seeds`, and by default all arms, `--steps` and `--outputs`.
        description: The program's docstring, whose first line is the help.
        arms: What is compared.
        steps: Training steps of a run.
        outputs: Folder of the runs.
        make_run: Makes a run of an arm, a seed, a number of steps and the folder; its `seconds` are printed.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--arms", nargs="+", default=arms, choices=arms)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--outputs", type=Path, default=outputs)
    given = parser.parse_args(arguments)
    given.outputs.mkdir(parents=True, exist_ok=True)
    for seed, arm in product(given.seeds, given.arms):
        path = given.outputs / f"{arm}-{seed}.json"
        if not path.is_file():
            run = make_run(arm, seed, given.steps, given.outputs)
            write_atomically(path, json.dumps(run))
            print(f"{path.stem}: {run['seconds']:.0f} s of processor time", flush=True)


def report(
    arguments: Sequence[str] | None,
    study: str,
    measures: Callable[[Mapping[str, Any]], Mapping[str, float]],
) -> None:
    """Merge the runs of a study, measure them, test what its `contrasts.yaml` plans, and print both.

    The measures are a pack of the lab, `metrics.csv.xz`, which `ntl report` reads.

    Args:
        arguments: The command line: `--outputs` and `--results`.
        study: Name of the study's folders.
        measures: Measures a run, which has an `arm` and a `seed`, by names of `ntl.metrics.registry`.
    """
    parser = argparse.ArgumentParser(description=f"Pack and measure the runs of the study `{study}`.")
    parser.add_argument("--outputs", type=Path, default=Path("outputs", study))
    parser.add_argument("--results", type=Path, default=Path("studies", study, "results"))
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, ("arm", "seed"))
    if not runs:
        print("No run is there.")
        return
    table = long_table(
        (study, run["arm"], run["seed"], "test", metric, value)
        for run in runs
        for metric, value in measures(run).items()
    )
    write(table, given.results / "metrics.csv.xz")
    print(table.pivot_table(index="row", columns="metric", values="value").to_string(float_format="%.3f"))
    plan = yaml.safe_load((STUDIES / study / "contrasts.yaml").read_text("utf-8"))
    tested, missing = compare_rows(table, read_contrasts(plan["contrasts"]), plan["margin"])
    print("", *missing, sep="\n")
    if len(tested):
        write(tested, given.results / "contrasts.csv")
        print(markdown_table(contrast_columns(tested)))


def long_table(rows: Iterable[tuple[str, str, int, str, str, float]]) -> pd.DataFrame:
    """Make a table of the lab of rows of dataset, arm, seed, test set, metric and value."""
    table = pd.DataFrame(rows, columns=["dataset", "row", "seed", "test", "metric", "value"])
    return table.assign(name=table["row"], questions="")[PACKED]


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV."""
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def merge(pack: Path, outputs: Path, key: Sequence[str]) -> list[dict[str, Any]]:
    """Read the runs of a pack and of a folder of outputs, and write all of them to the pack.

    Args:
        pack: File with one run a line, JSON, compressed.
        outputs: Folder with one JSON file for each run.
        key: The entries that tell runs apart. Of two runs, the one of the outputs stays.
    """
    packed = lzma.decompress(pack.read_bytes()).decode().splitlines() if pack.is_file() else []
    texts = [*packed, *(path.read_text("utf-8") for path in sorted(outputs.glob("*.json")))]
    runs = {tuple(run[name] for name in key): run for run in map(json.loads, texts)}
    ordered = [runs[each] for each in sorted(runs)]
    if ordered:
        pack.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{json.dumps(run, separators=(',', ':'))}\n" for run in ordered)
        part = pack.with_suffix(".writing")
        part.write_bytes(lzma.compress(lines.encode(), preset=9))
        part.replace(pack)
    return ordered
