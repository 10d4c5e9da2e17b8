"""Draw a report's figures: accuracy or errors, learning curves, errors by magnitude, digits, intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, NullFormatter
from tqdm import tqdm

from ntl.data import evenly_spaced
from ntl.report.groups import Dataset, Group, mean_and_interval, split_readings
from ntl.report.style import (
    FLOOR,
    GRAY,
    LINES_NOTE,
    STYLE,
    TEXT,
    VERMILION,
    add_caption,
    add_legend,
    new_figure,
    plot_seeds,
    save_figure,
    styles,
    wrap,
)
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
OTHER_TOKENS = "xVal"  # writes [NUM] for a number: its cross-entropy covers no digit tokens
FEWEST_SEEDS = 5  # with fewer, an interval is so wide that it hides the seeds
FEWEST = 10  # minimum answers of a seed per bin of magnitude; fewer are too noisy
LARGEST_MAGNITUDE = 10  # digits
LARGEST = 1e10  # larger numbers are clipped to this absolute value, as in the paper
PLACES = ("units", "tens", "hundreds")
MOST_MODELS = 4  # in a figure with a panel or more for each
MOST_INTERVALS = 80  # of a model; more are too dense to see
# Dots show errors or the first of these metrics that all groups have; the values are axis labels.
SHOWN = {
    "exact_number": "share of exact numbers",
    "accuracy": "share of close numbers (np.isclose)",
    "exact_match": "share of equal texts",
}
COLUMNS = 3
SEEDS_NOTE = (
    f"dots: seeds; with at least {FEWEST_SEEDS} seeds, also the mean with its 95 % confidence interval"
)


def draw_dataset(dataset: Dataset, folder: Path) -> list[str]:
    """Draw the figures of one dataset, except those that no run has data for, and return the files' names."""
    written = []
    # Matplotlib reads text between dollars as mathematics.
    groups = [replace(group, label=group.label.replace("$", r"\$")) for group in dataset.groups]
    dataset = replace(dataset, groups=groups)
    with mpl.rc_context(STYLE):
        figures = DatasetFigures(dataset).draw().items()
        for kind, figure in tqdm(figures, f"figures of {dataset.name}", disable=None, leave=False):
            name = f"{quote(dataset.name, safe='')}_{quote(kind, safe='')}"
            written += save_figure(figure, folder / name)
    return written


def error_by_digits(predictions: Sequence[Prediction]) -> dict[float, float]:
    """Compute the mean error on the paper's log scale by the number of integer digits of the true number.

    Returns:
        Maps the number of digits before the decimal point (0 for numbers between -1 and 1) to the mean of
        |s(predicted) - s(true)|, with s(x) = sign(x)·log10(|x| + 1). Predictions without a number are
        skipped, and bins with fewer than `FEWEST` predictions are omitted.
    """
    pairs = pd.DataFrame([(p.predicted, p.true) for p in predictions], columns=["predicted", "true"])
    numbers = pairs.astype(float).dropna().clip(-LARGEST, LARGEST)
    logs = np.sign(numbers) * np.log10(numbers.abs() + 1)
    size = np.floor(numbers["true"].abs())
    digits = size.map(lambda whole: len(f"{whole:.0f}") if whole else 0).clip(upper=LARGEST_MAGNITUDE)
    bins = (logs["predicted"] - logs["true"]).abs().groupby(digits).agg(["mean", "size"])
    return bins.loc[bins["size"] >= FEWEST, "mean"].to_dict()


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
        if (true := _digit(p.true, place)) < 10:
            counts[true, _digit(p.predicted, place)] += 1
    return counts


def _digit(number: float | None, place: int) -> int:
    """Return the digit at a place before the decimal point, or 10 without one."""
    digits = "" if number is None else f"{math.floor(abs(number))}"
    return int(digits[-1 - place]) if place < len(digits) else 10


class DatasetFigures:
    """The figures of one dataset. An objective looks the same in all of them."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.groups = dataset.groups
        self.looks = styles([group.label for group in self.groups])
        self.room_for_legend = (0.0, 0.4 + 0.18 * len(self.groups))
        self.curves = [[run.folder.run.curve() for run in group.runs] for group in self.groups]
        # Predictions by test set, label and seed.
        self.predictions = {
            test: {g.label: found for g in self.groups if (found := g.predictions(test))}
            for test in dataset.tests
            if dataset.reference(test, "accuracy") is not None and not dataset.lacks_predictions(test)
        }

    def draw(self) -> dict[str, Figure]:
        """Draw all figures that there is data for, by name."""
        in_units = [test for test in self.dataset.tests if self.dataset.in_units(test)]
        figures = {"errors": self.errors(in_units)} if in_units else {"accuracy": self.accuracy()}
        figures |= {
            "learning_curves": self.learning_curves(),
            "error_by_magnitude": self.error_by_magnitude(),
            "calibration": self.calibration(),
        }
        for test in self.predictions:
            if not self.dataset.is_table:
                figures[f"digit_confusion_{test}"] = self.digit_confusion(test)
            if test != "validation":
                figures[f"intervals_{test}"] = self.intervals(test)
        return {name: figure for name, figure in figures.items() if figure is not None}

    def accuracy(self) -> Figure | None:
        """Draw the accuracy on each test set, or return None if it is 0 everywhere."""
        metrics = {}
        for test in self.dataset.tests:
            found = self.dataset.metrics(test)
            known = [name for name in SHOWN if all(m.get(name) is not None for m in found)]
            if nonzero := [name for name in known if any(m[name] for m in found)]:
                metrics[test] = nonzero[0]
        return self._dots(self.groups, metrics)

    def errors(self, tests: Sequence[str]) -> Figure | None:
        """Draw the mean absolute error of each reading, and of a constant answer, on test sets."""
        rows = [*split_readings(self.dataset).groups, Group("constant", self.dataset.runs, "constant")]
        known = [test for test in tests if self.dataset.reference(test, "mae") is not None]
        return self._dots(rows, dict.fromkeys(known, "mae"))

    def _dots(self, rows: Sequence[Group], metrics: Mapping[str, str]) -> Figure | None:
        """Draw a panel for each test set, with a dot per seed and, of enough seeds, the mean."""
        if not metrics:
            return None
        colors = {id(group.runs): self.looks[group.label].color for group in self.groups}
        figure, axes = new_figure(len(metrics), COLUMNS, (3.6, 0.34 * len(rows) + 1.2), (1.2, 0.0))
        for i, (ax, (test, metric)) in enumerate(zip(axes, metrics.items(), strict=True)):
            for y, group in enumerate(rows):
                _plot_dots(ax, y, group.values(test, metric), colors.get(id(group.runs), GRAY))
            if (floor := self.dataset.reference(test, "noise_mae")) is not None and metric == "mae":
                ax.axvline(floor, **FLOOR)
            ax.set_yticks(range(len(rows)), [row.label for row in rows] if i % COLUMNS == 0 else [])
            ax.set(title=test, xlabel=SHOWN.get(metric, "mean absolute error"), ylim=(len(rows) - 0.4, -0.6))
            ax.set_xlim(left=0)
            ax.grid(axis="y", visible=False)
            ax.locator_params(axis="x", nbins=5)
        add_caption(figure, SEEDS_NOTE)
        return figure

    def learning_curves(self) -> Figure | None:
        """Draw metrics of the validation set during training, or return None if none was measured."""
        panels = NOISE_CURVES if self.dataset.in_units("validation") else CURVES
        points = [point for runs in self.curves for curve in runs for point in curve]
        known = [key for key in panels if any(point.get(key) for point in points)]  # neither None nor 0
        if not known:
            return None
        figure, axes = new_figure(len(known), len(known), (4.2, 3.0), self.room_for_legend)
        for ax, key in zip(axes, known, strict=True):
            for group, runs in zip(self.groups, self.curves, strict=True):
                if not (key in CROSS_ENTROPY and group.label.startswith(OTHER_TOKENS)):
                    seeds = [{p["step"]: p[key] for p in curve if p.get(key) is not None} for curve in runs]
                    plot_seeds(ax, seeds, self.looks[group.label], group.label)
            ax.locator_params(axis="x", nbins=6)
            ax.set(title=panels[key][0], ylabel=panels[key][1], xlabel="updates")
            if key in ERROR_CURVES:
                self._scale_errors(ax)
        add_legend(figure, f"validation; {LINES_NOTE}")
        return figure

    def error_by_magnitude(self) -> Figure | None:
        """Draw the error by the number of digits of the true number, or return None if answers are few."""
        found = {
            test: {label: [*map(error_by_digits, seeds.values())] for label, seeds in answers.items()}
            for test, answers in self.predictions.items()
        }
        shown = {test: by_label for test, by_label in found.items() if any(map(any, by_label.values()))}
        if not shown:
            return None
        figure, axes = new_figure(len(shown), COLUMNS, (4.2, 3.0), self.room_for_legend)
        for ax, (test, by_label) in zip(axes, shown.items(), strict=True):
            digits: set[float] = set()
            for label, points in by_label.items():
                plot_seeds(ax, points, self.looks[label], label)
                digits.update(*points)
            ax.set_xticks(sorted(digits))
            ax.margins(x=0.05 if len(digits) > 1 else 1)
            ax.set_ylim(bottom=0)
            ax.set(title=test, xlabel="integer digits of the true number (0: below 1)")
            ax.set_ylabel("mean error, log10")
        add_legend(figure, f"{LINES_NOTE}; at least {FEWEST} answers per point")
        return figure

    def digit_confusion(self, test: str) -> Figure | None:
        """Draw predicted against true digits of the first groups, or return None without any digit."""
        answers = self.predictions[test]
        shown = list(answers)[:MOST_MODELS]
        found = {label: list(chain.from_iterable(answers[label].values())) for label in shown}
        counts = {key: digit_counts(found[key[0]], key[1]) for key in product(shown, range(len(PLACES)))}
        places = [place for place in range(len(PLACES)) if any(counts[own, place].any() for own in shown)]
        if not places:
            return None
        rows = len(shown)
        figure, axes = new_figure(rows * len(places), len(places), (2.7, 2.5), (0.6, 0.6))
        for ax, (label, place) in zip(axes, product(shown, places), strict=True):
            image = _confusion(ax, counts[label, place])
            is_first = place == places[0]
            ax.set_title(f"{label if is_first else ''}\n{PLACES[place]}", fontsize=8)
            ax.set_ylabel("true digit" if is_first else "")
            ax.set_xlabel("predicted digit" if label == shown[-1] else "")
        figure.colorbar(
            image, ax=axes, shrink=min(1.0, 2.0 / rows), label="share of answers with that true digit"
        )
        some = f"; the first {rows} of {len(answers)} rows" if rows < len(answers) else ""
        figure.suptitle(wrap(figure, f"{test}: all seeds together{some}"), fontsize=9)
        return figure

    def calibration(self) -> Figure | None:
        """Draw the share of answers in central intervals against the nominal one, or None without any."""
        curves = {
            (test, group.label): found
            for test in self.dataset.tests
            for group in self.groups
            if test != "validation" and (found := _coverage(group, test))
        }
        tests = list(dict.fromkeys(test for test, _ in curves))
        if not tests:
            return None
        figure, axes = new_figure(len(tests), COLUMNS, (3.6, 3.6), (0.0, 0.18 * len(self.groups)))
        for ax, test in zip(axes, tests, strict=True):
            ax.plot([0, 1], [0, 1], label="calibrated", **FLOOR)
            for (of, label), seeds in curves.items():
                if of == test:
                    plot_seeds(ax, seeds, self.looks[label], label)
            ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=test)
            ax.set(xlabel="nominal coverage", ylabel="share of answers covered")
        add_legend(figure, LINES_NOTE)
        return figure

    def intervals(self, test: str) -> Figure | None:
        """Draw the intervals and medians of each model's first seed, or return None if none were read."""
        firsts = [(label, *next(iter(seeds.items()))) for label, seeds in self.predictions[test].items()]
        read = [(label, seed, [p for p in own if p.lower is not None]) for label, seed, own in firsts]
        shown = [row for row in read if row[2]][:MOST_MODELS]
        if not shown:
            return None
        figure, axes = new_figure(len(shown), 2, (5.2, 3.0), (0.0, 0.3))
        for ax, (label, seed, predictions) in zip(axes, shown, strict=True):
            _plot_intervals(ax, predictions, self.looks[label].color)
            ax.set_title(f"{label} (seed {seed})")
        add_caption(
            figure,
            f"{test}: at most {MOST_INTERVALS} questions, sorted by the true number (line). Bars: intervals, "
            "red where they miss it; dots: medians.",
        )
        return figure

    def _scale_errors(self, ax: Axes) -> None:
        """Scale an error axis to trained models.

        Models early in training write numbers with too many digits.
        """
        smallest = min((m["mae"] for m in self.dataset.metrics("validation") if m.get("mae")), default=1.0)
        floor = self.dataset.reference("validation", "noise_mae")
        ax.set_yscale("log")
        ax.set_ylim(0.8 * min(smallest, floor or smallest), 15 * smallest)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        if floor is not None:
            ax.axhline(floor, label="noise alone", **FLOOR)


def _plot_dots(ax: Axes, y: float, values: pd.Series, color: str) -> None:
    """Plot each seed as a dot and, with enough seeds, the mean with its interval below."""
    mean, width = mean_and_interval(values)
    seeds = values.dropna()
    if mean is not None and len(seeds) >= FEWEST_SEEDS:
        ax.errorbar(mean, y - 0.12, xerr=width, fmt="o", color=color, ms=5, capsize=3)
        y += 0.12
    ax.scatter(seeds, [y] * len(seeds), s=22, color=color, alpha=0.6, lw=0, clip_on=False)


def _coverage(group: Group, test: str) -> list[dict[float, float]]:
    """Map nominal coverage to the share of answers covered, for each seed with quantiles."""
    prefix = "coverage_"  # followed by the nominal percentage
    curves = (
        {
            float(name.removeprefix(prefix)) / 100: value
            for name, value in run.metrics.get(test, {}).items()
            if name.startswith(prefix) and value is not None
        }
        for run in group.runs
    )
    return [curve for curve in curves if curve]


def _confusion(ax: Axes, counts: np.ndarray) -> AxesImage:
    names = [*map(str, range(10)), *(["none"] if counts[:, 10].any() else [])]
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    ax.grid(visible=False)
    ax.set_xticks(range(len(names)), names, fontsize=7)
    ax.set_yticks(range(10), map(str, range(10)), fontsize=7)
    return ax.imshow(shares[:, : len(names)], vmin=0, vmax=1, cmap="cividis")


def _plot_intervals(ax: Axes, predictions: Sequence[Prediction], color: str) -> None:
    """Plot some intervals at the places of their questions, in the order of the true numbers."""
    chosen = evenly_spaced(sorted(predictions, key=lambda p: p.true), MOST_INTERVALS)
    columns = ([getattr(p, name) for p in chosen] for name in ("true", "lower", "median", "upper"))
    true, lower, median, upper = (np.array(column, dtype=float) for column in columns)
    margin = 0.25 * np.ptp(true) or 1.0
    limits = (true.min() - margin, true.max() + margin)
    at, missed = np.arange(len(chosen)), (true < lower) | (true > upper)
    for where, shade, alpha in ((~missed, color, 0.5), (missed, VERMILION, 1.0)):
        # Ends far outside are drawn at the edge, so that they do not compress the rest.
        ax.vlines(at[where], lower[where].clip(*limits), upper[where].clip(*limits), color=shade, alpha=alpha)
    ax.scatter(at, median.clip(*limits), s=7, color=color, lw=0, zorder=3)
    ax.plot(at, true, color=TEXT, lw=1.0)
    ax.set(ylim=limits, ylabel="number")
    ax.set_xticks([])
