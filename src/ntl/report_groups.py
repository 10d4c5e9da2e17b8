"""From folders to groups of finished runs that differ in their seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ntl.errors import UserError
from ntl.metrics import mean_and_interval
from ntl.records import flatten
from ntl.run_folder import CHECKPOINT, EVALUATIONS, Metrics, RunFolder, RunRecord, find_runs, shown

PAPERS_ORDER = ("T5", "RT", "xVal")
# fmt: off
# Keys of a configuration (by their last part) that say where, how often and how fast, not what is run.
NOT_TOLD_APART = (
    "seed", "data_seed", "name", "special_name", "trial", "output_dir", "data_dir", "run_name",
    "cache_dir", "evaluated", "logging_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_only_eval",
    "logging_steps", "logging_strategy", "eval_steps", "save_steps", "save_strategy",
    "save_total_limit", "report_to", "use_cpu", "per_device_eval_batch_size",
    "dataloader_num_workers", "dataloader_pin_memory", "samples_during_training", "disable_tqdm",
)
# fmt: on


@dataclass(frozen=True)
class FinishedRun:
    """A run that the report is about.

    Args:
        folder: Where it lies.
        record: What was run.
        metrics: Test set -> metric -> value.
    """

    folder: RunFolder
    record: RunRecord
    metrics: Mapping[str, Metrics]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: one row of a table.

    Args:
        dataset: Of all of them.
        label: Of their objective, with the settings that tell it from others of that name.
        runs: By seed.
    """

    dataset: str
    label: str
    runs: Sequence[FinishedRun]

    def values(self, test: str, metric: str) -> list[float | None]:
        """A metric of a test set, by seed; None where a run has none."""
        return [run.metrics.get(test, {}).get(metric) for run in self.runs]

    def mean_and_interval(self, test: str, metric: str) -> tuple[float | None, float | None]:
        """Mean over seeds, and the half-width of its confidence interval; see `metrics`."""
        return mean_and_interval(self.values(test, metric))


def load_finished(folders: Sequence[Path | str]) -> tuple[list[FinishedRun], list[str]]:
    """Load the finished runs in folders and below.

    Args:
        folders: See `run_folder.find_runs`.

    Returns:
        The finished runs in their order, and a line about each run that was left out.

    Raises:
        UserError: No run is finished; a folder or a file cannot be used.
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
            f"no run is finished: {'; '.join(left_out)}. Expected at least one; the command that began a run "
            "finishes it."
        )
    return finished, left_out


def without_repetitions(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], list[str]]:
    """Keep the first of runs that differ in nothing, not even the seed.

    Args:
        runs: In the order of the folders that were asked for.

    Returns:
        The runs that are kept, and a line about each other one that names both folders.
    """
    kept: dict[str, FinishedRun] = {}
    left_out = []
    for run in runs:
        record = run.record
        key = repr((record.dataset, record.objective, record.seed, sorted(_settings(run).items())))
        if (first := kept.setdefault(key, run)) is not run:
            left_out.append(
                f"{run.folder} repeats {first.folder} ({record.dataset}, {record.objective}, seed "
                f"{record.seed}, the same settings but for names and paths); the first one is kept"
            )
    return list(kept.values()), left_out


def group_runs(runs: Sequence[FinishedRun]) -> list[Group]:
    """Group runs by dataset, objective, and whatever else their configurations differ in.

    Args:
        runs: Of any datasets, from `without_repetitions`.

    Returns:
        Groups, those of a model together, each without a number loss first.
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
            told = ", ".join(f"{_shortest(key, keys)}={shown(config.get(key))}" for key in differing)
            seeds = groups.setdefault((dataset, f"{objective} ({told})" if told else objective), {})
            seeds[run.record.seed] = run
    return [
        Group(dataset, label, [seeds[seed] for seed in sorted(seeds)])
        for (dataset, label), seeds in sorted(groups.items(), key=lambda item: _place(*item[0]))
    ]


def by_dataset(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each dataset, in their order."""
    datasets: dict[str, list[Group]] = {}
    for group in groups:
        datasets.setdefault(group.dataset, []).append(group)
    return datasets


def test_sets(groups: Sequence[Group]) -> list[str]:
    """The test sets of some groups, in the order in which they were evaluated."""
    return list(dict.fromkeys(test for group in groups for run in group.runs for test in run.metrics))


def differing_questions(groups: Sequence[Group]) -> list[str]:
    """The test sets that are not the same questions in all runs, so that rows cannot be compared."""
    return [
        test
        for test in test_sets(groups)
        if len({run.folder.questions(test) for group in groups for run in group.runs if test in run.metrics})
        > 1
    ]


def without_predictions(groups: Sequence[Group]) -> list[str]:
    """The test sets whose answers are not there for all runs, as where only metrics were published."""
    return [
        test
        for test in test_sets(groups)
        if any(
            test in run.metrics and not run.folder.predictions_path(test).exists()
            for group in groups
            for run in group.runs
        )
    ]


def not_shown(runs: Sequence[FinishedRun]) -> list[RunFolder]:
    """The evaluations beside the runs' own that are not among the runs."""
    known = {run.folder.path.resolve() for run in runs}
    found = [evaluation for run in runs for evaluation in run.folder.evaluations()]
    return [evaluation for evaluation in found if evaluation.path.resolve() not in known]


def evaluation_lines(groups: Sequence[Group]) -> list[str]:
    """Say with which settings the runs that are shown were evaluated, and which evaluations are not shown.

    Args:
        groups: Of one dataset.

    Returns:
        One line for the settings, and one for the other evaluations if there are some.
    """
    settings: Counter[str] = Counter()
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        asked = run.record.config.get("evaluation", {})
        told = (f"{key}={shown(asked[key])}" for key in asked if key != "samples_during_training")
        settings[", ".join(told) or "settings that were not written down"] += 1
    lines = ["Evaluated with " + "; ".join(_counted(settings, len(settings) > 1)) + "."]
    if others := Counter(evaluation.path.name for evaluation in not_shown(runs)):
        lines.append(
            f"Not shown: evaluations with {'; '.join(_counted(others, True))}, relative to the run's own. To "
            f"report one, name its folder, RUN/{EVALUATIONS}/SETTINGS."
        )
    return lines


def _counted(counts: Mapping[str, int], with_runs: bool) -> list[str]:
    runs = {name: f" ({count} run{'s' if count > 1 else ''})" for name, count in counts.items()}
    return [f"{name}{runs[name] if with_runs else ''}" for name in counts]


def _settings(run: FinishedRun) -> dict[str, str]:
    """What tells runs apart, as rows of a table show it; a key that is absent is one that is null."""
    flat = flatten(run.record.config)
    evaluated = Path(str(flat.get("evaluated"))).name
    if evaluated.startswith(CHECKPOINT):  # not the model that its run ended with
        flat["checkpoint"] = evaluated.removeprefix(CHECKPOINT)
    return {
        key: shown(value)
        for key, value in flat.items()
        if value is not None and key.rpartition(".")[2] not in NOT_TOLD_APART
    }


def _place(dataset: str, label: str) -> tuple[str, int, str]:
    model = label.partition(" ")[0]
    return dataset, PAPERS_ORDER.index(model) if model in PAPERS_ORDER else len(PAPERS_ORDER), label


def _shortest(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, unless another key ends in it too."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key
