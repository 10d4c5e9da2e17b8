"""Merge runs into the pack, choose steps and rates by the tuning seeds, and write measures for `ntl report`.

python -m studies.schedules.results                  # runs of outputs/schedules and the pack
ntl report studies/schedules/results --into studies/schedules/results/README.md
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from studies.all_layers.results import error, measures, reading
from studies.all_layers.train import TRIED
from studies.packs import long_table, merge, write

RESULTS = Path(__file__).parent / "results"
TABLES, ARMS = ("sentiment", "places"), ("ce", "hl_gauss", "jittered")
STEPS = (74, 148, 222, 370)
TUNING, DECIDE = (12, 13), range(27, 33)
FINALISTS = 3  # settings of the first tuning seed that the second one tries, too
KEY = ("table", "arm", "seed", "steps", "rate")


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, choose, measure, and print the tuning errors and the choice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/schedules"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, KEY)
    print(tuning_errors(runs).to_string(float_format="%.2f"))
    for (table, arm), [(steps, rate)] in chosen_settings(runs).items():
        print(f"{table}, {arm}: {steps} steps at {rate:g}")
    decided = [run for run in runs if run["seed"] in DECIDE]
    if decided:
        rows = [
            (run["table"], run["arm"], run["seed"], "test", metric, value)
            for run in decided
            for metric, value in measures(*_read(run)).items()
        ]
        write(long_table(rows), given.results / "metrics.csv.xz")


def tuning_errors(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate the validation error of the median.

    Returns:
        One row for each table, arm, number of steps and rate, and one column for each tuning seed.
    """
    rows = [{**run, "error": error(_read(run)[0])} for run in runs if run["seed"] in TUNING]
    columns = ["table", "arm", "steps", "rate", "seed", "error"]
    return pd.DataFrame(rows, columns=columns).pivot(index=columns[:4], columns="seed", values="error")


def best_settings(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return the settings that the second tuning seed tries: the best of the first seed.

    Returns:
        Steps and rates for each table and arm of which all runs of the first tuning seed are there.
    """
    errors = _by_setting(runs, TUNING[:1])
    return {
        which: found.nsmallest(FINALISTS).index.tolist()
        for which, found in errors.items()
        if len(found) == len(STEPS) * len(TRIED)
    }


def chosen_settings(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Choose the steps and the rate with the lowest mean error of both tuning seeds.

    Returns:
        One setting for each table and arm of which all tuning runs are there.
    """
    best, errors = best_settings(runs), _by_setting(runs, TUNING)
    return {
        which: errors[which][settings].nsmallest(1).index.tolist()
        for which, settings in best.items()
        if {*settings} <= {*errors.get(which, pd.Series(dtype=float)).index}
    }


def _by_setting(runs: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> dict[Any, pd.Series]:
    """Return the mean error of each setting that all of some seeds have, for each table and arm."""
    errors = tuning_errors(runs).reindex(columns=[*seeds]).dropna().mean(axis=1)
    return {
        which: found.droplevel(["table", "arm"]) for which, found in errors.groupby(level=["table", "arm"])
    }


def _read(run: Mapping[str, Any]) -> list[Any]:
    """Return the readings of the validation and of the test rows."""
    return [reading(run, run["read"][-1], part) for part in ("validation", "test")]


if __name__ == "__main__":
    main()
