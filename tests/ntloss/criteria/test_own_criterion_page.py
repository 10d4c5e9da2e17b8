"""The snippets of docs/own_criterion.md run in turn, each loss has a gradient, and the table is complete."""

import re
from pathlib import Path
from typing import Any

import torch
from pages import snippets

from ntloss.criteria import CRITERIA, READABLE

DOCS = Path(__file__).parents[3] / "docs"


def test_each_snippet_makes_a_loss_with_a_gradient(digits, batch):
    logits, labels = batch(12, 2, 5)
    labels[0, :2] = torch.tensor([3, 7])
    names: dict[str, Any] = {"vocabulary": digits, "logits": logits, "labels": labels}
    for snippet in snippets("docs/own_criterion.md"):
        names.pop("loss", None)
        exec(snippet, names)
        (gradient,) = torch.autograd.grad(names["loss"], logits)
        assert gradient.isfinite().all()
        assert gradient.any()


def test_the_table_has_every_name_that_a_criterion_may_read():
    page = (DOCS / "own_criterion.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == list(READABLE)


def test_the_page_of_criteria_has_a_row_for_each():
    page = (DOCS / "criteria.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - {"HLGauss"} == set(CRITERIA)
