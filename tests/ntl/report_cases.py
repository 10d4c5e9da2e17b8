"""Runs without models, and reports of them."""

import pandas as pd

from ntl.cli import main
from ntl.training.run_folder import Prediction, RunFolder, RunRecord

NUMBERS = {
    "log_mae": 0.5,
    "log_r2": 0.25,
    "invalid_rate": 0.0,
    "exact_match": 0.0,
    "bleu": 0.0,
    "rougeL": 0.0,
}
PREDICTIONS = [Prediction("q", str(i), str(i + 1), i + 1.0, float(i)) for i in range(20)]


def make_run(path, label, seed, accuracy=0.5, *, dataset="arithmetic", test="interpolate", **changes):
    """Make a run, which is finished unless `changes` to its record say otherwise."""
    folder = RunFolder(path)
    config = {"dataset_args": {"dataset_name": dataset}, "training_args": {"seed": seed}}
    for group, values in changes.pop("config", {}).items():
        config[group] = {**config.get(group, {}), **values}
    metrics = changes.pop("metrics", {"accuracy": accuracy, **NUMBERS})
    predictions = changes.pop("predictions", PREDICTIONS)
    record = RunRecord(label, dataset=dataset, seed=seed, config=config, status="finished", steps=10)
    record = folder.write(record, questions={test: "the same"}, **changes)
    folder.evaluation("test").write_results(test, metrics, predictions)
    if record.status == "finished":
        folder.evaluation("test").finish(record)
    folder.add_to_curve({"step": 5, "eval_accuracy": accuracy})
    return folder


def report(tmp_path, *more):
    return main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *more])


def rows_of(tmp_path):
    """The rows of a report, from metrics.csv: the number of seeds and the mean of each metric."""
    table = pd.read_csv(tmp_path / "out" / "metrics.csv")
    row, table["name"] = ["dataset", "objective"], table["test"] + " " + table["metric"]
    means = table.pivot_table(values="value", index=row, columns="name", sort=False)
    seeds = table.groupby(row, sort=False)["seed"].nunique()
    return means.assign(seeds=seeds).reset_index().to_dict("records")


def make_readings(path, objective, seed, **errors):
    """Make a run with readings: the MAE of each, and a model whose intervals cover 80 %."""
    metrics = {"accuracy": 0.0, **NUMBERS, "noise_mae": 1.0, "mae": errors.pop("greedy")}
    metrics |= {f"{reading}_mae": error for reading, error in errors.items()}
    if errors:
        metrics |= {"crps": 2.0, "interval_coverage": 0.8, "interval_width": 4.0 + seed}
        metrics |= {f"coverage_{percent}": percent / 100 for percent in (95, 55, 5)}
    read = [p._replace(lower=p.true - 2, median=p.true, upper=p.true + 2) for p in PREDICTIONS]
    what = {"dataset": "noisy_regression", "test": "test", "metrics": metrics}
    return make_run(path, objective, seed, **what, predictions=read if errors else PREDICTIONS)
