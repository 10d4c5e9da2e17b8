"""The table of evidence: what the planned contrasts of all studies say, one row for each claim.

A file of claims, such as `studies/evidence.yaml`, is a list of groups:

    - study: studies/all_layers/contrasts.yaml   # the family of contrasts; its pack is in results beside it
      setting: all layers of SmolLM2-135M        # what was trained on what
      looks: after three and four of six seeds   # at test figures, before the study was done
      planned: true                              # the default; otherwise no p is shown
      claims:
        - {name: hl_gauss, says: HL-Gauss instead of cross-entropy, of: hl_gauss, minus: ce}

`name` is unique, and what errors call the claim. Without `says`, a claim says what the one before it says.
The other keys are those of a contrast of the family.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml  # type: ignore[import-untyped]

from ntl.errors import UserError, unknown_key
from ntl.metrics.registry import find_metric
from ntl.report.contrasts import Contrast, compare_rows, read_contrasts, read_study
from ntl.report.runs import read_runs
from ntl.report.tables import Columns, round_significant

GROUP = ("study", "setting", "looks", "planned", "claims")


class Claim(NamedTuple):
    """A row of the table: what is claimed, and a row of `contrasts.compare_rows`."""

    name: str
    setting: str
    says: str
    looks: str
    family: int | None
    """Number of contrasts that were planned together; None if this one was not planned."""
    found: Mapping[str, Any]


def read_claims(file: Path) -> dict[str, Claim]:
    """Read a file of claims, and test them on the packs of their studies.

    Raises:
        UserError: A group or a claim is malformed, or its contrast is not one of the study or has no runs.
    """
    claims: dict[str, Claim] = {}
    for group in yaml.safe_load(file.read_text("utf-8")):
        if unknown := [key for key in group if key not in GROUP]:
            raise unknown_key(f"{file}: ", unknown[0], GROUP)
        study = Path(group["study"])
        tested, planned = _tested(study)
        says = ""
        for given in group["claims"]:
            name, says = given["name"], given.get("says", says)
            (asked,) = read_contrasts([{k: v for k, v in given.items() if k not in ("name", "says")}])
            if name in claims:
                raise UserError(f"{file}: two claims are named {name}; expected names of their own.")
            if asked not in planned:
                raise UserError(f"{file}: {name} is not a contrast of {study}; expected one of these.")
            if (number := planned.index(asked)) not in tested.index:
                raise UserError(f"{file}: the runs of {study} do not allow the contrast {name}.")
            family, found = len(planned) if group.get("planned", True) else None, tested.loc[number].to_dict()
            claims[name] = Claim(name, group["setting"], says, group.get("looks", ""), family, found)
    return claims


@cache
def _tested(study: Path) -> tuple[pd.DataFrame, Sequence[Contrast]]:
    """Test the contrasts of a study on its pack."""
    plan = read_study(study)
    planned = read_contrasts(plan.get("contrasts"))
    table, _ = read_runs([study.parent / "results"])
    tested, _ = compare_rows(table, planned, plan.get("margin", 5.0))
    return tested, planned


def evidence_columns(claims: Mapping[str, Claim]) -> Columns:
    """Format the claims for a table."""
    rows = []
    for claim in claims.values():
        found, in_points = claim.found, find_metric(claim.found["metric"]).in_points
        unit = " points" if in_points else " %"
        half = (found["percent_upper"] - found["percent_lower"]) / 2
        p = "not planned" if claim.family is None else f"{found['p_holm']:.2g} (of {claim.family})"
        rows.append(
            {
                "setting": claim.setting,
                "claim": claim.says,
                "measure": find_metric(found["metric"]).heading,
                "effect": f"{round_significant(found['percent'], half, signed=True)}{unit}",
                "p, Holm": p,
                "seeds": str(found["seeds"]),
                "tables": found["dataset"],
                "looks": claim.looks,
            }
        )
    return {("", name): [row[name] for row in rows] for name in rows[0]}
