"""Draw a report's figures: accuracy, learning curves, error by magnitude, digit confusion, overview."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, NullFormatter

from ntl.report.groups import FinishedRun, Group, test_sets, tests_without_predictions
from ntl.report.style import STYLE, SeriesStyle, new_figure, save_figure, styles
from ntl.report.tables import has_noise
from ntl.report.uncertainty import draw_calibration, draw_intervals
from ntl.training.run_folder import Prediction

# Maps keys of a learning curve's points to the title and the y-axis label.
CROSS_ENTROPY = {"eval_ce": ("cross-entropy", "nats per token")}
CURVES = {
    "eval_exact_number": ("exact", "share of exact numbers"),
    "eval_accuracy": ("accuracy", "share of close numbers"),
    "eval_log_mae": ("MAE, log scale", "mean error, log10"),
    **CROSS_ENTROPY,
}
ERROR_CURVES = {
    "eval_mae": ("MAE", "mean absolute error"),
    "eval_median_mae": ("MAE of the median", "mean absolute error"),
}
NOISE_CURVES = {**ERROR_CURVES, **CROSS_ENTROPY}
OTHER_TOKENS = "xVal"  # writes [NUM] for a number: its cross-entropy is of other tokens than digits
FEWEST_SEEDS = 5  # with fewer, an interval is so wide that it hides the seeds
MOST_MODELS = 4  # in a figure of digit confusion
FEWEST = 10  # minimum answers of a seed per bin of magnitude; fewer are too noisy
LARGEST_MAGNITUDE = 10  # digits; the protocol clips larger numbers
PLACES = ("units", "tens", "hundreds")
# The dots show the first of these metrics that all groups have; the values are axis labels.
SHOWN = {
    "exact_number": "share of exact numbers",
    "accuracy": "share of close numbers (np.isclose)",
    "exact_match": "share of equal texts",
}
COLUMNS = 3

SEEDS_NOTE = f"dots: seeds; from {FEWEST_SEEDS} seeds on, the mean with its 95 % confidence interval"

SeedValues = Mapping[float, Sequence[float]]
Looks = Mapping[str, SeriesStyle]
Curves = Sequence[Sequence[Mapping[str, float | None]]]  # points of the learning curve of each seed
FLOOR: dict[str, Any] = {"color": "#333333", "lw": 0.9, "ls": (0, (4, 3))}


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
    looks = styles([group.label for group in groups])
    figures: dict[str, Figure | None] = {}
    with mpl.rc_context(STYLE):
        figures["accuracy"] = _accuracy(groups, tests, looks)
        figures["learning_curves"] = _learning_curves(groups, looks)
        answers = {test: _load_predictions(groups, test) for test in numbers}
        if numbers:
            figures["error_by_magnitude"] = _error_by_magnitude(groups, answers, looks)
        for test in numbers:
            figures[f"digit_confusion_{test}"] = _digit_confusion(groups, test, answers[test])
        figures["calibration"] = draw_calibration(groups, [t for t in numbers if t != "validation"], looks)
        for test in numbers:
            if test != "validation":
                figures[f"intervals_{test}"] = draw_intervals(groups, test, answers[test], looks)
        if noisy := [test for test in numbers if has_noise(groups, test) and test != "validation"]:
            figures["overview"] = _overview(groups, noisy[0], answers[noisy[0]], looks)
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


def _accuracy(groups: Sequence[Group], tests: Sequence[str], looks: Looks) -> Figure:
    """Draw each seed as a dot and, with enough seeds, the mean with its confidence interval."""
    rows = math.ceil(len(tests) / COLUMNS)
    columns = min(len(tests), COLUMNS)
    figure, axes = new_figure(columns, (3.6 * columns + 1.2, (0.34 * len(groups) + 1.2) * rows), rows=rows)
    for i, (ax, test) in enumerate(zip(axes, tests, strict=False)):
        metric = _shown_metric(groups, test)
        _seeds(ax, groups, test, metric, looks)
        ax.set_yticks(range(len(groups)), [group.label for group in groups] if i % columns == 0 else [])
        ax.set_xlim(left=0)
        ax.set_title(test)
        ax.set_xlabel(SHOWN[metric])
    _hide(axes[len(tests) :])
    figure.supxlabel(SEEDS_NOTE, fontsize=8)
    return figure


def _seeds(ax: Axes, groups: Sequence[Group], test: str, metric: str, looks: Looks) -> None:
    for y, group in enumerate(groups):
        colour = looks[group.label].colour
        mean, width = group.mean_and_interval(test, metric)
        seeds = [value for value in group.values(test, metric) if value is not None]
        enough = len(seeds) >= FEWEST_SEEDS and mean is not None
        at = [y + 0.12 if enough else y] * len(seeds)
        ax.scatter(seeds, at, s=22, color=colour, alpha=0.6, lw=0, clip_on=False)
        if enough:
            ax.errorbar(mean, y - 0.12, xerr=width, fmt="o", color=colour, ms=5, capsize=3)
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def _shown_metric(groups: Sequence[Group], test: str) -> str:
    found = [run.metrics[test] for group in groups for run in group.runs if test in run.metrics]
    return next((name for name in SHOWN if all(m.get(name) is not None for m in found)), "exact_match")


def _learning_curves(groups: Sequence[Group], looks: Looks) -> Figure | None:
    curves = [[run.folder.curve() for run in group.runs] for group in groups]
    panels = NOISE_CURVES if has_noise(groups, "validation") else CURVES
    known = [
        key
        for key in panels
        if any(point.get(key) is not None for runs in curves for curve in runs for point in curve)
    ]
    if not known:
        return None
    figure, axes = new_figure(len(known), (4.2 * len(known), 3.4 + 0.18 * len(groups)))
    for ax, key in zip(axes, known, strict=True):
        _curves(ax, groups, curves, key, looks)
        ax.set_ylabel(panels[key][1])
        ax.set_title(panels[key][0])
        if key in ERROR_CURVES:
            _scale_errors(ax, groups, "validation")
    _legend(figure, axes[0], "validation; lines: median over seeds, bands: all seeds")
    return figure


def _error_by_magnitude(
    groups: Sequence[Group],
    answers: Mapping[str, Sequence[Sequence[Sequence[Prediction]]]],
    looks: Looks,
) -> Figure:
    rows, columns = math.ceil(len(answers) / COLUMNS), min(len(answers), COLUMNS)
    figure, axes = new_figure(columns, (4.2 * columns, 3.0 * rows + 0.4 + 0.18 * len(groups)), rows=rows)
    for ax, (test, by_group) in zip(axes, answers.items(), strict=False):
        for i, runs in enumerate(by_group):  # a group without this test still appears in the legend
            label = groups[i].label
            _line(ax, looks[label], label, _shared_points([error_by_digits(run) for run in runs]))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("integer digits of the true number (0: below 1)")
        ax.set_ylabel("mean error, log10")
        ax.set_title(test)
    _hide(axes[len(answers) :])
    _legend(figure, axes[0], f"lines: median over seeds, bands: all seeds; from {FEWEST} answers per point")
    return figure


def _digit_confusion(
    groups: Sequence[Group], test: str, runs: Sequence[Sequence[Sequence[Prediction]]]
) -> Figure | None:
    answered = [(group, own) for group, own in zip(groups, runs, strict=True) if own]
    shown = [(group, [p for run in own for p in run]) for group, own in answered[:MOST_MODELS]]
    counts = [[digit_counts(everything, place) for place in range(len(PLACES))] for _, everything in shown]
    places = [place for place in range(len(PLACES)) if any(own[place].any() for own in counts)]
    if not places:
        return None
    rows = len(shown)
    figure, axes = new_figure(len(places), (2.7 * len(places) + 0.6, 2.5 * rows + 0.6), rows=rows)
    for i, (group, _) in enumerate(shown):
        for j, place in enumerate(places):
            ax = axes[i * len(places) + j]
            image = _confusion(ax, counts[i][place])
            ax.set_title(f"{group.label}\n{PLACES[place]}" if j == 0 else f"\n{PLACES[place]}", fontsize=8)
            if j == 0:
                ax.set_ylabel("true digit")
            if i == rows - 1:
                ax.set_xlabel("predicted digit")
    figure.colorbar(
        image, ax=axes, shrink=min(1.0, 2.0 / rows), label="share of answers with that true digit"
    )
    some = f"; the first {rows} of {len(answered)} rows" if rows < len(answered) else ""
    figure.suptitle(f"{test}: all seeds together{some}", fontsize=9)
    return figure


def _confusion(ax: Axes, counts: np.ndarray) -> AxesImage:
    names = [*map(str, range(10)), "none"] if counts[:, 10].any() else [*map(str, range(10))]
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    ax.grid(visible=False)
    ax.set_xticks(range(len(names)), names, fontsize=7)
    ax.set_yticks(range(10), map(str, range(10)), fontsize=7)
    return ax.imshow(shares[:, : len(names)], vmin=0, vmax=1, cmap="cividis")


def _overview(
    groups: Sequence[Group], test: str, runs: Sequence[Sequence[Sequence[Prediction]]], looks: Looks
) -> Figure:
    """Draw errors during training, the error of each seed, and predicted against true numbers."""
    pair = [(group, own[0]) for group, own in zip(groups, runs, strict=True) if own][:2]
    widths = [1.25, 1.35, *[1.0] * len(pair)]
    figure, axes = new_figure(len(widths), (3.0 * sum(widths), 3.3), widths)
    curves = [[run.folder.curve() for run in group.runs] for group in groups]
    _curves(axes[0], groups, curves, "eval_mae", looks)
    _scale_errors(axes[0], groups, test)
    axes[0].set_title("validation MAE during training")
    axes[0].legend(fontsize=8, loc="upper right")
    _seeds(axes[1], groups, test, "mae", looks)
    axes[1].set_yticks(range(len(groups)), [group.label.replace(" + ", " +\n") for group in groups])
    axes[1].axvline(_floor(groups, test), **FLOOR)
    axes[1].set_title(f"{test} MAE (dots: seeds)")
    for ax, (group, predictions) in zip(axes[2:], pair, strict=True):
        _scatter(ax, predictions, looks[group.label].colour)
        ax.set_title(f"{group.label} (seed {group.runs[0].record.seed})")
    axes[2].set_ylabel("predicted")
    return figure


def _scatter(ax: Axes, predictions: Sequence[Prediction], colour: str) -> None:
    """Plot predicted against true numbers."""
    pairs = [(p.true, math.nan if p.predicted is None else p.predicted) for p in predictions]
    true, predicted = np.array(pairs, dtype=float).T
    margin = 0.06 * (true.max() - true.min()) or 1.0
    limits = (true.min() - margin, true.max() + margin)
    ax.plot(limits, limits, **FLOOR)
    # Numbers far outside are drawn at the edge, so that they neither vanish nor compress the rest.
    ax.scatter(true, predicted.clip(*limits), s=7, color=colour, alpha=0.4, lw=0)
    ax.set(xlim=limits, ylim=limits, xlabel="true", aspect="equal")


def _curves(ax: Axes, groups: Sequence[Group], curves: Sequence[Curves], key: str, looks: Looks) -> None:
    """Plot a metric of the validation set against updates."""
    for group, runs in zip(groups, curves, strict=True):
        if key in CROSS_ENTROPY and group.label.startswith(OTHER_TOKENS):
            continue
        points = [{p["step"]: p[key] for p in curve if p.get(key) is not None} for curve in runs]
        _line(ax, looks[group.label], group.label, _shared_points(points))
    ax.set_xlabel("updates")


def _scale_errors(ax: Axes, groups: Sequence[Group], test: str) -> None:
    """Scale an axis of errors for trained models, because early ones write numbers with too many digits."""
    final = [run.metrics[test].get("mae") for group in groups for run in group.runs if test in run.metrics]
    smallest = min((value for value in final if value), default=1.0)
    floor = _floor(groups, test)
    ax.set_yscale("log")
    ax.set_ylim(0.8 * min(smallest, floor or smallest), 15 * smallest)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.axhline(floor, label="noise alone", **FLOOR)


def _floor(groups: Sequence[Group], test: str) -> float:
    """Return the MAE of answering everything but the noise."""
    found = (run.metrics.get(test, {}).get("noise_mae") for group in groups for run in group.runs)
    return next(value for value in found if value is not None)


def _shared_points(seeds: Sequence[Mapping[float, float]]) -> dict[float, list[float]]:
    """Collect the points that all seeds share, so that every median is over the same seeds."""
    shared = set.intersection(*(set(points) for points in seeds)) if seeds else set()
    return {x: [points[x] for points in seeds] for x in sorted(shared)}


def _line(ax: Axes, how: SeriesStyle, label: str, spread: SeedValues) -> None:
    xs = list(spread)
    # Medians, because one number with a digit too many changes a seed's error by hundreds.
    middles = [float(np.median(spread[x])) for x in xs]
    ax.plot(
        xs, middles, color=how.colour, ls=how.dashes, marker=how.marker, ms=3.5, lw=1.5, label=label,
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
