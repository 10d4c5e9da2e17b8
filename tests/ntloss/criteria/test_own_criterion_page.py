"""The tables of docs/own_criterion.md, docs/criteria.md and the oracle are complete."""

import re
from pathlib import Path

import oracle

from ntloss.criteria import CRITERIA, READABLE

DOCS = Path(__file__).parents[3] / "docs"


def test_the_table_has_every_name_that_a_criterion_may_read():
    page = (DOCS / "own_criterion.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(READABLE)


def test_the_page_of_criteria_has_a_row_for_each():
    page = (DOCS / "criteria.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - {"HLGauss"} == set(CRITERIA)


def test_the_oracle_has_each_criterion():
    assert {name for name, *_ in oracle.CRITERIA.values()} == set(CRITERIA)
