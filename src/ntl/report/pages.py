"""Write the tables of a page from runs, between two comments that stay: `ntl report FOLDER --into PAGE`.

A block of the page is

    <!-- report: {study: studies/ten_epochs/contrasts.yaml, datasets: [sentiment], columns: [mae, crps]} -->
    <!-- end of report -->

`study` is a YAML file whose `names` map rows, or the names of their losses, to the names that the page
shows, in the order of the page. With `columns`, metrics of the registry, a block is a table of means over
seeds, on `datasets` (by default all) and the test set `test`; a name that several rows have is an error. With
`contrasts: true`, it has the contrasts of the study.

A block `{evidence: studies/evidence.yaml}` is the table of evidence: what the planned contrasts of all
studies say, one row for each claim. Its file is a list of groups:

    - study: studies/all_layers/contrasts.yaml   # the family of contrasts; its pack is in results beside it
      setting: all layers of SmolLM2-135M        # what was trained on what
      looks: after three and four of six seeds   # at test figures, before the study was done
      planned: true                              # the default; otherwise no p is shown
      claims:
        - {says: HL-Gauss instead of cross-entropy, of: hl_gauss, minus: ce}

Without `says`, a claim says what the one before it says. Its other keys are those of a contrast of the
family.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from ntl.errors import UserError, unknown_key
from ntl.metrics.registry import find_metric
from ntl.report.contrasts import Contrast, compare_rows, find_row, read_contrasts, read_study
from ntl.report.runs import is_step, read_runs
from ntl.report.statistics import mean_and_interval
from ntl.report.tables import contrast_table, markdown_table, round_significant

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
    test: str = "test"


def fill_page(text: str, table: pd.DataFrame | None) -> str:
    """Write the blocks of a page anew.

    Args:
        text: The page.
        table: The long table of runs from which blocks of a study are written.
    """
    if not _BLOCK.search(text):
        raise UserError(f"the page has no block: expected a line {START}{{study: ...}} --> and one {END}.")
    return _BLOCK.sub(lambda found: f"{found[1]}{markdown_table(_make(found[2], table))}\n{found[4]}", text)


def _make(given: str, table: pd.DataFrame | None) -> pd.DataFrame:
    try:
        block = Block(**yaml.safe_load(given))
        if block.evidence:
            groups = yaml.safe_load(Path(block.evidence).read_text("utf-8"))
            return pd.DataFrame([row for group in groups for row in claim_rows(**group)])
    except TypeError as error:  # a key that is unknown, or that is missing
        raise UserError(f"{START}{given} --> ({error}); expected keys such as study: FILE.") from None
    if not block.study or table is None:
        raise UserError(
            f"{START}{given} --> has no study or no runs; expected study: FILE, whose names are the rows, "
            "and folders of runs."
        )
    study = read_study(Path(block.study))
    if not block.contrasts:
        return _means(table, block, study["names"])
    tested, missing = compare_rows(table, read_contrasts(study["contrasts"]), study["margin"])
    if tested.empty:
        raise UserError(f"{block.study}: no contrast can be tested. {' '.join(missing)}".rstrip())
    for line in missing:
        print(f"ntl report: left out: {line}", file=sys.stderr)
    for side in ("of", "minus"):
        names = tested[side].str.partition(", ")
        tested[side] = names[0].replace(study["names"]) + names[1] + names[2]
    return contrast_table(tested)


def _means(table: pd.DataFrame, block: Block, names: Mapping[str, str]) -> pd.DataFrame:
    """Make a table of means with their 95 % confidence intervals over seeds."""
    known = [*dict.fromkeys(table["dataset"])]
    datasets = block.datasets or known
    if unknown := [name for name in datasets if name not in known]:
        raise unknown_key(f"{START}datasets: ", unknown[0], known)
    shown = table[table["dataset"].isin(datasets) & (table["test"] == block.test)]
    if shown.empty:
        raise unknown_key(f"{START}test: ", block.test, [*dict.fromkeys(table["test"][~is_step(table)])])
    rows = []
    for dataset, (name, title) in product(datasets, names.items()):
        runs = shown[shown["dataset"] == dataset]
        if name not in {*runs["row"], *runs["name"]}:
            continue  # it was trained on others
        label, _ = find_row(runs, name)
        own = runs[runs["row"] == label]
        row = {"table": dataset, "row": title, "seeds": str(own["seed"].nunique())}
        for metric in block.columns:
            values = own["value"][own["metric"] == metric]
            row[find_metric(metric).heading] = (
                round_significant(*mean_and_interval(values)) if len(values) else ""
            )
        rows.append(row)
    if absent := [name for name in names if name not in {*shown["row"], *shown["name"]}]:
        print(f"ntl report: {block.study}: no run is named {', '.join(absent)}", file=sys.stderr)
    if not rows:
        raise UserError(
            f"{block.study}: names has no row of {', '.join(datasets)} on {block.test}; expected some of: "
            f"{'; '.join(shown['row'].unique())}."
        )
    return pd.DataFrame(rows).drop(columns=[] if len(datasets) > 1 else "table")


def claim_rows(
    study: str, setting: str, claims: Sequence[Mapping[str, Any]], looks: str = "", planned: bool = True
) -> list[dict[str, str]]:
    """Test a group of claims on the pack of their study, and return their rows of the table of evidence.

    Raises:
        UserError: A claim is not a contrast of the study, or the runs do not allow it.
    """
    plan = read_study(Path(study))
    family = read_contrasts(plan["contrasts"])
    table, _ = read_runs([Path(study).parent / "results"])
    tested, missing = compare_rows(table, family, plan["margin"])
    rows, says = [], ""
    for claim in claims:
        says = claim.get("says", says)
        asked = Contrast(**{key: value for key, value in claim.items() if key != "says"})
        if asked not in family or family.index(asked) not in tested.index:
            raise UserError(
                f"{claim} is not a contrast of {study} that its runs allow. {' '.join(missing)}".rstrip()
            )
        found = tested.loc[family.index(asked)]
        metric = find_metric(found["metric"])
        half = (found["percent_upper"] - found["percent_lower"]) / 2
        effect = round_significant(found["percent"], half, signed=True)
        rows.append(
            {
                "setting": setting,
                "claim": says,
                "measure": metric.heading,
                "effect": f"{effect} {'points' if metric.in_points else '%'}",
                "p, Holm": f"{found['p_holm']:.2g} (of {len(family)})" if planned else "not planned",
                "seeds": str(found["seeds"]),
                "tables": found["dataset"],
                "looks": looks,
            }
        )
    return rows
