"""Draw a report's two figures of each dataset: errors of the rows with intervals, and learning curves."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ntl.metrics.registry import find_metric
from ntl.report.runs import is_step, read_curves
from ntl.report.statistics import mean_and_interval
from ntl.report.style import (
    FLOOR,
    GRAY,
    LINES_NOTE,
    STYLE,
    SeriesStyle,
    add_caption,
    add_legend,
    new_figure,
    plot_seeds,
    save_figure,
    styles,
)
from ntl.report.tables import REFERENCES, in_units, split_readings

FEWEST_SEEDS = 5  # with fewer, an interval is so wide that it hides the seeds
COLUMNS = 3
# What is drawn on a test set, if errors are not shown in the unit of the answers: the first metric that all
# runs have and that is not 0 everywhere.
SHARES = ("exact_number", "accuracy", "exact_match")
CURVES = ("exact_number", "accuracy", "log_mae", "ce")
CURVES_IN_UNITS = ("mae", "median_mae", "ce")
OTHER_TOKENS = "xVal"  # writes [NUM] for a number: its cross-entropy covers no digit tokens
SEEDS_NOTE = (
    f"dots: seeds; with at least {FEWEST_SEEDS} seeds, also the mean with its 95 % confidence interval"
)


def draw_figures(table: pd.DataFrame, folder: Path) -> list[str]:
    """Draw the figures of each dataset, except those that there is no data for.

    Args:
        table: The runs, see `ntl.report.runs`.
        folder: Where the figures are written.

    Returns:
        The names of the files.
    """
    written = []
    # Matplotlib reads text between dollars as mathematics.
    table = table.assign(row=table["row"].str.replace("$", r"\$"))
    curves = read_curves(table)
    with mpl.rc_context(STYLE):
        for dataset, runs in table.groupby("dataset", sort=False):
            looks = styles([*dict.fromkeys(runs["row"])])
            figures = {
                "errors": draw_errors(runs, looks),
                "learning_curves": draw_curves(runs, curves[curves["dataset"] == dataset], looks),
            }
            for kind, figure in figures.items():
                if figure is not None:
                    written += save_figure(figure, folder / f"{quote(dataset, safe='')}_{kind}")
    return written


def draw_errors(runs: pd.DataFrame, looks: Mapping[str, SeriesStyle]) -> Figure | None:
    """Draw the error of each row, or its share of right answers, on each test set.

    Returns:
        A figure with a dot per seed and, of enough seeds, the mean; None if every value is 0.
    """
    runs = runs[~is_step(runs)]
    metrics = _shown_metrics(runs)
    if not metrics:
        return None
    split = split_readings(runs)
    split = split[split["metric"] == split["test"].map(metrics)]
    is_noise = split["line"] == REFERENCES["noise"]
    labels = split[~is_noise].drop_duplicates("line").set_index("line")["row"]
    figure, axes = new_figure(len(metrics), COLUMNS, (3.6, 0.34 * len(labels) + 1.2), (1.2, 0.0))
    for i, (ax, (test, metric)) in enumerate(zip(axes, metrics.items(), strict=True)):
        values = split[split["test"] == test].set_index("line")["value"].dropna()
        for y, (row, label) in enumerate(labels.items()):
            color = GRAY if row in REFERENCES.values() else looks[label].color
            _plot_dots(ax, y, values[values.index == row], color)
        if REFERENCES["noise"] in values:
            ax.axvline(values[[REFERENCES["noise"]]].mean(), **FLOOR)
        ax.set_yticks(range(len(labels)), labels.index if i % COLUMNS == 0 else [])
        shown = find_metric(metric)
        ax.set(title=test, xlabel=f"{shown.heading}, {shown.unit}", ylim=(len(labels) - 0.4, -0.6))
        ax.set_xlim(left=0)
        ax.grid(axis="y", visible=False)
        ax.locator_params(axis="x", nbins=5)
    add_caption(figure, SEEDS_NOTE)
    return figure


def _shown_metrics(runs: pd.DataFrame) -> dict[str, str]:
    """Map each test set to the metric that is drawn."""
    wanted = ("mae",) if in_units(runs) else SHARES
    nonzero = runs[runs["value"] > 0].groupby("test")["metric"].agg(set)
    found = {
        test: [name for name in wanted if name in nonzero.get(test, ())] for test in runs["test"].unique()
    }
    return {test: names[0] for test, names in found.items() if names}


def _plot_dots(ax: Axes, y: float, values: pd.Series, color: str) -> None:
    """Plot each seed as a dot and, with enough seeds, the mean with its interval below."""
    mean, half = mean_and_interval(values)
    seeds = values.dropna()
    if mean is not None and len(seeds) >= FEWEST_SEEDS:
        ax.errorbar(mean, y - 0.12, xerr=half, fmt="o", color=color, ms=5, capsize=3)
        y += 0.12
    ax.scatter(seeds, [y] * len(seeds), s=22, color=color, alpha=0.6, lw=0, clip_on=False)


def draw_curves(runs: pd.DataFrame, curves: pd.DataFrame, looks: Mapping[str, SeriesStyle]) -> Figure | None:
    """Draw metrics of the validation set during training, or return None if none was measured.

    Args:
        runs: The runs of one dataset.
        curves: What `runs.read_curves` returns, of this dataset.
        looks: The style of each label.
    """
    wanted = CURVES_IN_UNITS if in_units(runs) else CURVES
    known = [name for name in wanted if (curves["value"][curves["metric"] == name] > 0).any()]
    if not known:
        return None
    figure, axes = new_figure(len(known), len(known), (4.2, 3.0), (0.0, 0.4 + 0.18 * len(looks)))
    for ax, name in zip(axes, known, strict=True):
        shown = curves[(curves["metric"] == name) & curves["value"].notna()]
        for label, look in looks.items():
            if not (name == "ce" and label.startswith(OTHER_TOKENS)):
                of_label = shown[shown["row"] == label].groupby("seed")
                plot_seeds(
                    ax, [dict(zip(p["step"], p["value"], strict=True)) for _, p in of_label], look, label
                )
        metric = find_metric(name)
        ax.locator_params(axis="x", nbins=6)
        ax.set(title=metric.heading, ylabel=metric.unit, xlabel="updates")
        if name in ("mae", "median_mae"):
            _scale_errors(ax, runs, name)
    add_legend(figure, f"validation; {LINES_NOTE}")
    return figure


def _scale_errors(ax: Axes, runs: pd.DataFrame, name: str) -> None:
    """Scale an error axis to trained models: early in training they write numbers with too many digits."""
    at_end = runs[(runs["test"] == "validation") & (runs["value"] > 0)].set_index("metric")["value"]
    smallest = at_end[[name]].min() if name in at_end else 1.0
    floor = at_end[["noise_mae"]].mean() if "noise_mae" in at_end else None
    ax.set_yscale("log")
    ax.set_ylim(0.8 * min(smallest, floor or smallest), 15 * smallest)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    if floor is not None:
        ax.axhline(floor, label="noise alone", **FLOOR)
