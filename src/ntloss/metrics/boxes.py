"""Boxes `[x1, y1, x2, y2]` that a model writes as numbers: their coordinates, and their overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.numbers.parsing import parse_numbers


def parse_box(text: str) -> list[float] | None:
    """Read the box that a text ends with: its last four numbers.

    Commas separate coordinates here, also without a space, never thousands.

    Args:
        text: such as `"The cat is at [10, 20, 50, 60]."`.

    Returns:
        The four coordinates; None if there are fewer than four numbers, or one is not finite.

    Example:
        >>> parse_box("The cat is at [10,20,50.5,60].")
        [10.0, 20.0, 50.5, 60.0]
    """
    numbers = parse_numbers(text.replace(",", ", "), thousands="")[-4:]
    return numbers if len(numbers) == 4 and all(map(math.isfinite, numbers)) else None


def box_iou(boxes: Tensor | Sequence[Any], others: Tensor | Sequence[Any]) -> Tensor:
    """Compute the intersection over union of pairs of boxes.

    Args:
        boxes: `[..., 4]`, x1, y1, x2, y2. A box with x2 < x1 or y2 < y1 is empty.
        others: `[..., 4]`.

    Returns:
        `[...]`, from 0 to 1, in float64; 0 if both boxes are empty.

    Raises:
        ValueError: the last dimension is not 4.

    Source: Everingham et al. 2010, section 4.2.

    Example:
        >>> box_iou([0, 0, 2, 2], [1, 0, 3, 2]).item()
        0.3333333333333333
    """
    first, second = (torch.as_tensor(given, dtype=torch.float64) for given in (boxes, others))
    for given in (first, second):
        if given.shape[-1:] != (4,):
            raise ValueError(f"boxes of shape {list(given.shape)}: expected [..., 4], x1, y1, x2, y2")
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    union = _area(first) + _area(second) - shared
    return torch.where(union > 0, shared / union, 0.0)


def _area(box: Tensor) -> Tensor:
    return (box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1)
