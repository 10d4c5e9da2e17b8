"""Merge runs into the pack, choose weights by each rule, and write their measures for `ntl report`.

    python -m studies.all_layers.results                 # runs of outputs/all_layers and the pack
    python -m studies.all_layers.results --rates         # what the tuning seeds choose
    ntl report studies/all_layers/results --into studies/all_layers/results/README.md

The pack, `runs.jsonl.xz`, holds one run a line, with everything that was read. Runs in the pack that the
folder of outputs lacks stay there, so that the study can be made in pieces and on several machines. The
measures are `metrics.csv.xz`, with a test set for each rule, and beside them the errors of the models of the
study of ten epochs on the same rows.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ntl.metrics import crps
from ntl.scores import SPACED, SPACED_LEVELS
from ntloss.reading.intervals import conformal_score
from studies.all_layers.train import ARMS, CHOSEN, COMMON, FOLDER, TABLES
from studies.packs import long_table, merge, write

TUNING, PILOT, DECIDE = (12, 13), range(24, 27), range(27, 36)
"""Seeds: those that choose rates, those whose test rows the pilot looked at, and those that decide."""
COVERAGE = 0.9
KEY = ("table", "arm", "seed", "rate", "train_rows")
OTHERS = {"ce": "upper_ce", "hl_gauss": "upper_hl_gauss", "head": "upper_head", "encoder": "encoder"}
"""Models of the study of ten epochs, which have the same rows: the name there, and here."""
RULES = {"last": "last weights", "median": "lowest error of the median", "crps": "lowest CRPS"}
"""How weights are chosen by the validation rows, and what the test set is called then."""


class Reading(NamedTuple):
    """What was read from one set of weights for validation or test rows; a head has no quantiles."""

    truths: np.ndarray  # `[rows]`
    answers: np.ndarray  # `[rows]`, greedy answers, or the head's
    quantiles: np.ndarray | None  # `[rows, levels]`, levels of train.py

    @property
    def spaced(self) -> np.ndarray:
        """The spaced quantiles, ascending; the head's answer stands for all of them."""
        if self.quantiles is None:
            return np.repeat(self.answers[:, None], SPACED, axis=1)
        return np.sort(self.quantiles[:, :SPACED])

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lower end, the median and the upper end of the 90 % interval."""
        if self.quantiles is None:
            return self.answers, self.answers, self.answers
        lower, median, upper = self.quantiles[:, SPACED:].T
        return np.minimum(lower, upper), median, np.maximum(lower, upper)


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, choose, measure, and print which runs are there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/all_layers"))
    parser.add_argument("--results", type=Path, default=Path("studies/all_layers/results"))
    parser.add_argument("--rates", action="store_true", help="print what the tuning seeds choose, and end")
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, KEY)
    if given.rates:
        print(tried_rates(runs))
        return
    reported = [run for run in runs if run["seed"] in (*PILOT, *DECIDE)]
    print(what_is_there(reported))
    if reported:
        rows = [*rows_of_metrics(reported), *rows_of_others(reported)]
        write(long_table(rows), given.results / "metrics.csv.xz")


def row_of(run: Mapping[str, Any]) -> str:
    """Name the arm of a run, and its learning rate if another one was chosen for the arm and table."""
    chosen = run["rate"] == CHOSEN[run["table"]].get(run["arm"])
    return run["arm"] if chosen else f"{run['arm']} at {run['rate']:g}"


def has_usual_rows(run: Mapping[str, Any]) -> bool:
    """Whether a run has as many training rows as those of its table have if nothing else is asked for."""
    return run["train_rows"] == (COMMON | TABLES[run["table"]])["train_size"]


def dataset_of(run: Mapping[str, Any]) -> str:
    """Name the table of a run; the seeds of the pilot and other numbers of training rows are apart."""
    pilot = ", seeds of the pilot" if run["seed"] in PILOT else ""
    rows = "" if has_usual_rows(run) else f", {run['train_rows']} rows"
    return f"{run['table']}{rows}{pilot}"


def rows_of_metrics(runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, int, str, str, float]]:
    """Yield dataset, row, seed, rule, metric and value of the test rows of each run under each rule."""
    for run in runs:
        for rule, test in RULES.items():
            chosen = chosen_by(run, rule)
            found = measures(*(reading(run, chosen, part) for part in ("validation", "test")))
            for metric, value in {**found, "chosen_step": chosen["step"]}.items():
                yield dataset_of(run), row_of(run), run["seed"], test, metric, value


def rows_of_others(runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, int, str, str, float]]:
    """Yield such rows of the models of the study of ten epochs, for the seeds of the runs on each table."""
    packed = pd.read_csv(FOLDER.parent / "ten_epochs/results/metrics.csv.xz")
    asked = (packed["test"] == "test") & packed["metric"].isin(["mae", "median_mae"])
    datasets = {(run["table"], run["seed"]): dataset_of(run) for run in runs if has_usual_rows(run)}
    for found in packed[asked & packed["row"].isin(OTHERS)].itertuples():
        if dataset := datasets.get((found.dataset, found.seed)):
            for test in RULES.values():
                yield dataset, OTHERS[found.row], found.seed, test, found.metric, found.value


def reading(run: Mapping[str, Any], point: Mapping[str, Any], part: str) -> Reading:
    """Return what was read at a compared step for the rows of a part."""
    quantiles = point[part].get("quantiles")
    return Reading(
        np.array(run["truths"][part]),
        np.array(point[part]["answers"]),
        None if quantiles is None else np.array(quantiles),
    )


def chosen_by(run: Mapping[str, Any], rule: str) -> Mapping[str, Any]:
    """Choose the compared step by a rule; the earliest, if several are equal."""
    if rule == "last":
        return run["read"][-1]
    return min(run["read"], key=lambda point: error(reading(run, point, "validation"), rule))


def error(found: Reading, rule: str = "median") -> float:
    """Compute the error of the median, or the CRPS; a head has only the former."""
    if rule == "crps" and found.quantiles is not None:
        return crps(found.spaced, found.truths, SPACED_LEVELS)
    return float(np.abs(found.interval[1] - found.truths).mean())


def measures(validation: Reading, test: Reading) -> dict[str, float]:
    """Measure the test rows; the validation rows calibrate the intervals.

    By split conformal prediction (Romano, Patterson and Candès, 2019), all intervals are widened by the
    margin that validation rows need, or narrowed, at most to the median.

    Returns:
        Measures by the names of `ntl.metrics.registry`. A head has `mae` alone, and a calibrated interval.
    """
    lower, median, upper = test.interval
    ends = validation.interval
    misses = np.maximum(ends[0] - validation.truths, validation.truths - ends[2])
    margin = conformal_score(misses.tolist(), COVERAGE)
    low, high = np.minimum(lower - margin, median), np.maximum(upper + margin, median)
    found = {
        "mae": float(np.abs(test.answers - test.truths).mean()),
        "calibrated_coverage": inside(low, high, test.truths),
        "calibrated_width": float((high - low).mean()),
    }
    if test.quantiles is None:
        return found
    return found | {
        "median_mae": error(test),
        "mean_mae": float(np.abs(test.spaced.mean(-1) - test.truths).mean()),
        "crps": error(test, "crps"),
        "interval_coverage": inside(lower, upper, test.truths),
        "interval_width": float((upper - lower).mean()),
    }


def inside(lower: np.ndarray, upper: np.ndarray, truths: np.ndarray) -> float:
    """Return the share of true numbers within their intervals, ends included."""
    return float(((lower <= truths) & (truths <= upper)).mean())


def tried_rates(runs: Iterable[Mapping[str, Any]]) -> str:
    """Write the lowest validation error of the median of each arm, rate and tuning seed."""
    rows = [
        {**run, "error": min(error(reading(run, point, "validation")) for point in run["read"])}
        for run in runs
        if run["seed"] in TUNING
    ]
    if not rows:
        return f"No run of the tuning seeds {TUNING} is there."
    index = ["table", "arm", "rate"]
    found = pd.DataFrame(rows).pivot_table(index=index, columns="seed", values="error")
    found["mean"] = found.mean(axis=1)
    best = found.groupby(["table", "arm"])["mean"].transform("min")
    return found.assign(chosen=np.where(found["mean"] == best, "chosen", "")).to_string(float_format="%.3f")


def what_is_there(runs: Iterable[Mapping[str, Any]]) -> str:
    """Write which seeds each arm has on each table, and how many it lacks."""
    have = {(run["table"], row_of(run), run["seed"]) for run in runs if has_usual_rows(run)}
    wanted = [*DECIDE, *PILOT]
    lines = ["| table | arm | seeds | missing |", "| --- | --- | --- | ---: |"]
    for table in TABLES:
        for arm in ARMS:
            done = sorted(seed for seed in wanted if (table, arm, seed) in have)
            lines.append(f"| {table} | {arm} | {', '.join(map(str, done))} | {len(wanted) - len(done)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
