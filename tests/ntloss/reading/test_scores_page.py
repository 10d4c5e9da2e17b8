"""The snippets of docs/scores.md and docs/boxes.md run in turn, with the values that they state."""

import sys
import warnings
from types import ModuleType

import pytest
import torch
from pages import readers_names, snippets
from tolerances import approx


def box_iou(boxes, others):
    """What torchvision computes, which the tests do without."""
    corners = (
        torch.maximum(boxes[:, None, :2], others[:, :2]),
        torch.minimum(boxes[:, None, 2:], others[:, 2:]),
    )
    shared = (corners[1] - corners[0]).clamp(min=0).prod(-1)
    areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (boxes, others)]
    return shared / (areas[0][:, None] + areas[1] - shared)


def run(page, names, monkeypatch):
    operators = ModuleType("torchvision.ops")
    operators.box_iou = box_iou
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny model is untrained, and hardly writes numbers there
        for snippet in snippets(page):
            with monkeypatch.context() as modules:
                if "torchvision" in snippet:
                    modules.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
                    modules.setitem(sys.modules, "torchvision.ops", operators)
                exec(snippet, names)
    return names


def test_the_page_of_scores_runs_and_its_values_hold(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    names = readers_names(tmp_path)
    names["model"].eval()
    run("docs/scores.md", names, monkeypatch)
    for reading in (names["after_reasons"], *names["moods"]):
        assert sum(reading.probabilities.values()) + reading.none == approx(1.0)
    assert (names["scores"].mean, names["scores"].left_out) == (approx(4.11, 1e-3), approx(0.047, 0.02))
    assert names["loss"].requires_grad
    weights = [row["number_weights"][0] for row in names["dataset"]]
    assert weights == approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert all(len(row["number_weights"]) == len(row["labels"]) for row in names["dataset"])
    assert names["kappa"] == approx(0.925)


def test_the_page_of_boxes_runs_and_its_values_hold(tmp_path, monkeypatch):
    names = run("docs/boxes.md", readers_names(tmp_path), monkeypatch)
    assert len(names["box"]) == 4
    assert names["rewards"] == approx([0.5, -1.0])
