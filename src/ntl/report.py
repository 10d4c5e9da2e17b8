"""`ntl report`: from the folders of finished runs to a table in the shape of the paper's, and to figures."""

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
from ntl.records import write_whole
from ntl.report_groups import (
    FinishedRun,
    Group,
    by_dataset,
    differing_questions,
    evaluation_lines,
    group_runs,
    load_finished,
    not_shown,
    test_sets,
    without_predictions,
    without_repetitions,
)
from ntl.tables import Columns, csv_table, latex_table, markdown_table

NOTHING = "n/a"
REPORT = "report.json"
UNFINISHED = ".unfinished-"
TESTS_PER_TABLE = 2
NOTE = (
    "Mean ± half-width of the 95 % confidence interval over seeds (Student's t; n/a for one seed); bold: the "
    "best mean. Exact: share of answers whose number is the true one, every digit compared; accuracy: "
    "np.isclose, as in the paper. MAE and R² of sign(x)·log10(|x| + 1), as in the paper, over valid "
    "predictions; invalid: share of answers without a number."
)


class Column(NamedTuple):
    """A column of the table.

    Args:
        metric: Its name in metrics.json.
        heading: What stands above it.
        best: `max` or `min`.
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
        arguments: Those behind `ntl report`. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 the report is written, 2 something asked for cannot be done.
    """
    parser = argparse.ArgumentParser(
        prog="ntl report",
        description="Collect finished runs: tables over seeds in Markdown, CSV and LaTeX, and figures.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or folders that hold some")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/report"), help="where to write (%(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the report that is there")
    given = parser.parse_args(arguments)
    try:
        report(given.folders, given.output, given.overwrite)
    except UserError as error:
        print(f"ntl report: {error}", file=sys.stderr)
        return 2
    return 0


def report(folders: Sequence[Path], output: Path, overwrite: bool = False) -> None:
    """Collect runs; print the tables, and write them with figures.

    Args:
        folders: See `run_folder.find_runs`.
        output: Where table.md, table.csv, table.tex, metrics.csv, figures and report.json go.
        overwrite: Replace the report that is there.

    Raises:
        UserError: There are no finished runs, or the output folder holds something.
    """
    before = _check_output(output, overwrite)
    runs, left_out = load_finished(folders)
    runs, repeated = without_repetitions(runs)
    for line in repeated:
        print(f"ntl report: warning: {line}", file=sys.stderr)
    left_out += repeated
    datasets = by_dataset(group_runs(runs))
    text = markdown_report(datasets, left_out)
    is_new = not output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
        # Inside of the output folder, so that moving a file is renaming it.
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=output) as unfinished:
            files = _write_report(Path(unfinished), datasets, text, runs, left_out)
            _replace(output, before, Path(unfinished), files)
    except OSError as error:
        raise UserError(
            f"{output} cannot be written ({error.strerror}); expected a folder that can be. Pass another "
            "--output."
        ) from None
    finally:
        if is_new and output.is_dir() and not any(output.iterdir()):
            output.rmdir()
    print(text)
    print(f"{'Replaced' if before else 'Written'}: {', '.join(files)} in {output}")


def _write_report(
    folder: Path,
    datasets: dict[str, list[Group]],
    text: str,
    runs: Sequence[FinishedRun],
    left_out: Sequence[str],
) -> list[str]:
    """Write the report with its report.json, and return the names of the other files."""
    from ntl.report_figures import draw_dataset

    write_whole(folder / "table.md", text)
    write_whole(folder / "table.csv", wide_csv(datasets))
    write_whole(folder / "table.tex", latex_report(datasets))
    write_whole(folder / "metrics.csv", long_csv(datasets))
    figures = [name for name, groups in datasets.items() for name in draw_dataset(name, groups, folder)]
    files = ["table.md", "table.csv", "table.tex", "metrics.csv", *figures]
    content = {
        "files": files,
        "runs": [str(run.folder) for run in runs],
        "not_shown": [str(evaluation) for evaluation in not_shown(runs)],
        "left_out": left_out,
    }
    write_whole(folder / REPORT, json.dumps(content, indent=1) + "\n")
    return files


def _replace(output: Path, before: Sequence[str], finished: Path, files: Sequence[str]) -> None:
    """Move a finished report to its place, and delete what the one before had more."""
    # If it stops half-way, all files are known as a report's, which can be replaced.
    write_whole(output / REPORT, json.dumps({"files": sorted({*before, *files})}) + "\n")
    for name in files:
        os.replace(finished / name, output / name)
    for name in {*before} - {*files}:
        (output / name).unlink(missing_ok=True)
    os.replace(finished / REPORT, output / REPORT)


def _check_output(output: Path, overwrite: bool) -> list[str]:
    """The files of the report that is to be replaced."""
    if not output.exists():
        return []
    # A folder that a killed report left is in nobody's way.
    if output.is_dir() and all(path.name.startswith(UNFINISHED) for path in output.iterdir()):
        return []
    try:
        files = [name for name in json.loads((output / REPORT).read_text())["files"] if "/" not in name]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--output {output} holds other things than a report; expected an empty or a new folder. "
            "Pass another."
        ) from None
    if not overwrite:
        raise UserError(
            f"--output {output} holds a report; expected an empty or a new folder. Pass another, or "
            "--overwrite to replace it."
        )
    return files


def markdown_report(datasets: dict[str, list[Group]], left_out: Sequence[str] = ()) -> str:
    """Write all tables as Markdown.

    Args:
        datasets: Dataset -> its groups.
        left_out: A line about each run that is not in them.

    Returns:
        The text of table.md.
    """
    lines = []
    for dataset, groups in datasets.items():
        lines += [f"## {dataset}", ""]
        for tests in _portions(test_sets(groups)):
            columns = _columns(groups, tests)
            headings = [f"{group.title} {heading}".strip() for group in columns for heading in group.headings]
            lines += [markdown_table(headings, _rows(groups, tests)), ""]
        for line in evaluation_lines(groups):
            lines += [line, ""]
        if missing := without_predictions(groups):
            lines += [f"No figures of errors, for want of predictions: {', '.join(missing)}.", ""]
        if differing := differing_questions(groups):
            lines += [
                f"Not all runs were asked the same questions: {', '.join(differing)}. Rows may not compare.",
                "",
            ]
    lines += [NOTE, ""]
    if left_out:
        lines += ["Left out:", "", *(f"- {line}" for line in left_out), ""]
    return "\n".join(lines)


def latex_report(datasets: dict[str, list[Group]]) -> str:
    """Write all tables as LaTeX; arguments as in `markdown_report`."""
    tables = [
        latex_table(_columns(groups, tests), _rows(groups, tests), f"{dataset}. {NOTE}")
        for dataset, groups in datasets.items()
        for tests in _portions(test_sets(groups))
    ]
    return "% \\usepackage{booktabs}\n" + "\n".join(tables)


def wide_csv(datasets: dict[str, list[Group]]) -> str:
    """Write the table with one row per dataset and objective, numbers unrounded; arguments as above."""
    columns = [
        (test, column)
        for test in dict.fromkeys(test for groups in datasets.values() for test in test_sets(groups))
        for column in (*FINAL_ANSWER, *NUMBER_COLUMNS, *TEXT_COLUMNS)
        if any(column in _metrics_of(groups, test) for groups in datasets.values())
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
    """Write every metric of every run, one a line; arguments as above."""
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


def _portions(tests: Sequence[str]) -> list[list[str]]:
    """Test sets side by side, as many as a page is wide."""
    return [list(tests[i : i + TESTS_PER_TABLE]) for i in range(0, len(tests), TESTS_PER_TABLE)]


def _metrics_of(groups: Sequence[Group], test: str) -> list[Column]:
    names = {name for group in groups for run in group.runs for name in run.metrics.get(test, {})}
    columns = (*FINAL_ANSWER, *(NUMBER_COLUMNS if "accuracy" in names else TEXT_COLUMNS))
    return [column for column in columns if column.metric in names]


def _columns(groups: Sequence[Group], tests: Sequence[str]) -> list[Columns]:
    first = Columns("", ["objective", "seeds"])
    return [first, *(Columns(test, [c.heading for c in _metrics_of(groups, test)]) for test in tests)]


def _rows(groups: Sequence[Group], tests: Sequence[str]) -> list[list[str]]:
    rows = [[group.label, str(len(group.runs))] for group in groups]
    for test in tests:
        for column in _metrics_of(groups, test):
            digits = 2 if column.metric == "bleu" else 4
            found = [group.mean_and_interval(test, column.metric) for group in groups]
            means = [None if mean is None else f"{mean:.{digits}f}" for mean, _ in found]
            known = [float(mean) for mean in means if mean is not None]
            best = (max if column.best == "max" else min)(known) if len(set(known)) > 1 else None
            for row, mean, (_, width) in zip(rows, means, found, strict=True):
                if mean is None:
                    row.append(NOTHING)
                    continue
                cell = f"{mean} ± {NOTHING if width is None else f'{width:.{digits}f}'}"
                row.append(f"**{cell}**" if float(mean) == best else cell)
    return rows
