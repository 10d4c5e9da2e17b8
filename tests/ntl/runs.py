"""Start the lab's commands in this process, and read what runs have written."""

import json
from pathlib import Path

from ntl.__main__ import main
from ntl.layout import PREDICTIONS, RESULTS, STATE


def train(*arguments):
    return main(["train", *arguments])


def compare(*arguments):
    return main(["compare", *arguments])


def written(folder, name="test"):
    """Read the whole `metrics.json` of an evaluation."""
    return json.loads((Path(folder) / name / RESULTS).read_text(encoding="utf-8"))


def results(folder, name="test"):
    """Read the metrics of an evaluation, by test set."""
    return written(folder, name)["metrics"]


def predictions(folder, test, name="test"):
    lines = (Path(folder) / name / PREDICTIONS).read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["test"] == test]


def state(folder):
    """Read what the trainer has written of a run or a checkpoint."""
    return json.loads((Path(folder) / STATE).read_text(encoding="utf-8"))


def logged(folder, key):
    """Read what the trainer has logged under a name, in order."""
    return [entry[key] for entry in state(folder)["log_history"] if key in entry]
