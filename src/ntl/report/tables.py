"""Make the tables of a report: means over seeds, and differences relative to the first row, seed by seed."""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ntl.report.groups import Dataset, mean_and_interval, split_readings
from ntl.scores import larger_is_better

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
CONTRAST_NOTE = (
    "Paired by seed, with 95 % intervals (Student's t); p-values are corrected for the number of contrasts "
    "(Holm). No effect: the 90 % interval lies within the margin."
)
LOG_NOTE = " log MAE and log R²: of sign(x)·log10(|x| + 1), as in the paper, over valid predictions."


# Maps each metric to the heading of its column.
COLUMNS = {
    "exact_final_answer": "exact final answer",
    "final_answer_accuracy": "final answer",
    "exact_number": "exact",
    "accuracy": "accuracy",
    "log_mae": "log MAE",
    "log_r2": "log R²",
    "invalid_rate": "invalid",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "exact_match": "exact match",
    "bleu": "BLEU",
    "rougeL": "ROUGE-L",
    "crps": "CRPS",
    "rater_crps": "CRPS, ratings",
    "interval_coverage": "coverage",
    "interval_width": "width",
}
FINAL_ANSWER = ("exact_final_answer", "final_answer_accuracy")
NUMBERS = ("exact_number", "accuracy", "log_mae", "log_r2", "invalid_rate")
NUMBERS_IN_UNITS = ("mae", "rmse", "r2", "exact_number", "invalid_rate")
TEXTS = ("exact_match", "bleu", "rougeL")
UNCERTAINTY = ("crps", "rater_crps", "interval_coverage", "interval_width")

Columns = Mapping[tuple[str, str], Sequence[str]]
"""Maps the title and the heading of each column to its cells; a title may be empty."""
Table = tuple[Columns, list[str]]
"""The columns, with test sets as titles and one cell per group, and the lines below them."""


def markdown_report(
    datasets: Sequence[Dataset], tested: pd.DataFrame | None = None, left_out: Sequence[str] = ()
) -> str:
    """Write all tables, and one line for each run that is left out, as Markdown: table.md.

    Args:
        datasets: The runs.
        tested: What `contrasts.compare_rows` returns.
        left_out: The runs that are left out.
    """
    parts = []
    for dataset in datasets:
        parts.append(f"## {escape_html(dataset.name)}")
        for columns, remarks in make_tables(dataset):
            parts += [markdown_table(columns), *map(escape_html, remarks)]
        if missing := [test for test in dataset.tests if dataset.lacks_predictions(test)]:
            names = escape_html(", ".join(missing))
            parts.append(f"No error figures, because predictions are missing: {names}.")
        if differing := [test for test in dataset.tests if dataset.has_different_questions(test)]:
            parts.append(
                f"The questions differ between runs: {escape_html(', '.join(differing))}. Rows may not be "
                "comparable."
            )
    parts.append(_note(datasets))
    if tested is not None and len(tested):
        parts += ["## Declared contrasts", markdown_table(_contrast_columns(tested)), CONTRAST_NOTE]
    if left_out:
        parts += ["Left out:", "\n".join(f"- {escape_html(line)}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def _contrast_columns(tested: pd.DataFrame) -> Columns:
    """Format the tests of contrasts for a table."""
    rows = []
    for row in tested.to_dict("records"):
        halves = [(row[f"{name}upper"] - row[f"{name}lower"]) / 2 for name in ("", "percent_")]
        width, percent_width = (None if math.isnan(half) else half for half in halves)
        of_dataset = f"{row['dataset']}: " if "dataset" in row else ""
        rows.append(
            {
                "contrast": f"{of_dataset}{row['of']} minus {row['minus']}",
                "metric": f"{row['metric']} on {row['test']}",
                "seeds": str(row["seeds"]),
                "difference": round_significant(row["difference"], width, signed=True),
                "per cent": (
                    NOT_AVAILABLE  # the second row's mean is 0
                    if math.isnan(row["percent"])
                    else round_significant(row["percent"], percent_width, signed=True)
                ),
                "p, Holm": NOT_AVAILABLE if math.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}",
                "verdict": row["verdict"],
            }
        )
    return {("", name): [row[name] for row in rows] for name in rows[0]}


def markdown_table(columns: Columns) -> str:
    """Write a table as Markdown, with the first column left-aligned; `|` and HTML in a cell are escaped."""
    headings = [escape_html(" ".join(names).strip()) for names in columns]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    for row in zip(*columns.values(), strict=True):
        lines.append("| " + " | ".join(escape_html(cell).replace("|", r"\|") for cell in row) + " |")
    return "\n".join(lines)


def escape_html(text: str) -> str:
    """Put a text on one line, and escape it so that Markdown shows HTML in it as text.

    Example:
        >>> escape_html("T5 <b>best</b>\\n")
        'T5 &lt;b&gt;best&lt;/b&gt;'
    """
    return html.escape(" ".join(text.split()), quote=False)


def latex_report(datasets: Sequence[Dataset]) -> str:
    """Write all tables as LaTeX, each below a comment with its dataset and the lines below it in table.md."""
    parts = [r"% \usepackage{booktabs}"]
    for dataset in datasets:
        for columns, remarks in make_tables(dataset):
            parts += [f"% {' '.join(line.split())}" for line in (dataset.name, *remarks, _note(datasets))]
            parts.append(latex_table(columns))
    return "\n".join(parts)


def latex_table(columns: Columns) -> str:
    r"""Write a table as LaTeX with the booktabs package; cells that `**` encloses are bold."""
    table = pd.DataFrame(columns).style.hide(axis="index").format_index(escape="latex", axis="columns")
    bold = table.format(lambda cell: re.sub(r"^\*\*(.+)\*\*$", r"\\textbf{\1}", cell), escape="latex")
    alignment = f"l{'r' * (len(columns) - 1)}"
    latex: str = bold.to_latex(column_format=alignment, hrules=True, multicol_align="c")
    return latex


def long_csv(datasets: Sequence[Dataset]) -> str:
    """Write one CSV row per metric of each run."""
    rows = [
        (dataset.name, group.label, run.record.seed, test, metric, value, str(run.folder))
        for dataset in datasets
        for group in dataset.groups
        for run in group.runs
        for test, metrics in run.metrics.items()
        for metric, value in metrics.items()
    ]
    headings = ["dataset", "objective", "seed", "test", "metric", "value", "folder"]
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
        tables.append(_table(split_readings(dataset), tests, _metrics, references))
        read = [g for g in dataset.groups if any(g.values(test, "crps").notna().any() for test in tests)]
        if read:
            tables.append(_table(replace(dataset, groups=read), tests, _uncertainty, [UNCERTAINTY_NOTE]))
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
    metrics_of: Callable[[Dataset, str], list[str]],
    remarks: Iterable[str],
) -> Table:
    """Make one table. Columns that are the same in all rows become a remark."""
    groups = dataset.groups
    columns = {
        ("", "objective"): [group.label for group in groups],
        ("", "seeds"): [str(len(group.runs)) for group in groups],
    }
    for test in tests:
        for metric in metrics_of(dataset, test):
            heading, values = COLUMNS[metric], [group.values(test, metric) for group in groups]
            columns[test, heading] = cells = _mean_cells(values, larger_is_better(metric))
            if metric in ("mae", "log_mae") and len(groups) > 1 and not _is_constant(cells):
                columns[test, f"{heading} vs {groups[0].label}"] = _difference_cells(values)
    constant = {names: cells for names, cells in columns.items() if _is_constant(cells)}
    if constant:
        same = (" ".join([*names, cells[0]]).strip() for names, cells in constant.items())
        remarks = [f"The same in all rows: {', '.join(same)}.", *remarks]
    return {names: columns[names] for names in columns if names not in constant}, list(remarks)


def _is_constant(cells: Sequence[str]) -> bool:
    """Return whether several rows all have the same value; intervals are not compared."""
    return len(cells) > 1 and len({cell.strip("*").partition(" ± ")[0] for cell in cells}) == 1


def _metrics(dataset: Dataset, test: str) -> list[str]:
    known = {name for metrics in dataset.metrics(test) for name in metrics}
    numbers = NUMBERS_IN_UNITS if dataset.in_units(test) else NUMBERS
    return [name for name in (*FINAL_ANSWER, *(numbers if "accuracy" in known else TEXTS)) if name in known]


def _uncertainty(dataset: Dataset, test: str) -> list[str]:
    return [name for name in UNCERTAINTY if any(name in metrics for metrics in dataset.metrics(test))]


def _mean_cells(values: Sequence[pd.Series], larger: bool | None) -> list[str]:
    """Format means and intervals; the best mean is bold if its interval overlaps with no other row's."""
    found = [mean_and_interval(row) for row in values]
    cells = [NOT_AVAILABLE if mean is None else round_significant(mean, width) for mean, width in found]
    known = [(i, mean, width) for i, (mean, width) in enumerate(found) if mean is not None]
    if larger is not None and len(known) > 1 and all(width is not None for _, _, width in known):
        i, mean, width = (max if larger else min)(known, key=lambda row: row[1])
        if all(abs(mean - other) > width + theirs for j, other, theirs in known if j != i):
            cells[i] = f"**{cells[i]}**"
    return cells


def _difference_cells(values: Sequence[pd.Series]) -> list[str]:
    """Format the differences of each row to the first one, paired by seed."""
    cells = [""]
    for row in values[1:]:
        differences = (row - values[0]).dropna()
        mean, width = mean_and_interval(differences)
        if mean is None:
            cells.append(NOT_AVAILABLE)
        else:
            lower = f"(lower on {(differences < 0).sum()} of {len(differences)})"
            cells.append(f"{round_significant(mean, width, signed=True)} {lower}")
    return cells


def _references(dataset: Dataset, test: str) -> str:
    """Describe what the errors on a test set are compared with; empty if the runs have not recorded it."""
    metric = "mae" if dataset.in_units(test) else "log_mae"
    answers = {
        "constant": "for always answering the median of the training answers",
        "noise": "for answering without the noise",
    }
    errors = {words: dataset.reference(test, f"{name}_{metric}") for name, words in answers.items()}
    parts = [f"{round_significant(error)} {words}" for words, error in errors.items() if error is not None]
    return f"Reference {COLUMNS[metric]} on {test}: {'; '.join(parts)}." if parts else ""


def _note(datasets: Sequence[Dataset]) -> str:
    logs = any(not dataset.in_units(test) for dataset in datasets for test in dataset.tests)
    return NOTE + (LOG_NOTE if logs else "")
