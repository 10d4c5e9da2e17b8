"""Draw a report's figures: accuracy, learning curves, error by magnitude, and digit confusion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntl.drawing import STYLE, new_figure, save_figure, series_style
from ntl.report_groups import FinishedRun, Group, test_sets, tests_without_predictions
from ntl.run_folder import Prediction

# Maps keys of a learning curve's points to the title and the y-axis label.
CURVES = {
    "eval_exact_number": ("exact", "share of exact numbers"),
    "eval_accuracy": ("accuracy", "share of close numbers"),
    "eval_log_mae": ("MAE, log scale", "mean error, log10"),
    "eval_ce": ("cross-entropy", "nats per token"),
}
FEWEST = 10  # minimum answers of a seed per bin of magnitude; fewer are too noisy
LARGEST_MAGNITUDE = 10  # digits; the protocol clips larger numbers
PLACES = ("units", "tens", "hundreds")
# The bars show the first of these metrics that all groups have; the values are axis labels.
BARS = {
    "exact_number": "share of exact numbers",
    "accuracy": "share of close numbers (np.isclose)",
    "exact_match": "share of equal texts",
}
COLUMNS = 3

SeedValues = Mapping[float, Sequence[float]]


def draw_dataset(dataset: str, groups: Sequence[Group], folder: Path) -> list[str]:
    """Draw the figures of one dataset, except those that no run has data for.

    Args:
        dataset: Name of the dataset.
        groups: Groups of the dataset.
        folder: Output folder.

    Returns:
        The names of the files.

    Raises:
        UserError: A run's files cannot be read.
    """
    tests, unknown = test_sets(groups), tests_without_predictions(groups)
    of_numbers = {
        test
        for group in groups
        for run in group.runs
        for test in run.metrics
        if _has_number_metrics(run, test)
    }
    numbers = [test for test in tests if test in of_numbers and test not in unknown]
    figures: dict[str, Figure | None] = {}
    with mpl.rc_context(STYLE):
        figures["accuracy"] = _accuracy_bars(groups, tests)
        figures["learning_curves"] = _learning_curves(groups)
        answers = {test: _load_predictions(groups, test) for test in numbers}
        if numbers:
            figures["error_by_magnitude"] = _error_by_magnitude(groups, answers)
        for test in numbers:
            figures[f"digit_confusion_{test}"] = _digit_confusion(groups, test, answers[test])
        written = []
        for kind, figure in figures.items():
            if figure is not None:
                name = f"{quote(dataset, safe='')}_{quote(kind, safe='')}.png"
                save_figure(figure, folder / name)
                written.append(name)
    return written


def _has_number_metrics(run: FinishedRun, test: str) -> bool:
    return run.metrics[test].get("accuracy") is not None


def _load_predictions(groups: Sequence[Group], test: str) -> list[list[list[Prediction]]]:
    """Load the predictions of each group's runs, skipping runs without the test set."""
    return [[r.folder.predictions(test) for r in group.runs if test in r.metrics] for group in groups]


def error_by_digits(predictions: Sequence[Prediction], clip: float = 1e10) -> dict[float, float]:
    """Compute the mean error on the paper's log scale by the number of integer digits of the true number.

    Args:
        predictions: Predictions of one run; those without a number are skipped.
        clip: Numbers are clipped to this absolute value, as in the paper.

    Returns:
        Maps the number of digits before the decimal point (0 for numbers between -1 and 1) to the mean of
        |s(predicted) - s(true)|, with s(x) = sign(x)·log10(|x| + 1). Bins with fewer than `FEWEST`
        predictions are omitted.
    """
    errors: dict[float, list[float]] = {}
    for p in predictions:
        if p.predicted is not None and p.true is not None:
            logs = [math.copysign(math.log10(min(abs(x), clip) + 1), x) for x in (p.predicted, p.true)]
            digits = 0 if abs(p.true) < 1 else len(f"{math.floor(min(abs(p.true), clip))}")
            errors.setdefault(min(digits, LARGEST_MAGNITUDE), []).append(abs(logs[0] - logs[1]))
    return {digits: float(np.mean(found)) for digits, found in sorted(errors.items()) if len(found) >= FEWEST}


def digit_counts(predictions: Sequence[Prediction], place: int) -> np.ndarray:
    """Count how often each digit was predicted for each true digit, at one place before the decimal point.

    Numbers are aligned at their units, so that an extra or a missing digit does not shift the others.

    Args:
        predictions: Predictions of any runs.
        place: 0 for units, 1 for tens, and so on. True numbers without this place are skipped.

    Returns:
        Counts `[10, 11]` by true and predicted digit. The last column counts predictions without a digit at
        this place or without a number.
    """
    counts = np.zeros((10, 11))
    for p in predictions:
        true = None if p.true is None else _digit(p.true, place)
        if true is not None:
            predicted = None if p.predicted is None else _digit(p.predicted, place)
            counts[true, 10 if predicted is None else predicted] += 1
    return counts


def _digit(number: float, place: int) -> int | None:
    digits = f"{math.floor(abs(number))}"
    return int(digits[-1 - place]) if place < len(digits) else None


def _accuracy_bars(groups: Sequence[Group], tests: Sequence[str]) -> Figure:
    """Draw means with confidence intervals as bars, and each seed as a dot."""
    rows = math.ceil(len(tests) / COLUMNS)
    columns = min(len(tests), COLUMNS)
    figure, axes = new_figure(columns, (3.6 * columns + 1.2, (0.34 * len(groups) + 1.2) * rows), rows=rows)
    for i, (ax, test) in enumerate(zip(axes, tests, strict=False)):
        metric = _bar_metric(groups, test)
        for y, group in enumerate(groups):
            mean, width = group.mean_and_interval(test, metric)
            seeds = [value for value in group.values(test, metric) if value is not None]
            if mean is not None:
                ax.barh(y, mean, height=0.7, color=series_style(y).colour, alpha=0.75)
            if width is not None:
                ax.errorbar(mean, y, xerr=width, fmt="none", color="#222222", capsize=3, lw=1)
            if len(seeds) > 1:
                ax.scatter(seeds, [y] * len(seeds), s=9, color="white", edgecolor="#222222", lw=0.6, zorder=3)
        ax.set_yticks(range(len(groups)), [group.label for group in groups] if i % columns == 0 else [])
        ax.set_ylim(len(groups) - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.grid(axis="y", visible=False)
        ax.set_title(test)
        ax.set_xlabel(BARS[metric])
    _hide(axes[len(tests) :])
    figure.supxlabel("bars: mean over seeds with 95 % confidence interval; dots: seeds", fontsize=8)
    return figure


def _bar_metric(groups: Sequence[Group], test: str) -> str:
    found = [run.metrics[test] for group in groups for run in group.runs if test in run.metrics]
    return next((name for name in BARS if all(m.get(name) is not None for m in found)), "exact_match")


def _learning_curves(groups: Sequence[Group]) -> Figure | None:
    curves = [[run.folder.curve() for run in group.runs] for group in groups]
    known = [
        key
        for key in CURVES
        if any(point.get(key) is not None for runs in curves for curve in runs for point in curve)
    ]
    if not known:
        return None
    figure, axes = new_figure(len(known), (4.2 * len(known), 3.4 + 0.18 * len(groups)))
    for ax, key in zip(axes, known, strict=True):
        for i, runs in enumerate(curves):
            points = [{p["step"]: p[key] for p in curve if p.get(key) is not None} for curve in runs]
            _line(ax, i, groups[i].label, _shared_points(points))
        ax.set_xlabel("updates")
        ax.set_ylabel(CURVES[key][1])
        ax.set_title(CURVES[key][0])
    _legend(figure, axes[0], "validation; lines: mean over seeds, bands: all seeds")
    return figure


def _error_by_magnitude(
    groups: Sequence[Group], answers: Mapping[str, Sequence[Sequence[Sequence[Prediction]]]]
) -> Figure:
    rows, columns = math.ceil(len(answers) / COLUMNS), min(len(answers), COLUMNS)
    figure, axes = new_figure(columns, (4.2 * columns, 3.0 * rows + 0.4 + 0.18 * len(groups)), rows=rows)
    for ax, (test, by_group) in zip(axes, answers.items(), strict=False):
        for i, runs in enumerate(by_group):  # a group without this test still appears in the legend
            _line(ax, i, groups[i].label, _shared_points([error_by_digits(run) for run in runs]))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("integer digits of the true number (0: below 1)")
        ax.set_ylabel("mean error, log10")
        ax.set_title(test)
    _hide(axes[len(answers) :])
    _legend(figure, axes[0], f"lines: mean over seeds, bands: all seeds; from {FEWEST} answers per point")
    return figure


def _digit_confusion(
    groups: Sequence[Group], test: str, runs: Sequence[Sequence[Sequence[Prediction]]]
) -> Figure:
    answered = [(group, own) for group, own in zip(groups, runs, strict=True) if own]
    rows = len(answered)
    figure, axes = new_figure(len(PLACES), (2.7 * len(PLACES) + 0.6, 2.5 * rows + 0.6), rows=rows)
    for i, (group, own) in enumerate(answered):
        everything = [p for run in own for p in run]
        for place, name in enumerate(PLACES):
            ax = axes[i * len(PLACES) + place]
            counts = digit_counts(everything, place)
            totals = counts.sum(1, keepdims=True)
            shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
            image = ax.imshow(shares, vmin=0, vmax=1, cmap="cividis")
            ax.grid(visible=False)
            ax.set_xticks(range(11), [*map(str, range(10)), "none"], fontsize=7)
            ax.set_yticks(range(10), map(str, range(10)), fontsize=7)
            ax.set_title(f"{group.label}\n{name}" if place == 0 else f"\n{name}", fontsize=8)
            if place == 0:
                ax.set_ylabel("true digit")
            if i == rows - 1:
                ax.set_xlabel("predicted digit")
    figure.colorbar(
        image, ax=axes, shrink=min(1.0, 2.0 / rows), label="share of answers with that true digit"
    )
    figure.suptitle(f"{test}: all seeds together", fontsize=9)
    return figure


def _shared_points(seeds: Sequence[Mapping[float, float]]) -> dict[float, list[float]]:
    """Collect the points that all seeds share, so that every mean is over the same seeds."""
    shared = set.intersection(*(set(points) for points in seeds)) if seeds else set()
    return {x: [points[x] for points in seeds] for x in sorted(shared)}


def _line(ax: Axes, i: int, label: str, spread: SeedValues) -> None:
    xs, how = list(spread), series_style(i)
    means = [float(np.mean(spread[x])) for x in xs]
    ax.plot(
        xs, means, color=how.colour, ls=how.dashes, marker=how.marker, ms=3.5, lw=1.5, label=label,
        markevery=max(1, len(xs) // 10),
    )  # fmt: skip
    if any(len(values) > 1 for values in spread.values()):
        low, high = [min(spread[x]) for x in xs], [max(spread[x]) for x in xs]
        ax.fill_between(xs, low, high, color=how.colour, alpha=0.1, lw=0)


def _legend(figure: Figure, ax: Axes, title: str) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, fontsize=8, title=title, title_fontsize=8
    )


def _hide(axes: Sequence[Axes]) -> None:
    for ax in axes:
        ax.set_axis_off()
