"""Draw a report's figures: accuracy, learning curves, error by magnitude, digit confusion, overview."""

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

from ntl.report.groups import Dataset, Group, mean_and_interval, split_readings
from ntl.report.style import (
    FLOOR,
    GRAY,
    LINES_NOTE,
    STYLE,
    add_caption,
    add_legend,
    margins,
    new_figure,
    plot_seeds,
    save_figure,
    styles,
    wrap,
)  # fmt: skip
from ntl.report.uncertainty import (
    MOST_MODELS,
    draw_calibration,
    draw_intervals,
    find_intervals,
    plot_calibration,
    plot_intervals,
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
# The dots show the first of these metrics that all groups have; the values are axis labels.
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
        first = {"errors": self.errors()} if self.dataset.is_table else {"accuracy": self.accuracy()}
        figures = {**first, "learning_curves": self.learning_curves()}
        figures["error_by_magnitude"] = self.error_by_magnitude()
        for test in self.predictions if not self.dataset.is_table else ():
            figures[f"digit_confusion_{test}"] = self.digit_confusion(test)
        tests = [test for test in self.predictions if test != "validation"]
        figures["calibration"] = draw_calibration(self.groups, tests, self.looks)
        for test in tests:
            figures[f"intervals_{test}"] = draw_intervals(test, self.predictions[test], self.looks)
        if noisy := [test for test in tests if self.dataset.has_noise(test)]:
            figures["overview"] = self.overview(noisy[0])
        return {name: figure for name, figure in figures.items() if figure is not None}

    def accuracy(self) -> Figure | None:
        """Draw the accuracy on each test set, or return None if it is 0 everywhere."""
        metrics = {}
        for test in self.dataset.tests:
            found = self.dataset.metrics(test)
            known = [name for name in SHOWN if all(m.get(name) is not None for m in found)]
            if nonzero := [name for name in known if any(m[name] for m in found)]:
                metrics[test] = nonzero[0]
        return self._dots(self.groups, metrics, SHOWN)

    def errors(self) -> Figure | None:
        """Draw the mean absolute error of each reading, and of a constant answer, on each test set."""
        rows = [*split_readings(self.dataset).groups, Group("constant", self.dataset.runs, "constant")]
        tests = [test for test in self.dataset.tests if self.dataset.reference(test, "mae") is not None]
        return self._dots(rows, dict.fromkeys(tests, "mae"), {"mae": "mean absolute error"})

    def _dots(
        self, rows: Sequence[Group], metrics: Mapping[str, str], names: Mapping[str, str]
    ) -> Figure | None:
        """Draw a panel with a metric's dots for each test set, or return None if there is none."""
        if not metrics:
            return None
        figure, axes = new_figure(len(metrics), COLUMNS, (3.6, 0.34 * len(rows) + 1.2), (1.2, 0.0))
        for i, (ax, (test, metric)) in enumerate(zip(axes, metrics.items(), strict=True)):
            self._seeds(ax, test, metric, rows)
            ax.set_yticks(range(len(rows)), [row.label for row in rows] if i % COLUMNS == 0 else [])
            ax.set_xlim(left=0)
            ax.locator_params(axis="x", nbins=5)
            ax.set(title=test, xlabel=names[metric])
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
            self._curves(ax, key)
            ax.set(title=panels[key][0], ylabel=panels[key][1])
            if key in ERROR_CURVES:
                self._scale_errors(ax, "validation")
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

    def overview(self, test: str) -> Figure:
        """Draw errors during training, the error of each seed and reading, and predictions.

        If quantiles were read, predictions are the first model's intervals, beside the calibration of all
        models; otherwise they are the numbers of the first two models against the true ones.
        """
        read = find_intervals(self.predictions[test])[:1]
        firsts = [(label, *next(iter(seeds.items()))) for label, seeds in self.predictions[test].items()]
        shown = read or firsts[:2]
        widths = [1.25, 1.35, 1.0, 1.0] if read or len(shown) > 1 else [1.25, 1.35, 1.0]
        figure, axes = new_figure(len(widths), len(widths), (3.3, 3.3), widths=widths)
        self._curves(axes[0], "eval_mae")
        self._scale_errors(axes[0], test)
        axes[0].set_title("validation MAE during training")
        axes[0].legend(fontsize=8, loc="upper right")
        rows = split_readings(self.dataset).groups
        self._seeds(axes[1], test, "mae", rows)
        axes[1].set_yticks(range(len(rows)), [row.label.replace(" + ", " +\n") for row in rows], fontsize=8)
        floor = self.dataset.reference(test, "noise_mae")
        axes[1].axvline(floor, **FLOOR)
        if max(m.get("mae") or 0.0 for m in self.dataset.metrics(test)) > 30 * floor:
            axes[1].set_xscale("log")  # a model that is hardly trained would compress the rest
        axes[1].set_title(f"{test} MAE (dots: seeds)")
        for ax, (label, seed, predictions) in zip(axes[2:], shown, strict=False):
            plot = plot_intervals if read else _scatter
            plot(ax, predictions, self.looks[label].color)
            ax.set_title(f"{label} (seed {seed})")
        axes[2].set_ylabel("predicted")
        if read:
            axes[2].set_xlabel("questions by true number (line)")
            plot_calibration(axes[3], self.groups, test, self.looks)
            axes[3].set_title("coverage: nominal, empirical")
        return figure

    def _seeds(self, ax: Axes, test: str, metric: str, rows: Sequence[Group]) -> None:
        """Draw each seed as a dot and, with enough seeds, the mean with its interval."""
        looks = {id(group.runs): self.looks[group.label].color for group in self.groups}
        for y, group in enumerate(rows):
            color = looks.get(id(group.runs), GRAY)
            values = group.values(test, metric)
            mean, width = mean_and_interval(values)
            seeds = values.dropna()
            enough = len(seeds) >= FEWEST_SEEDS and mean is not None
            at = [y + 0.12 if enough else y] * len(seeds)
            ax.scatter(seeds, at, s=22, color=color, alpha=0.6, lw=0, clip_on=False)
            if enough:
                ax.errorbar(mean, y - 0.12, xerr=width, fmt="o", color=color, ms=5, capsize=3)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)

    def _curves(self, ax: Axes, key: str) -> None:
        """Plot a metric of the validation set against updates."""
        for group, runs in zip(self.groups, self.curves, strict=True):
            if not (key in CROSS_ENTROPY and group.label.startswith(OTHER_TOKENS)):
                points = [{p["step"]: p[key] for p in curve if p.get(key) is not None} for curve in runs]
                plot_seeds(ax, points, self.looks[group.label], group.label)
        ax.locator_params(axis="x", nbins=6)
        ax.set_xlabel("updates")

    def _scale_errors(self, ax: Axes, test: str) -> None:
        """Scale an error axis to trained models.

        Models early in training write numbers with too many digits.
        """
        smallest = min((m["mae"] for m in self.dataset.metrics(test) if m.get("mae")), default=1.0)
        floor = self.dataset.reference(test, "noise_mae")
        ax.set_yscale("log")
        ax.set_ylim(0.8 * min(smallest, floor or smallest), 15 * smallest)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        if floor is not None:
            ax.axhline(floor, label="noise alone", **FLOOR)


def _confusion(ax: Axes, counts: np.ndarray) -> AxesImage:
    names = [*map(str, range(10)), *(["none"] if counts[:, 10].any() else [])]
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    ax.grid(visible=False)
    ax.set_xticks(range(len(names)), names, fontsize=7)
    ax.set_yticks(range(10), map(str, range(10)), fontsize=7)
    return ax.imshow(shares[:, : len(names)], vmin=0, vmax=1, cmap="cividis")


def _scatter(ax: Axes, predictions: Sequence[Prediction], color: str) -> None:
    """Plot predicted against true numbers."""
    pairs = [(p.true, math.nan if p.predicted is None else p.predicted) for p in predictions]
    true, predicted = np.array(pairs, dtype=float).T
    limits = margins(true, 0.06)
    ax.plot(limits, limits, **FLOOR)
    # Numbers far outside are drawn at the edge, so that they neither vanish nor compress the rest.
    ax.scatter(true, predicted.clip(*limits), s=7, color=color, alpha=0.4, lw=0, rasterized=True)
    ax.set(xlim=limits, ylim=limits, xlabel="true", aspect="equal")
