"""Measure the levels that read.py read, and write the measures as a pack, which `ntl report` reads.

python -m studies.scores.results outputs/scores studies/scores/results
ntl report studies/scores/results --study studies/scores/contrasts.yaml
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import cohen_kappa_score

from ntl.data.tabular import Tabular
from ntl.evaluate import read_results
from ntl.report.runs import PACKED
from studies.scores.read import FILE, LEVELS

DEPTH = 0.01  # of the valley between two peaks


def main(arguments: Sequence[str]) -> None:
    """Measure the runs of a folder and write the pack into another one."""
    runs, folder = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        (dataset, name, name, seed, "test", "", metric, value)
        for dataset, name, seed, metric, value in read_runs(runs)
    ]
    packed = pd.DataFrame(rows, columns=PACKED).drop_duplicates(PACKED[:-1])
    packed.to_csv(folder / "metrics.csv.xz", index=False, float_format="%.6g", lineterminator="\n")


def read_runs(folder: Path) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield table, name, seed, measure and value of the runs in a folder, and of two references.

    The references are `constant`, the shares of the levels among the training rows, for each row alike, and
    `raters`, the shares of the raters' own levels.
    """
    for path in sorted(folder.glob(f"*/*/{FILE}")):
        run, table = read_results(path.parent / "test"), pd.read_csv(path)
        task = Tabular(**run["settings"]["dataset_args"]).read()
        ratings = [row.ratings or () for row in task.tests["test"]]
        train = shares([int(row.answer) for row in task.train])
        read = {run["name"]: table[list(map(str, LEVELS))].to_numpy(), "constant": train[None]}
        if all(ratings):
            read["raters"] = np.array([shares(of_people) for of_people in ratings])
        for name, found in read.items():
            found = np.broadcast_to(found, (len(table), len(LEVELS)))
            measured = measures(found, table["label"].to_numpy(), ratings)
            measured |= {"none": table["none"].mean()} if name == run["name"] else {}
            for metric, value in measured.items():
                yield path.parents[1].name, name, run["seed"], metric, value


def shares(levels: Sequence[float]) -> np.ndarray:
    """Return the share of each level."""
    return np.bincount(np.array(levels, int), minlength=len(LEVELS)) / len(levels)


def measures(
    probabilities: np.ndarray, labels: np.ndarray, ratings: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Measure the probabilities of the levels, `[rows, levels]`, which are made to add up to 1.

    Returns:
        The ranked probability score against the label (`rps`) and, with ratings, the mean of that against
        each rater (`rater_rps`); the mean absolute errors of the median, the mean and the likeliest level
        (`median_mae`, `mean_mae`, `mode_mae`); the quadratic weighted kappa of the median (`kappa`); the
        share of answers with two peaks (`two_peaks`); and the calibration errors of P(level) and of
        P(answer ≤ level) (`ece`, `cumulative_ece`).
    """
    levels = np.array(LEVELS)
    probabilities = probabilities / probabilities.sum(1, keepdims=True)
    below = probabilities.cumsum(1)[:, :-1]  # P(answer <= 0), ..., P(answer <= 7)
    median, happened = (below < 0.5 - 1e-9).sum(1), labels[:, None] <= levels[:-1]
    found = {
        "rps": float(((below - happened) ** 2).sum(1).mean()),
        "median_mae": float(np.abs(median - labels).mean()),
        "mean_mae": float(np.abs(probabilities @ levels - labels).mean()),
        "mode_mae": float(np.abs(probabilities.argmax(1) - labels).mean()),
        "kappa": float(cohen_kappa_score(labels, median, labels=levels, weights="quadratic")),
        "two_peaks": float(has_two_peaks(probabilities).mean()),
        "ece": calibration_error(probabilities, labels[:, None] == levels),
        "cumulative_ece": calibration_error(below, happened),
    }
    if all(ratings):
        of_raters = [
            ((row - (np.array(given)[:, None] <= levels[:-1])) ** 2).sum(1).mean()
            for row, given in zip(below, ratings, strict=True)
        ]
        found["rater_rps"] = float(np.mean(of_raters))
    return found


def has_two_peaks(probabilities: np.ndarray) -> np.ndarray:
    """Tell which rows have a level that is less likely, by more than `DEPTH`, than levels on either side."""
    left = np.maximum.accumulate(probabilities, 1)
    right = np.maximum.accumulate(probabilities[:, ::-1], 1)[:, ::-1]
    return (np.minimum(left, right) - probabilities).max(1) > DEPTH


def calibration_error(probabilities: np.ndarray, happened: np.ndarray) -> float:
    """Compute the expected calibration error: the mean over all pairs of a row and a level of the distance
    between mean probability and share that happened in the pair's bin, of ten bins of equal width."""
    bins = np.minimum((10 * probabilities).astype(int), 9).ravel()
    sums = np.bincount(bins, (probabilities - happened).ravel(), minlength=10)
    return float(np.abs(sums).sum() / bins.size)


if __name__ == "__main__":
    main(sys.argv[1:])
