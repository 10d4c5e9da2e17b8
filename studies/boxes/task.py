"""Drawn squares and clocks, questions about them, and how wrong answers are."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

SIDE = 32
"""Pixels of an image. Coordinates of answers count in hundredths of the side."""
BOX, POINT, TIME = "BPT"
QUESTIONS = (BOX, POINT, TIME)
SEPARATORS = {BOX: ("[", ", ", ", ", ", "), POINT: ("(", ","), TIME: ("",)}
"""What an answer has before each of its numbers."""
ENDS = {BOX: "]", POINT: ")", TIME: ""}
LARGEST = {BOX: 99, POINT: 99, TIME: 719}
"""The largest number of an answer; the smallest one is zero."""


class Row(NamedTuple):
    """A question about an image, and the numbers of its answer.

    Args:
        question: one of `QUESTIONS`.
        image: `[3, side, side]`.
        numbers: the corners `x1, y1, x2, y2` or the center `x, y` of a square, or minutes after twelve.
    """

    question: str
    image: Tensor
    numbers: tuple[int, ...]

    @property
    def answer(self) -> str:
        """The numbers in a format of models that point: `[12, 30, 41, 59]`, `(26,44)`, `135`."""
        before = zip(SEPARATORS[self.question], self.numbers, strict=True)
        return "".join(f"{text}{number}" for text, number in before) + ENDS[self.question]


def draw_rows(count: int, draw: torch.Generator) -> list[Row]:
    """Draw rows whose questions take turns."""
    rows = []
    for i in range(count):
        question = QUESTIONS[i % 3]
        if question == TIME:
            minutes = int(torch.randint(0, 720, (1,), generator=draw))
            rows.append(Row(question, draw_clock(minutes, draw), (minutes,)))
            continue
        side = int(torch.randint(20, 50, (1,), generator=draw))
        x, y = (int(place) for place in torch.randint(0, 100 - side, (2,), generator=draw))
        corners = (x, y, x + side, y + side)
        numbers = corners if question == BOX else (x + side // 2, y + side // 2)
        rows.append(Row(question, draw_square(corners, draw), numbers))
    return rows


def draw_square(corners: tuple[int, int, int, int], draw: torch.Generator) -> Tensor:
    """Draw a colored square on noise; pixels at its edges are covered in part."""
    x1, y1, x2, y2 = (corner * SIDE / 100 for corner in corners)
    pixel = torch.arange(SIDE)
    across, down = (
        (torch.clamp(pixel + 1, max=high) - torch.clamp(pixel, min=low)).clamp(0, 1)
        for low, high in ((x1, x2), (y1, y2))
    )
    color = 0.5 + torch.rand(3, 1, 1, generator=draw) / 2
    return 0.1 * torch.rand(3, SIDE, SIDE, generator=draw) + color * down[:, None] * across


def draw_clock(minutes: int, draw: torch.Generator) -> Tensor:
    """Draw the hands of a clock on noise: a short one for the hours, a long one for the minutes."""
    places = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="xy"))
    image = 0.1 * torch.rand(3, SIDE, SIDE, generator=draw)
    for channel, (turns, length) in enumerate([(minutes / 720, 0.6), (minutes / 60, 0.95)]):
        tip = torch.tensor([math.sin(2 * math.pi * turns), -math.cos(2 * math.pi * turns)])[:, None, None]
        along = (places * tip).sum(0).clamp(0, length)
        distance = (places - along * tip).norm(dim=0) * SIDE / 2  # in pixels
        image[channel] += (2 - distance).clamp(0, 1)
    return image


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Compute the intersection over union of each box and another one, `[boxes]`."""
    sides = torch.minimum(boxes[:, 2:], others[:, 2:]) - torch.maximum(boxes[:, :2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = [(corners[:, 2:] - corners[:, :2]).clamp(min=0).prod(-1) for corners in (boxes, others)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=1e-9)


def score(question: str, found: Tensor, truth: Tensor) -> float:
    """Return the mean overlap of boxes, distance of points in hundredths, or error of clocks in minutes.

    Args:
        question: one of `QUESTIONS`.
        found, truth: `[rows, numbers]`.
    """
    if question == BOX:
        return float(overlap(found, truth).mean())
    if question == POINT:
        return float((found - truth).norm(dim=-1).mean())
    apart = (found - truth).abs() % 720
    return float(torch.minimum(apart, 720 - apart).mean())
