"""Make the runs of the study that are missing. From the root of the project: `python results/study/run.py`.

    python results/study/run.py --list            the number of runs, what is missing, and an estimate of the time
    python results/study/run.py                   make all that are missing; Ctrl-C keeps the finished ones
    python results/study/run.py selection sums    only the runs for selecting settings, and those of the task `sums`
    python results/study/run.py --jobs 1          one at a time; default: one per core, at most four

`study.yaml` says which runs there are. Each writes its configuration, metrics and learning curve to a folder below
`results/study/runs`; model weights and answers are deleted. diamonds.csv and txhousing.csv, two data sets of ggplot2
(plotnine ships them), belong into data/tabular.
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
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from ntl.config.comparison import KEYS
from ntl.config.compose import compose_config
from ntl.config.paper_keys import read_settings
from ntl.config.settings import RunSettings
from ntl.errors import UserError
from ntl.training.folders import remaining
from ntl.training.run_folder import RunFolder
from ntl.training.sweep import default_jobs, do_runs

HERE = Path(__file__).parent
STUDY = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
RUNS = HERE / "runs"
KEPT = {"run.json", "metrics.json", "learning_curve.jsonl", "made.json"}
UNKNOWN_SECONDS = 0.06  # per update, before any run is finished


def main() -> int:
    """Make the missing runs, and return the exit code: 1 if one failed, 2 if nothing could be started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="selection, or tasks of study.yaml; default: everything")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="runs at a time; default: %(default)s")
    parser.add_argument("--list", action="store_true", help="only print what would be done")
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in ("selection", *STUDY["settings"])]:
        parser.error(f"{unknown[0]} is no task; expected selection or some of {', '.join(STUDY['settings'])}")
    try:
        wanted = {name: s for name, s in all_runs().items() if not given.only or task(name) in given.only}
        missing = {name: left for name, s in wanted.items() if (left := remaining(s, False)) is not None}
        print(f"{len(wanted)} runs, {len(missing)} of them missing: {estimate(missing.values(), given.jobs)}")
        for name in dict.fromkeys(map(task, wanted)):
            print(f"  {name}: {sum(task(m) == name for m in missing)} of {sum(task(w) == name for w in wanted)}")
        if given.list:
            return 0
        done = 0
        for name in do_runs(missing, given.jobs):
            finish(missing[name])
            done += 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return int(done < len(missing))


def all_runs() -> dict[str, RunSettings]:
    """Compose all runs, by name, in the order in which they are made."""
    runs = {}
    for setting, objective, rate, weight in selection():
        seed = STUDY["selection"]["seed"]
        name = f"selection: {setting}, {objective}, learning rate {rate}, weight {weight}"
        runs[name] = compose(setting, 0, objective, seed, rate, weight)
    for part in STUDY["parts"]:
        for seed in range(part["seeds"]):
            for setting in part["settings"]:
                family = STUDY["settings"][setting]["family"]
                for budget in part["budgets"]:
                    for objective in STUDY["groups"][part["objectives"]]:
                        name = f"{setting}, budget {budget}, {objective}, seed {seed}"
                        weight = STUDY["weights"][family].get(objective)
                        runs[name] = compose(setting, budget, objective, seed, STUDY["rates"][family], weight)
    return runs


def selection() -> Iterator[tuple[str, str, float, float | None]]:
    """Yield the task, objective, learning rate and weight of each run for selecting them."""
    choice = STUDY["selection"]
    for setting in choice["settings"]:
        family = STUDY["settings"][setting]["family"]
        for rate in choice["rates"]:
            yield setting, "ce", rate, None
        for objective in choice["objectives"]:
            for weight in choice["sigmas" if objective == "gaussian" else "weights"]:
                yield setting, objective, STUDY["rates"][family], weight


def compose(
    setting: str, budget: int, objective: str, seed: int, rate: float, weight: float | None
) -> RunSettings:
    """Compose the settings of one run.

    Args:
        setting: A task of `study.yaml`.
        budget: 0 for the smaller number of steps, 1 for the larger.
        objective: An objective of `study.yaml`.
        seed: Seed of the run, and of the data if it is that of the selection.
        rate: Learning rate.
        weight: λ, or σ of Gaussian smoothing; None if the objective has none.
    """
    chosen, steps = STUDY["settings"][setting], STUDY["settings"][setting]["steps"][budget]
    selects = seed == STUDY["selection"]["seed"]
    name = f"{objective},rate={rate:g}" + ("" if weight is None else f",weight={weight:g}")
    folder = RUNS / f"{setting}-{steps}" / (f"selection/{name}" if selects else f"{objective}/seed{seed}")
    overrides = [
        *words(STUDY["common"]),
        *words(chosen["overrides"]),
        *words(STUDY["objectives"][objective].replace("WEIGHT", str(weight))),
        f"training_args.max_steps={steps}",
        f"training_args.eval_steps={steps // 8}",
        f"training_args.learning_rate={rate}",
        f"dataset_args.data_seed={seed if selects else 0}",
    ]
    config = compose_config("compare", overrides, "results/study/run.py")
    sections = {key: value for key, value in config.items() if key not in KEYS}
    sections["training_args"] |= {"seed": seed, "output_dir": os.path.relpath(folder)}
    return read_settings(sections)


def words(text: str) -> list[str]:
    """Split overrides at the spaces between them."""
    return re.split(r"\s+(?=[\w.]+=)", text.strip()) if text.strip() else []


def task(name: str) -> str:
    """Return the task of a run's name, or `selection`."""
    return re.split(r"[:,]", name)[0]


def estimate(missing: Any, jobs: int) -> str:
    """Estimate the time of the missing runs from the median time per update of the finished ones."""
    records = [RunFolder(path.parent).record() for path in RUNS.rglob("run.json")]
    known = [r.train_seconds / r.steps for r in records if r.status == "finished" and r.steps]
    seconds = statistics.median(known) if known else UNKNOWN_SECONDS
    updates = sum(settings.trainer["max_steps"] for settings in missing)
    return f"about {updates * seconds / jobs / 3600:.1f} hours, {jobs} at a time"


def finish(settings: RunSettings) -> None:
    """Record which machine and code made a run, and delete what is not kept."""
    folder = settings.output_dir
    own = {k: v for k, v in settings.config.items() if k != "evaluation"}
    made = {
        "date": date.today().isoformat(),
        "machine": f"{cpu()}, {os.cpu_count()} cores",
        "commit": git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "src") else ""),
        "configuration": hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16],
    }
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
    (folder / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


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
