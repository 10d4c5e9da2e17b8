"""How the lab's figures look: one style, and colours that can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart with colour blindness and in grey.
GREY, BLUE, ORANGE, GREEN = "#7A7A7A", "#0072B2", "#E69F00", "#009E73"
PINK, SKY, VERMILION = "#CC79A7", "#56B4E9", "#D55E00"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


class Look(NamedTuple):
    """How one series is drawn; no two of the first 21 look the same, even without colour.

    Args:
        colour: Of lines, bars and dots.
        dashes: Of lines, in matplotlib's terms.
        marker: Of points.
    """

    colour: str
    dashes: object
    marker: str


def look(i: int) -> Look:
    """The look of the i-th series."""
    colours = (GREY, BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
    dashes = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
    return Look(colours[i % 7], dashes[i // 7 % 3], "osD^vPX"[(i + i // 7) % 7])


def new_figure(
    columns: int, size: tuple[float, float], widths: Sequence[float] | None = None, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of axes.

    Args:
        columns: Of the grid.
        size: Width and height, inches.
        widths: Of the columns, relative. Default: all the same.
        rows: Of the grid.

    Returns:
        The figure, and its axes row by row.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=widths)
    return figure, list(axes.ravel())


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    FigureCanvasAgg(figure).print_figure(path, dpi=150)
