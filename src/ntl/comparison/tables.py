"""Aggregate the finished runs of a comparison over seeds, and write them as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from ntl.metrics import METRICS, mean_and_error
from ntl.tables import markdown_table
from ntl.tasks import Example, TaskData

BASELINE = "ce"
NOT_AVAILABLE = "n/a"
HEADINGS = (
    "objective", "seeds", "exact", "MAE", "RMSE", "R²", "Pearson", "accuracy", "invalid", "MAE vs CE",
)  # fmt: skip
NAMES = {
    "ce": "CE",
    "ntl_was": "CE + NTL-WAS",
    "ntl_mse": "CE + NTL-MSE",
    "regression_head": "regression head",
}


def display_name(objective: str) -> str:
    """Return an objective's name in tables and figures."""
    return NAMES.get(objective, objective)


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Aggregate runs over seeds.

    Args:
        records: Finished runs, see `store.RunStore.save`.

    Returns:
        Maps test set -> objective -> `seeds` (a list) and, for each metric, `mean` and `error` (standard
        error over seeds). Objectives other than the baseline also have `versus_ce`, which compares the seeds
        that both have. For each metric, it holds the `mean` and `error` of the difference, `lower`, the
        number of seeds below the baseline, and `seeds`, the number of shared seeds.
    """
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    tests = list(dict.fromkeys(test for record in records for test in record["metrics"]))
    for test in tests:
        scores: dict[str, dict[int, Mapping[str, Any]]] = {}
        for record in records:
            scores.setdefault(record["objective"], {})[record["seed"]] = record["metrics"][test]
        summary[test] = {name: _aggregate(name, scores) for name in scores}
    return summary


def _aggregate(name: str, scores: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    mine, baseline = scores[name], scores.get(BASELINE, {})
    shared = sorted(set(mine) & set(baseline))
    entry: dict[str, Any] = {"seeds": sorted(mine)}
    versus: dict[str, Any] = {}
    for metric in METRICS:
        # Older runs lack `exact`.
        mean, error = mean_and_error([mine[seed].get(metric) for seed in sorted(mine)])
        entry[metric] = {"mean": mean, "error": error}
        pairs = [(mine[seed].get(metric), baseline[seed].get(metric)) for seed in shared]
        differences = [None if None in pair else pair[0] - pair[1] for pair in pairs]
        mean, error = mean_and_error(differences)
        lower = sum(d is not None and d < 0 for d in differences)
        versus[metric] = {"mean": mean, "error": error, "lower": lower, "seeds": len(shared)}
    if name != BASELINE and shared:
        entry["versus_ce"] = versus
    return entry


def noise_floor(examples: Sequence[Example]) -> float | None:
    """Compute the MAE of predicting every answer without its noise.

    Args:
        examples: Examples of a test set.

    Returns:
        The MAE, or None for tasks without noise.
    """
    if any(example.expected is None for example in examples):
        return None
    return sum(abs(float(e.answer) - e.expected) for e in examples) / len(examples)


def constant_guess(train: Sequence[Example], test: Sequence[Example]) -> float:
    """Compute the MAE of always predicting the median of the training answers.

    Args:
        train: Training examples.
        test: Examples of a test set.

    Returns:
        The MAE. A model must beat it to have learnt anything.
    """
    guess = median(float(example.answer) for example in train)
    return sum(abs(float(example.answer) - guess) for example in test) / len(test)


def references(data: TaskData) -> dict[str, dict[str, float | None]]:
    """Compute reference values for the MAE on each test set.

    Args:
        data: Data of the task.

    Returns:
        Maps each test set to its `noise_floor` and `constant_guess`.
    """
    return {
        test: {
            "noise_floor": noise_floor(examples),
            "constant_guess": constant_guess(data.train, examples),
        }
        for test, examples in data.tests.items()
    }


def reference_line(values: Mapping[str, float | None]) -> str:
    """Describe the reference values of one test set, see `references`."""
    line = f"For comparison, always answering the training median: MAE {values['constant_guess']:.2f}"
    if values["noise_floor"] is None:
        return f"{line}."
    return f"{line}; predicting everything except the noise: {values['noise_floor']:.2f}."


def table_rows(summary: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Format the rows of one test set's table.

    Args:
        summary: Maps each objective to its aggregates, from `summarise`.

    Returns:
        One row per objective, with cells in the order of `HEADINGS`.
    """
    rows = []
    for name, entry in summary.items():
        row = [display_name(name), str(len(entry["seeds"]))]
        for metric, digits in zip(METRICS, (3, 2, 2, 3, 3, 3, 1), strict=True):
            row.append(_plus_minus(entry[metric], digits))
        versus = entry.get("versus_ce", {}).get("mae")
        if versus is None:
            row.append(NOT_AVAILABLE)
        else:
            better = f" (lower on {versus['lower']} of {versus['seeds']})"
            row.append(_plus_minus(versus, 2, signed=True) + better)
        rows.append(row)
    return rows


def _plus_minus(value: Mapping[str, float | None], digits: int, signed: bool = False) -> str:
    if value["mean"] is None:
        return NOT_AVAILABLE
    text = f"{value['mean']:+.{digits}f}" if signed else f"{value['mean']:.{digits}f}"
    return text if value["error"] is None else f"{text} ± {value['error']:.{digits}f}"


def terminal_table(test: str, summary: Mapping[str, Any]) -> Table:
    """Make a test set's table for the terminal. See `table_rows` for `summary`."""
    table = Table(title=f"{test} set: mean ± standard error over seeds", title_justify="left")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in table_rows(summary):
        table.add_row(*row)
    return table


def markdown_tables(
    summary: Mapping[str, Mapping[str, Any]],
    compared_with: Mapping[str, Mapping[str, float | None]],
    notes: Sequence[str],
) -> str:
    """Write all tables as Markdown.

    Args:
        summary: Aggregates from `summarise`.
        compared_with: Reference values from `references`.
        notes: Sentences about the setup.

    Returns:
        The content of `table.md`.
    """
    lines = []
    for test, objectives in summary.items():
        lines += [f"### {test} set", ""]
        lines.append(markdown_table(HEADINGS, table_rows(objectives)))
        lines += ["", reference_line(compared_with[test])]
        lines.append("")
    lines += ["Mean ± standard error over seeds; `MAE vs CE` is paired by seed. " + " ".join(notes), ""]
    return "\n".join(lines)
