"""Make the tables of a report: means over seeds, and differences relative to the first row, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from ntl.report.formats import Columns, latex_table, markdown_table
from ntl.report.groups import Dataset, describe_evaluations, mean_and_interval, split_readings

NOT_AVAILABLE = "n/a"
TESTS_PER_TABLE = 2
LARGE = 1e5  # larger numbers are written with an exponent
NOTE = (
    "Mean ± half-width of the 95 % confidence interval over seeds (Student's t; none for one seed); bold: "
    "the best mean, if its interval overlaps with no other. Exact: share of answers whose number equals the "
    "true one in every digit; accuracy: np.isclose, as in the paper. Invalid: share of answers without a "
    "number. Differences are paired by seed."
)
UNCERTAINTY_NOTE = (
    "CRPS: continuous ranked probability score, in the unit of the numbers. Coverage: share of true numbers "
    "within the interval, nominally evaluation.interval; width: mean width of the interval."
)
LOG_NOTE = " log MAE and log R²: of sign(x)·log10(|x| + 1), as in the paper, over valid predictions."


class Column(NamedTuple):
    """A column of the table: the name of a metric in metrics.json, and the column's heading.

    `best` says whether the largest (`max`) or the smallest (`min`) value is best; empty if neither is.
    """

    metric: str
    heading: str
    best: str


EXACT = Column("exact_number", "exact", "max")
INVALID = Column("invalid_rate", "invalid", "min")
LOG_MAE = Column("log_mae", "log MAE", "min")
NUMBER_COLUMNS = (
    EXACT,
    Column("accuracy", "accuracy", "max"),
    LOG_MAE,
    Column("log_r2", "log R²", "max"),
    INVALID,
)
# Where the noise of the answers is known, errors are judged in the numbers' own units.
MAE = Column("mae", "MAE", "min")
NOISE_COLUMNS = (EXACT, MAE, Column("rmse", "RMSE", "min"), Column("r2", "R²", "max"), INVALID)
FINAL_ANSWER = (
    Column("exact_final_answer", "exact final answer", "max"),
    Column("final_answer_accuracy", "final answer", "max"),
)
# Of the model's distribution, from which numbers are read.
UNCERTAINTY_COLUMNS = (
    Column("crps", "CRPS", "min"),
    Column("interval_coverage", "coverage", ""),
    Column("interval_width", "width", ""),
)
TEXT_COLUMNS = (
    Column("exact_match", "exact match", "max"),
    Column("bleu", "BLEU", "max"),
    Column("rougeL", "ROUGE-L", "max"),
)

# In the order of table.csv.
COLUMNS = (*FINAL_ANSWER, *NUMBER_COLUMNS, *NOISE_COLUMNS, *TEXT_COLUMNS, *UNCERTAINTY_COLUMNS)


Table = tuple[Columns, list[str]]
"""The columns, with test sets as titles and one cell per group, and the lines below them."""


def markdown_report(datasets: Sequence[Dataset], left_out: Sequence[str] = ()) -> str:
    """Write all tables, and one line for each run that is left out, as Markdown: table.md."""
    parts = []
    for dataset in datasets:
        parts.append(f"## {dataset.name}")
        for columns, remarks in make_tables(dataset):
            parts += [markdown_table(columns), *remarks]
        parts += describe_evaluations(dataset)
        if missing := [test for test in dataset.tests if dataset.lacks_predictions(test)]:
            parts.append(f"No error figures, because predictions are missing: {', '.join(missing)}.")
        if differing := [test for test in dataset.tests if dataset.has_different_questions(test)]:
            parts.append(
                f"The questions differ between runs: {', '.join(differing)}. Rows may not be comparable."
            )
    parts.append(_note(datasets))
    if left_out:
        parts += ["Left out:", "\n".join(f"- {line}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def latex_report(datasets: Sequence[Dataset]) -> str:
    """Write all tables as LaTeX."""
    tables = ["% \\usepackage{booktabs}"]
    for dataset in datasets:
        for columns, remarks in make_tables(dataset):
            caption = " ".join([f"{dataset.name}.", *remarks, _note(datasets)])
            tables.append(latex_table(columns, caption))
    return "\n".join(tables)


def wide_csv(datasets: Sequence[Dataset]) -> str:
    """Write one CSV row per dataset and objective, unrounded."""
    rows = []
    for dataset in datasets:
        for group in split_readings(dataset).groups:
            row: dict[str, object] = {
                "dataset": dataset.name,
                "objective": group.label,
                "seeds": len(group.runs),
            }
            for test in dataset.tests:
                found = {*_metric_columns(dataset, test), *_uncertainty_columns(dataset, test)}
                for column in sorted(found, key=COLUMNS.index):
                    name = f"{test} {column.metric}"
                    row[name], row[f"{name} ±"] = group.mean_and_interval(test, column.metric)
            rows.append(row)
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def long_csv(datasets: Sequence[Dataset]) -> str:
    """Write one CSV row per metric of each run."""
    rows = [
        (dataset.name, group.label, run.record.seed, test, metric, value)
        for dataset in datasets
        for group in dataset.groups
        for run in group.runs
        for test, metrics in run.metrics.items()
        for metric, value in metrics.items()
    ]
    headings = ["dataset", "objective", "seed", "test", "metric", "value"]
    # As objects, because numbers of one type would write counts as 20.0.
    return pd.DataFrame(rows, columns=headings, dtype=object).to_csv(index=False, lineterminator="\n")


def make_tables(dataset: Dataset) -> list[Table]:
    """Make the tables of a dataset, with as many test sets side by side as fit on a page.

    A table of errors by objective and reading is followed by one of the distributions, if any was read.
    """
    tables = []
    for i in range(0, len(dataset.tests), TESTS_PER_TABLE):
        tests = dataset.tests[i : i + TESTS_PER_TABLE]
        references = filter(None, (_references(dataset, test) for test in tests))
        tables.append(_table(split_readings(dataset), tests, _metric_columns, references))
        read = [
            g for g in dataset.groups if any("crps" in r.metrics.get(t, {}) for r in g.runs for t in tests)
        ]
        if read:
            table = _table(replace(dataset, groups=read), tests, _uncertainty_columns, [UNCERTAINTY_NOTE])
            tables.append(table)
    return tables


def round_significant(value: float, width: float | None = None, signed: bool = False) -> str:
    """Format a value and the half-width of its interval, the larger one with three significant digits.

    Example:
        >>> round_significant(24.271, 1.4), round_significant(0.0123456), round_significant(1234567.0)
        ('24.3 ± 1.4', '0.0123', '1.23e+06')
        >>> round_significant(0.2, 1.94, signed=True)
        '+0.20 ± 1.94'
    """
    size = max(abs(value), width or 0.0)
    digits = 0 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
    form = f".{digits}f" if size < LARGE else ".3g"
    text = f"{value:{'+' if signed else ''}{form}}"
    return text if width is None else f"{text} ± {width:{form}}"


def _table(
    dataset: Dataset,
    tests: Sequence[str],
    columns_of: Callable[[Dataset, str], list[Column]],
    remarks: Iterable[str],
) -> Table:
    """Make one table. Columns that are the same in all rows become a remark."""
    groups = dataset.groups
    columns = {
        ("", "objective"): [group.label for group in groups],
        ("", "seeds"): [str(len(group.runs)) for group in groups],
    }
    for test in tests:
        for column in columns_of(dataset, test):
            columns[test, column.heading] = cells = _mean_cells(dataset, test, column)
            if column in (MAE, LOG_MAE) and len(groups) > 1 and not _is_constant(cells):
                heading = f"{column.heading} vs {groups[0].label}"
                columns[test, heading] = _difference_cells(dataset, test, column)
    constant = {names: cells for names, cells in columns.items() if _is_constant(cells)}
    if constant:
        same = (" ".join([*names, cells[0]]).strip() for names, cells in constant.items())
        remarks = [f"The same in all rows: {', '.join(same)}.", *remarks]
    return {names: columns[names] for names in columns if names not in constant}, list(remarks)


def _is_constant(cells: Sequence[str]) -> bool:
    """Return whether several rows all have the same value; intervals are not compared."""
    return len(cells) > 1 and len({cell.strip("*").partition(" ± ")[0] for cell in cells}) == 1


def _metric_names(dataset: Dataset, test: str) -> set[str]:
    return {name for metrics in dataset.metrics(test) for name in metrics}


def _metric_columns(dataset: Dataset, test: str) -> list[Column]:
    names = _metric_names(dataset, test)
    numbers = NOISE_COLUMNS if dataset.has_noise(test) else NUMBER_COLUMNS
    columns = (*FINAL_ANSWER, *(numbers if "accuracy" in names else TEXT_COLUMNS))
    return [column for column in columns if column.metric in names]


def _uncertainty_columns(dataset: Dataset, test: str) -> list[Column]:
    names = _metric_names(dataset, test)
    return [column for column in UNCERTAINTY_COLUMNS if column.metric in names]


def _mean_cells(dataset: Dataset, test: str, column: Column) -> list[str]:
    found = [group.mean_and_interval(test, column.metric) for group in dataset.groups]
    cells = [NOT_AVAILABLE if mean is None else round_significant(mean, width) for mean, width in found]
    best = _clearly_best(found, column.best)
    return [f"**{cell}**" if i == best else cell for i, cell in enumerate(cells)]


def _clearly_best(found: Sequence[tuple[float | None, float | None]], best: str) -> int | None:
    """Return the row with the best mean if its interval overlaps with no other row's, else None."""
    if not best:
        return None
    known = [(i, mean, width) for i, (mean, width) in enumerate(found) if mean is not None]
    if len(known) < 2 or any(width is None for _, _, width in known):
        return None
    i, mean, width = (max if best == "max" else min)(known, key=lambda row: row[1])
    apart = all(abs(mean - other) > width + theirs for j, other, theirs in known if j != i)
    return i if apart else None


def _difference_cells(dataset: Dataset, test: str, column: Column) -> list[str]:
    first, *others = dataset.groups
    cells = [""]
    for group in others:
        differences = group.differences(first, test, column.metric)
        mean, width = mean_and_interval(differences)
        if mean is None:
            cells.append(NOT_AVAILABLE)
        else:
            lower = f"(lower on {sum(d < 0 for d in differences)} of {len(differences)})"
            cells.append(f"{round_significant(mean, width, signed=True)} {lower}")
    return cells


def _references(dataset: Dataset, test: str) -> str:
    """Describe what the errors on a test set are compared with; empty if the runs have not recorded it."""
    column = MAE if dataset.has_noise(test) else LOG_MAE
    answers = {
        "constant": "for always answering the median of the training answers",
        "noise": "for answering without the noise",
    }
    errors = {words: dataset.reference(test, f"{name}_{column.metric}") for name, words in answers.items()}
    parts = [f"{round_significant(error)} {words}" for words, error in errors.items() if error is not None]
    return f"Reference {column.heading} on {test}: {'; '.join(parts)}." if parts else ""


def _note(datasets: Sequence[Dataset]) -> str:
    logs = any(not dataset.has_noise(test) for dataset in datasets for test in dataset.tests)
    return NOTE + (LOG_NOTE if logs else "")
