"""Make the tables of a report: means over seeds, and differences relative to the first row, seed by seed."""

import html
import math
from collections.abc import Sequence
from itertools import product

import pandas as pd

from ntl.metrics.registry import METRICS, READINGS, find_metric, split_metric
from ntl.own import is_own
from ntl.report.runs import differing_tests, is_step
from ntl.report.statistics import mean_and_interval, paired_difference

NOT_AVAILABLE = "n/a"
TESTS_PER_TABLE = 2
LARGE = 1e5  # larger numbers are written with an exponent
NOTE = (
    "Mean ± half-width of the 95 % confidence interval over seeds (Student's t; none for one seed). "
    "Exact: share of answers whose number equals the true one in every digit; accuracy: np.isclose, as in "
    "the paper. Invalid: share of answers without a number. Log MAE and log R²: of "
    "sign(x)·log10(|x| + 1), as in the paper, over valid predictions. "
    "Differences are paired by seed. Constant: always the median of the training answers; without noise: the "
    "answer before noise was added to it, which no model can beat on average. "
    "CRPS: continuous ranked probability score, in the unit of the numbers. Coverage: share of true numbers "
    "within the interval, nominally evaluation.interval; width: mean width of the interval."
)
CONTRAST_NOTE = (
    "Paired by seed, with 95 % intervals (Student's t); p-values are corrected for the number of contrasts "
    "that were planned (Holm). No effect: the 90 % interval lies within the margin."
)
NAMED = ("loss.criterion", "evaluation.data")  # which labels and tests say
REFERENCES = {"constant": "constant", "noise": "without noise"}  # rows of what models are compared with
# Columns of the tables, of those that were measured.
FINAL_ANSWER = ("exact_final_answer", "final_answer_accuracy")
NUMBERS = (*FINAL_ANSWER, "exact_number", "accuracy", "log_mae", "log_r2", "invalid_rate")
NUMBERS_IN_UNITS = (*FINAL_ANSWER, "mae", "rmse", "r2", "exact_number", "invalid_rate")
TEXTS = (*FINAL_ANSWER, "exact_match", "bleu", "rougeL")
UNCERTAINTY = ("crps", "rater_crps", "interval_coverage", "interval_width")
LEVELS = ("rps", "rater_rps", "mae", "kappa", "two_peaks", "ece", "cumulative_ece")
COMPARED = ("mae", "log_mae")  # with the first row


def split_readings(table: pd.DataFrame) -> pd.DataFrame:
    """Split the rows of a report into one for each reading of its numbers: `T5, greedy`, `T5, median`, ...

    Args:
        table: The runs, see `ntl.report.runs`.

    Returns:
        The table with the plain names of metrics (`mae` for `median_mae`) and a column `line`: the row, with
        the reading if numbers were read in several ways. What models are compared with has rows of its own
        behind the others, `constant` and `without noise`.
    """
    names = {name: split_metric(name) for name in table["metric"].unique()}
    of, plain = (table["metric"].map({name: pair[i] for name, pair in names.items()}) for i in (0, 1))
    rows, is_reference = [table["dataset"], table["row"]], of.isin(REFERENCES)
    readings = of.where((plain == "mae") & ~is_reference).groupby(rows).transform("nunique")
    line = table["row"].where(readings < 2, table["row"] + ", " + of).mask(is_reference, of.map(REFERENCES))
    split = table.assign(
        line=line,
        metric=plain,
        by_row=pd.Series(pd.factorize(table["row"])[0], table.index).mask(is_reference, len(table)),
        by_reading=of.map([*READINGS, *REFERENCES].index),
    )
    split = split.sort_values(["by_row", "by_reading"], kind="stable", ignore_index=True)
    return split.drop_duplicates(["dataset", "line", "seed", "test", "metric"])


def in_units(runs: pd.DataFrame) -> bool:
    """Return whether errors on a dataset are shown in the unit of the answers, not on a log scale.

    They are for tables, where noise is known, where distributions were read, and where no other are known.
    """
    known = {*runs["metric"]}
    return "tabular" in {*runs["task"]} or bool(known & {"noise_mae", "crps"}) or "log_mae" not in known


def markdown_report(table: pd.DataFrame, tested: pd.DataFrame, left_out: Sequence[str]) -> str:
    """Write all tables, and one line for each run that is left out, as Markdown: table.md.

    Args:
        table: The runs, see `ntl.report.runs`.
        tested: What `contrasts.compare_rows` returns.
        left_out: The runs that are left out.
    """
    parts = []
    for dataset, runs in table.groupby("dataset", sort=False):
        parts.append(f"## {escape_html(dataset)}")
        parts += map(markdown_table, make_tables(runs))
        parts += [escape_html(line) for line in _differing_settings(runs)]
        if differing := differing_tests(runs):
            parts.append(
                f"The questions differ between runs: {escape_html(', '.join(differing))}. Rows may not be "
                "comparable."
            )
    parts.append(NOTE)
    if len(tested):
        parts += ["## Planned contrasts", markdown_table(contrast_table(tested)), CONTRAST_NOTE]
    if left_out:
        parts += ["Left out:", "\n".join(f"- {escape_html(line)}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def make_tables(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Make the tables of one dataset, with as many test sets side by side as fit on a page.

    A table of errors by row and reading is followed by one of the distributions, if any was read.
    """
    runs = runs[~is_step(runs)]
    tests, tables, rows = [*dict.fromkeys(runs["test"])], [], split_readings(runs)
    of_labels = runs.assign(line=runs["row"])
    for i in range(0, len(tests), TESTS_PER_TABLE):
        shown = tests[i : i + TESTS_PER_TABLE]
        known = {*rows["metric"][rows["test"].isin(shown)]}
        numbers = NUMBERS_IN_UNITS if in_units(runs) else NUMBERS
        kinds = (LEVELS[:1], LEVELS), (("mae", "log_mae", "accuracy"), numbers)
        columns: Sequence[str] = next((of_kind for names, of_kind in kinds if known & {*names}), TEXTS)
        columns = columns if known & {*columns} else tuple(METRICS)
        tables.append(_table(rows, shown, (*columns, *sorted(filter(is_own, known)))))
        read = runs["row"][runs["metric"].eq("crps") & runs["test"].isin(shown)].unique()
        if len(read):
            tables.append(_table(of_labels[of_labels["row"].isin(read)], shown, UNCERTAINTY))
    return tables


def _table(rows: pd.DataFrame, tests: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Make one table of the metrics that were measured."""
    rows = rows[rows["test"].isin(tests) & rows["metric"].isin(metrics)]
    seeds = {row: part.unique() for row, part in rows.groupby("line", sort=False)["seed"]}
    columns: dict[str, list[str]] = {"row": [*seeds], "seeds": [str(len(each)) for each in seeds.values()]}
    found = dict(iter(rows.set_index("seed").groupby(["test", "metric", "line"])["value"]))
    for test, name in product(tests, metrics):
        if not any((test, name, row) in found for row in seeds):
            continue
        heading, nothing = f"{test} {find_metric(name).heading}", pd.Series(dtype=float)
        values = [found.get((test, name, row), nothing).reindex(seeds[row]) for row in seeds]
        columns[heading] = [round_significant(*mean_and_interval(each)) for each in values]
        differences = [_difference_cell(each, values[0]) for each in values[1:]]
        if name in COMPARED and {*differences} - {NOT_AVAILABLE}:
            columns[f"{heading} vs {next(iter(seeds))}"] = ["", *differences]
    return pd.DataFrame(columns)


def _difference_cell(of: pd.Series, minus: pd.Series) -> str:
    found = paired_difference(of, minus)
    if not found.pairs:
        return NOT_AVAILABLE
    difference = round_significant(found.mean, found.half, signed=True)
    return f"{difference} (lower on {found.lower} of {found.pairs})"


def _differing_settings(runs: pd.DataFrame) -> list[str]:
    """Say in which settings the rows differ, besides those that their labels name."""
    found = []
    for key in [key for key in runs if "." in key and key not in NAMED]:
        rows = runs.groupby(key, sort=False)["row"].unique()
        if len(rows) > 1 and not all(f"{key.rpartition('.')[2]}=" in label for label in runs["row"]):
            values = "; ".join(f"{value} in {', '.join(labels)}" for value, labels in rows.items())
            found.append(f"The rows differ in {key}: {values}.")
    if (runs.groupby("seed")["trained_on"].nunique() > 1).any():
        found.append("Runs of one seed were trained on different data.")
    return found


def contrast_table(tested: pd.DataFrame) -> pd.DataFrame:
    """Format the tests of contrasts."""
    several, rows = tested["dataset"].nunique() > 1, []
    for row in tested.to_dict("records"):
        half, percent_half = ((row[f"{name}upper"] - row[f"{name}lower"]) / 2 for name in ("", "percent_"))
        points = " points" if find_metric(row["metric"]).in_points else ""
        of_dataset = f"{row['dataset']}: " if several else ""
        rows.append(
            {
                "contrast": f"{of_dataset}{row['of']} minus {row['minus']}",
                "metric": f"{row['metric']} on {row['test']}",
                "seeds": str(row["seeds"]),
                "difference": round_significant(row["difference"], half, signed=True),
                "per cent": round_significant(row["percent"], percent_half, signed=True) + points,
                "p, Holm": NOT_AVAILABLE if math.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}",
                "verdict": row["verdict"],
            }
        )
    return pd.DataFrame(rows)


def markdown_table(table: pd.DataFrame) -> str:
    """Write a table as Markdown, with the first column left-aligned; `|` and HTML in a cell are escaped."""
    lines = ["| " + " | ".join(map(escape_html, table)) + " |", "|---|" + "---:|" * (len(table.columns) - 1)]
    for row in table.itertuples(index=False):
        lines.append("| " + " | ".join(escape_html(cell).replace("|", r"\|") for cell in row) + " |")
    return "\n".join(lines)


def escape_html(text: str) -> str:
    """Put a text on one line, and escape it so that Markdown shows HTML in it as text.

    Example:
        >>> escape_html("T5 <b>best</b>\\n")
        'T5 &lt;b&gt;best&lt;/b&gt;'
    """
    return html.escape(" ".join(text.split()), quote=False)


def round_significant(value: float, width: float = math.nan, signed: bool = False) -> str:
    """Format a value and the half-width of its interval, the larger one with three significant digits.

    A width of NaN is left out, and a value of NaN is not available.

    Example:
        >>> round_significant(24.271, 1.4), round_significant(0.0123456), round_significant(1234567.0)
        ('24.3 ± 1.4', '0.0123', '1.23e+06')
        >>> round_significant(0.2, 1.94, signed=True)
        '+0.20 ± 1.94'
    """
    if math.isnan(value):
        return NOT_AVAILABLE
    size = abs(value) if math.isnan(width) else max(abs(value), width)
    digits = 0 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
    form = f".{digits}f" if size < LARGE else ".3g"
    text = f"{value:{'+' if signed else ''}{form}}"
    return text if math.isnan(width) else f"{text} ± {width:{form}}"
