"""`ntl report`: collect finished runs into tables in the paper's format, tests of contrasts, and figures."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ntl.errors import UserError, writing_to
from ntl.layout import PACK

OUTPUT = Path("outputs/report")
FILES = ("table.md", PACK, "contrasts.csv")  # of a report, besides its figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl report`, by default on `sys.argv[1:]`, and return 0.

    Raises:
        UserError: A folder has no finished runs, the study cannot be used, or the output cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="ntl report",
        description="Collect finished runs into tables over seeds (Markdown, CSV) and figures.",
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, help="folders that are or contain runs or a pack; packs"
    )
    parser.add_argument("--output", type=Path, help=f"output folder (default: {OUTPUT})")
    parser.add_argument("--evaluation", help="which evaluations, by evaluation.name (default: test)")
    parser.add_argument("--study", type=Path, help="YAML file with contrasts and margin")
    parser.add_argument(
        "--into", type=Path, help="page whose tables are written, instead of a report; it names its studies"
    )
    given = parser.parse_args(arguments)
    if not given.folders and given.into is None:
        raise UserError("no folder is given. Pass folders that are or contain runs, or --into PAGE.")
    if given.into is not None:
        if given.study is not None or given.output is not None:
            raise UserError("--into writes in the page, which names its studies. Omit --study and --output.")
        write_into(given.into, given.folders, given.evaluation)
        return 0
    from ntl.report.contrasts import read_study  # slow: scipy

    study = {} if given.study is None else read_study(given.study)
    planned = {key: study[key] for key in ("contrasts", "margin") if key in study}
    report(given.folders, given.output or OUTPUT, given.evaluation, **planned)
    return 0


def write_into(page: Path, folders: Sequence[Path], name: str | None = None) -> None:
    """Write the tables and figures of a page, see `ntl.report.pages`; claims come from packs of studies."""
    from ntl.report.pages import fill_page
    from ntl.report.runs import read_runs

    table, left_out = read_runs(folders, name) if folders else (None, [])
    for line in left_out:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    try:
        text = fill_page(page.read_text("utf-8"), table)
    except OSError as error:
        raise UserError(f"{error.filename or page} cannot be read ({error.strerror}).") from None
    with writing_to(page, "a page", "Choose another one."):
        page.write_text(text, encoding="utf-8")


def report(
    folders: Sequence[Path],
    output: Path,
    name: str | None = None,
    contrasts: Sequence[Mapping[str, Any]] = (),
    margin: float = 5.0,
    without: Mapping[Path, str] = {},
) -> None:
    """Collect runs, print the tables, and write tables and figures, replacing those of an earlier report.

    Args:
        folders: Folders to search, see `runs.read_runs`.
        output: Folder for table.md, metrics.csv, contrasts.csv and the figures.
        name: Name of the evaluations, see `runs.read_runs`.
        contrasts: What is tested, see `contrasts.Contrast`.
        margin: See `contrasts.compare_rows`.
        without: Folders of runs that are left out, with the reasons.
    """
    # Slow to import: matplotlib, scipy.
    from ntl.report.contrasts import compare_rows, read_contrasts
    from ntl.report.figures import draw_figures
    from ntl.report.runs import pack, read_runs
    from ntl.report.tables import markdown_report

    planned = read_contrasts(contrasts)
    table, left_out = read_runs(folders, name, without)
    tested, missing = compare_rows(table, planned, margin)
    left_out += missing
    for line in left_out:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    text = markdown_report(table, tested, left_out)
    csv = [of.to_csv(index=False, lineterminator="\n") for of in (pack(table), tested) if len(of)]
    files = dict(zip(FILES, [text, *csv], strict=False))
    with writing_to(output, "a writable folder", "Choose another output folder."):
        output.mkdir(parents=True, exist_ok=True)
        (output / "contrasts.csv").unlink(missing_ok=True)
        for file, content in files.items():
            (output / file).write_text(content, encoding="utf-8")
        figures = draw_figures(table, output)
    print(text)
    print(f"Wrote {', '.join([*files, *figures])} in {output}")


def remove_report(folder: Path) -> None:
    """Remove the tables of a report from its folder, if there are any."""
    for file in FILES:
        (folder / file).unlink(missing_ok=True)
