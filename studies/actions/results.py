"""Merge runs into the pack, choose rates by the tuning seeds, and write costs and planned contrasts.

python -m studies.actions.results                    # runs of outputs/actions and the pack
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from ntl.report.statistics import Difference, holm, paired_difference
from studies.packs import merge, write

RESULTS = Path(__file__).parent / "results"
ARMS = (
    *("ce", "jittered", "label_smoothing", "ntl_was", "ntl_mse", "crps"),
    *("hl_gauss_rule", "hl_gauss", "tokens", "head"),
)
SMOLLM2 = "smollm2_"
PRETRAINED = tuple(f"{SMOLLM2}{arm}" for arm in ("ce", "ntl_was", "crps", "hl_gauss"))
ALL_ARMS = (*ARMS, "hl_gauss_follows", *PRETRAINED)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
CURVE = (250, 500, 1000, 2000, 4000)
TUNED_AT = {250: 500, 500: 500, 1000: 500, 2000: 4000, 4000: 4000}
"""Whose tuning runs choose the rate of runs of so many steps."""
PAIRS = {"point": 600, "pendulum": 10_000, "reach": 10_000}
"""Recorded pairs of each environment, unless their number is what is compared."""
TUNED = {500: RATES, 4000: RATES[:3]}
"""The rates that are tuned after so many steps."""
TUNING = (100, 101)
DECIDING = tuple(range(12))
RANGE = tuple(range(200, 212))
"""Seeds of the second question, trained with all rates."""
WIDTHS = tuple(range(300, 312))
"""Seeds of the third question."""
KEY = ("environment", "arm", "pairs", "steps", "rate", "seed")
HOW = {"head": "greedy"}  # how an arm's actions are read; others by the median


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, choose, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/actions"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, KEY)
    for (environment, arm, steps), rate in chosen_rates(runs).items():
        print(f"{environment}, {arm}, {steps} steps: {rate:g}")
    plan = yaml.safe_load((Path(__file__).parent / "contrasts.yaml").read_text("utf-8"))
    pretrained = [run for run in runs if run["arm"] in PRETRAINED]
    others = [run for run in runs if run["arm"] not in PRETRAINED]
    tables = {
        "costs": [run for run in others if run["seed"] in DECIDING],
        "rates": [run for run in others if run["seed"] in RANGE],
        "widths": [run for run in others if run["seed"] in WIDTHS],
        "smollm2": pretrained,
    }
    for name, made in tables.items():
        if made:
            costs = table_of(made)
            write(costs, given.results / f"{name}.csv")
            index, columns = ["environment", "pairs", "arm", "reading"], ["steps", "rate"]
            ratios = 2 ** costs.pivot_table(index=index, columns=columns, values="log_ratio")
            print(ratios.to_string(float_format="%.2f"))  # geometric means
            print(compared(costs).to_string(float_format="%.3g"))
            if name in plan:
                write(contrasts(costs, plan[name]), given.results / f"contrasts_of_{name}.csv")


def table_of(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate the cost of each run, and the logarithm of its ratio to the expert's."""
    rows = [
        {
            **{name: run[name] for name in KEY},
            "reading": reading,
            "cost": cost,
            "expert": run["expert"],
            "log_ratio": float(np.log2(cost / run["expert"])),
        }
        for run in runs
        for reading, cost in run["costs"].items()
    ]
    return pd.DataFrame(rows)


def chosen_rates(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], float]:
    """Choose the rate with the lowest mean log ratio of the tuning seeds, of which all runs are there.

    Returns:
        The rate for each environment, arm and number of steps.
    """
    table = table_of(
        run for run in runs if run["seed"] in TUNING and run["pairs"] == PAIRS[run["environment"]]
    )
    if table.empty:
        return {}
    read = table["reading"] == table["arm"].map(HOW).fillna("median")
    which = ["environment", "arm", "steps"]
    groups = table[read].groupby(which)
    return {
        key: group.groupby("rate")["log_ratio"].mean().idxmin()
        for key, group in groups
        if len(group) == len(TUNED[key[2]]) * len(TUNING)
    }


def compared(costs: pd.DataFrame) -> pd.DataFrame:
    """Compare each arm with cross-entropy, paired by seed; these tests were not planned.

    Returns:
        For each reading of each arm, the cost over the expert's on the worst seed, and the difference of the
        log ratios from cross-entropy's (mean, half-width of the 95 % interval, uncorrected p, seeds where it
        is lower). Where a seed has several rates, their mean counts.
    """
    which = ["environment", "pairs", "steps", "reading"]
    rows: list[dict[str, Any]] = []
    for key, group in costs.groupby(which):
        ratios = group.pivot_table(index="seed", columns="arm", values="log_ratio")
        baseline = ratios.filter(regex=f"^({SMOLLM2})?ce$").mean(axis="columns")
        for arm, values in ratios.items():
            shown = dict(zip(which, key, strict=True)) | {"arm": arm, "worst": 2 ** values.max()}
            rows.append(shown | _by_seed(paired_difference(values, baseline)))
    return pd.DataFrame(rows)


def contrasts(costs: pd.DataFrame, plan: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Test the planned contrasts that have runs; Holm's correction counts all that were planned."""
    rows = []
    for each in plan:
        found = paired_difference(*(_values(costs, each, each[side]) for side in ("of", "minus")))
        rows.append({**each, **_by_seed(found)})
    tested = pd.DataFrame(rows).query("seeds > 0")
    return tested.assign(p_holm=holm(tested["p"], len(plan)))


def _by_seed(found: Difference) -> dict[str, float]:
    """Name what is printed of a difference; its pairs are seeds here, and pairs are those of an expert."""
    return {
        "seeds": found.pairs,
        "lower": found.lower,
        "mean": found.mean,
        "half": found.half,
        "p": found.p,
    }


def _values(costs: pd.DataFrame, contrast: Mapping[str, Any], arm: str) -> pd.Series:
    """Return the log ratios of an arm by seed, the mean over rates if there are several of each seed."""
    asked = {name: contrast[name] for name in ("environment", "steps")}
    asked |= {"pairs": PAIRS[contrast["environment"]], "arm": arm}
    asked["reading"] = HOW.get(arm, "median")
    chosen = costs[(costs[[*asked]] == pd.Series(asked)).all(axis=1)]
    return chosen.groupby("seed")["log_ratio"].mean()


if __name__ == "__main__":
    main()
