"""Draw the uncertainty of models: the coverage of their intervals, and intervals over the true numbers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntl.data import evenly_spaced
from ntl.report.groups import Group
from ntl.report.style import (
    FLOOR,
    LINES_NOTE,
    TEXT,
    VERMILION,
    SeriesStyle,
    add_caption,
    add_legend,
    margins,
    new_figure,
    plot_seeds,
)
from ntl.training.run_folder import Prediction

COVERAGE = "coverage_"  # prefix of metrics, followed by the nominal percentage
MOST_MODELS = 4  # in a figure with a panel or more for each
MOST_INTERVALS = 80  # of a model; more are too dense to see
COLUMNS = 2


def draw_calibration(
    groups: Sequence[Group], tests: Sequence[str], looks: Mapping[str, SeriesStyle]
) -> Figure | None:
    """Draw the share of answers that central intervals cover against their nominal coverage.

    Test sets without quantiles are left out. Returns None if no quantiles were read.
    """
    shown = [test for test in tests if any(_coverage(group, test) for group in groups)]
    if not shown:
        return None
    figure, axes = new_figure(len(shown), COLUMNS, (3.9, 3.9), (0.0, 0.18 * len(groups)))
    for ax, test in zip(axes, shown, strict=True):
        plot_calibration(ax, groups, test, looks)
        ax.set(title=test, xlabel="share of the model's distribution in the interval")
    add_legend(figure, LINES_NOTE)
    return figure


def plot_calibration(ax: Axes, groups: Sequence[Group], test: str, looks: Mapping[str, SeriesStyle]) -> None:
    """Plot the share of answers that each model's central intervals cover against the nominal one."""
    ax.plot([0, 1], [0, 1], label="calibrated", **FLOOR)
    for group in groups:
        if curves := _coverage(group, test):
            plot_seeds(ax, curves, looks[group.label], group.label)
    ax.set(
        xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="nominal coverage", ylabel="share of answers covered"
    )


def draw_intervals(
    test: str,
    answers: Mapping[str, Mapping[int, Sequence[Prediction]]],
    looks: Mapping[str, SeriesStyle],
) -> Figure | None:
    """Draw intervals and medians of each model's first seed, sorted by the true number.

    `answers` holds predictions by label and seed. Returns None if no quantiles were read.
    """
    shown = find_intervals(answers)[:MOST_MODELS]
    if not shown:
        return None
    figure, axes = new_figure(len(shown), COLUMNS, (5.2, 3.0), (0.0, 0.3))
    for ax, (label, seed, predictions) in zip(axes, shown, strict=True):
        plot_intervals(ax, predictions, looks[label].color)
        ax.set_title(f"{label} (seed {seed})")
    add_caption(
        figure,
        f"{test}: at most {MOST_INTERVALS} questions, sorted by the true number (line). Bars: intervals, red "
        "where they miss it; dots: medians.",
    )
    return figure


def find_intervals(
    answers: Mapping[str, Mapping[int, Sequence[Prediction]]],
) -> list[tuple[str, int, list[Prediction]]]:
    """Return the label, the first seed and its predictions with an interval, for each model that has any."""
    firsts = [(label, *next(iter(seeds.items()))) for label, seeds in answers.items()]
    read = [(label, seed, [p for p in own if p.lower is not None]) for label, seed, own in firsts]
    return [row for row in read if row[2]]


def plot_intervals(ax: Axes, predictions: Sequence[Prediction], color: str) -> None:
    """Plot some intervals at the places of their questions, in the order of the true numbers."""
    chosen = evenly_spaced(sorted(predictions, key=lambda p: p.true), MOST_INTERVALS)
    columns = ([getattr(p, name) for p in chosen] for name in ("true", "lower", "median", "upper"))
    true, lower, median, upper = (np.array(column, dtype=float) for column in columns)
    limits = margins(true, 0.25)
    at, missed = np.arange(len(chosen)), (true < lower) | (true > upper)
    for where, shade, alpha in ((~missed, color, 0.5), (missed, VERMILION, 1.0)):
        # Ends far outside are drawn at the edge, so that they do not compress the rest.
        ax.vlines(at[where], lower[where].clip(*limits), upper[where].clip(*limits), color=shade, alpha=alpha)
    ax.scatter(at, median.clip(*limits), s=7, color=color, lw=0, zorder=3)
    ax.plot(at, true, color=TEXT, lw=1.0)
    ax.set(ylim=limits, ylabel="number")
    ax.set_xticks([])


def _coverage(group: Group, test: str) -> list[dict[float, float]]:
    """Map nominal coverage to the share of answers covered, for each seed with quantiles."""
    curves = (
        {
            float(name.removeprefix(COVERAGE)) / 100: value
            for name, value in run.metrics.get(test, {}).items()
            if name.startswith(COVERAGE) and value is not None
        }
        for run in group.runs
    )
    return [curve for curve in curves if curve]
