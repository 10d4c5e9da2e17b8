"""Draw the pages' figures, from the library and packed runs of `studies/`: `python tools/figures.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntl.report.runs import read_runs
from ntl.report.statistics import paired_difference
from ntl.report.style import BLUE, FLOOR, GRAY, GREEN, LINE, ORANGE, PINK, STYLE, TEXT
from ntloss import NTLCrossEntropyLoss, NumberVocabulary

ROOT = Path(__file__).resolve().parents[1]
INK = "#333333"
# Text on light and on dark pages; marks and lines have colors that are legible on both.
TEXT_COLORS = {GRAY: "#5f5f5f", BLUE: "#00629b", ORANGE: "#8a5e00", GREEN: "#00714f", PINK: "#9c3f73"}
DARK = dict(zip([INK, *TEXT_COLORS.values()],
                ["#d9dbe3", "#bdbdbd", "#7cbdea", "#efbf68", "#58cfa8", "#e6b0cd"], strict=True))  # fmt: skip
TASKS = {"sentiment": "Rated texts, 0 to 80", "places": "Latitudes of airports, degrees"}
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


Metrics = Mapping[str, float]
Runs = Mapping[str, Mapping[str, Mapping[int, Metrics]]]
"""Test metrics of a study's runs, by setting, arm and seed."""
Mark = tuple[float, float]
"""A value with the half-width of its 95 % interval."""


class Series(NamedTuple):
    """One mark in each row: how it is labelled and drawn, and where it lies (None: not measured)."""

    label: str
    color: str
    shape: str
    marks: Sequence[Mark | None]


class Scale(NamedTuple):
    """The axis of a panel: its ends, the line of reference, and where labels begin (None: at the marks)."""

    low: float
    high: float
    line: float
    labels: float | None = None


EFFECTS = Scale(-20.0, 20.0, 0.0, 7.0)


def main() -> None:
    """Draw all figures."""
    for name in FIGURES:
        write(name, ROOT / name)


def write(name: str, path: Path) -> None:
    """Draw one of `FIGURES` from its study's runs into an SVG that follows a light or dark color scheme."""
    study, draw = FIGURES[name]
    with mpl.rc_context({**STYLE, **{key: INK for key, color in STYLE.items() if color == TEXT}}):
        figure = draw() if study is None else draw(load_runs(study))
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    rules = "".join(f'[style*="fill: {light}"]{{fill:{dark}!important}}' for light, dark in DARK.items())
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    text = re.sub(r"(<svg [^>]*>)", lambda match: match[1] + style, path.read_text(encoding="utf-8"), count=1)
    path.write_text(text, encoding="utf-8")


def load_runs(study: str) -> Runs:
    """Read the reported runs of a study from its pack."""
    table, _ = read_runs([ROOT / "studies" / study / "results"])
    found: dict[str, dict[str, dict[int, Metrics]]] = {}
    for row in table[table["test"].isin(["test", "lowest error of the median"])].itertuples():
        runs = found.setdefault(row.dataset, {}).setdefault(row.row, {})
        runs.setdefault(row.seed, {})[row.metric] = row.value
    return found


def effect(arms: Mapping[str, Mapping[int, Metrics]], arm: str, key: str, base: str) -> Mark | None:
    """Return the paired difference to cross-entropy's error in per cent, or None for fewer than two pairs."""
    mine, theirs = (
        pd.Series(
            {seed: metrics[metric] for seed, metrics in arms.get(name, {}).items() if metric in metrics}
        )
        for name, metric in ((arm, key), ("ce", base))
    )
    found = paired_difference(mine, theirs)
    if found is None or found.pairs < 2:
        return None
    in_percent = found.times(100 / theirs[(mine - theirs).dropna().index].mean())
    return in_percent.mean, in_percent.half


def draw_idea() -> Figure:
    """Draw what a model pays that is 70 % sure of a digit, and 30 % of the true one, 4."""
    digits = NumberVocabulary.from_mapping({digit: str(digit) for digit in range(10)}, vocab_size=10)
    probs = 0.7 * torch.eye(10) + 0.3 * torch.eye(10)[4]
    terms = [NTLCrossEntropyLoss(digits).terms(row.clamp_min(1e-9).log(), torch.tensor(4)) for row in probs]
    ce = np.array([float(term.ce) for term in terms])
    whole = np.array([float(term.loss) for term in terms])
    figure = Figure(figsize=(7.0, 2.5))
    figure.subplots_adjust(left=0.075, right=0.99, top=0.83, bottom=0.2, wspace=0.16)
    panels = figure.subplots(1, 2, sharey=True)
    names = ("Cross-entropy: a 9 costs what a 3 does", "With NTL-WAS, a 9 costs more")
    for ax, title, cost, color in zip(panels, names, (ce, whole), (BLUE, ORANGE), strict=True):
        ax.bar(range(10), cost, color=color, width=0.72)
        ax.set_xticks(range(10))
        ax.grid(axis="x", visible=False)
        ax.set_title(title)
        ax.set_xlabel("digit that the model is 70 % sure of")
        ax.annotate("truth", (4, 0), (0, 4), textcoords="offset points", ha="center", fontsize=7.5)
        for digit in (3, 9):
            style = {"ha": "center", "fontsize": 8}
            ax.annotate(
                f"{cost[digit]:.1f}", (digit, cost[digit]), (0, 2), textcoords="offset points", **style
            )
    panels[0].set_ylabel("loss")
    return figure


def draw_seeds(runs: Runs) -> Figure:
    """Draw the error of cross-entropy, of noise in its labels and of HL-Gauss, seed by seed."""
    looks = {
        "ce": ("cross-entropy", BLUE, "s"),
        "jittered": ("cross-entropy, noise in the labels", GRAY, "o"),
        "hl_gauss": ("HL-Gauss", ORANGE, "D"),
    }
    figure = Figure(figsize=(7.0, 2.9))
    figure.subplots_adjust(left=0.075, right=0.99, top=0.9, bottom=0.32, wspace=0.16)
    for ax, (table, title) in zip(figure.subplots(1, 2), TASKS.items(), strict=True):
        arms = runs[table]
        seeds = sorted(arms["ce"])
        for x, seed in enumerate(seeds):
            errors = [arms[arm][seed]["median_mae"] for arm in looks]
            ax.plot([x, x], [min(errors), max(errors)], color=LINE, lw=1, zorder=1)
        for arm, (label, color, shape) in looks.items():
            errors = [arms[arm][seed]["median_mae"] for seed in seeds]
            ax.plot(range(len(seeds)), errors, shape, color=color, ms=5.5, label=label)
        ax.set_xticks(range(len(seeds)), [str(seed) for seed in seeds])
        ax.set_ylim(0, 1.08 * max(metrics["median_mae"] for arm in looks for metrics in arms[arm].values()))
        ax.grid(axis="x", visible=False)
        ax.set_title(title)
        ax.set_xlabel("seed")
    figure.axes[0].set_ylabel("mean absolute error")
    figure.legend(*ax.get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8.5)
    return figure


def draw_effects(runs: Runs) -> Figure:
    """Draw what readings and the main losses change in each setting of the study on small models."""
    settings = {
        f"{task}-{steps}": f"{name} · {steps:,} steps"
        for task, name in SETTINGS.items()
        for steps in (200, 300, 800, 2400)
        if f"{task}-{steps}" in runs
    }
    looks = {
        "ntl_was": (BLUE, "s"),
        "ntl_mse": (ORANGE, "D"),
        "crps": (PINK, "v"),
        "regression_head": (GREEN, "^"),
    }

    def series(key: str, base: str, arms: Sequence[str]) -> list[Series]:
        return [
            Series(LOSSES[arm], *looks[arm], [effect(runs[s], arm, key, base) for s in settings])
            for arm in arms
        ]

    median = [effect(runs[s], "ce", "median_mae", "mae") for s in settings]
    left = [Series("CE's median", GRAY, "o", median), *series("mae", "mae", list(looks))]
    right = series("median_mae", "median_mae", list(looks)[:3])
    figure = Figure(figsize=(9.0, 0.62 * len(settings) + 1.2), layout="constrained")
    for i, (ax, panel) in enumerate(zip(figure.subplots(1, 2), (left, right), strict=True)):
        draw_panel(ax, [name if i == 0 else "" for name in settings.values()], panel, EFFECTS)
        ax.tick_params(axis="x", labeltop=True)
        ax.set_title(("against CE's greedy answers", "medians, against CE's median")[i])
        ax.set_xlabel("change of the error, in %; left is better")
    return figure


def draw_losses(runs: Runs) -> Figure:
    """Draw what every loss changes in the settings that have them all, of greedy answers and of medians."""
    settings = ["sums-800", "sums_noisy-800", "sums_few-800", "products-800"]
    figure = Figure(figsize=(9.0, 10.0), layout="constrained")
    for i, (ax, setting) in enumerate(zip(figure.subplots(2, 2).ravel(), settings, strict=True)):
        series = [
            Series(reading, color, shape, [effect(runs[setting], arm, key, key) for arm in LOSSES])
            for reading, key, color, shape in (
                ("greedy answers", "mae", ORANGE, "^"),
                ("median", "median_mae", BLUE, "v"),
            )
        ]
        draw_panel(ax, [name if i % 2 == 0 else "" for name in LOSSES.values()], series, EFFECTS)
        ax.set_title(f"{SETTINGS[setting.rpartition('-')[0]]} · 800 steps")
        ax.set_xlabel("against cross-entropy's same reading, in %; left is better", fontsize=8)
    return figure


def draw_panel(ax: Axes, rows: Sequence[str], series: Sequence[Series], scale: Scale) -> None:
    """Draw the series below each other in each row; marks off the axis are arrows at its edge."""
    ax.axvline(scale.line, **FLOOR)
    ax.set_xlim(scale.low, scale.high)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    for y in range(1, len(rows)):
        ax.axhline(y - 0.5, color=LINE, alpha=0.3, lw=0.6)
    for place, one in enumerate(series):
        shift = 0.85 * ((place + 0.5) / len(series) - 0.5)
        for y, mark in enumerate(one.marks):
            if mark is not None:
                draw_mark(ax, y + shift, mark, one, scale)
        if one.marks[0] is not None:
            mean, half = one.marks[0]
            x = mean + half + 0.015 * (scale.high - scale.low) if scale.labels is None else scale.labels
            style = {"va": "center", "fontsize": 7.5, "color": TEXT_COLORS[one.color]}
            ax.text(x, shift, one.label, **style)


def draw_mark(ax: Axes, y: float, mark: Mark, one: Series, scale: Scale) -> None:
    """Draw a mark with its interval, or an arrow with its value where it is off the axis."""
    mean, half = mark
    ends = [end for end in (scale.low, scale.high) if (end - mean) * (end - scale.line) < 0]
    if ends:
        side, text = ("right", f"{mean:+,.0f} % →") if mean > 0 else ("left", f"← {mean:+,.0f} %")
        style = {"va": "center", "fontsize": 7.5, "color": TEXT_COLORS[one.color]}
        ax.text(ends[0], y, text.replace("-", "\N{MINUS SIGN}"), ha=side, **style)
        return
    ax.plot(np.clip([mean - half, mean + half], scale.low, scale.high), [y, y], color=one.color, lw=1.4)
    ax.plot([mean], [y], one.shape, color=one.color, ms=4.5)
    for end, arrow, beyond in ((scale.low, "<", mean - half), (scale.high, ">", mean + half)):
        if (beyond - end) * (end - scale.line) > 0:
            ax.plot([end], [y], arrow, color=one.color, ms=4, clip_on=False)


FIGURES: Mapping[str, tuple[str | None, Callable[..., Figure]]] = {
    "docs/images/idea.svg": (None, draw_idea),
    "docs/images/seeds.svg": ("all_layers", draw_seeds),
    "studies/small_models/results/effects.svg": ("small_models", draw_effects),
    "studies/small_models/results/losses.svg": ("small_models", draw_losses),
}

if __name__ == "__main__":
    main()
