"""Load the results of the study, and compare objectives by paired differences.

A *setting* is a task of `study.yaml` with its number of steps, such as `sums-800`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_1samp

from ntl.config.differences import REPORT, comparable
from ntl.report.groups import mean_and_interval
from ntl.scores import reading_metric
from ntl.training.run_folder import Metrics
from studies.packing import StoredRun
from studies.small_models.run import BASELINE, RUNS, STUDY

READINGS = ("greedy", "median", "mean")
ACCURACY = "exact_number"
NAMES = {
    "ce": "CE", "ntl_was": "CE + NTL-WAS", "ntl_mse": "CE + NTL-MSE", "crps": "CE + CRPS",
    "regression_head": "regression head", "regression_head_log": "regression head, log scale", "xval": "xVal",
    "ntl_was_items": "CE + NTL-WAS, by items",
    "ntl_was_reweigh": "CE + NTL-WAS, reweigh", "ntl_mae": "CE + NTL-MAE", "ntl_huber": "CE + NTL-Huber",
    "gaussian": "Gaussian smoothing", "dist2": "CE + DIST2", "digit_entropy": "CE + DEL", "smmd": "CE + SMMD",
    "ntil": "CE + NTIL", "number_level": "CE + number-level NTL", "raft": "RAFT",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A finished run: its test metrics, its learning curve and its number of updates."""

    metrics: Metrics
    curve: Sequence[Metrics]
    steps: int

    def value(self, reading: str, metric: str) -> float | None:
        """Return a metric of a reading on the test set, or None if the run does not have it."""
        return self.metrics.get(reading_metric(reading, metric))


Setting = Mapping[str, Mapping[int, Result]]  # objective -> seed -> result


@dataclass(frozen=True)
class Effect:
    """The paired difference of an objective to a baseline.

    Args:
        mean: Mean difference of the seeds.
        interval: Half-width of its 95 % confidence interval.
        share: Mean difference divided by the baseline's mean; NaN if that is 0.
        share_interval: Half-width of the interval of `share`.
        p: Of the paired t-test. Not corrected.
        won: Number of seeds on which the objective is better.
        seeds: Number of pairs.
    """

    mean: float
    interval: float
    share: float
    share_interval: float
    p: float
    won: int
    seeds: int


def load_settings() -> dict[str, Setting]:
    """Load the finished runs of every setting, in the order of study.yaml."""
    found: dict[str, dict[str, dict[str, StoredRun]]] = {}
    for name, run in RUNS.all().items():
        setting, objective, _ = name.split("/")
        if objective != "selection":
            found.setdefault(setting, {}).setdefault(objective, {})[name] = run
    names = [f"{task}-{steps}" for task, its in STUDY["tasks"].items() for steps in its["steps"]]
    return {
        name: {o: results_by_seed(found[name][o]) for o in STUDY["objectives"] if o in found[name]}
        for name in names
        if BASELINE in found.get(name, {})
    }


def results_by_seed(runs: Mapping[str, StoredRun]) -> dict[int, Result]:
    """Return the results of runs that differ only in their seeds, by seed."""
    results, first = {}, {}
    for name, run in runs.items():
        record = run["record"]
        first.setdefault(str(comparable(record["config"], REPORT)), name)
        if len(first) > 1:
            one, other = first.values()
            raise SystemExit(
                f"{one} and {other} differ in more than their seed. Repeat the outdated one by "
                "`python -m studies.small_models.run --again` and its name."
            )
        metrics = next(found for test, found in run["metrics"].items() if test != "validation")
        results[record["seed"]] = Result(metrics, run["curve"], record["steps"])
    return dict(sorted(results.items()))


def task_of(setting: str) -> str:
    """Return the task of a setting: `sums` for `sums-800`."""
    return setting.rpartition("-")[0]


def family(setting: str) -> str:
    """Return the family of a setting's task."""
    return STUDY["tasks"][task_of(setting)]["family"]


def effect(
    results: Mapping[int, Result],
    baseline: Mapping[int, Result],
    reading: str = "greedy",
    other: str | None = None,
    metric: str = "mae",
) -> Effect | None:
    """Compare an objective with a baseline on the seeds that both have; None for fewer than two.

    Args:
        results: Results of the objective, by seed.
        baseline: Results of the baseline, by seed.
        reading: Reading of the objective.
        other: Reading of the baseline. None: `reading`.
        metric: The metric that is compared. Lower is better, except for `exact_number`.
    """
    pairs = [
        (results[s].value(reading, metric), baseline[s].value(other or reading, metric))
        for s in results
        if s in baseline
    ]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    if len(known) < 2:
        return None
    differences = [mine - theirs for mine, theirs in known]
    scale = float(np.mean([theirs for _, theirs in known])) or math.nan
    mean, interval = mean_and_interval(differences)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about equal differences, for which p is near 0
        p = float(ttest_1samp(differences, 0).pvalue) if any(differences) else 1.0
    won = sum(d > 0 if metric == ACCURACY else d < 0 for d in differences)
    return Effect(mean, interval, mean / scale, interval / scale, p, won, len(known))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number (Holm 1979).

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - place) * p[name]))
        corrected[name] = largest
    return corrected
