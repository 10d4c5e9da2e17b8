"""Evaluations without models, and reports of them."""

import json

import pandas as pd

from ntl.report.program import main

NUMBERS = {
    "log_mae": 0.5,
    "log_r2": 0.25,
    "invalid_rate": 0.0,
    "exact_match": 0.0,
    "bleu": 0.0,
    "rougeL": 0.0,
}


def make_run(path, label, seed, accuracy=0.5, *, test="interpolate", evaluation="test", **changes):
    """Make a finished run of one test set; `changes` are to what metrics.json holds."""
    metrics = changes.pop("metrics", {"accuracy": accuracy, **NUMBERS})
    settings = changes.pop("settings", {})
    model = {f"{group}.{key}": value for group, of in settings.items() for key, value in of.items()}
    model |= changes.pop("identity", {})
    content = {
        "label": label,
        "name": label,
        "dataset": "arithmetic",
        "seed": seed,
        "sweep": 0.0,
        "job": 0,
        "settings": {"dataset_args": {}, **settings},
        "identity": {"model": {"training_args.seed": seed, "data": "of all rows", **model}, "answers": {}},
        "fingerprints": {test: "of the questions"},
        "metrics": {test: metrics},
        **changes,
    }
    for folder in (path / ".hydra", path / evaluation):
        folder.mkdir(parents=True, exist_ok=True)
    (path / evaluation / "metrics.json").write_text(json.dumps(content))
    return path


def add_curve(path, *points):
    """Add what transformers' Trainer leaves behind."""
    (path / "trainer_state.json").write_text(json.dumps({"log_history": points}))


def make_readings(path, label, seed, **errors):
    """Make a run on a table, with the MAE of each reading and a model whose intervals cover 80 %."""
    metrics = {"accuracy": 0.0, **NUMBERS, "mae": errors.pop("greedy")}
    metrics |= {f"{reading}_mae": error for reading, error in errors.items()}
    if errors:
        metrics |= {"crps": 2.0, "interval_coverage": 0.8, "interval_width": 4.0 + seed}
    settings = {"dataset_args": {"dataset_name": "tabular"}}
    return make_run(path, label, seed, test="test", metrics=metrics, settings=settings)


def report(tmp_path, *more):
    return main([str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *map(str, more)])


def rows_of(tmp_path):
    """The rows of a report, from metrics.csv: the number of seeds and the mean of each metric."""
    table = pd.read_csv(tmp_path / "out" / "metrics.csv")
    row, table["metric"] = ["dataset", "row"], table["test"] + " " + table["metric"]
    means = table.pivot_table(values="value", index=row, columns="metric", sort=False)
    seeds = table.groupby(row, sort=False)["seed"].nunique()
    return means.assign(seeds=seeds).reset_index().to_dict("records")
