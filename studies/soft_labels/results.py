"""Merge runs into the pack, measure the probabilities of the levels, test the planned contrasts, and print.

    python -m studies.soft_labels.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from studies.packs import merge, paired, table_of_contrasts
from studies.scores.results import measures

NAMES = {"ce": "the mean level", "soft": "the raters' shares", "soft_crps": "the raters' shares + CRPS"}
PAIRS = (("soft", "ce"), ("soft_crps", "ce"), ("soft_crps", "soft"))
PLANNED = [
    {"of": of, "minus": minus, "metric": metric}
    for of, minus in PAIRS
    for metric in ("rater_rps", "median_mae")
]
"""All contrasts; Holm's correction covers them together."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/soft_labels"))
    parser.add_argument("--results", type=Path, default=Path("results/soft_labels"))
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, ("arm", "seed"))
    if not runs:
        print("No run is there.")
        return
    rows = []
    for run in runs:
        probabilities, labels = np.array(run["read"][-1]["probabilities"]), np.array(run["labels"])
        found = {
            **measures(probabilities, labels, run["ratings"]),
            "none": float(1 - probabilities.sum(1).mean()),
        }
        rows += [{"arm": run["arm"], "seed": run["seed"], "metric": m, "value": v} for m, v in found.items()]
    metrics = pd.DataFrame(rows)
    metrics.to_csv(given.results / "metrics.csv", index=False, float_format="%.6g", lineterminator="\n")
    means = metrics.pivot_table(index="arm", columns="metric", values="value")
    print(means.rename(NAMES).to_string(float_format="%.3f"))
    found = paired(metrics, PLANNED)
    if len(found):
        found.to_csv(given.results / "contrasts.csv", index=False, float_format="%.6g", lineterminator="\n")
        print("", table_of_contrasts(found, NAMES), sep="\n")


if __name__ == "__main__":
    main()
