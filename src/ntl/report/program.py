"""`ntl report`: collect finished runs into tables in the paper's format, tests of contrasts, and figures."""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ntl.errors import UserError, writing_to
from ntl.program import load_settings, run_program

log = logging.getLogger(__name__)


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
    parser.add_argument(
        "--evaluation", default="test", help="which evaluations, by evaluation.name (default: %(default)s)"
    )
    parser.add_argument("--study", type=Path, help="YAML file with contrasts and margin")
    given = parser.parse_args(arguments)
    if missing := [str(folder) for folder in given.folders if not folder.is_dir()]:
        raise UserError(f"{', '.join(missing)} is no folder; expected folders of finished runs. Correct it.")
    study: Any = {}
    if given.study is not None:
        study = OmegaConf.to_container(load_settings(given.study))
    declared = {key: study[key] for key in ("contrasts", "margin") if key in study}
    report(given.folders, given.output, given.evaluation, **declared)
    return 0


def report(
    folders: Sequence[Path],
    output: Path,
    name: str = "test",
    in_order: bool = False,
    contrasts: Sequence[Mapping[str, Any]] = (),
    margin: float = 5.0,
) -> None:
    """Collect runs, print the tables, and write tables and figures, replacing those of an earlier report.

    Args:
        folders: Folders to search, see `run_folder.find_evaluations`.
        output: Folder for table.md, table.tex, metrics.csv, contrasts.csv and the figures.
        name: Name of the evaluations, `evaluation.name`.
        in_order: Whether rows keep the order of a sweep's runs, see `groups.load_datasets`.
        contrasts: What is tested, see `contrasts.Contrast`.
        margin: See `contrasts.compare_rows`.
    """
    # Slow to import: matplotlib, scipy.
    from ntl.report.contrasts import compare_rows, read_contrasts
    from ntl.report.figures import draw_dataset
    from ntl.report.groups import load_datasets
    from ntl.report.tables import latex_report, long_csv, markdown_report

    declared = read_contrasts(contrasts)
    if not isinstance(margin, int | float):
        raise UserError(f"margin: {margin!r} is no number; expected per cent, such as 5.0. Correct it.")
    datasets, left_out = load_datasets(folders, name, in_order)
    tested, missing = compare_rows(datasets, declared, margin)
    left_out += missing
    for line in left_out:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    text = markdown_report(datasets, tested, left_out)
    tables = {
        "table.md": text,
        "table.tex": latex_report(datasets),
        "metrics.csv": long_csv(datasets),
    }
    if len(tested):
        tables["contrasts.csv"] = tested.to_csv(index=False, lineterminator="\n")
    with writing_to(output, "a writable folder", "Choose another output folder."):
        output.mkdir(parents=True, exist_ok=True)
        (output / "contrasts.csv").unlink(missing_ok=True)
        for file, content in tables.items():
            (output / file).write_text(content, encoding="utf-8")
        figures = [file for dataset in datasets for file in draw_dataset(dataset, output)]
    print(text)
    print(f"Wrote {', '.join([*tables, *figures])} in {output}")
