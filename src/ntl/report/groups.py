"""Load finished runs and group those that differ only in their seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ntl.config.paper_keys import compared_settings, effective_evaluation
from ntl.config.settings import READINGS
from ntl.errors import UserError
from ntl.scores import mean_and_interval, reading_metric
from ntl.training.run_folder import (
    CHECKPOINT,
    EVALUATIONS,
    Metrics,
    RunFolder,
    RunRecord,
    find_runs,
    format_setting,
)

MODEL_ORDER = ("T5", "RT", "xVal")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        folder: Folder of the run.
        record: Record of what was run.
        metrics: Maps each test set to its metrics.
    """

    folder: RunFolder
    record: RunRecord
    metrics: Mapping[str, Metrics]


class Difference(NamedTuple):
    """How a metric differs from that of a baseline, over the seeds that both have.

    Args:
        mean: Mean difference; negative if the metric is lower than the baseline's.
        width: Half-width of its 95 % confidence interval, None for one seed.
        lower: Number of seeds whose metric is lower.
        seeds: Number of seeds.
    """

    mean: float
    width: float | None
    lower: int
    seeds: int


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed: one row of a table.

    Args:
        dataset: Dataset of all runs.
        label: Name of the objective, with the settings that distinguish it from others of the same name.
        runs: Runs sorted by seed.
        reading: How numbers are read, see `GenerationSettings.read`.
    """

    dataset: str
    label: str
    runs: Sequence[FinishedRun]
    reading: str = "greedy"

    def values(self, test: str, metric: str) -> list[float | None]:
        """Return a metric of the reading for each seed, None for runs without it."""
        return [run.metrics.get(test, {}).get(reading_metric(self.reading, metric)) for run in self.runs]

    def mean_and_interval(self, test: str, metric: str) -> tuple[float | None, float | None]:
        """Return the mean over seeds and its confidence interval, see `metrics.mean_and_interval`."""
        return mean_and_interval(self.values(test, metric))

    def difference(self, baseline: Group, test: str, metric: str) -> Difference | None:
        """Compare a metric with that of a baseline, seed by seed.

        Args:
            baseline: The runs to compare with.
            test: Name of the test set.
            metric: Name of the metric.

        Returns:
            The difference, or None if no seed has the metric in both.
        """
        mine, other = (
            {
                run.record.seed: value
                for run, value in zip(group.runs, group.values(test, metric), strict=True)
            }
            for group in (self, baseline)
        )
        shared = [(mine[s], other[s]) for s in mine if None not in (mine[s], other.get(s))]
        if not shared:
            return None
        differences = [a - b for a, b in shared]
        mean, width = mean_and_interval(differences)
        return Difference(mean, width, sum(d < 0 for d in differences), len(differences))


def load_finished(folders: Sequence[Path | str]) -> tuple[list[FinishedRun], list[str]]:
    """Load the finished runs in folders and their subfolders.

    Args:
        folders: Folders to search, see `run_folder.find_runs`.

    Returns:
        The finished runs in order, and one line for each run that is left out.

    Raises:
        UserError: No run is finished, or a folder or a file cannot be read.
    """
    finished, left_out = [], []
    for folder in find_runs(folders):
        record, metrics = folder.record(), folder.metrics()
        if record.status == "finished" and metrics:
            finished.append(FinishedRun(folder, record, metrics))
        else:
            why = f"is {record.status}" if record.status != "finished" else "was not evaluated"
            left_out.append(
                f"{folder} ({record.objective}, seed {record.seed}) {why}, at step {record.steps}"
            )
    if not finished:
        raise UserError(
            f"no run is finished: {'; '.join(left_out)}. Expected at least one; repeat the command that "
            "started a run to finish it."
        )
    return finished, left_out


def drop_repeated_runs(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], list[str]]:
    """Keep only the first of several runs with the same settings and seed.

    Args:
        runs: Runs in the order of the given folders.

    Returns:
        The runs that are kept, and one line for each dropped run that names both folders.
    """
    kept: dict[str, FinishedRun] = {}
    left_out = []
    for run in runs:
        record = run.record
        key = repr((record.dataset, record.objective, record.seed, sorted(_settings(run).items())))
        if (first := kept.setdefault(key, run)) is not run:
            left_out.append(
                f"{run.folder} repeats {first.folder} ({record.dataset}, {record.objective}, seed "
                f"{record.seed}, the same settings except names and paths); the first one is kept"
            )
    return list(kept.values()), left_out


def group_runs(runs: Sequence[FinishedRun], in_order: bool = False) -> list[Group]:
    """Group runs by dataset, objective, and all other settings that differ.

    Args:
        runs: Runs of any datasets, from `drop_repeated_runs`.
        in_order: Whether groups keep the order of their first runs.

    Returns:
        Groups in order or, by default, sorted by dataset, model and label, so that a model without a number
        loss precedes those with one.
    """
    named: dict[tuple[str, str], list[FinishedRun]] = {}
    for run in runs:
        named.setdefault((run.record.dataset, run.record.objective), []).append(run)
    groups: dict[tuple[str, str], dict[int, FinishedRun]] = {}
    for (dataset, objective), alike in named.items():
        configs = [_settings(run) for run in alike]
        keys = sorted({key for config in configs for key in config})
        differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
        for run, config in zip(alike, configs, strict=True):
            shown = ((_shortest(key, keys), format_setting(config.get(key))) for key in differing)
            label = ", ".join(f"{key}={value}" for key, value in shown)
            seeds = groups.setdefault((dataset, f"{objective} ({label})" if label else objective), {})
            seeds[run.record.seed] = run
    found = [
        Group(dataset, label, [seeds[seed] for seed in sorted(seeds)])
        for (dataset, label), seeds in groups.items()
    ]
    if in_order:
        return sorted(found, key=lambda group: min(runs.index(run) for run in group.runs))
    return sorted(found, key=lambda group: _sort_key(group.dataset, group.label))


def split_readings(groups: Sequence[Group]) -> list[Group]:
    """Split groups into one for each reading of their numbers, named `T5, greedy`, `T5, median`, ...

    Args:
        groups: Groups of decoded numbers.

    Returns:
        The groups in order. A group whose runs have no other reading keeps its name.
    """
    split = []
    for group in groups:
        names = {name for run in group.runs for metrics in run.metrics.values() for name in metrics}
        found = [r for r in READINGS if r == group.reading or reading_metric(r, "mae") in names]
        labels = [f"{group.label}, {r}" if len(found) > 1 else group.label for r in found]
        split += [replace(group, label=label, reading=r) for label, r in zip(labels, found, strict=True)]
    return split


def group_by_dataset(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Map each dataset to its groups, in order."""
    datasets: dict[str, list[Group]] = {}
    for group in groups:
        datasets.setdefault(group.dataset, []).append(group)
    return datasets


def test_sets(groups: Sequence[Group]) -> list[str]:
    """Return the test sets of all groups, in the order in which they were evaluated."""
    return list(dict.fromkeys(test for group in groups for run in group.runs for test in run.metrics))


def tests_with_differing_questions(groups: Sequence[Group]) -> list[str]:
    """Return the test sets whose questions differ between runs, so that rows are not comparable."""
    return [
        test
        for test in test_sets(groups)
        if len({run.folder.questions(test) for group in groups for run in group.runs if test in run.metrics})
        > 1
    ]


def tests_without_predictions(groups: Sequence[Group]) -> list[str]:
    """Return the test sets that lack predictions for some runs, such as runs published as metrics only."""
    return [
        test
        for test in test_sets(groups)
        if any(
            test in run.metrics and not run.folder.predictions_path(test).exists()
            for group in groups
            for run in group.runs
        )
    ]


def other_evaluations(runs: Sequence[FinishedRun]) -> list[RunFolder]:
    """Return the runs' evaluations with other settings, except those that are among the runs themselves."""
    known = {run.folder.path.resolve() for run in runs}
    found = [evaluation for run in runs for evaluation in run.folder.evaluations()]
    return [evaluation for evaluation in found if evaluation.path.resolve() not in known]


def describe_evaluations(groups: Sequence[Group]) -> list[str]:
    """Describe the settings of the evaluations that are shown, and name those that are not.

    Args:
        groups: Groups of one dataset.

    Returns:
        One line for the settings, and one for the other evaluations if there are any.
    """
    settings: Counter[str] = Counter()
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        asked = effective_evaluation(run.record.config.get("evaluation", {}))
        values = (f"{key}={format_setting(asked[key])}" for key in asked if key != "samples_during_training")
        settings[", ".join(values) or "unrecorded settings"] += 1
    lines = ["Evaluated with " + "; ".join(_counted(settings, len(settings) > 1)) + "."]
    if others := Counter(evaluation.path.name for evaluation in other_evaluations(runs)):
        lines.append(
            f"Not shown: evaluations with {'; '.join(_counted(others, True))} instead of the run's own "
            f"settings. To report one, pass its folder, RUN/{EVALUATIONS}/SETTINGS."
        )
    return lines


def _counted(counts: Mapping[str, int], with_runs: bool) -> list[str]:
    runs = {name: f" ({count} run{'s' if count > 1 else ''})" for name, count in counts.items()}
    return [f"{name}{runs[name] if with_runs else ''}" for name in counts]


def _settings(run: FinishedRun) -> dict[str, str]:
    """Return the settings that distinguish runs, formatted for a table. Null counts as absent."""
    settings = {key: format_setting(value) for key, value in compared_settings(run.record.config).items()}
    evaluated = Path(str(run.record.config.get("evaluated"))).name
    if evaluated.startswith(CHECKPOINT):  # not the final model of its run
        settings["checkpoint"] = evaluated.removeprefix(CHECKPOINT)
    return settings


def _sort_key(dataset: str, label: str) -> tuple[str, int, str]:
    model = label.partition(" ")[0]
    return dataset, MODEL_ORDER.index(model) if model in MODEL_ORDER else len(MODEL_ORDER), label


def _shortest(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key if it is unique among the keys, else the whole key."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key
