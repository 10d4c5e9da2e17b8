"""Packs of runs that were made in pieces, and paired differences of their measures."""

import argparse
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntl.report.statistics import holm, paired_difference


def report(
    arguments: Sequence[str] | None,
    study: str,
    measures: Callable[[Mapping[str, Any]], Mapping[str, float]],
    names: Mapping[str, str],
    planned: Sequence[Mapping[str, str]],
) -> None:
    """Merge the runs of a study, measure and test them, and print both.

    Args:
        arguments: The command line: `--outputs` and `--results`.
        study: Name of the study's folders.
        measures: Measures a run, which has an `arm` and a `seed`.
        names: Arm to its name in tables.
        planned: The contrasts, with `of`, `minus` and `metric`, which are corrected together.
    """
    parser = argparse.ArgumentParser(description=f"Pack and measure the runs of the study `{study}`.")
    parser.add_argument("--outputs", type=Path, default=Path("outputs", study))
    parser.add_argument("--results", type=Path, default=Path("studies", study, "results"))
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, ("arm", "seed"))
    if not runs:
        print("No run is there.")
        return
    metrics = pd.DataFrame(
        {"arm": run["arm"], "seed": run["seed"], "metric": metric, "value": value}
        for run in runs
        for metric, value in measures(run).items()
    )
    metrics.to_csv(given.results / "metrics.csv", index=False, float_format="%.6g", lineterminator="\n")
    means = metrics.pivot_table(index="arm", columns="metric", values="value")
    print(means.rename(names).to_string(float_format="%.3f"))
    found = paired(metrics, planned)
    if len(found):
        found.to_csv(given.results / "contrasts.csv", index=False, float_format="%.6g", lineterminator="\n")
        print("", table_of_contrasts(found, names), sep="\n")


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


def difference(metrics: pd.DataFrame, of: str, minus: str) -> pd.Series:
    """Return the differences of two arms by seed, in per cent of the second arm's mean.

    Args:
        metrics: Rows of one measure, with the columns `arm`, `seed` and `value`.
        of, minus: The arms.
    """
    first, second = (metrics[metrics["arm"] == arm].set_index("seed")["value"] for arm in (of, minus))
    differences = (first - second).dropna()
    mean = second[differences.index].mean()
    # There is no per cent of nothing.
    return 100 * differences / mean if len(differences) and mean else differences[:0]


def tested(differences: pd.Series) -> dict[str, float]:
    """Return the number of seeds, the mean difference with its 95 % interval, and p of a paired t-test."""
    found = paired_difference(differences, 0 * differences)
    assert found is not None, "there is a difference"
    ends = {"lower": found.mean - found.half, "upper": found.mean + found.half}
    return {"seeds": found.pairs, "difference": found.mean, **ends, "p": found.p}


def paired(metrics: pd.DataFrame, planned: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Test contrasts that at least two seeds allow, and correct them together by Holm's method."""
    rows = []
    for contrast in planned:
        own = metrics[metrics["metric"] == contrast["metric"]]
        differences = difference(own, contrast["of"], contrast["minus"])
        if len(differences) > 1:
            rows.append({**contrast, **tested(differences)})
    found = pd.DataFrame(rows)
    return found.assign(p_holm=holm(found["p"])) if len(found) else found


def table_of_contrasts(found: pd.DataFrame, names: Mapping[str, str], shown: Sequence[str] = ()) -> str:
    """Write contrasts as a Markdown table, with further columns `shown`."""
    heads = ["contrast", "measure", *shown, "seeds", "difference", "p", "p, Holm"]
    lines = [f"| {' | '.join(heads)} |", f"| --- | --- {'| --- ' * len(shown)}| ---: | ---: | ---: | ---: |"]
    for row in found.to_dict("records"):
        interval = f"{row['difference']:+.1f} ({row['lower']:+.1f} to {row['upper']:+.1f}) %"
        corrected = "" if np.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}"
        cells = [
            f"{names[row['of']]} minus {names[row['minus']]}",
            row["metric"],
            *(row[key] for key in shown),
        ]
        cells += [str(row["seeds"]), interval, f"{row['p']:.2g}", corrected]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
