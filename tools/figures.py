"""Draw the figures of the pages from the packed runs of `results/`: `python tools/figures.py`.

Writes `docs/images/finding.svg`, and `effects.svg` and `losses.svg` of the study on small models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from ntl.report.style import BLUE, FLOOR, GRAY, GREEN, LINE, ORANGE, PINK, STYLE

ROOT = Path(__file__).resolve().parents[1]
TASKS = {
    "sentiment-600": "sentiment\nof a text",
    "places-600": "latitude\nof an airport",
    "diamonds-600": "price of\na diamond",
    "housing-600": "price of\nhouses",
    "populations-600": "population\nof a city",
}
# Settings of the study on small models; those of exact arithmetic and of text have other metrics.
SETTINGS = {
    "sums": "sums", "sums_noisy": "sums, more noise", "sums_few": "sums, 1,000 examples",
    "sums_plain": "sums, not padded", "ratings": "ratings 0 to 10", "products": "products",
    "diamonds_few": "diamonds, 4,000 rows", "diamonds": "diamonds, 45,000 rows", "housing": "house sales",
}  # fmt: skip
LOSSES = {
    "ntl_was": "NTL-WAS", "ntl_mse": "NTL-MSE", "crps": "CRPS", "dist2": "DIST2",
    "gaussian": "Gaussian smoothing", "smmd": "SMMD", "ntil": "NTIL", "digit_entropy": "DEL",
    "number_level": "number-level NTL", "ntl_mae": "NTL-MAE", "ntl_huber": "NTL-Huber",
    "ntl_was_reweigh": "NTL-WAS, reweigh", "raft": "RAFT", "xval": "xVal",
    "regression_head": "regression head", "regression_head_log": "regression head, log scale",
}  # fmt: skip
LOOKS = {
    "ntl_was": (BLUE, "s"),
    "ntl_mse": (ORANGE, "D"),
    "crps": (PINK, "v"),
    "regression_head": (GREEN, "^"),
}
EFFECTS = (-20.0, 20.0)  # per cent

Series = Mapping[str, tuple[str, str, list[pd.Series]]]
"""Color, marker, and one value per seed for each row of a panel, by the label of the legend."""


def main() -> None:
    """Draw all figures."""
    for name in FIGURES:
        write(name, ROOT / name)


def write(name: str, path: Path) -> None:
    """Draw one of `FIGURES` from its study's runs as an SVG with a transparent background."""
    study, draw = FIGURES[name]
    with mpl.rc_context(STYLE):
        draw(load_runs(study)).savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


def load_runs(study: str) -> pd.DataFrame:
    """Read the metrics of a study's reported runs, with a row per seed and columns (metric, setting, arm)."""
    runs = pd.read_json(ROOT / "results" / study / "runs.jsonl.xz", lines=True)
    names = runs["run"].str.split("/seed", n=1, expand=True)[0].str.split("/", n=1, expand=True)
    metrics = pd.DataFrame([test.get("test", test) for test in runs["metrics"]])
    index = [names[0], names[1], runs["run"].str.extract(r"/seed(\d+)$")[0]]
    return metrics.set_index(index)[~names[1].str.startswith("selection").values].unstack([0, 1])


def effect(runs: pd.DataFrame, setting: str, arm: str, key: str, base: str) -> pd.Series:
    """Return each seed's difference to cross-entropy, in per cent of its mean error."""
    theirs = runs[base, setting, "ce"]
    mine = runs.get((key, setting, arm), np.nan * theirs)
    return (100 * (mine - theirs) / theirs[mine.notna()].mean()).dropna()


def draw_finding(runs: pd.DataFrame) -> Figure:
    """Draw the figure of the home page, titled with its finding and narrow enough for a phone."""
    marks = {
        "greedy answer": ("ce", "greedy_mae", GRAY, "o"),
        "median": ("ce", "median_mae", BLUE, "s"),
        "median, + NTL-WAS": ("ntl_was", "median_mae", ORANGE, "D"),
        "regression head": ("head", "mean_mae", GREEN, "^"),
    }
    constant = {task: runs["mean_mae", task, "constant"].mean() for task in TASKS}
    series = {
        label: (*look, [100 * runs[key, task, arm].dropna() / constant[task] for task in TASKS])
        for label, (arm, key, *look) in marks.items()
    }
    gains = [effect(runs, task, "ce", "median_mae", "greedy_mae") for task in TASKS]
    if any(values.mean() + half_width(values) >= 0 for values in gains):
        raise SystemExit("the median's gain is not clear on every task: change the title")
    figure = Figure(figsize=(4.4, 4.9), layout="constrained")
    ax = figure.subplots()
    draw_panel(ax, list(TASKS.values()), series, (38.0, 126.0), line=100.0)
    ax.set_xticks([50, 75, 100, 125], ["50 %", "75 %", "100 %", "125 %"])
    ax.set_xlabel("error, in % of always answering the median (dashed)", fontsize=8.5)
    sizes = [-values.mean() for values in gains]
    found = f"{min(sizes):.0f} to {max(sizes):.0f} % in each of five tasks"
    title = f"Reading the median lowers the error by\n{found}"
    figure.suptitle(title, x=0.02, ha="left", weight="bold", fontsize=11)
    note = "SmolLM2-135M, 600 rows; 95 % intervals over 5 or 12 seeds"
    figure.legend(loc="outside lower center", ncols=2, title=note, title_fontsize=8)
    return figure


def draw_effects(runs: pd.DataFrame) -> Figure:
    """Draw what readings and the main losses change in each setting of the study on small models."""
    settings = {
        f"{task}-{steps}": f"{name} · {steps:,} steps"
        for task, name in SETTINGS.items()
        for steps in (200, 300, 800, 2400)
        if ("mae", f"{task}-{steps}", "ce") in runs
    }

    def series(key: str, arms: Sequence[str]) -> dict[str, tuple[str, str, list[pd.Series]]]:
        return {
            LOSSES[arm]: (*LOOKS[arm], [effect(runs, s, arm, key, key) for s in settings]) for arm in arms
        }

    median = {"CE's median": (GRAY, "o", [effect(runs, s, "ce", "median_mae", "mae") for s in settings])}
    figure = Figure(figsize=(9.0, 0.62 * len(settings) + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_panel(left, list(settings.values()), median | series("mae", list(LOOKS)), EFFECTS)
    draw_panel(right, list(settings.values()), series("median_mae", list(LOOKS)[:3]), EFFECTS)
    left.set_title("against CE's greedy answers")
    right.set_title("medians, against CE's median")
    figure.supxlabel("change of the error, in %; left is better", fontsize=9)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def draw_losses(runs: pd.DataFrame) -> Figure:
    """Draw what every loss changes in the settings that have them all, of greedy answers and of medians."""
    figure = Figure(figsize=(9.0, 10.0), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True).ravel()
    for ax, task in zip(axes, ("sums", "sums_noisy", "sums_few", "products"), strict=True):
        series = {
            label: (color, shape, [effect(runs, f"{task}-800", arm, key, key) for arm in LOSSES])
            for label, key, color, shape in (
                ("greedy answers", "mae", ORANGE, "^"),
                ("median", "median_mae", BLUE, "v"),
            )
        }
        draw_panel(ax, list(LOSSES.values()), series, EFFECTS)
        ax.set_title(f"{SETTINGS[task]} · 800 steps")
    figure.supxlabel("against cross-entropy's same reading, in %; left is better", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def half_width(values: pd.Series) -> float:
    """Return the half-width of the mean's 95 % interval, 0 for a single value."""
    return values.sem() * stats.t.ppf(0.975, len(values) - 1) if len(values) > 1 else 0.0


def draw_panel(
    ax: Axes, rows: Sequence[str], series: Series, limits: tuple[float, float], line: float = 0.0
) -> None:
    """Draw the series below each other in each row; a mean beyond the limits is its value at the edge."""
    ax.axvline(line, **FLOOR)
    ax.set(xlim=limits, ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)), yticklabels=rows)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.hlines(np.arange(1, len(rows)) - 0.5, *limits, color=LINE, alpha=0.3, lw=0.6)
    for place, (label, (color, shape, values)) in enumerate(series.items()):
        y = np.arange(len(rows)) + 0.85 * ((place + 0.5) / len(series) - 0.5)
        means = np.array([row.mean() if len(row) > 1 else np.nan for row in values])
        beyond = (means < limits[0]) | (means > limits[1])
        xs = np.where(beyond, np.nan, means)
        ax.errorbar(
            xs, y, xerr=[*map(half_width, values)], fmt=shape, color=color, ms=4.5, lw=1.4, label=label
        )
        for mean, height in zip(means[beyond], y[beyond], strict=True):
            text = f"{mean:+,.0f} %".replace("-", "\N{MINUS SIGN}")
            edge, side, shown = (
                (limits[0], "left", f"← {text}") if mean < 0 else (limits[1], "right", f"{text} →")
            )
            ax.text(edge, height, shown, ha=side, va="center", fontsize=7.5, color=color)


FIGURES = {
    "docs/images/finding.svg": ("pretrained", draw_finding),
    "results/small_models/effects.svg": ("small_models", draw_effects),
    "results/small_models/losses.svg": ("small_models", draw_losses),
}

if __name__ == "__main__":
    main()
