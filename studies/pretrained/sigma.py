"""Compare schedules of HL-Gauss's sigma on selection seeds. From the root of the project:

    python -m studies.pretrained.sigma         make the runs that are missing

Each run trains the upper four layers on 600 rows of a table for 80 steps and is measured on the table's
validation data (`study.yaml`). A schedule has a first and a last sigma, in standard deviations of the
training answers, and a shape. Results are appended to `results/hl_gauss/selection.csv`, one row a run.
"""

from __future__ import annotations

import csv
import math

import torch
from studies.pretrained.run import ROOT, draw, measure, task_of, trainer_of
from studies.pretrained.training import Settings, fit

from ntloss import HLGauss, NTLCrossEntropyLoss, get_criterion

RESULTS = ROOT / "results" / "hl_gauss" / "selection.csv"
LAYERS, STEPS, ROWS, RATE, HEAD_RATE = 4, 80, 600, 2e-3, 1e-3
TASKS, SEEDS = ("sentiment", "places", "diamonds"), (1000, 1001)
# name: first and last sigma, shape
SCHEDULES = {
    "0.55 to 1/8": (0.55, 0.55 / 8, "linear"),
    "0.3 to 1/8": (0.3, 0.3 / 8, "linear"),
    "1 to 1/8": (1.0, 1 / 8, "linear"),
    "0.55 fixed": (0.55, 0.55, "linear"),
    "0.2 fixed": (0.2, 0.2, "linear"),
    "0.55 to 1/32": (0.55, 0.55 / 32, "linear"),
    "0.55 to 1/8, cosine": (0.55, 0.55 / 8, "cosine"),
}
OTHERS = {
    "cross-entropy": None,
    "NTL-WAS": "wasserstein",
    "single digits": "gaussian_cross_entropy",
    "head": "head",
}
COLUMNS = (
    "task",
    "arm",
    "seed",
    "sigma_first",
    "sigma_last",
    "greedy_mae",
    "median_mae",
    "mean_mae",
    "crps",
    "coverage",
    "width",
)


def run(name: str, arm: str, seed: int) -> dict[str, object]:
    """Train an arm on a task and measure it on the validation data."""
    task, (trainer, places) = task_of(name), trainer_of(name, LAYERS)
    drawn = [places[k] for k in draw(task.pool, seed, ROWS)]
    answers = trainer.answers[drawn].double()
    settings = Settings("head" if arm == "head" else "ce", STEPS, HEAD_RATE if arm == "head" else RATE, seed)
    training = {"batch": 16, "warmup": 0.25, "betas": [0.9, 0.98], "weight_decay": 0.01, "clip": 1.0}
    sigma: tuple[float, float] | None = None
    if arm == "head":
        trainer.training = training
        trainer.fit(drawn, settings)
    else:
        if arm in SCHEDULES:
            first, last, shape = SCHEDULES[arm]
            spread = float(answers.std(correction=0))
            sigma = first * spread, last * spread
            criterion = HLGauss(sigma, leading_zeros=True)
        else:
            criterion, shape = OTHERS[arm] and get_criterion(OTHERS[arm]), "linear"
        mode = "replace" if arm == "single digits" else None
        loss_fn = NTLCrossEntropyLoss(trainer.vocabulary, criterion, None if criterion else 0.0, mode=mode)

        def loss(step: int, chosen: list[int]) -> torch.Tensor:
            if sigma is not None:
                progress = step / STEPS
                criterion.anneal((1 - math.cos(math.pi * progress)) / 2 if shape == "cosine" else progress)
            return loss_fn(*trainer._tokens(chosen))

        lengths = {place: len(trainer.rows.prompts[place]) for place in drawn}
        fit(trainer.model, [], lengths, loss, settings, training)
    asked = task.validation
    right = task.answers[asked].double()
    found = trainer.predict([places[k] for k in asked], "head" if arm == "head" else "ce")
    if arm == "head":
        read = {"mean": found.double()}
    else:
        read = dict(trainer.tree.read(found)._asdict())
        read["crps"] = trainer.tree.crps(trainer.tree.log_probs(found).double().exp(), right)
    metrics = {key: round(value, 4) for key, value in measure(read, right).items()}
    first, last = sigma or ("", "")
    return {"task": name, "arm": arm, "seed": seed, "sigma_first": first, "sigma_last": last, **metrics}


def main() -> None:
    """Make the runs that are missing, and print each."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if RESULTS.exists():
        with RESULTS.open(encoding="utf-8") as file:
            done = {(row["task"], row["arm"], int(row["seed"])) for row in csv.DictReader(file)}
    else:
        RESULTS.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    arms = ["0.55 to 1/8", "cross-entropy", "head", *SCHEDULES, *OTHERS]
    for seed in SEEDS:
        for arm in dict.fromkeys(arms):
            for name in TASKS:
                if (name, arm, seed) not in done:
                    row = run(name, arm, seed)
                    print(row, flush=True)
                    with RESULTS.open("a", encoding="utf-8", newline="") as file:
                        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
