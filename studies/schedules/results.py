"""Merge runs into the pack, print their validation errors, and write measures for `ntl report`.

python -m studies.schedules.results                  # runs of outputs/schedules and the pack
ntl report studies/schedules/results --into studies/schedules/results/README.md
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ntl.metrics.quantiles import SPACED, SPACED_LEVELS, crps, interval_metrics
from ntl.report.runs import PACK_COLUMNS
from ntloss.reading.intervals import conformal_score
from studies.packs import merge, write

RESULTS = Path(__file__).parent / "results"
COVERAGE = 0.9
DECIDE = range(27, 33)  # seeds
KEY = ("table", "arm", "seed", "steps", "rate")


class Reading(NamedTuple):
    """What was read for validation or test rows."""

    truths: np.ndarray  # `[rows]`
    answers: np.ndarray  # `[rows]`, greedy answers
    spaced: np.ndarray  # `[rows, SPACED]`, quantiles, ascending
    ends: np.ndarray  # `[rows, 2]`, the ends of the 90 % interval
    median: np.ndarray  # `[rows]`


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, and print the validation errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/schedules"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, KEY)
    print(validation_errors(runs).to_string(float_format="%.2f"))
    decided = [run for run in runs if run["seed"] in DECIDE]
    if decided:
        rows = [
            (run["table"], run["arm"], run["arm"], run["seed"], f"{run['steps']} steps", "", metric, value)
            for run in decided
            for metric, value in measures(*_read(run)).items()
        ]
        write(pd.DataFrame(rows, columns=PACK_COLUMNS), given.results / "metrics.csv.xz")


def validation_errors(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate the validation error of the median, with a column for each seed."""
    rows = [{**run, "error": _error(_read(run)[0])} for run in runs]
    columns = ["table", "arm", "steps", "rate", "seed", "error"]
    return pd.DataFrame(rows, columns=columns).pivot(index=columns[:4], columns="seed", values="error")


def _read(run: Mapping[str, Any]) -> list[Reading]:
    """Return the readings of the validation and of the test rows."""
    found = []
    for part in ("validation", "test"):
        read = run["read"][-1][part]
        quantiles = np.array(read["quantiles"])
        lower, median, upper = quantiles[:, SPACED:].T
        ends = np.sort(np.stack([lower, upper], -1))
        spaced = np.sort(quantiles[:, :SPACED])
        found.append(Reading(np.array(run["truths"][part]), np.array(read["answers"]), spaced, ends, median))
    return found


def measures(validation: Reading, test: Reading) -> dict[str, float]:
    """Measure the test rows by names of `ntl.metrics.registry`; the validation rows calibrate the intervals.

    By split conformal prediction (Romano, Patterson and Candès, 2019), all intervals are widened by the
    margin that validation rows need, or narrowed, at most to the median.
    """
    misses = np.maximum(validation.ends[:, 0] - validation.truths, validation.truths - validation.ends[:, 1])
    margin = conformal_score(misses.tolist(), COVERAGE)
    low = np.minimum(test.ends[:, 0] - margin, test.median)
    high = np.maximum(test.ends[:, 1] + margin, test.median)
    coverage, width, _ = interval_metrics(*test.ends.T, test.truths, COVERAGE)
    calibrated, calibrated_width, _ = interval_metrics(low, high, test.truths, COVERAGE)
    return {
        "mae": float(np.abs(test.answers - test.truths).mean()),
        "median_mae": _error(test),
        "mean_mae": float(np.abs(test.spaced.mean(-1) - test.truths).mean()),
        "crps": crps(test.spaced, test.truths, SPACED_LEVELS),
        "interval_coverage": coverage,
        "interval_width": width,
        "calibrated_coverage": calibrated,
        "calibrated_width": calibrated_width,
    }


def _error(found: Reading) -> float:
    """Compute the mean absolute error of the median."""
    return float(np.abs(found.median - found.truths).mean())


if __name__ == "__main__":
    main()
