"""Make the tables of a report: means over seeds, and differences to the first row, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ntl.report.formats import Columns, csv_table, latex_table, markdown_table
from ntl.report.groups import (
    Difference,
    Group,
    describe_evaluations,
    split_readings,
    test_sets,
    tests_with_differing_questions,
    tests_without_predictions,
)

NOT_AVAILABLE = "n/a"
TESTS_PER_TABLE = 2
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


def markdown_report(datasets: Mapping[str, Sequence[Group]], left_out: Sequence[str] = ()) -> str:
    """Write all tables as Markdown.

    Args:
        datasets: Maps each dataset to its groups.
        left_out: One line for each run that is left out.

    Returns:
        The content of table.md.
    """
    lines = []
    for dataset, groups in datasets.items():
        lines += [f"## {dataset}", ""]
        for tests in _split_tests(test_sets(groups)):
            for columns, rows, notes in _tables(groups, tests):
                headings = [f"{block.title} {name}".strip() for block in columns for name in block.headings]
                lines += [markdown_table(headings, rows), "", *(f"{note}\n" for note in notes)]
        for line in describe_evaluations(groups):
            lines += [line, ""]
        if missing := tests_without_predictions(groups):
            lines += [f"No error figures, because predictions are missing: {', '.join(missing)}.", ""]
        if differing := tests_with_differing_questions(groups):
            lines += [
                f"The questions differ between runs: {', '.join(differing)}. Rows may not be comparable.",
                "",
            ]
    lines += [_note(datasets), ""]
    if left_out:
        lines += ["Left out:", "", *(f"- {line}" for line in left_out), ""]
    return "\n".join(lines)


def latex_report(datasets: Mapping[str, Sequence[Group]]) -> str:
    """Write all tables as LaTeX. See `markdown_report` for the arguments."""
    tables = []
    for dataset, groups in datasets.items():
        for tests in _split_tests(test_sets(groups)):
            for columns, rows, notes in _tables(groups, tests):
                tables.append(latex_table(columns, rows, " ".join([f"{dataset}.", *notes, _note(datasets)])))
    return "% \\usepackage{booktabs}\n" + "\n".join(tables)


def wide_csv(datasets: Mapping[str, Sequence[Group]]) -> str:
    """Write one CSV row per dataset and objective, unrounded. See `markdown_report` for the arguments."""
    columns = [
        (test, column)
        for test in dict.fromkeys(test for groups in datasets.values() for test in test_sets(groups))
        for column in dict.fromkeys(
            (*FINAL_ANSWER, *NUMBER_COLUMNS, *NOISE_COLUMNS, *TEXT_COLUMNS, *UNCERTAINTY_COLUMNS)
        )
        if any(
            column in (*_metric_columns(groups, test), *_uncertainty_columns(groups, test))
            for groups in datasets.values()
        )
    ]
    headings = ["dataset", "objective", "seeds"]
    for test, column in columns:
        headings += [f"{test} {column.metric}", f"{test} {column.metric} ±"]
    rows: list[list[object]] = []
    for dataset, groups in datasets.items():
        for group in split_readings(groups):
            row: list[object] = [dataset, group.label, len(group.runs)]
            for test, column in columns:
                row += group.mean_and_interval(test, column.metric)
            rows.append(row)
    return csv_table(headings, rows)


def long_csv(datasets: Mapping[str, Sequence[Group]]) -> str:
    """Write one CSV row per metric of each run. See `markdown_report` for the arguments."""
    headings = ["dataset", "objective", "seed", "test", "metric", "value"]
    rows = [
        [dataset, group.label, run.record.seed, test, metric, value]
        for dataset, groups in datasets.items()
        for group in groups
        for run in group.runs
        for test, metrics in run.metrics.items()
        for metric, value in metrics.items()
    ]
    return csv_table(headings, rows)


def has_noise(groups: Sequence[Group], test: str) -> bool:
    """Return whether the noise of a test set's answers is known, so that errors have a floor."""
    return any("noise_mae" in run.metrics.get(test, {}) for group in groups for run in group.runs)


def round_significant(value: float, width: float | None = None, signed: bool = False) -> str:
    """Format a value and the half-width of its interval, the larger one with three significant digits.

    Example:
        >>> round_significant(24.271, 1.4), round_significant(0.0123456)
        ('24.3 ± 1.4', '0.0123')
        >>> round_significant(0.2, 1.94, signed=True)
        '+0.20 ± 1.94'
    """
    size = max(abs(value), width or 0.0)
    digits = 0 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text if width is None else f"{text} ± {width:.{digits}f}"


def _split_tests(tests: Sequence[str]) -> list[list[str]]:
    """Split the test sets into groups that fit side by side on a page."""
    return [list(tests[i : i + TESTS_PER_TABLE]) for i in range(0, len(tests), TESTS_PER_TABLE)]


def _metric_columns(groups: Sequence[Group], test: str) -> list[Column]:
    names = {name for group in groups for run in group.runs for name in run.metrics.get(test, {})}
    numbers = NOISE_COLUMNS if has_noise(groups, test) else NUMBER_COLUMNS
    columns = (*FINAL_ANSWER, *(numbers if "accuracy" in names else TEXT_COLUMNS))
    return [column for column in columns if column.metric in names]


def _uncertainty_columns(groups: Sequence[Group], test: str) -> list[Column]:
    names = {name for group in groups for run in group.runs for name in run.metrics.get(test, {})}
    return [column for column in UNCERTAINTY_COLUMNS if column.metric in names]


class _Block(NamedTuple):
    """A column with its cells; it is shown unless it is the same in all of several rows."""

    test: str
    heading: str
    cells: list[str]

    @property
    def is_constant(self) -> bool:
        return len(self.cells) > 1 and len({cell.strip("*").partition(" ± ")[0] for cell in self.cells}) == 1


def _tables(
    groups: Sequence[Group], tests: Sequence[str]
) -> Iterator[tuple[list[Columns], list[list[str]], list[str]]]:
    """Make the table of errors, by objective and reading, and that of distributions, if any was read.

    Yields:
        The columns, the rows, and the lines below the table.
    """
    references = _references(groups)
    columns, rows, same = _table(split_readings(groups), tests, _metric_columns)
    yield columns, rows, [*same, *(references[test] for test in tests if test in references)]
    read = [g for g in groups if any("crps" in run.metrics.get(t, {}) for run in g.runs for t in tests)]
    if read:
        columns, rows, same = _table(read, tests, _uncertainty_columns)
        yield columns, rows, [*same, UNCERTAINTY_NOTE]


def _table(
    groups: Sequence[Group],
    tests: Sequence[str],
    columns_of: Callable[[Sequence[Group], str], list[Column]],
) -> tuple[list[Columns], list[list[str]], list[str]]:
    """Make one table: its columns, its rows, and a line about the columns that are the same in all rows."""
    names = _Block("", "objective", [group.label for group in groups])
    blocks = [_Block("", "seeds", [str(len(group.runs)) for group in groups])]
    for test in tests:
        for column in columns_of(groups, test):
            block = _Block(test, column.heading, _cells(groups, test, column))
            blocks.append(block)
            if column in (MAE, LOG_MAE) and len(groups) > 1 and not block.is_constant:
                heading = f"{column.heading} vs {groups[0].label}"
                blocks.append(_Block(test, heading, _differences(groups, test, column)))
    shown = [names, *(block for block in blocks if not block.is_constant)]
    columns = [
        Columns(title, [block.heading for block in shown if block.test == title])
        for title in dict.fromkeys(block.test for block in shown)
    ]
    rows = [list(row) for row in zip(*(block.cells for block in shown), strict=True)]
    same = [f"{b.test} {b.heading} {b.cells[0]}".strip() for b in blocks if b.is_constant]
    return columns, rows, [f"The same in all rows: {', '.join(same)}."] if same else []


def _cells(groups: Sequence[Group], test: str, column: Column) -> list[str]:
    found = [group.mean_and_interval(test, column.metric) for group in groups]
    best = _clearly_best(found, column.best)
    cells = []
    for i, (mean, width) in enumerate(found):
        cell = NOT_AVAILABLE if mean is None else round_significant(mean, width)
        cells.append(f"**{cell}**" if i == best else cell)
    return cells


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


def _differences(groups: Sequence[Group], test: str, column: Column) -> list[str]:
    found = [group.difference(groups[0], test, column.metric) for group in groups[1:]]
    return ["", *(NOT_AVAILABLE if each is None else _difference(each) for each in found)]


def _difference(found: Difference) -> str:
    text = round_significant(found.mean, found.width, signed=True)
    return f"{text} (lower on {found.lower} of {found.seeds})"


def _references(groups: Sequence[Group]) -> dict[str, str]:
    """Describe what the errors on each test set are compared with, where the runs have recorded it."""
    lines = {}
    for test in test_sets(groups):
        metrics = next((run.metrics[test] for g in groups for run in g.runs if test in run.metrics), {})
        metric = MAE if has_noise(groups, test) else LOG_MAE
        constant, noise = (metrics.get(f"{name}_{metric.metric}") for name in ("constant", "noise"))
        parts = []
        if constant is not None:
            parts.append(
                f"always answering the median of the training answers: {round_significant(constant)}"
            )
        if noise is not None:
            parts.append(f"answering everything but the noise: {round_significant(noise)}")
        if parts:
            lines[test] = f"{metric.heading} on {test} of {'; of '.join(parts)}."
    return lines


def _note(datasets: Mapping[str, Sequence[Group]]) -> str:
    logs = any(not has_noise(groups, test) for groups in datasets.values() for test in test_sets(groups))
    return NOTE + (LOG_NOTE if logs else "")
