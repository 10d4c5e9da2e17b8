"""`ntl report`: collect finished runs into tables in the paper's format, and figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ntl.errors import UserError
from ntl.records import write_atomically
from ntl.report_groups import (
    FinishedRun,
    Group,
    describe_evaluations,
    drop_repeated_runs,
    group_by_dataset,
    group_runs,
    load_finished,
    other_evaluations,
    test_sets,
    tests_with_differing_questions,
    tests_without_predictions,
)
from ntl.tables import Columns, csv_table, latex_table, markdown_table

NOT_AVAILABLE = "n/a"
REPORT = "report.json"
UNFINISHED = ".unfinished-"
TESTS_PER_TABLE = 2
NOTE = (
    "Mean ± half-width of the 95 % confidence interval over seeds (Student's t; n/a for one seed); bold: the "
    "best mean. Exact: share of answers whose number equals the true one in every digit; accuracy: "
    "np.isclose, as in the paper. MAE and R² of sign(x)·log10(|x| + 1), as in the paper, over valid "
    "predictions; invalid: share of answers without a number."
)


class Column(NamedTuple):
    """A column of the table.

    Args:
        metric: Name of the metric in metrics.json.
        heading: Heading of the column.
        best: Whether the largest (`max`) or the smallest (`min`) value is best.
    """

    metric: str
    heading: str
    best: str


NUMBER_COLUMNS = (
    Column("exact_number", "exact", "max"),
    Column("accuracy", "accuracy", "max"),
    Column("log_mae", "MAE", "min"),
    Column("log_r2", "R²", "max"),
    Column("invalid_rate", "invalid", "min"),
)
FINAL_ANSWER = (
    Column("exact_final_answer", "exact final answer", "max"),
    Column("final_answer_accuracy", "final answer", "max"),
)
TEXT_COLUMNS = (
    Column("exact_match", "exact match", "max"),
    Column("bleu", "BLEU", "max"),
    Column("rougeL", "ROUGE-L", "max"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Arguments after `ntl report`. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 for success, 2 for a user-fixable error.
    """
    parser = argparse.ArgumentParser(
        prog="ntl report",
        description="Collect finished runs into tables over seeds (Markdown, CSV, LaTeX) and figures.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders that are or contain runs")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/report"), help="output folder (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing report")
    given = parser.parse_args(arguments)
    try:
        report(given.folders, given.output, given.overwrite)
    except UserError as error:
        print(f"ntl report: {error}", file=sys.stderr)
        return 2
    return 0


def report(folders: Sequence[Path], output: Path, overwrite: bool = False) -> None:
    """Collect runs, print the tables, and write the tables and figures.

    Args:
        folders: Folders to search, see `run_folder.find_runs`.
        output: Folder for table.md, table.csv, table.tex, metrics.csv, the figures and report.json.
        overwrite: Whether to replace an existing report.

    Raises:
        UserError: There are no finished runs, a file cannot be read, or the output folder holds other files
            or cannot be written.
    """
    before = _check_output(output, overwrite)
    runs, left_out = load_finished(folders)
    runs, repeated = drop_repeated_runs(runs)
    for line in repeated:
        print(f"ntl report: warning: {line}", file=sys.stderr)
    left_out += repeated
    datasets = group_by_dataset(group_runs(runs))
    text = markdown_report(datasets, left_out)
    is_new = not output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
        # Inside the output folder, so that files can be renamed into place.
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=output) as unfinished:
            files = _write_report(Path(unfinished), datasets, text, runs, left_out)
            _replace(output, before, Path(unfinished), files)
    except OSError as error:
        raise UserError(
            f"{output} cannot be written ({error.strerror}); expected a writable folder. Pass another "
            "--output."
        ) from None
    finally:
        if is_new and output.is_dir() and not any(output.iterdir()):
            output.rmdir()
    print(text)
    print(f"{'Replaced' if before else 'Wrote'} {', '.join(files)} in {output}")


def _write_report(
    folder: Path,
    datasets: dict[str, list[Group]],
    text: str,
    runs: Sequence[FinishedRun],
    left_out: Sequence[str],
) -> list[str]:
    """Write the report, including report.json, and return the names of its other files."""
    from ntl.report_figures import draw_dataset

    write_atomically(folder / "table.md", text)
    write_atomically(folder / "table.csv", wide_csv(datasets))
    write_atomically(folder / "table.tex", latex_report(datasets))
    write_atomically(folder / "metrics.csv", long_csv(datasets))
    figures = [name for name, groups in datasets.items() for name in draw_dataset(name, groups, folder)]
    files = ["table.md", "table.csv", "table.tex", "metrics.csv", *figures]
    content = {
        "files": files,
        "runs": [str(run.folder) for run in runs],
        "not_shown": [str(evaluation) for evaluation in other_evaluations(runs)],
        "left_out": left_out,
    }
    write_atomically(folder / REPORT, json.dumps(content, indent=1) + "\n")
    return files


def _replace(output: Path, before: Sequence[str], finished: Path, files: Sequence[str]) -> None:
    """Move a finished report into place, and delete the files that only the old report had."""
    # If this is interrupted, report.json lists all files, so the report can still be replaced.
    write_atomically(output / REPORT, json.dumps({"files": sorted({*before, *files})}) + "\n")
    for name in files:
        os.replace(finished / name, output / name)
    for name in {*before} - {*files}:
        (output / name).unlink(missing_ok=True)
    os.replace(finished / REPORT, output / REPORT)


def _check_output(output: Path, overwrite: bool) -> list[str]:
    """Return the files of an existing report that will be replaced.

    Raises:
        UserError: The folder holds other files, or a report although `overwrite` is false.
    """
    if not output.exists():
        return []
    # Temporary folders left by a killed report do not matter.
    if output.is_dir() and all(path.name.startswith(UNFINISHED) for path in output.iterdir()):
        return []
    try:
        files = [name for name in json.loads((output / REPORT).read_text())["files"] if "/" not in name]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--output {output} holds files that are not a report; expected a new or empty folder. "
            "Pass another."
        ) from None
    if not overwrite:
        raise UserError(
            f"--output {output} holds a report; expected a new or empty folder. Pass another, or "
            "--overwrite to replace the report."
        )
    return files


def markdown_report(datasets: dict[str, list[Group]], left_out: Sequence[str] = ()) -> str:
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
            columns = _columns(groups, tests)
            headings = [f"{group.title} {heading}".strip() for group in columns for heading in group.headings]
            lines += [markdown_table(headings, _rows(groups, tests)), ""]
        for line in describe_evaluations(groups):
            lines += [line, ""]
        if missing := tests_without_predictions(groups):
            lines += [f"No error figures, because predictions are missing: {', '.join(missing)}.", ""]
        if differing := tests_with_differing_questions(groups):
            lines += [
                f"The questions differ between runs: {', '.join(differing)}. Rows may not be comparable.",
                "",
            ]
    lines += [NOTE, ""]
    if left_out:
        lines += ["Left out:", "", *(f"- {line}" for line in left_out), ""]
    return "\n".join(lines)


def latex_report(datasets: dict[str, list[Group]]) -> str:
    """Write all tables as LaTeX. See `markdown_report` for the arguments."""
    tables = [
        latex_table(_columns(groups, tests), _rows(groups, tests), f"{dataset}. {NOTE}")
        for dataset, groups in datasets.items()
        for tests in _split_tests(test_sets(groups))
    ]
    return "% \\usepackage{booktabs}\n" + "\n".join(tables)


def wide_csv(datasets: dict[str, list[Group]]) -> str:
    """Write one CSV row per dataset and objective, unrounded. See `markdown_report` for the arguments."""
    columns = [
        (test, column)
        for test in dict.fromkeys(test for groups in datasets.values() for test in test_sets(groups))
        for column in (*FINAL_ANSWER, *NUMBER_COLUMNS, *TEXT_COLUMNS)
        if any(column in _metric_columns(groups, test) for groups in datasets.values())
    ]
    headings = ["dataset", "objective", "seeds"]
    for test, column in columns:
        headings += [f"{test} {column.metric}", f"{test} {column.metric} ±"]
    rows: list[list[object]] = []
    for dataset, groups in datasets.items():
        for group in groups:
            row: list[object] = [dataset, group.label, len(group.runs)]
            for test, column in columns:
                row += group.mean_and_interval(test, column.metric)
            rows.append(row)
    return csv_table(headings, rows)


def long_csv(datasets: dict[str, list[Group]]) -> str:
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


def _split_tests(tests: Sequence[str]) -> list[list[str]]:
    """Split the test sets into groups that fit side by side on a page."""
    return [list(tests[i : i + TESTS_PER_TABLE]) for i in range(0, len(tests), TESTS_PER_TABLE)]


def _metric_columns(groups: Sequence[Group], test: str) -> list[Column]:
    names = {name for group in groups for run in group.runs for name in run.metrics.get(test, {})}
    columns = (*FINAL_ANSWER, *(NUMBER_COLUMNS if "accuracy" in names else TEXT_COLUMNS))
    return [column for column in columns if column.metric in names]


def _columns(groups: Sequence[Group], tests: Sequence[str]) -> list[Columns]:
    first = Columns("", ["objective", "seeds"])
    return [first, *(Columns(test, [c.heading for c in _metric_columns(groups, test)]) for test in tests)]


def _rows(groups: Sequence[Group], tests: Sequence[str]) -> list[list[str]]:
    rows = [[group.label, str(len(group.runs))] for group in groups]
    for test in tests:
        for column in _metric_columns(groups, test):
            digits = 2 if column.metric == "bleu" else 4
            found = [group.mean_and_interval(test, column.metric) for group in groups]
            means = [None if mean is None else f"{mean:.{digits}f}" for mean, _ in found]
            known = [float(mean) for mean in means if mean is not None]
            best = (max if column.best == "max" else min)(known) if len(set(known)) > 1 else None
            for row, mean, (_, width) in zip(rows, means, found, strict=True):
                if mean is None:
                    row.append(NOT_AVAILABLE)
                    continue
                cell = f"{mean} ± {NOT_AVAILABLE if width is None else f'{width:.{digits}f}'}"
                row.append(f"**{cell}**" if float(mean) == best else cell)
    return rows
