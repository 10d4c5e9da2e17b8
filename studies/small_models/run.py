"""Make the runs of the study that are missing. From the root of the project:

    python -m studies.small_models.run --list         count the runs, and estimate the time that is left
    python -m studies.small_models.run                make the missing ones; Ctrl-C keeps the finished ones
    python -m studies.small_models.run selection sums  make those of the selection and of the task `sums`
    python -m studies.small_models.run --jobs 1       one at a time; default: one per core, at most four
    python -m studies.small_models.run --again NAME   repeat a packed run, such as sums-800/ce/seed0
    python -m studies.small_models.run --pack         move the new runs into the pack

`study.yaml` says which runs there are. Runs with another seed (and other data, where it is generated) select
learning rates and weights; they precede the runs of their family. New runs are written to
`outputs/small_models`; model weights and answers are deleted. diamonds.csv and txhousing.csv, two data sets
of ggplot2 (plotnine ships them), belong in data/tabular. Text needs `ntl prepare gsm8k source=FOLDER`, with
the folder of GSM8K's official files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ntl.config.comparison import KEYS, objective_overrides
from ntl.config.compose import compose_config
from ntl.config.settings import RunSettings, read_settings
from ntl.errors import UserError
from ntl.runs.sweep import default_jobs, do_runs
from ntl.training.folders import remaining
from ntl.training.run_folder import Metrics
from studies.packing import (
    MADE,
    ROOT,
    Runs,
    StoredRun,
    finish,
    part_lines,
    print_lines,
    provenance,
    read_run,
)

HERE = Path(__file__).parent
STUDY = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
RESULTS = ROOT / "results" / "small_models"
CURVE = (
    "step", "eval_count", "eval_ce", "eval_ntl", "eval_mae", "eval_median_mae", "eval_mean_mae",
    "eval_exact_number", "eval_crps",
)  # fmt: skip
UNKNOWN_SECONDS = 0.06  # per update, before any run is finished
BASELINE = "ce"


class Run(NamedTuple):
    """One run of the study.

    Args:
        task: A task of `study.yaml`.
        budget: 0 for the smaller number of steps, 1 for the larger.
        objective: An objective of `study.yaml`.
        seed: Seed of the run.
        candidate: What a run of the selection tries: the learning rate for cross-entropy, the weight for a
            loss. None: the selected one.
    """

    task: str
    budget: int
    objective: str
    seed: int
    candidate: float | None = None

    def __str__(self) -> str:
        tried = "" if self.candidate is None else f", tries {self.candidate:g}"
        return f"{self.task}, {self.steps} steps, {self.objective}, seed {self.seed}{tried}"

    @property
    def steps(self) -> int:
        """Number of updates."""
        return STUDY["tasks"][self.task]["steps"][self.budget]

    @property
    def name(self) -> str:
        """Its name in the pack."""
        own = f"{self.objective}/seed{self.seed}"
        if self.candidate is not None:
            own = f"selection/{self.objective}={self.candidate:g}"
        return f"{self.task}-{self.steps}/{own}"

    @property
    def folder(self) -> Path:
        """The folder that it is written to."""
        return RUNS.folder / self.name

    def is_finished(self) -> bool:
        """Return whether its results are there."""
        return RUNS.get(self.name) is not None

    def is_made_again(self) -> bool:
        """Return whether its results are in its folder, whatever is packed."""
        return RUNS.loose(self.name) is not None

    def settings(self) -> RunSettings:
        """Compose its settings.

        Raises:
            UserError: The runs that select its learning rate or weight are not finished.
        """
        task, selects = STUDY["tasks"][self.task], self.candidate is not None
        rate = (
            self.candidate if selects and self.objective == BASELINE else selected(task["family"], BASELINE)
        )
        weight = self.candidate if selects else selected(task["family"], self.objective)
        overrides = [
            *words(STUDY["common"]),
            *words(task["overrides"]),
            *words(STUDY["objectives"][self.objective].replace("WEIGHT", str(weight))),
            f"training_args.max_steps={self.steps}",
            f"training_args.eval_steps={self.steps // 8}",
            f"training_args.learning_rate={rate}",
            *([f"dataset_args.data_seed={self.seed}"] if selects and task["family"] != "tables" else []),
        ]
        sections = compose(overrides)
        sections["training_args"] |= {"seed": self.seed, "output_dir": os.path.relpath(self.folder)}
        return read_settings(sections)


def main() -> int:
    """Make the missing runs, and return the exit code: 1 if a run is still missing."""
    given = arguments()
    if given.pack:
        print(f"{len(RUNS.merge())} runs were moved from {RUNS.folder} to {RUNS.pack}")
        return 0
    asked = asked_parts(given.only)
    wanted = [run for part in asked for run in part]
    is_finished = Run.is_made_again if given.again else Run.is_finished
    missing = [run for run in wanted if not is_finished(run)]
    if given.list:
        count = f"{len(wanted)} runs, {len(missing)} of them missing: {estimate(missing, given.jobs)}"
        print_lines([count, *part_lines(asked, missing)])
        return 0
    print(f"{len(missing)} of {len(wanted)} runs are missing: {estimate(missing, given.jobs)}")
    done, origin = 0, provenance("src", "studies")
    for run in wanted:
        if run.is_made_again() and not (run.folder / MADE).exists():  # killed after the run's last step
            finish(run.folder, {**origin, "commit": "unknown"})
    try:
        for part in asked:
            try:
                runs = {str(run): run for run in part if run in missing}
                unfinished = {name: remaining(run.settings(), False) for name, run in runs.items()}
            except UserError as error:
                print(error, file=sys.stderr)
                continue
            for name in do_runs(unfinished, given.jobs):
                finish(runs[name].folder, origin)
                done += 1
    except KeyboardInterrupt:
        print(f"Interrupted; {done} runs were added. The same command continues.", file=sys.stderr)
    return int(done < len(missing))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("only", nargs="*", help="selection, tasks of study.yaml, or names of runs; default: everything")
    add("--jobs", type=int, default=default_jobs(), help="runs at a time; default: %(default)s")
    add("--list", action="store_true", help="only print what would be done")
    add("--again", action="store_true", help="repeat runs that are packed")
    add("--pack", action="store_true", help="move the new runs into the pack, and end")
    given = parser.parse_args()
    names = {run.name for part in parts() for run in part}
    if unknown := [name for name in given.only if name not in {"selection", *STUDY["tasks"], *names}]:
        tasks = ", ".join(STUDY["tasks"])
        parser.error(
            f"{unknown[0]} is neither a task nor a run; expected selection, some of {tasks}, or the name of "
            "a run, such as sums-800/ce/seed0"
        )
    return given


def asked_parts(only: Sequence[str]) -> list[list[Run]]:
    """Return the parts of the study with the runs that the command names, each of them once."""
    seen: set[Run] = set()
    found = []
    for part in parts():
        new = [run for run in dict.fromkeys(part) if run not in seen and is_asked(run, only)]
        seen |= {*new}
        found += [new] if new else []
    return found


def parts() -> Iterator[list[Run]]:
    """Yield the parts of the study in order. Each may need the selection that precedes it."""
    seed = STUDY["selection"]["seed"]
    for part in STUDY["parts"]:
        objectives = STUDY["groups"][part["objectives"]]
        if "selection" in part:
            tried = {o: [Run(part["selection"], 0, o, seed, c) for c in candidates(o)] for o in objectives}
            yield tried.pop(BASELINE, [])  # the weights' runs need its rate
            yield [run for runs in tried.values() for run in runs]
        else:
            axes = product(range(part["seeds"]), part["tasks"], part["budgets"], objectives)
            yield [Run(task, budget, objective, seed) for seed, task, budget, objective in axes]


def is_asked(run: Run, only: Sequence[str]) -> bool:
    """Return whether a run is among those that the command names."""
    own = "selection" if run.candidate is not None else run.task
    return not only or own in only or run.name in only


def candidates(objective: str) -> list[float]:
    """Return the learning rates or weights of an objective among which one is selected. Some have neither."""
    if objective == BASELINE:
        return STUDY["selection"]["rates"]
    if "WEIGHT" not in STUDY["objectives"][objective]:
        return []
    return STUDY["selection"]["sigmas" if objective == "gaussian" else "weights"]


def selected(family: str, objective: str) -> float | None:
    """Return the selected weight of an objective, or the selected learning rate of cross-entropy.

    Args:
        family: A family of tasks.
        objective: An objective of `study.yaml`.

    Returns:
        The candidate with the least error on validation data, or what `study.yaml` fixes for the family. None
        for an objective without a weight.

    Raises:
        UserError: The selection is not finished.
    """
    expected = candidates(objective)
    if not expected:
        return None
    if fixed := STUDY["fixed"].get(family):
        return fixed["rate" if objective == BASELINE else "weight"]
    results = selection_results(family, objective)
    if [*results] != expected:
        raise UserError(
            f"the runs that select the setting of {objective} for {family} are not finished: there are "
            f"{[*results]} of {expected}. Run `python -m studies.small_models.run selection`; if one of its "
            "runs failed, the error is above."
        )
    return min(results, key=lambda candidate: results[candidate]["mae"])


def selection_tasks() -> list[str]:
    """Return the tasks that settings are selected on, in the order of the parts."""
    return list(dict.fromkeys(part["selection"] for part in STUDY["parts"] if "selection" in part))


def selection_results(family: str, objective: str) -> dict[float, Metrics]:
    """Map each candidate of the selection whose run is finished to its metrics on validation data."""
    task = next(name for name in selection_tasks() if STUDY["tasks"][name]["family"] == family)
    runs = [Run(task, 0, objective, STUDY["selection"]["seed"], tried) for tried in candidates(objective)]
    found = {run.candidate: RUNS.get(run.name) for run in runs}
    return {tried: stored["metrics"]["validation"] for tried, stored in found.items() if stored}


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the configuration of a run."""
    overrides = [*overrides, "training_args.use_cpu=true"]  # as the published runs
    config = compose_config("compare", overrides, "python -m studies.small_models.run")
    return {key: value for key, value in config.items() if key not in KEYS}


def words(text: str) -> list[str]:
    """Split overrides at the spaces between them."""
    return objective_overrides(text) if text else []


def estimate(missing: Sequence[Run], jobs: int) -> str:
    """Estimate the time of the missing runs from the time per update of finished ones."""
    known: dict[str, list[float]] = {}
    for name, stored in RUNS.all().items():
        record = stored["record"]
        if record["steps"]:
            known.setdefault(name.partition("/")[0], []).append(record["train_seconds"] / record["steps"])
    medians = {setting: statistics.median(seconds) for setting, seconds in known.items()}
    default = statistics.median(medians.values()) if medians else UNKNOWN_SECONDS
    seconds = sum(run.steps * medians.get(f"{run.task}-{run.steps}", default) for run in missing)
    return f"about {seconds / jobs / 3600:.1f} hours, {jobs} at a time"


def read_reduced(folder: Path) -> StoredRun | None:
    """Read the folder of a run, without the metrics of its learning curve that nothing uses."""
    run = read_run(folder)
    if run is not None:
        run["curve"] = [{key: point[key] for key in CURVE if key in point} for point in run["curve"]]
    return run


RUNS = Runs(RESULTS / "runs.jsonl.xz", ROOT / "outputs" / "small_models", read_reduced)

if __name__ == "__main__":
    sys.exit(main())
