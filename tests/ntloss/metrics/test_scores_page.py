"""The snippets of docs/scores.md run, one after the other, with the values that they state."""

from __future__ import annotations

import warnings
from pathlib import Path

from pages import readers_names, snippets
from tolerances import approx


def test_the_page_runs_and_its_values_hold(tmp_path: Path) -> None:
    names = readers_names(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny model is untrained, and hardly writes numbers there
        for snippet in snippets("docs/scores.md"):
            exec(snippet, names)
    weights = [row["number_weights"][0] for row in names["dataset"]]
    assert weights == approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert all(len(row["number_weights"]) == len(row["labels"]) for row in names["dataset"])
    assert 0 <= names["low"] <= names["score"] <= names["high"] <= 99
    assert len(names["box"]) == 4
    assert 0 <= names["overlap"] <= 1
    assert names["rewards"] == approx([0.5])
