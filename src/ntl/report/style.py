"""The style of the lab's figures, with colours that are easy to distinguish."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The Okabe-Ito palette, which remains distinguishable with colour blindness and in greyscale.
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


# Objectives with a style of their own; others take the next ones in order.
OBJECTIVES = (
    "T5", "T5 + NTL-WAS", "T5 + NTL-MSE", "T5 regression head", "xVal", "RT", "RT + NTL-MSE", "RT + NTL-WAS",
)  # fmt: skip


class SeriesStyle(NamedTuple):
    """How one series is drawn; the first 21 styles are distinguishable even without colour.

    Args:
        colour: Colour of lines, bars and points.
        dashes: Line style, as matplotlib takes it.
        marker: Marker of points.
    """

    colour: str
    dashes: object
    marker: str


def styles(labels: Sequence[str]) -> dict[str, SeriesStyle]:
    """Choose a style for each objective, the same in every figure of every report for those in `OBJECTIVES`.

    Args:
        labels: Names of the objectives.

    Returns:
        Maps each name to its style; no two are the same.
    """
    order = dict.fromkeys((*OBJECTIVES, *labels))
    places = {label: place for place, label in enumerate(order)}
    return {label: series_style(places[label]) for label in labels}


def series_style(i: int) -> SeriesStyle:
    """Return the style of the i-th series."""
    colours = (GREY, BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
    dashes = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
    return SeriesStyle(colours[i % 7], dashes[i // 7 % 3], "osD^vPX"[(i + i // 7) % 7])


def new_figure(
    panels: int,
    columns: int,
    size: tuple[float, float],
    margin: tuple[float, float] = (0.0, 0.0),
    widths: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels in rows.

    Args:
        panels: Number of panels.
        columns: Number of panels in a row.
        size: Width and height of a panel in inches.
        margin: Width and height that are added for the whole figure, in inches.
        widths: Relative widths of the columns. Default: equal widths.

    Returns:
        The figure, and its panels row by row.
    """
    columns = min(panels, columns)
    rows = math.ceil(panels / columns)
    whole = (size[0] * columns + margin[0], size[1] * rows + margin[1])
    figure = Figure(figsize=whole, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).ravel())
    for ax in axes[panels:]:
        ax.set_axis_off()
    return figure, axes[:panels]
