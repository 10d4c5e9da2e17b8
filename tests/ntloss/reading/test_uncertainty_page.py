"""The snippets of docs/uncertainty.md run in turn, and say what the page says."""

from typing import Any

import pytest
import torch
from pages import snippets
from reading_cases import batch_of, make_model

from ntloss import NumberVocabulary

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
SNIPPETS = snippets("docs/uncertainty.md")


@pytest.fixture(scope="module")
def names():
    vocabulary = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(10)}, vocab_size=14)
    names: dict[str, Any] = {
        "torch": torch,
        "model": make_model("t5", 14).double(),
        "inputs": batch_of([[3, 4], [9, 8, 7], [5]] * 4),
        "vocabulary": vocabulary,
        "truths": torch.arange(12.0),
    }
    for snippet in SNIPPETS:
        exec(snippet, names)
    return names


def test_all_snippets_of_the_page_run(names):
    assert {"read", "found", "mean", "margin", "share", "losses"} <= set(names)


def test_quantiles_are_in_order_and_bounds_hold(names):
    assert ((names["low"] <= names["median"]) & (names["median"] <= names["high"])).all()
    found = names["found"]
    known = ~found.values.isnan()  # of a question after which no walk wrote a number
    assert known.any()
    assert ((found.lower <= found.values) & (found.values <= found.upper))[known].all()
    assert ((names["mean"] >= 0) & (names["mean"] <= 999)).all()


def test_calibrated_intervals_cover_what_was_asked_for(names):
    low, high = names["calibrated"]
    covered = ((low <= names["truths"]) & (names["truths"] <= high)).double().mean()
    assert covered >= 0.9
