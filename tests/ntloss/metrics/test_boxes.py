"""Boxes as numbers: the last four of a text, and their overlap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import approx

from ntloss.integrations.rewards import iou_reward
from ntloss.metrics.boxes import box_iou, parse_box


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("[10, 20, 50, 60]", [10, 20, 50, 60]),
        ("2 cats at [100,200,300.5,400]", [100, 200, 300.5, 400]),  # no thousands
        ("<box>-1 0 1e1 5</box>", [-1, 0, 10, 5]),
        ("[1, 2, 3]", None),
        ("[1, 2, 3, 1e999]", None),
        ("", None),
    ],
)
def test_a_box_is_the_last_four_numbers_of_a_text(text: str, box: list[float] | None) -> None:
    assert parse_box(text) == box


@pytest.mark.parametrize(
    ("one", "other", "iou"),
    [
        ([0, 0, 2, 2], [0, 0, 2, 2], 1),
        ([0, 0, 2, 2], [2, 0, 4, 2], 0),
        ([0, 0, 4, 4], [1, 1, 3, 3], 1 / 4),
        ([2, 2, 0, 0], [0, 0, 2, 2], 0),  # is empty
        ([1, 1, 1, 1], [1, 1, 1, 1], 0),
    ],
)
def test_overlap_is_intersection_over_union_in_any_order(
    one: list[int], other: list[int], iou: float
) -> None:
    assert box_iou(one, other).item() == box_iou(other, one).item() == approx(iou)


def test_batches_of_boxes_broadcast() -> None:
    boxes = torch.tensor([[0, 0, 2, 2], [1, 0, 3, 2]])
    assert box_iou(boxes[:, None], boxes[None]).flatten().tolist() == approx([1, 1 / 3, 1 / 3, 1])
    with pytest.raises(ValueError, match=r"shape \[2, 3\]: expected \[..., 4\]"):
        box_iou(boxes[:, :3], boxes)


def test_the_reward_of_a_box_is_its_overlap() -> None:
    columns = {"box": ["[0, 0, 2, 2]", (0, 0, 2, 2), [*np.array([0.0, 0, 2, 2])], None, [0, 0, 2, 2]]}
    answer = "[0, 0, 2, 2]"
    completions = ["[1, 0, 3, 2]", [{"role": "assistant", "content": "at 0,0,2,2"}], answer, answer, "?"]
    found = iou_reward()(completions, **columns)
    assert found[:3] == approx([1 / 3, 1, 1])
    assert found[3:] == [None, -1]
    with pytest.raises(ValueError, match="no column 'box'"):
        iou_reward()(completions, boxes=[])
