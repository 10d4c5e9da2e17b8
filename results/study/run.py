"""Make the runs of the study that are missing. From the root of the project: `python results/study/run.py`.

    python results/study/run.py --list            count the runs, and estimate the time of the missing ones
    python results/study/run.py                   make the missing ones; Ctrl-C keeps those that are finished
    python results/study/run.py selection sums    make only those of the selection and of the task `sums`
    python results/study/run.py --jobs 1          one at a time; default: one per core, at most four

`study.yaml` says which runs there are. Runs with another seed (and other data, where it is generated) select
learning rates and weights; they precede the runs of their family. Each run writes its configuration, metrics
and learning curve to a folder below `results/study/runs`; model weights and answers are deleted. diamonds.csv
and txhousing.csv, two data sets of ggplot2 (plotnine ships them), belong in data/tabular. Text needs
`ntl prepare gsm8k source=FOLDER`, with the folder of GSM8K's official files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ntl.config.comparison import KEYS, objective_overrides
from ntl.config.compose import compose_config
from ntl.config.paper_keys import read_settings
from ntl.config.settings import RunSettings
from ntl.errors import UserError
from ntl.training.folders import remaining
from ntl.training.run_folder import Metrics, RunFolder
from ntl.training.sweep import default_jobs, do_runs

HERE = Path(__file__).parent
STUDY = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
RUNS = HERE / "runs"
MADE = "made.json"
KEPT = {"run.json", "metrics.json", "learning_curve.jsonl", MADE}
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
    def folder(self) -> Path:
        """The folder that it is written to."""
        own = f"{self.objective}/seed{self.seed}"
        if self.candidate is not None:
            own = f"selection/{self.objective}={self.candidate:g}"
        return RUNS / f"{self.task}-{self.steps}" / own

    def is_finished(self) -> bool:
        """Return whether its results are there."""
        folder = RunFolder(self.folder)
        return folder.holds_run() and folder.record().status == "finished"

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="selection, or tasks of study.yaml; default: everything")
    parser.add_argument(
        "--jobs", type=int, default=default_jobs(), help="runs at a time; default: %(default)s"
    )
    parser.add_argument("--list", action="store_true", help="only print what would be done")
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in ("selection", *STUDY["tasks"])]:
        parser.error(f"{unknown[0]} is no task; expected selection or some of {', '.join(STUDY['tasks'])}")
    wanted: dict[Run, int] = {}
    for place, part in enumerate(parts()):
        for run in part:
            if is_asked(run, given.only):
                wanted.setdefault(run, place)
    missing = [run for run in wanted if not run.is_finished()]
    print(f"{len(wanted)} runs, {len(missing)} of them missing: {estimate(missing, given.jobs)}")
    if given.list:
        for _, group in groupby(wanted, wanted.__getitem__):
            runs = list(group)
            print(f"  {runs[0]} to {runs[-1]}: {sum(run in missing for run in runs)} of {len(runs)} missing")
        return 0
    done, origin = 0, provenance()
    for run in wanted.keys() - missing:
        if not (run.folder / MADE).exists():  # the program was killed after the run's last step
            finish(run, {**origin, "commit": "unknown"})
    try:
        for _, group in groupby(missing, wanted.__getitem__):
            try:
                runs = {str(run): run for run in group}
                unfinished = {name: remaining(run.settings(), False) for name, run in runs.items()}
            except UserError as error:
                print(error, file=sys.stderr)
                continue
            for name in do_runs(unfinished, given.jobs):
                finish(runs[name], origin)
                done += 1
    except KeyboardInterrupt:
        print(f"Interrupted; {done} runs were added. The same command continues.", file=sys.stderr)
    return int(done < len(missing))


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
    return not only or ("selection" if run.candidate is not None else run.task) in only


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
            f"{[*results]} of {expected}. Run `python results/study/run.py selection`; if one of its runs "
            "failed, the error is above."
        )
    return min(results, key=lambda candidate: results[candidate]["mae"])


def selection_tasks() -> list[str]:
    """Return the tasks that settings are selected on, in the order of the parts."""
    return list(dict.fromkeys(part["selection"] for part in STUDY["parts"] if "selection" in part))


def selection_results(family: str, objective: str) -> dict[float, Metrics]:
    """Map each candidate of the selection whose run is finished to its metrics on validation data."""
    task = next(name for name in selection_tasks() if STUDY["tasks"][name]["family"] == family)
    runs = [Run(task, 0, objective, STUDY["selection"]["seed"], tried) for tried in candidates(objective)]
    return {run.candidate: RunFolder(run.folder).metrics()["validation"] for run in runs if run.is_finished()}


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the configuration of a run."""
    config = compose_config("compare", overrides, "results/study/run.py")
    return {key: value for key, value in config.items() if key not in KEYS}


def words(text: str) -> list[str]:
    """Split overrides at the spaces between them."""
    return objective_overrides(text) if text else []


def estimate(missing: Sequence[Run], jobs: int) -> str:
    """Estimate the time of the missing runs from the time per update of finished ones."""
    known: dict[str, list[float]] = {}
    for path in RUNS.rglob("run.json"):
        record = RunFolder(path.parent).record()
        if record.status == "finished" and record.steps:
            known.setdefault(path.relative_to(RUNS).parts[0], []).append(record.train_seconds / record.steps)
    medians = {setting: statistics.median(seconds) for setting, seconds in known.items()}
    default = statistics.median(medians.values()) if medians else UNKNOWN_SECONDS
    seconds = sum(run.steps * medians.get(f"{run.task}-{run.steps}", default) for run in missing)
    return f"about {seconds / jobs / 3600:.1f} hours, {jobs} at a time"


def provenance() -> dict[str, str]:
    """Return today's date, the machine, and the commit of the code."""
    changes = git("status", "--porcelain", "src", "results/study/run.py", "results/study/study.yaml")
    return {
        "date": date.today().isoformat(),
        "machine": f"{cpu()}, {os.cpu_count()} cores",
        "commit": git("rev-parse", "HEAD") + (" with changes" if changes else ""),
    }


def finish(run: Run, origin: Mapping[str, str]) -> None:
    """Record where a run comes from and a hash of its configuration, and delete what is not kept."""
    config = RunFolder(run.folder).record().config
    own = {section: values for section, values in config.items() if section != "evaluation"}
    configuration = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]
    for path in run.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
    made = {**origin, "configuration": configuration}
    (run.folder / MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def cpu() -> str:
    """Return the name of the processor."""
    if sys.platform == "linux":
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    """Return the output of a git command in this folder."""
    command = ["git", "-C", str(HERE.parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
