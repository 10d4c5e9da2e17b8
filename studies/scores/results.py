"""Measure the levels that read.py read, pack the measures, and test the planned contrasts.

    python -m studies.scores.results outputs/scores results/scores

Writes `metrics.csv`, a row for each table, loss, seed and measure, and `contrasts.csv`; prints both as
Markdown. Without runs, it reads the pack instead: `python -m studies.scores.results results/scores`.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import cohen_kappa_score

from ntl.data import load_task
from ntl.data.tabular import Tabular
from ntl.evaluate import read_results
from studies.scores.read import FILE, LEVELS
from studies.ten_epochs.results import COLUMNS, contrasts, read_pack

MARGIN = 3.0
TABLES, LOSSES = ("sentiment", "emobank"), ("crps", "ntl_was", "hl_gauss")
PLANNED = [
    {"dataset": table, "of": loss, "minus": "ce", "metric": metric}
    for table in TABLES
    for loss in LOSSES
    for metric in ("rps", "median_mae")
]
"""All contrasts, planned before the first runs were measured; Holm's correction covers them together."""
DEPTH = 0.01  # of the valley between two peaks
NAMES = {
    "ce": "cross-entropy", "crps": "+ CRPS", "ntl_was": "+ NTL-WAS", "hl_gauss": "HL-Gauss",
    "constant": "constant shares", "raters": "the raters' own shares",
}  # fmt: skip
COLUMN_OF = {
    "rps": "RPS", "rater_rps": "RPS, raters", "median_mae": "median's error", "mean_mae": "mean's error",
    "mode_mae": "likeliest level's error", "kappa": "kappa", "two_peaks": "two peaks", "ece": "ECE",
    "cumulative_ece": "ECE, cumulative",
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Pack, if runs are given; then test and print."""
    folder = Path(arguments[-1])
    if len(arguments) > 1:
        folder.mkdir(parents=True, exist_ok=True)
        packed = pd.DataFrame(read_runs(Path(arguments[0])), columns=COLUMNS).drop_duplicates(COLUMNS[:-1])
        packed.sort_values(COLUMNS[:-1]).to_csv(
            folder / "metrics.csv", index=False, float_format="%.6g", lineterminator="\n"
        )
    metrics = read_pack(folder / "metrics.csv")
    tested = contrasts(metrics, PLANNED, MARGIN)
    tested.to_csv(folder / "contrasts.csv", index=False, float_format="%.6g", lineterminator="\n")
    print(table_of(metrics), table_of_contrasts(tested), sep="\n\n")


def read_runs(folder: Path) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield the measures of the runs in a folder, and of two references, as rows of the pack.

    The references are `constant`, the shares of the levels among the training rows, for each row alike, and
    `raters`, the shares of the raters' own levels.
    """
    for path in sorted(folder.glob(f"*/*/{FILE}")):
        run, table = read_results(path.parent / "test"), pd.read_csv(path)
        task = load_task(Tabular(**run["settings"]["dataset_args"]))
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


def table_of(metrics: pd.DataFrame) -> str:
    """Write the means over the seeds of each table and loss as Markdown, shares in per cent."""
    lines = [
        f"| table | loss | seeds | {' | '.join(COLUMN_OF.values())} |",
        "| --- " * 2 + "| ---: " * 10 + "|",
    ]
    for key in [(table, name) for table in TABLES for name in NAMES]:
        if key not in {index[:2] for index in metrics.index}:
            continue
        runs = metrics.loc[key]
        cells = []
        for column in COLUMN_OF:
            mean = runs[column].mean()
            share = column == "two_peaks"
            cells.append("" if pd.isna(mean) else f"{100 * mean:.0f} %" if share else f"{mean:.3f}")
        lines.append(f"| {key[0]} | {NAMES[key[1]]} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_contrasts(tested: pd.DataFrame) -> str:
    """Write the contrasts with cross-entropy as Markdown."""
    lines = [
        "| table | loss | measure | seeds | difference | p | p, Holm | no effect above 3 % |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in tested.itertuples():
        shown = f"{row.difference:+.1f} ± {(row.upper - row.lower) / 2:.1f} %"
        cells = (row.dataset, NAMES[row.of], COLUMN_OF[row.metric], str(row.seeds), shown)
        cells += (f"{row.p:.2g}", f"{row.p_holm:.2g}", "yes" if row.equivalent else "no")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
