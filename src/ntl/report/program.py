"""`ntl report`: collect finished runs into tables in the paper's format, and figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ntl.data.files import write_json
from ntl.errors import UserError, writing_to
from ntl.program import run_program
from ntl.report.groups import Dataset, load_datasets, other_evaluations
from ntl.report.tables import latex_report, long_csv, markdown_report, wide_csv

REPORT = "report.json"
UNFINISHED = ".unfinished-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl report`; see `ntl.program.run_program`."""
    return run_program("ntl report", _report, arguments)


def _report(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ntl report",
        description="Collect finished runs into tables over seeds (Markdown, CSV, LaTeX) and figures.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders that are or contain runs")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/report"), help="output folder (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing report")
    report(**vars(parser.parse_args(arguments)))
    return 0


def report(folders: Sequence[Path], output: Path, overwrite: bool = False, in_order: bool = False) -> None:
    """Collect runs, print the tables, and write the tables and figures.

    Args:
        folders: Folders to search, see `run_folder.find_runs`.
        output: Folder for table.md, table.csv, table.tex, metrics.csv, the figures and report.json.
        overwrite: Whether to replace an existing report.
        in_order: Whether rows keep the order of the folders, see `groups.load_datasets`.
    """
    before = check_output(output, overwrite)
    datasets, left_out = load_datasets(folders, in_order)
    for line in left_out:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    text = markdown_report(datasets, left_out)
    is_new = not output.exists()
    try:
        with writing_to(output, "a writable folder", "Choose another output folder."):
            output.mkdir(parents=True, exist_ok=True)
            # Inside the output folder, so that files can be renamed into place.
            with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=output) as unfinished:
                files = _write_files(Path(unfinished), datasets, text)
                written = _describe_report(datasets, files, left_out)
                # If this is interrupted, report.json lists all files, so the report can still be replaced.
                write_json(output / REPORT, {"files": sorted({*before, *files})})
                for name in files:
                    os.replace(Path(unfinished, name), output / name)
            for name in {*before} - {*files}:
                (output / name).unlink(missing_ok=True)
            write_json(output / REPORT, written)
    finally:
        if is_new:
            with suppress(OSError):  # it holds a report, or could not be created
                output.rmdir()
    print(text)
    print(f"{'Replaced' if before else 'Wrote'} {', '.join(files)} in {output}")


def _write_files(folder: Path, datasets: Sequence[Dataset], text: str) -> list[str]:
    """Write the tables and figures of a report, and return their names."""
    from ntl.report.figures import draw_dataset

    tables = {
        "table.md": text,
        "table.csv": wide_csv(datasets),
        "table.tex": latex_report(datasets),
        "metrics.csv": long_csv(datasets),
    }
    for name, content in tables.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [*tables, *(name for dataset in datasets for name in draw_dataset(dataset, folder))]


def _describe_report(
    datasets: Sequence[Dataset], files: Sequence[str], left_out: Sequence[str]
) -> dict[str, Any]:
    """Return the content of report.json."""
    runs = [run for dataset in datasets for run in dataset.runs]
    return {
        "files": files,
        "runs": [str(run.folder) for run in runs],
        "not_shown": [str(evaluation) for evaluation in other_evaluations(runs)],
        "left_out": left_out,
    }


def check_output(output: Path, overwrite: bool) -> list[str]:
    """Return the files of an existing report that will be replaced."""
    if not output.exists():
        return []
    # Temporary folders left by a killed report do not matter.
    if output.is_dir() and all(path.name.startswith(UNFINISHED) for path in output.iterdir()):
        return []
    try:
        files = [name for name in json.loads((output / REPORT).read_text())["files"] if "/" not in name]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{output}, the report's folder, holds files that are not a report; expected a new or empty "
            "folder. Choose another output folder."
        ) from None
    if not overwrite:
        raise UserError(
            f"{output}, the report's folder, holds a report; expected a new or empty folder. Choose another "
            "output folder, or pass --overwrite to replace the report."
        )
    return files
