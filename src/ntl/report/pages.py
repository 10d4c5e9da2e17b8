"""Write the tables of a page from runs, between two comments that stay: `ntl report FOLDER --into PAGE`.

A block of the page is

    <!-- report: {study: studies/ten_epochs/contrasts.yaml, datasets: [sentiment], columns: [mae, crps]} -->
    <!-- end of report -->

`study` is a YAML file whose `names` map rows, or the names of their losses, to the names that the page
shows, in the order of the page. With `columns`, metrics of the registry, a block is a table of means over
seeds, on `datasets` (by default all) and the test set `test`; a name that several rows have is an error. With
`contrasts: true`, it has the contrasts of the study.

A block `{evidence: studies/evidence.yaml}` is the table of this file's claims, see `ntl.report.evidence`.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from ntl.errors import UserError, unknown_key
from ntl.metrics.registry import find_metric
from ntl.report.contrasts import compare_rows, find_rows, read_contrasts, read_study
from ntl.report.evidence import evidence_columns, read_claims
from ntl.report.runs import is_step
from ntl.report.statistics import mean_and_interval
from ntl.report.tables import contrast_columns, markdown_table, round_significant

START, END = "<!-- report: ", "<!-- end of report -->"
_BLOCK = re.compile(rf"({re.escape(START)}(.*?) -->\n)(.*?)({re.escape(END)})", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """What stands between two comments of a page; see the module."""

    study: str = ""
    evidence: str = ""
    contrasts: bool = False
    datasets: Sequence[str] = ()
    columns: Sequence[str] = ()
    test: str | None = None


def fill_page(text: str, table: pd.DataFrame | None) -> str:
    """Write the blocks of a page anew.

    Args:
        text: The page.
        table: The long table of runs from which blocks of a study are written.
    """
    if not _BLOCK.search(text):
        raise UserError(f"the page has no block: expected a line {START}{{study: ...}} --> and one {END}.")
    return _BLOCK.sub(lambda found: f"{found[1]}{_write(found[2], table)}\n{found[4]}", text)


def _write(given: str, table: pd.DataFrame | None) -> str:
    spec = yaml.safe_load(given)
    known = [field.name for field in fields(Block)]
    if unknown := [key for key in spec if key not in known]:
        raise unknown_key(f"{START}", unknown[0], known)
    block = Block(**spec)
    if block.evidence:
        return markdown_table(evidence_columns(read_claims(Path(block.evidence))))
    if not block.study or table is None:
        raise UserError(
            f"{START}{given} --> has no study or no runs; expected study: FILE, whose names are the rows, "
            "and folders of runs."
        )
    study = read_study(Path(block.study))
    names: Mapping[str, str] = study.get("names", {})
    if not block.contrasts:
        return markdown_table(_means(table, block, names))
    planned = read_contrasts(study.get("contrasts"))
    tested, missing = compare_rows(table, planned, study.get("margin", 5.0))
    if tested.empty:
        raise UserError(f"{block.study}: no contrast can be tested. {' '.join(missing)}".rstrip())
    for line in missing:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    for side in ("of", "minus"):
        tested[side] = [_named(name, names) for name in tested[side]]
    return markdown_table(contrast_columns(tested))


def _named(name: str, names: Mapping[str, str]) -> str:
    row, comma, reading = name.partition(", ")
    return f"{names.get(row, row)}{comma}{reading}"


def _means(table: pd.DataFrame, block: Block, names: Mapping[str, str]) -> Any:
    """Make the columns of a table of means with their 95 % confidence intervals over seeds."""
    known, test = [*dict.fromkeys(table["dataset"])], block.test or "test"
    datasets = [*(block.datasets or known)]
    if unknown := [name for name in datasets if name not in known]:
        raise unknown_key(f"{START}datasets: ", unknown[0], known)
    shown = table[table["dataset"].isin(datasets) & (table["test"] == test)]
    if shown.empty:
        raise unknown_key(f"{START}test: ", test, [*dict.fromkeys(table["test"][~is_step(table)])])
    absent = [name for name in names if name not in {*shown["row"], *shown["name"]}]
    if len(absent) == len(names):
        raise UserError(
            f"{block.study}: names has no row of {', '.join(datasets)} on {test}; expected some of: "
            f"{'; '.join(shown['row'].unique())}."
        )
    if absent:
        print(f"ntl report: {block.study}: no run is named {', '.join(absent)}", file=sys.stderr)
    columns: dict[tuple[str, str], list[str]] = {("", "table"): [], ("", "row"): [], ("", "seeds"): []}
    columns |= {("", find_metric(name).heading): [] for name in block.columns}
    for dataset in datasets:
        runs = table[(table["dataset"] == dataset) & (table["test"] == test)]
        for row, title in names.items():
            if row not in {*runs["row"], *runs["name"]}:
                continue  # it was trained on others
            ((label, _),) = find_rows(runs, [row])
            own = runs[runs["row"] == label]
            cells = [dataset, title, str(own["seed"].nunique())]
            for name in block.columns:
                mean, half = mean_and_interval(own["value"][own["metric"] == name])
                cells.append("" if mean is None else round_significant(mean, half))
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
    if len(datasets) == 1:
        del columns["", "table"]
    return columns
