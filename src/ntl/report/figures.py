"""Draw a report's two figures of each dataset, errors and learning curves, in the style of all figures."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import matplotlib as mpl
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ntl.metrics.registry import find_metric
from ntl.report.runs import STEP, is_step
from ntl.report.statistics import mean_and_interval
from ntl.report.tables import REFERENCES, in_units, split_readings

# Okabe and Ito's palette, in shades that are legible on light and on dark pages: figures are transparent. It
# remains distinguishable with color blindness.
GRAY, BLUE, ORANGE, GREEN = "#808080", "#2A86C7", "#CF8A00", "#149B76"
PINK, SKY, VERMILION = "#C06A98", "#4FA3D1", "#D9622B"
TEXT, LINE, GRID = "#787878", "#909090", "#90909040"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "text.color": TEXT,
    "text.parse_math": False,  # dollars in a name are no mathematics
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
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "savefig.transparent": True,
    "svg.fonttype": "none",  # text remains text
    "svg.hashsalt": "ntloss",  # the same figure gives the same file
}
FLOOR: dict[str, Any] = {"color": LINE, "lw": 0.9, "ls": (0, (4, 3))}
COLORS = (GRAY, BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
LOOKS = cycler(linestyle=["-", (0, (5, 2)), (0, (1.5, 1.5))]) * (
    cycler(color=COLORS) + cycler(marker="osD^vPX")
)

FEWEST_SEEDS = 5  # with fewer, an interval is so wide that it hides the seeds
# What is drawn on a test set, if errors are not shown in the unit of the answers: the first metric that all
# runs have and that is not 0 everywhere.
SHARES = ("exact_number", "accuracy", "exact_match")
CURVES = ("exact_number", "accuracy", "log_mae", "ce")
CURVES_IN_UNITS = ("mae", "median_mae", "ce")
OTHER_TOKENS = "xVal"  # writes [NUM] for a number: its cross-entropy covers no digit tokens
SEEDS_NOTE = f"dots: seeds; of {FEWEST_SEEDS} and more, also the mean and its 95 % interval"
LINES_NOTE = "validation; lines: median over seeds, bands: all seeds"


def styles(labels: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Choose how the line of each label is drawn; the first 21 are distinguishable, 7 by color alone."""
    return dict(zip(labels, cycle(LOOKS), strict=False))


def draw_figures(table: pd.DataFrame, folder: Path) -> list[str]:
    """Draw the figures of each dataset, except those that there is no data for.

    Args:
        table: The runs, see `ntl.report.runs`.
        folder: Where the figures are written.

    Returns:
        The names of the files.
    """
    written = []
    with mpl.rc_context(STYLE):
        for dataset, runs in table.groupby("dataset", sort=False):
            for kind, draw in {"errors": draw_errors, "learning_curves": draw_curves}.items():
                if (figure := draw(runs)) is not None:
                    written += save_figure(figure, folder / f"{quote(dataset, safe='')}_{kind}")
    return written


def draw_errors(runs: pd.DataFrame) -> Figure | None:
    """Draw the error of each row, or its share of right answers, on each test set.

    Args:
        runs: The runs of one dataset.

    Returns:
        A figure with a dot per seed and, of enough seeds, the mean; None if every value is 0.
    """
    runs = runs[~is_step(runs)]
    metrics, looks = _shown_metrics(runs), styles(runs["row"].unique())
    if not metrics:
        return None
    split = split_readings(runs)
    split = split[split["metric"] == split["test"].map(metrics)]
    is_noise = split["line"] == REFERENCES["noise"]
    labels = split[~is_noise].drop_duplicates("line").set_index("line")["row"]
    figure = Figure(figsize=(5.4, (0.34 * len(labels) + 1.2) * len(metrics)), layout="constrained")
    axes = figure.subplots(len(metrics), squeeze=False)[:, 0]
    for ax, (test, metric) in zip(axes, metrics.items(), strict=True):
        values = split[split["test"] == test].set_index("line")["value"].dropna()
        for y, (row, label) in enumerate(labels.items()):
            color = GRAY if row in REFERENCES.values() else looks[label]["color"]
            _plot_dots(ax, y, values[values.index == row], color)
        if REFERENCES["noise"] in values:
            ax.axvline(values[[REFERENCES["noise"]]].mean(), **FLOOR)
        ax.set_yticks(range(len(labels)), labels.index)
        shown = find_metric(metric)
        ax.set(title=test, xlabel=f"{shown.heading}, {shown.unit}", ylim=(len(labels) - 0.4, -0.6))
        ax.set_xlim(left=0)
        ax.grid(axis="y", visible=False)
        ax.locator_params(axis="x", nbins=5)
    figure.supxlabel(SEEDS_NOTE, fontsize=8)
    return figure


def _shown_metrics(runs: pd.DataFrame) -> dict[str, str]:
    """Map each test set to the metric that is drawn."""
    wanted = ("mae",) if in_units(runs) else SHARES
    nonzero = runs[runs["value"] > 0].groupby("test")["metric"].agg(set)
    found = {
        test: [name for name in wanted if name in nonzero.get(test, ())] for test in runs["test"].unique()
    }
    return {test: names[0] for test, names in found.items() if names}


def _plot_dots(ax: Axes, y: float, seeds: pd.Series, color: str) -> None:
    """Plot each seed as a dot and, with enough seeds, the mean with its interval above."""
    if len(seeds) >= FEWEST_SEEDS:
        mean, half = mean_and_interval(seeds)
        ax.errorbar(mean, y - 0.12, xerr=half, fmt="o", color=color, ms=5, capsize=3)
        y += 0.12
    ax.scatter(seeds, [y] * len(seeds), s=22, color=color, alpha=0.6, lw=0, clip_on=False)


def draw_curves(runs: pd.DataFrame) -> Figure | None:
    """Draw metrics of the validation set during training, or return None if none was measured.

    Lines are medians, because one number with a digit too many changes a seed's error by hundreds.

    Args:
        runs: The runs of one dataset.
    """
    curves, looks = runs[is_step(runs)].dropna(subset="value"), styles(runs["row"].unique())
    curves = curves.assign(step=curves["test"].str.removeprefix(STEP).astype(int))
    wanted = CURVES_IN_UNITS if in_units(runs) else CURVES
    known = [name for name in wanted if (curves["value"][curves["metric"] == name] > 0).any()]
    if not known:
        return None
    figure = Figure(figsize=(4.2 * len(known), 3.4 + 0.18 * len(looks)), layout="constrained")
    for ax, name in zip(figure.subplots(1, len(known), squeeze=False)[0], known, strict=True):
        shown = curves[curves["metric"] == name]
        for label, look in looks.items():
            if not (name == "ce" and label.startswith(OTHER_TOKENS)):
                values = shown[shown["row"] == label].pivot(index="step", columns="seed", values="value")
                values = values.dropna()  # steps that all seeds share
                every = max(1, len(values) // 10)
                ax.plot(values.median(axis=1), **look, ms=3.5, lw=1.5, markevery=every, label=label)
                low, high = values.min(axis=1), values.max(axis=1)
                ax.fill_between(values.index, low, high, color=look["color"], alpha=0.1, lw=0)
        metric = find_metric(name)
        ax.locator_params(axis="x", nbins=6)
        ax.set(title=metric.heading, ylabel=metric.unit, xlabel="updates")
        if name in ("mae", "median_mae"):
            _scale_errors(ax, runs, name)
    pairs = (zip(*ax.get_legend_handles_labels(), strict=True) for ax in figure.axes)
    lines = {label: line for panel in pairs for line, label in panel}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, title=LINES_NOTE)
    return figure


def _scale_errors(ax: Axes, runs: pd.DataFrame, name: str) -> None:
    """Scale an error axis to trained models: early in training they write numbers with too many digits."""
    at_end = runs[(runs["test"] == "validation") & (runs["value"] > 0)].set_index("metric")["value"]
    smallest = at_end[[name]].min() if name in at_end else 1.0
    floor = at_end[["noise_mae"]].mean() if "noise_mae" in at_end else smallest
    ax.set_yscale("log")
    ax.set_ylim(0.8 * min(smallest, floor), 15 * smallest)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    if "noise_mae" in at_end:
        ax.axhline(floor, label="noise alone", **FLOOR)


def save_figure(figure: Figure, path: Path) -> list[str]:
    """Save a figure as SVG and PDF, without the date, and return the files' names."""
    metadata = {".svg": {"Date": None, "Creator": None}, ".pdf": {"CreationDate": None, "Creator": None}}
    for ending, without in metadata.items():
        figure.savefig(f"{path}{ending}", metadata=without)
    return [f"{path.name}{ending}" for ending in metadata]
