"""Load finished runs and group those that differ only in their seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from scipy.stats import t

from ntl.config.differences import EVALUATION, NORMALIZE_BY, REPORT, comparable
from ntl.config.schema import READINGS, format_setting
from ntl.errors import UserError
from ntl.scores import reading_metric
from ntl.training.run_folder import (
    CHECKPOINT,
    EVALUATIONS,
    Metrics,
    Prediction,
    RunFolder,
    RunRecord,
    find_runs,
)

MODEL_ORDER = ("T5", "RT", "xVal")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, the record of what was run, and the metrics of each test set."""

    folder: RunFolder
    record: RunRecord
    metrics: Mapping[str, Metrics]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed: one row of a table.

    Args:
        label: Name of the objective, with the settings that distinguish it from others of the same name.
        runs: Runs sorted by seed.
        reading: How numbers are read, one of `READINGS`.
    """

    label: str
    runs: Sequence[FinishedRun]
    reading: str = "greedy"

    def values(self, test: str, metric: str) -> pd.Series:
        """Return a metric of the reading on a test set by seed, NaN for runs without it."""
        name = reading_metric(self.reading, metric)
        found = {run.record.seed: run.metrics.get(test, {}).get(name) for run in self.runs}
        return pd.Series(found, dtype=float)

    def predictions(self, test: str) -> dict[int, list[Prediction]]:
        """Map each seed to its predictions on a test set, without runs that were not evaluated on it."""
        return {run.record.seed: run.folder.predictions(test) for run in self.runs if test in run.metrics}


@dataclass(frozen=True)
class Dataset:
    """The runs on one dataset; each group is a row of tables, and differences are relative to the first."""

    name: str
    groups: Sequence[Group]

    @property
    def runs(self) -> list[FinishedRun]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group.runs]

    @property
    def tests(self) -> list[str]:
        """The test sets of all runs, in the order in which they were evaluated."""
        return list(dict.fromkeys(test for run in self.runs for test in run.metrics))

    def metrics(self, test: str) -> list[Metrics]:
        """Return the metrics of a test set for the runs that were evaluated on it."""
        return [run.metrics[test] for run in self.runs if test in run.metrics]

    def reference(self, test: str, metric: str) -> float | None:
        """Return a metric that is the same for all models, such as `noise_mae`, or None if it is unknown."""
        return next((m[metric] for m in self.metrics(test) if m.get(metric) is not None), None)

    def has_noise(self, test: str) -> bool:
        """Return whether the noise of a test set's answers is known, so that errors have a floor."""
        return self.reference(test, "noise_mae") is not None

    def has_different_questions(self, test: str) -> bool:
        """Return whether the questions of a test set differ between runs, so that rows are not comparable."""
        return len({run.folder.questions(test) for run in self.runs if test in run.metrics}) > 1

    def lacks_predictions(self, test: str) -> bool:
        """Return whether some runs lack a test set's predictions, as do those published as metrics only."""
        folders = [run.folder for run in self.runs if test in run.metrics]
        return not all(folder.predictions_path(test).exists() for folder in folders)


def mean_and_interval(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Compute the mean over seeds and the half-width of its 95 % confidence interval (Student's t).

    Args:
        values: One value per seed.

    Returns:
        The mean, None if any value is None or NaN, and the half-width, None for fewer than two seeds.
    """
    known = pd.Series(list(values), dtype=float)
    if known.empty or known.isna().any():
        return None, None
    count = len(known)
    return float(known.mean()), float(known.sem() * t.ppf(0.975, count - 1)) if count > 1 else None


def load_datasets(folders: Sequence[Path | str], in_order: bool = False) -> tuple[list[Dataset], list[str]]:
    """Load the finished runs in folders and their subfolders, grouped by dataset and objective.

    Args:
        folders: Folders to search, see `run_folder.find_runs`.
        in_order: Whether groups keep the order of their first runs. By default they are sorted by model and
            label, so that a model without a number loss precedes those with one.

    Returns:
        The datasets, sorted by name, and one line for each run that is left out, because it is not finished
        or repeats an earlier one.
    """
    left_out: list[str] = []
    named: dict[str, dict[str, list[FinishedRun]]] = {}
    for folder in find_runs(folders):
        run = FinishedRun(folder, folder.record(), folder.metrics())
        record = run.record
        if record.status == "finished" and run.metrics:
            named.setdefault(record.dataset, {}).setdefault(record.objective, []).append(run)
        else:
            why = "was not evaluated" if record.status == "finished" else f"is {record.status}"
            name = f"{folder} ({record.objective}, seed {record.seed})"
            left_out.append(f"{name} {why}, at step {record.steps}")
    if not named:
        raise UserError(
            f"no run is finished: {'; '.join(left_out)}. Expected at least one; repeat the command that "
            "started a run to finish it."
        )
    datasets = []
    for name, objectives in sorted(named.items()):
        _check_same_count(name, [run for runs in objectives.values() for run in runs])
        groups = [group for runs in objectives.values() for group in _split_by_settings(runs, left_out)]
        datasets.append(Dataset(name, groups if in_order else sorted(groups, key=_sort_key)))
    return datasets, left_out


def _check_same_count(dataset: str, runs: Sequence[FinishedRun]) -> None:
    """Raise a UserError if the runs' losses are divided by different counts, so that λ differs in meaning."""
    found = {comparable(run.record.config, REPORT)[NORMALIZE_BY]: str(run.folder) for run in runs}
    if len(found) > 1:
        where = " and ".join(f"{NORMALIZE_BY}={value} in {found[value]}" for value in sorted(found))
        raise UserError(
            f"the runs on {dataset} divide the number term by different counts, so their losses cannot be "
            f"compared: {where}. Report them separately, or repeat some of them."
        )


def _split_by_settings(runs: Sequence[FinishedRun], left_out: list[str]) -> list[Group]:
    """Group runs of one objective by the settings that differ; describe repeated runs in `left_out`.

    Another seed, such as `train_seed`, does not count if it is each run's own.
    """
    settings = pd.DataFrame([_settings(run) for run in runs], dtype=object).fillna("null")
    follows = [name for name in settings if name.endswith("_seed") and list(settings[name]) == _seeds(runs)]
    settings = settings[sorted({*settings} - {*follows})]
    last = settings.columns.str.rpartition(".").get_level_values(2)  # enough of a key, if it is unique
    settings.columns = [
        key if count > 1 else end
        for key, end, count in zip(settings, last, last.map(last.value_counts()), strict=True)
    ]
    differing = settings.loc[:, settings.nunique() > 1]
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run, (_, row) in zip(runs, differing.iterrows(), strict=True):
        shown = ", ".join(f"{key}={value}" for key, value in row.items())
        record = run.record
        seeds = groups.setdefault(f"{record.objective} ({shown})" if shown else record.objective, {})
        if (first := seeds.setdefault(record.seed, run)) is not run:
            left_out.append(
                f"{run.folder} repeats {first.folder} ({record.dataset}, {record.objective}, seed "
                f"{record.seed}, the same settings except names and paths); the first one is kept"
            )
    return [Group(label, [seeds[seed] for seed in sorted(seeds)]) for label, seeds in groups.items()]


def _seeds(runs: Sequence[FinishedRun]) -> list[str]:
    return [format_setting(run.record.seed) for run in runs]


def split_readings(dataset: Dataset) -> Dataset:
    """Split each group into one for each reading of its numbers: `T5, greedy`, `T5, median`, ...

    A group whose runs have no other reading keeps its name.
    """
    split = []
    for group in dataset.groups:
        names = {name for run in group.runs for metrics in run.metrics.values() for name in metrics}
        found = [r for r in READINGS if r == group.reading or reading_metric(r, "mae") in names]
        labels = [f"{group.label}, {r}" if len(found) > 1 else group.label for r in found]
        split += [replace(group, label=label, reading=r) for label, r in zip(labels, found, strict=True)]
    return replace(dataset, groups=split)


def _settings(run: FinishedRun) -> dict[str, str]:
    """Return the settings that distinguish runs, formatted for a table. Null counts as absent."""
    settings = {key: format_setting(value) for key, value in comparable(run.record.config, REPORT).items()}
    evaluated = Path(str(run.record.config.get("evaluated"))).name
    if evaluated.startswith(CHECKPOINT):  # not the final model of its run
        settings["checkpoint"] = evaluated.removeprefix(CHECKPOINT)
    return settings


def _sort_key(group: Group) -> tuple[int, str]:
    model = group.label.partition(" ")[0]
    return MODEL_ORDER.index(model) if model in MODEL_ORDER else len(MODEL_ORDER), group.label


def other_evaluations(runs: Sequence[FinishedRun]) -> list[RunFolder]:
    """Return the runs' evaluations with other settings, except those that are among the runs themselves."""
    known = {run.folder.path.resolve() for run in runs}
    found = [evaluation for run in runs for evaluation in run.folder.evaluations()]
    return [evaluation for evaluation in found if evaluation.path.resolve() not in known]


def describe_evaluations(dataset: Dataset) -> list[str]:
    """Describe the settings of the evaluations shown, and name the evaluations not shown, a line for each."""
    settings: Counter[str] = Counter()
    for run in dataset.runs:
        asked = comparable({"evaluation": run.record.config.get("evaluation", {})}, EVALUATION)
        names = {key: key.removeprefix("evaluation.") for key in asked if key.startswith("evaluation.")}
        values = [f"{name}={format_setting(asked[key])}" for key, name in names.items()]
        settings[", ".join(values) or "unrecorded settings"] += 1
    lines = [f"Evaluated with {_counted(settings) if len(settings) > 1 else next(iter(settings))}."]
    if others := Counter(evaluation.path.name for evaluation in other_evaluations(dataset.runs)):
        lines.append(
            f"Not shown: evaluations with {_counted(others)} instead of the run's own settings. To report "
            f"one, pass its folder, RUN/{EVALUATIONS}/SETTINGS."
        )
    return lines


def _counted(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count} run{'s' if count > 1 else ''})" for name, count in counts.items())
