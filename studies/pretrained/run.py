"""Make the runs of the study that are missing. From the root of the project:

    python -m studies.pretrained.run --list          count the runs that are missing
    python -m studies.pretrained.run                 make them; Ctrl-C keeps the finished ones
    python -m studies.pretrained.run --minutes 10    start none after ten minutes
    python -m studies.pretrained.run --pack          move the new runs into the pack

`study.yaml` says which runs there are. They need `make model data`. New runs are written to
`outputs/pretrained`, each with what it read for every row of its test set; so is the cached output of the
frozen layers.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

import ntloss
from ntl.data.files import write_json
from ntl.data.table_files import read_table
from ntl.errors import UserError
from studies.packing import ROOT, Runs, StoredRun, part_lines, print_lines, provenance
from studies.pretrained.answers import AnswerTree
from studies.pretrained.model import Rows, UpperLayers
from studies.pretrained.solutions import Solutions
from studies.pretrained.training import Settings, Trainer, draw, ridge, trees
from studies.small_models.trees import typed

HERE = Path(__file__).parent
STUDY = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
OUTPUT = ROOT / "outputs" / "pretrained"
READINGS = ("greedy", "median", "mean")
WITHOUT_MODEL = ("ridge", "trees", "constant")
UNTRAINED = ("zero_shot", "few_shot")


class Run(NamedTuple):
    """One run of the study.

    Args:
        task: A task or text of `study.yaml`.
        rows: Number of training rows.
        arm: An arm of `study.yaml`.
        seed: Draws the rows, and their order.
        layers, rate, weight: What a run of the selection tries. None: what was selected.
    """

    task: str
    rows: int
    arm: str
    seed: int
    layers: int | None = None
    rate: float | None = None
    weight: float | None = None

    @property
    def name(self) -> str:
        """Its name in the pack."""
        tried = {"layers": self.layers, "rate": self.rate, "weight": self.weight}
        tries = ",".join(f"{key}={value:g}" for key, value in tried.items() if value is not None)
        own = f"selection/{self.arm},{tries}" if tries else self.arm
        return f"{self.task}-{self.rows}/{own}/seed{self.seed}"

    @property
    def selects(self) -> bool:
        """Whether it belongs to the selection: it answers the validation set, not the test set."""
        return self.seed in STUDY["selection"]["seeds"]

    def complete(self) -> Run:
        """Return the run with what was selected.

        Raises:
            UserError: The runs of its selection are not finished.
        """
        if self.arm in WITHOUT_MODEL:
            return self
        layers, arm = self.layers or selected_layers(), STUDY["arms"][self.arm]
        if self.arm in UNTRAINED:
            return self._replace(layers=layers)
        tuned = self.arm if rates(self.arm) else arm.get("rate_of", "ce")
        rate = self.rate or selected(self.task, tuned, layers).rate
        weight = arm.get("weight", self.weight)
        if weight is None and arm.get("criterion"):
            weight = selected(self.task, self.arm, layers, rate).weight
        return self._replace(layers=layers, rate=rate, weight=weight)


def rates(arm: str) -> list[float]:
    """Return the learning rates that are tried for an arm; empty if it has another arm's."""
    tried = STUDY["arms"][arm].get("rates", [])
    return STUDY["selection"]["rates"] if tried is True else tried


def selection(task: str, arm: str, layers: int, rate: float | None = None) -> list[list[Run]]:
    """Return the runs of each candidate of an arm: learning rates, or weights at a learning rate."""
    seeds = STUDY["selection"]["seeds"]
    common = STUDY["texts"][task]["rows"] if task in STUDY["texts"] else STUDY["common"]
    if rates(arm):
        tried = [Run(task, common, arm, 0, layers, candidate) for candidate in rates(arm)]
    else:
        tried = [Run(task, common, arm, 0, layers, rate, weight) for weight in STUDY["selection"]["weights"]]
    return [[run._replace(seed=seed) for seed in seeds] for run in tried]


def selected(task: str, arm: str, layers: int, rate: float | None = None) -> Run:
    """Return a run of the candidate with the least validation error of the arm's reading."""
    candidates = selection(task, arm, layers, rate)
    return min(candidates, key=lambda runs: validation_error(runs, arm))[0]


def selected_layers() -> int:
    """Return the fewest layers whose best learning rate comes within the tolerance of the best of all."""
    options = STUDY["selection"]["layers"]
    best = {
        layers: min(validation_error(runs, "ce") for runs in selection(options["task"], "ce", layers))
        for layers in options["candidates"]
    }
    limit = (1 + options["within"]) * min(best.values())
    return min(layers for layers, error in best.items() if error <= limit)


def validation_error(runs: Sequence[Run], arm: str) -> float:
    """Return the mean validation error of the runs of a candidate."""
    found = [RUNS.get(run.name) for run in runs]
    if None in found:
        missing = next(run.name for run, stored in zip(runs, found, strict=True) if stored is None)
        raise UserError(f"the selection lacks the run {missing}. Run `python -m studies.pretrained.run`.")
    is_text = runs[0].task in STUDY["texts"]
    metric = "loss" if is_text else f"{STUDY['arms'][arm]['reading']}_mae"
    return mean(stored["metrics"][metric] for stored in found if stored)


def parts() -> Iterator[list[Run]]:
    """Yield the parts of the study in order. Each may need the selection that precedes it.

    Raises:
        UserError: The runs that a part depends on are not finished.
    """
    options = STUDY["selection"]["layers"]
    for part in STUDY["parts"]:
        if "selection" not in part:
            axes = product(range(part["seeds"]), part["tasks"], part["arms"])
            yield [Run(task, part["rows"], arm, seed) for seed, task, arm in axes]
            continue
        task = part["selection"]
        if task == options["task"]:
            tried = [selection(task, "ce", layers) for layers in options["candidates"]]
            yield [run for candidates in tried for runs in candidates for run in runs]
        layers = selected_layers()
        yield [
            run for arm in part["arms"] if rates(arm) for runs in selection(task, arm, layers) for run in runs
        ]
        rate = selected(task, "ce", layers).rate
        others = [arm for arm in part["arms"] if not rates(arm)]
        yield [run for arm in others for runs in selection(task, arm, layers, rate) for run in runs]


class Task:
    """A task's rows: a test set and validation data that all seeds share, and the pool of training rows."""

    def __init__(self, name: str):
        self.name, options = name, STUDY["tasks"][name]
        table = read_table(ROOT / options["file"], f"{name} of study.yaml")
        prompt = options["prompt"]
        keys = [key for key in table.columns if f"{{{key}}}" in prompt]
        self.prompts = [prompt.format(**row) for row in table[keys].astype(str).to_dict("records")]
        columns = typed(table.replace(options.get("missing", ""), None))
        self.columns = columns[keys]
        answers = columns.eval(options["answer"])
        self.answers = torch.tensor([round(number) for number in answers.fillna(0)])
        longest = len(prompt) + options["longest"]
        rows = [k for k in np.flatnonzero(answers.notna()).tolist() if len(self.prompts[k]) < longest]
        first = {self.prompts[k]: k for k in reversed(rows)}  # of equal prompts
        order = np.random.default_rng(0).permutation([*first.values()][::-1]).tolist()
        ends = np.cumsum([STUDY["test"], STUDY["validation"], options["pool"]])
        if len(order) < ends[-1]:
            raise UserError(f"{options['file']} has {len(order)} short rows; expected at least {ends[-1]}.")
        self.test, self.validation, self.pool = (part.tolist() for part in np.split(order, ends)[:3])
        self.used = order[: ends[2]]
        self.ratings = table[options["ratings"]] if "ratings" in options else None

    def raters(self, rows: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """Return the share of people who rated a row at most so high as each value, `[rows, values]`."""
        assert self.ratings is not None
        given = [torch.tensor([float(rating) for rating in self.ratings[row].split()]) for row in rows]
        return torch.stack([(one[:, None] <= values).double().mean(0) for one in given])


@functools.cache
def task_of(name: str) -> Task:
    """Read a task once."""
    return Task(name)


@functools.cache
def trainer_of(name: str, layers: int, lora: int | None = None) -> tuple[Trainer, dict[int, int]]:
    """Load the model for a task once; with the places of the task's rows among the trainer's."""
    torch.set_num_threads(1)
    task, options = task_of(name), STUDY["tasks"][name]
    model = UpperLayers(str(ROOT / STUDY["model"]), layers, lora)
    tree = AnswerTree(model.tokenizer, options["digits"], options["signed"], options.get("largest"))
    prompts = model.tokenizer([task.prompts[k] for k in task.used]).input_ids
    cache = OUTPUT / "states" / f"{name}-{layers}" if lora is None else None
    rows = Rows(prompts, tree, cache, model.frozen.width)
    trainer = Trainer(model, tree, rows, task.answers[task.used], STUDY["training"])
    return trainer, {row: place for place, row in enumerate(task.used)}


@functools.cache
def solutions_of(name: str, layers: int) -> Solutions:
    """Load the model for worked solutions once."""
    torch.set_num_threads(1)
    model = UpperLayers(str(ROOT / STUDY["model"]), layers)
    cache = OUTPUT / "states" / f"{name}-{layers}"
    return Solutions(model, STUDY["texts"][name], STUDY["training"], cache)


class Made(NamedTuple):
    """What a run found: losses of its steps, seconds of training, metrics, and what was read for each row."""

    losses: list[float]
    train_seconds: float
    metrics: dict[str, float]
    rows: dict[str, torch.Tensor]


def make(run: Run) -> str:
    """Make a run, write its folder, and return its name."""
    start = time.perf_counter()
    full, arm = run.complete(), STUDY["arms"][run.arm]
    is_text = run.task in STUDY["texts"]
    steps = STUDY["texts"][run.task]["steps"] if is_text else STUDY["rows"][run.rows]
    settings = Settings(
        run.arm,
        0 if run.arm in UNTRAINED else steps,
        full.rate or 0.0,
        run.seed,
        arm.get("criterion"),
        full.weight or 0.0,
        arm.get("normalize_by", "items"),
        arm.get("decays", False),
    )
    made = make_text(full, settings) if is_text else make_answers(full, settings)
    record: dict[str, Any] = {
        **full._asdict(),
        "steps": steps if run.arm in WITHOUT_MODEL else settings.steps,
    }
    if run.arm not in WITHOUT_MODEL:
        record |= {"last_losses": made.losses[-5:], "train_seconds": round(made.train_seconds, 2)}
    record |= {"versions": {"torch": torch.__version__, "ntloss": ntloss.__version__}}
    record |= {"seconds": round(time.perf_counter() - start, 2)}
    kept = {} if run.selects else made.rows
    rows = {key: [round(float(x), 2) for x in values] for key, values in kept.items()}
    folder = RUNS.folder / run.name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "made.json", ORIGIN)
    write_json(folder / "run.json", {"record": record, "metrics": made.metrics, "rows": rows})
    return run.name


def make_text(full: Run, settings: Settings) -> Made:
    """Train on worked solutions, and measure the losses of others."""
    solutions = solutions_of(full.task, full.layers or 0)
    start = time.perf_counter()
    losses = solutions.fit(draw(solutions.pool, full.seed, full.rows), settings)
    seconds = time.perf_counter() - start
    return Made(
        losses, seconds, solutions.measure(solutions.validation if full.selects else solutions.test), {}
    )


def make_answers(full: Run, settings: Settings) -> Made:
    """Train on rows of a table, and read the answers to others."""
    start, task = time.perf_counter(), task_of(full.task)
    drawn = draw(task.pool, full.seed, full.rows)
    asked = task.validation if full.selects else task.test
    answers = task.answers[asked].double()
    if full.arm in WITHOUT_MODEL:
        read = {"mean": baseline(task, full.arm, drawn, asked)}
        return Made([], 0.0, measure(read, answers), read)
    trainer, places = trainer_of(full.task, full.layers or 0, STUDY["arms"][full.arm].get("lora"))
    losses = trainer.fit([places[k] for k in drawn], settings)
    seconds = time.perf_counter() - start
    if full.arm == "few_shot":
        found = few_shot(task, trainer, drawn[: STUDY["arms"][full.arm]["examples"]], asked)
    else:
        found = trainer.predict([places[k] for k in asked], full.arm)
    if full.arm == "head":
        read = {"mean": found.double()}
        held = trainer.predict([places[k] for k in task.validation], full.arm).double()
        # Split conformal prediction (Lei et al. 2018) with the validation data.
        errors = (held - task.answers[task.validation]).abs().sort().values
        margin = float(errors[min(len(errors), int(np.ceil(0.9 * (len(errors) + 1)))) - 1])
        read |= {"lower": found.double() - margin, "upper": found.double() + margin}
    else:
        read = dict(trainer.tree.read(found)._asdict())
        probs = trainer.tree.log_probs(found).double().exp()
        read["crps"] = trainer.tree.crps(probs, answers)
        if task.ratings is not None:
            read["rater_crps"] = trainer.tree.rater_crps(probs, task.raters(asked, trainer.tree.values))
    return Made(losses, seconds, measure(read, answers), read)


def few_shot(task: Task, trainer: Trainer, drawn: Sequence[int], asked: Sequence[int]) -> torch.Tensor:
    """Return the logits of rows whose prompts begin with other rows and their answers."""
    examples = [task.prompts[k] + trainer.tree.write(int(task.answers[k])) for k in drawn]
    prompts = ["\n\n".join([*examples, task.prompts[k]]) for k in asked]
    rows = Rows(trainer.model.tokenizer(prompts).input_ids, trainer.tree)
    return trainer.predict(range(len(prompts)), "few_shot", batch=10, rows=rows)


def baseline(task: Task, arm: str, drawn: Sequence[int], asked: Sequence[int]) -> torch.Tensor:
    """Predict without the model: by ridge regression, trees, or the median of the training answers."""
    if arm == "ridge":
        texts = task.prompts
        return ridge([texts[k] for k in drawn], task.answers[list(drawn)], [texts[k] for k in asked])
    if arm == "trees":
        return trees(task.columns.iloc[drawn], task.answers[list(drawn)], task.columns.iloc[asked])
    return task.answers[list(drawn)].double().quantile(0.5).expand(len(asked))


def measure(read: dict[str, torch.Tensor], answers: torch.Tensor) -> dict[str, float]:
    """Return the errors of each reading, and the scores of intervals and distributions."""
    metrics = {f"{key}_mae": float((read[key] - answers).abs().mean()) for key in READINGS if key in read}
    if "lower" in read:
        inside = (read["lower"] <= answers) & (answers <= read["upper"])
        metrics["coverage"] = float(inside.double().mean())
        metrics["width"] = float((read["upper"] - read["lower"]).mean())
    metrics |= {key: float(read[key].mean()) for key in ("crps", "rater_crps") if key in read}
    return metrics


def read_folder(folder: Path) -> StoredRun | None:
    """Read the folder of a run; None if it is not finished."""
    path = folder / "run.json"  # written last
    if not path.exists():
        return None
    return {"made": json.loads((folder / "made.json").read_text()), **json.loads(path.read_text())}


RUNS = Runs(ROOT / "results" / "pretrained" / "runs.jsonl.xz", OUTPUT / "runs", read_folder)
ORIGIN: dict[str, str] = {}


def _start(origin: dict[str, str]) -> None:
    ORIGIN.update(origin)


def main() -> int:
    """Make the missing runs, and return the exit code: 1 if a run is still missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--list", action="store_true", help="only count the missing runs")
    parser.add_argument("--pack", action="store_true", help="move the new runs into the pack, and end")
    given = parser.parse_args()
    if given.pack:
        print(f"{len(RUNS.merge())} runs were moved from {RUNS.folder} to {RUNS.pack}")
        return 0
    end = time.monotonic() + 60 * given.minutes
    seen: set[Run] = set()
    try:
        for part in parts():
            new = [run for run in part if run not in seen]
            seen |= {*new}
            missing = [run for run in new if RUNS.get(run.name) is None]
            if given.list:
                print_lines(
                    part_lines([[run.name for run in new]] if new else [], [run.name for run in missing])
                )
            elif missing and not do(missing, given.jobs, end):
                return 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; finished runs are kept. The same command continues.", file=sys.stderr)
        return 1
    return 0


def do(missing: Sequence[Run], jobs: int, end: float) -> bool:
    """Make runs, several at a time; return whether all were made before the end."""
    with get_context("spawn").Pool(jobs, _start, [provenance("src", "studies")]) as pool:
        waiting: list[Any] = []
        for count, run in enumerate(missing, 1):
            if time.monotonic() > end:
                break
            waiting.append(pool.apply_async(make, [run]))
            while sum(not result.ready() for result in waiting) >= jobs:
                time.sleep(0.1)
            print(f"{count} of {len(missing)}: {run.name}", flush=True)
        for result in waiting:
            result.get()
    return len(waiting) == len(missing)


if __name__ == "__main__":
    sys.exit(main())
