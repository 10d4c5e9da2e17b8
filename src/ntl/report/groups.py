"""Load evaluations of runs, and group those that differ only in their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t

from ntl.config import Reading, read_config
from ntl.errors import UserError
from ntl.scores import reading_metric
from ntl.terminal import format_setting
from ntl.training.run_folder import (
    CHECKPOINT,
    EvaluationFolder,
    Metrics,
    Prediction,
    RunRecord,
    find_evaluations,
    find_unfinished,
)
from ntl.training.start import INDEPENDENT

MODEL_ORDER = ("T5", "RT", "xVal")
READINGS = tuple(map(str, Reading))
# Settings that do not separate the rows of a report. The keys of the published loss are part of `loss`.
SHARED = {
    "dataset_args": INDEPENDENT["dataset_args"],
    "model_args": {
        "name", "number_token_loss", "number_token_loss_weight", "number_token_loss_with_wasserstein",
        "number_token_loss_function", "gaussian_label_smoother", "label_smoother_sigma",
    },
    "weights": INDEPENDENT["weights"],
    "training_args": INDEPENDENT["training_args"] | {
        "seed", "logging_dir", "logging_strategy", "eval_steps", "eval_strategy", "save_steps",
        "save_strategy",
    },
    "loss": set(),
    "evaluation": {"name", "batch_size", "samples_during_training"},
}  # fmt: skip


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: the folder of its evaluation, what was run, and the metrics of each test set."""

    folder: EvaluationFolder
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

    @property
    def is_table(self) -> bool:
        """Whether the answers are a column of a table, whose errors matter more than exact digits."""
        return self.runs[0].record.config.get("dataset_args", {}).get("dataset_name") == "tabular"

    def in_units(self, test: str) -> bool:
        """Return whether errors are shown in the numbers' own units: of tables, and where noise is known."""
        return self.is_table or self.reference(test, "noise_mae") is not None

    def has_different_questions(self, test: str) -> bool:
        """Return whether runs of a seed answer different questions of a test set: not comparable."""
        runs = [run.record for run in self.runs if test in run.metrics]
        return len({(run.seed, run.questions.get(test)) for run in runs}) > len({run.seed for run in runs})

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


def load_datasets(
    folders: Sequence[Path | str], name: str = "test", in_order: bool = False
) -> tuple[list[Dataset], list[str]]:
    """Load the evaluations in folders and their subfolders, grouped by dataset and objective.

    Args:
        folders: Folders to search, see `run_folder.find_evaluations`.
        name: Name of the evaluations, `evaluation.name`.
        in_order: Whether groups keep the order of the runs of a sweep. By default they are sorted by model
            and label, so that a model without a number loss precedes those with one.

    Returns:
        The datasets, sorted by name, and one line for each run that is left out, because it is not finished
        or repeats an earlier one.
    """
    found = [FinishedRun(f, f.record(), f.metrics()) for f in find_evaluations(folders, name)]
    unfinished = [run for folder in map(Path, folders) for run in find_unfinished(folder)]
    records = {str(run): run.record() for run in unfinished}
    left_out = [f"{run} is {record.status}, at step {record.steps}" for run, record in records.items()]
    if not found:
        raise UserError(
            f"{', '.join(map(str, folders))}: no finished evaluation named {name}. "
            f"{'; '.join(left_out) or 'Pass output folders of training'}."
        )
    if in_order:
        found.sort(key=lambda run: run.record.job)
    named: dict[str, list[FinishedRun]] = {}
    for run in found:
        named.setdefault(run.record.dataset, []).append(run)
    datasets = []
    for dataset, runs in sorted(named.items()):
        groups = _split_by_settings(runs, left_out)
        datasets.append(Dataset(dataset, groups if in_order else sorted(groups, key=_sort_key)))
    return datasets, left_out


def settings_of(run: FinishedRun) -> dict[str, Any]:
    """Return the settings that separate the rows of a report, by dotted key."""
    config, found = read_config(run.record.config), {}
    for group, shared in SHARED.items():
        values = {key: value for key, value in vars(getattr(config, group)).items() if key not in shared}
        found |= {f"{group}.{key}": value for key, value in values.items()}
    if not config.evaluation.quantile_readings:
        del found["evaluation.read"], found["evaluation.interval"]
    evaluated = run.folder.path.parent.name
    if evaluated.startswith(CHECKPOINT):  # not the final model of its run
        found["checkpoint"] = int(evaluated.removeprefix(CHECKPOINT))
    return found


def _split_by_settings(runs: Sequence[FinishedRun], left_out: list[str]) -> list[Group]:
    """Group runs of one dataset by label and settings; describe repeated runs in `left_out`.

    Another seed, such as `train_seed`, does not count if it is each run's own.
    """
    table = pd.DataFrame([{k: format_setting(v) for k, v in settings_of(run).items()} for run in runs])
    table, own = table.fillna("null"), [str(run.record.seed) for run in runs]
    table = table.drop(columns=[key for key in table if key.endswith("_seed") and [*table[key]] == own])
    labels, settings = pd.Series([run.record.label for run in runs]), table.agg(tuple, axis=1)
    groups = []
    for (label, _), same in table.groupby([labels, settings], sort=False):
        seeds: dict[int, FinishedRun] = {}
        for run in (runs[i] for i in same.index):
            if (first := seeds.setdefault(run.record.seed, run)) is not run:
                left_out.append(f"{run.folder} repeats {first.folder}, which is kept")
        # Only what distinguishes rows of one label, by the last part of its key.
        differs = table[labels == label].nunique() > 1
        shown = [
            f"{key.rpartition('.')[2]}={value}"
            for key, value in same.iloc[0][differs].items()
            if value != "null"
        ]
        name = f"{label} ({', '.join(shown)})" if shown else label
        groups.append(Group(name, [seeds[seed] for seed in sorted(seeds)]))
    return groups


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


def _sort_key(group: Group) -> tuple[int, str]:
    model = group.label.partition(" ")[0]
    return MODEL_ORDER.index(model) if model in MODEL_ORDER else len(MODEL_ORDER), group.label
