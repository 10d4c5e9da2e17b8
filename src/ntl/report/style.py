"""The style of the lab's figures, with colors that are easy to distinguish."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, in shades that are legible on light and on dark pages: figures are transparent. It
# remains distinguishable with color blindness.
GRAY, BLUE, ORANGE, GREEN = "#808080", "#2A86C7", "#CF8A00", "#149B76"
PINK, SKY, VERMILION = "#C06A98", "#4FA3D1", "#D9622B"
TEXT, LINE, GRID = "#787878", "#909090", "#90909040"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "text.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LINE,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text remains text
    "svg.hashsalt": "ntloss",  # the same figure gives the same file
}
FLOOR: dict[str, Any] = {"color": LINE, "lw": 0.9, "ls": (0, (4, 3))}
LETTERS = 14  # of size 8 in an inch
LINES_NOTE = "lines: median over seeds, bands: all seeds"

# Labels with a style of their own; others take the next ones in order.
KNOWN = (
    "T5", "T5 + NTL-WAS", "T5 + NTL-MSE", "T5 regression head", "T5 + CRPS", "xVal", "RT", "RT + NTL-MSE",
    "RT + NTL-WAS",
)  # fmt: skip


class SeriesStyle(NamedTuple):
    """How one series is drawn."""

    color: str
    dashes: object
    marker: str


def styles(labels: Sequence[str]) -> dict[str, SeriesStyle]:
    """Choose a style for each label; the first 21 are distinguishable even without color.

    Those in `KNOWN` look the same in every figure of every report.
    """
    colors = (GRAY, BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
    dashes = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
    order = [*dict.fromkeys((*KNOWN, *labels))]
    looks = {
        label: SeriesStyle(colors[i % 7], dashes[i // 7 % 3], "osD^vPX"[(i + i // 7) % 7])
        for i, label in enumerate(order)
    }
    return {label: looks[label] for label in labels}


def new_figure(
    panels: int,
    columns: int,
    size: tuple[float, float],
    margin: tuple[float, float] = (0.0, 0.0),
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels in rows.

    Args:
        panels: Number of panels.
        columns: Number of panels in a row.
        size: Width and height of a panel in inches.
        margin: Width and height that are added for the whole figure, in inches.

    Returns:
        The figure, and its panels row by row.
    """
    columns = min(panels, columns)
    rows = math.ceil(panels / columns)
    whole = (size[0] * columns + margin[0], size[1] * rows + margin[1])
    figure = Figure(figsize=whole, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for ax in axes[panels:]:
        ax.set_axis_off()
    return figure, axes[:panels]


def plot_seeds(ax: Axes, seeds: Sequence[Mapping[float, float]], look: SeriesStyle, label: str) -> None:
    """Plot the median over seeds, at the points that all seeds share, with a band over all seeds.

    Each seed maps x to y. Without seeds, the series is only in the legend.
    """
    xs = sorted(set.intersection(*(set(points) for points in seeds))) if seeds else []
    values = np.array([[points[x] for x in xs] for points in seeds])
    # Medians, because one number with a digit too many changes a seed's error by hundreds.
    middles = np.median(values, axis=0) if seeds else []
    ax.plot(
        xs, middles, color=look.color, ls=look.dashes, marker=look.marker, ms=3.5, lw=1.5, label=label,
        markevery=max(1, len(xs) // 10),
    )  # fmt: skip
    if len(seeds) > 1:
        ax.fill_between(xs, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.1, lw=0)


def add_legend(figure: Figure, title: str) -> None:
    """Add a legend with the series of all panels below the figure."""
    pairs = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in figure.axes]
    handles = {label: handle for panel in pairs for handle, label in panel}
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=2, fontsize=8, title=wrap(figure, title),
        title_fontsize=8,
    )  # fmt: skip


def add_caption(figure: Figure, text: str) -> None:
    """Add a caption below the figure, in lines that fit its width."""
    figure.supxlabel(wrap(figure, text), fontsize=8)


def wrap(figure: Figure, text: str) -> str:
    """Break a text of small letters into lines that fit a figure."""
    return textwrap.fill(text, int(LETTERS * figure.get_figwidth()))


def save_figure(figure: Figure, path: Path) -> list[str]:
    """Save a figure with a transparent background as SVG and PDF, and return the files' names."""
    metadata = {".svg": {"Date": None, "Creator": None}, ".pdf": {"CreationDate": None, "Creator": None}}
    for ending, without in metadata.items():
        figure.savefig(f"{path}{ending}", transparent=True, metadata=without)
    return [f"{path.name}{ending}" for ending in metadata]
