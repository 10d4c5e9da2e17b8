"""From finished runs to a table, and to a JSON file that holds everything but the predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from ntl.metrics import METRICS, mean_and_error
from ntl.tables import markdown_table
from ntl.tasks import Example, TaskData

BASELINE = "ce"
NOTHING = "n/a"
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
    """How tables and figures call an objective."""
    return NAMES.get(objective, objective)


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Aggregate runs over seeds.

    Args:
        records: Finished runs, see `store.RunStore.save`.

    Returns:
        Test set -> objective -> `seeds` (a list), and for each metric `mean` and `error` (standard
        error over seeds). Objectives other than the baseline have `versus_ce`: for each metric, over the
        seeds that both have, `mean` and `error` of the difference, `lower` (in how many of them it is
        below the baseline) and `seeds` (how many there are).
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
        # Older runs were not scored by `exact`.
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
    """The MAE of someone who knows the answers but for their noise.

    Args:
        examples: Of a test set.

    Returns:
        The MAE; None for tasks without noise.
    """
    if any(example.expected is None for example in examples):
        return None
    return sum(abs(float(e.answer) - e.expected) for e in examples) / len(examples)


def constant_guess(train: Sequence[Example], test: Sequence[Example]) -> float:
    """The MAE of someone who answers every question with the median of the training answers.

    Args:
        train: The training examples.
        test: A test set.

    Returns:
        The MAE: a model that does not beat it has learnt nothing of use.
    """
    guess = median(float(example.answer) for example in train)
    return sum(abs(float(example.answer) - guess) for example in test) / len(test)


def references(data: TaskData) -> dict[str, dict[str, float | None]]:
    """What the MAE of each test set is to be compared with.

    Args:
        data: Of the task.

    Returns:
        Test set -> `noise_floor` and `constant_guess`.
    """
    return {
        test: {
            "noise_floor": noise_floor(examples),
            "constant_guess": constant_guess(data.train, examples),
        }
        for test, examples in data.tests.items()
    }


def reference_line(values: Mapping[str, float | None]) -> str:
    """The references of one test set in words; `values` as in `references`."""
    line = f"For comparison, always answering the training median: MAE {values['constant_guess']:.2f}"
    if values["noise_floor"] is None:
        return f"{line}."
    return f"{line}; knowing everything but the noise: {values['noise_floor']:.2f}."


def table_rows(summary: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The cells of one test set's table.

    Args:
        summary: Objective -> aggregates, from `summarise`.

    Returns:
        One row per objective, cells as in `HEADINGS`.
    """
    rows = []
    for name, entry in summary.items():
        row = [display_name(name), str(len(entry["seeds"]))]
        for metric, digits in zip(METRICS, (3, 2, 2, 3, 3, 3, 1), strict=True):
            row.append(_plus_minus(entry[metric], digits))
        versus = entry.get("versus_ce", {}).get("mae")
        if versus is None:
            row.append(NOTHING)
        else:
            better = f" (lower on {versus['lower']} of {versus['seeds']})"
            row.append(_plus_minus(versus, 2, signed=True) + better)
        rows.append(row)
    return rows


def _plus_minus(value: Mapping[str, float | None], digits: int, signed: bool = False) -> str:
    if value["mean"] is None:
        return NOTHING
    text = f"{value['mean']:+.{digits}f}" if signed else f"{value['mean']:.{digits}f}"
    return text if value["error"] is None else f"{text} ± {value['error']:.{digits}f}"


def terminal_table(test: str, summary: Mapping[str, Any]) -> Table:
    """A test set's table for the terminal; arguments as in `table_rows`."""
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
    """All tables as Markdown.

    Args:
        summary: From `summarise`.
        compared_with: From `references`.
        notes: Lines that say how the numbers were made.

    Returns:
        The text of `table.md`.
    """
    lines = []
    for test, objectives in summary.items():
        lines += [f"### {test} set", ""]
        lines.append(markdown_table(HEADINGS, table_rows(objectives)))
        lines += ["", reference_line(compared_with[test])]
        lines.append("")
    lines += ["Mean ± standard error over seeds; `MAE vs CE` is paired by seed. " + " ".join(notes), ""]
    return "\n".join(lines)
