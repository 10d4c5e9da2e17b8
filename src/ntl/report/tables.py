"""Make the tables of a report: means over seeds, and differences to the first row, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ntl.report.formats import csv_table, latex_table, markdown_table
from ntl.report.groups import Dataset, describe_evaluations, split_readings
from ntl.scores import mean_and_interval

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
    "CRPS: error of the model's whole distribution, in the numbers' unit. Coverage: share of the answers "
    "within the interval, which promises evaluation.interval of them; width: its mean width."
)
LOG_NOTE = " log MAE and log R²: of sign(x)·log10(|x| + 1), as in the paper, over valid predictions."


class Column(NamedTuple):
    """A column of the table.

    Args:
        metric: Name of the metric in metrics.json.
        heading: Heading of the column.
        best: Whether the largest (`max`) or the smallest (`min`) value is best; empty if neither is.
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


class Cells(NamedTuple):
    """A column of a table with its cells, one per group.

    Args:
        test: Test set, which is the column's title; empty for none.
        heading: Heading.
        cells: Cells as plain text; bold ones are enclosed in `**`.
    """

    test: str
    heading: str
    cells: Sequence[str]

    @property
    def is_constant(self) -> bool:
        """Whether several rows all have the same value; intervals are not compared."""
        return len(self.cells) > 1 and len({cell.strip("*").partition(" ± ")[0] for cell in self.cells}) == 1


class Table(NamedTuple):
    """A table with the lines below it.

    Args:
        columns: The columns, the first of which names the rows.
        remarks: Lines of text.
    """

    columns: Sequence[Cells]
    remarks: Sequence[str]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def markdown_report(datasets: Sequence[Dataset], left_out: Sequence[str] = ()) -> str:
    """Write all tables as Markdown.

    Args:
        datasets: The datasets.
        left_out: One line for each run that is left out.

    Returns:
        The content of table.md.
    """
    parts = []
    for dataset in datasets:
        parts.append(f"## {dataset.name}")
        for table in make_tables(dataset):
            headings = [f"{column.test} {column.heading}".strip() for column in table.columns]
            parts += [markdown_table(headings, table.rows), *table.remarks]
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
        for table in make_tables(dataset):
            columns = [(column.test, column.heading) for column in table.columns]
            caption = " ".join([f"{dataset.name}.", *table.remarks, _note(datasets)])
            tables.append(latex_table(columns, table.rows, caption))
    return "\n".join(tables)


def wide_csv(datasets: Sequence[Dataset]) -> str:
    """Write one CSV row per dataset and objective, unrounded."""
    columns = [
        (test, column)
        for test in dict.fromkeys(test for dataset in datasets for test in dataset.tests)
        for column in dict.fromkeys(
            (*FINAL_ANSWER, *NUMBER_COLUMNS, *NOISE_COLUMNS, *TEXT_COLUMNS, *UNCERTAINTY_COLUMNS)
        )
        if any(
            column in (*_metric_columns(dataset, test), *_uncertainty_columns(dataset, test))
            for dataset in datasets
        )
    ]
    headings = ["dataset", "objective", "seeds"]
    for test, column in columns:
        headings += [f"{test} {column.metric}", f"{test} {column.metric} ±"]
    rows: list[list[object]] = []
    for dataset in datasets:
        for group in split_readings(dataset).groups:
            pairs = [group.mean_and_interval(test, column.metric) for test, column in columns]
            rows.append(
                [dataset.name, group.label, len(group.runs), *(cell for pair in pairs for cell in pair)]
            )
    return csv_table(headings, rows)


def long_csv(datasets: Sequence[Dataset]) -> str:
    """Write one CSV row per metric of each run."""
    headings = ["dataset", "objective", "seed", "test", "metric", "value"]
    rows = [
        [dataset.name, group.label, run.record.seed, test, metric, value]
        for dataset in datasets
        for group in dataset.groups
        for run in group.runs
        for test, metrics in run.metrics.items()
        for metric, value in metrics.items()
    ]
    return csv_table(headings, rows)


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
    columns = [Cells("", "seeds", [str(len(group.runs)) for group in groups])]
    for test in tests:
        for column in columns_of(dataset, test):
            cells = Cells(test, column.heading, _mean_cells(dataset, test, column))
            columns.append(cells)
            if column in (MAE, LOG_MAE) and len(groups) > 1 and not cells.is_constant:
                heading = f"{column.heading} vs {groups[0].label}"
                columns.append(Cells(test, heading, _difference_cells(dataset, test, column)))
    same = [f"{c.test} {c.heading} {c.cells[0]}".strip() for c in columns if c.is_constant]
    constant = [f"The same in all rows: {', '.join(same)}."] if same else []
    names = Cells("", "objective", [group.label for group in groups])
    shown = [names, *(column for column in columns if not column.is_constant)]
    return Table(shown, [*constant, *remarks])


def _metric_columns(dataset: Dataset, test: str) -> list[Column]:
    names = {name for metrics in dataset.metrics(test) for name in metrics}
    numbers = NOISE_COLUMNS if dataset.has_noise(test) else NUMBER_COLUMNS
    columns = (*FINAL_ANSWER, *(numbers if "accuracy" in names else TEXT_COLUMNS))
    return [column for column in columns if column.metric in names]


def _uncertainty_columns(dataset: Dataset, test: str) -> list[Column]:
    names = {name for metrics in dataset.metrics(test) for name in metrics}
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
        "constant": "always answering the median of the training answers",
        "noise": "answering without the noise",
    }
    errors = {words: dataset.reference(test, f"{name}_{column.metric}") for name, words in answers.items()}
    parts = [
        f"of {words}: {round_significant(error)}" for words, error in errors.items() if error is not None
    ]
    return f"{column.heading} on {test} {'; '.join(parts)}." if parts else ""


def _note(datasets: Sequence[Dataset]) -> str:
    logs = any(not dataset.has_noise(test) for dataset in datasets for test in dataset.tests)
    return NOTE + (LOG_NOTE if logs else "")
