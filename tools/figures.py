"""Draw `docs/images/finding.svg` from the pack of the study of ten epochs: `python tools/figures.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ntl.report.runs import read_runs
from ntl.report.style import BLUE, FLOOR, GRAY, GREEN, ORANGE, PINK, STYLE, TEXT

ROOT = Path(__file__).resolve().parents[1]
INK = "#333333"
# Text on light and on dark pages; marks and lines have colors that are legible on both.
TEXT_COLORS = {GRAY: "#5f5f5f", BLUE: "#00629b", ORANGE: "#8a5e00", GREEN: "#00714f", PINK: "#9c3f73"}
DARK = dict(zip([INK, *TEXT_COLORS.values()],
                ["#d9dbe3", "#bdbdbd", "#7cbdea", "#efbf68", "#58cfa8", "#e6b0cd"], strict=True))  # fmt: skip
TASKS = {"sentiment": "sentiment of a text, 0 to 80", "places": "latitude of an airport, degrees"}


class Model(NamedTuple):
    """How an arm of the study of ten epochs is drawn in the figure of the home page."""

    label: str
    arm: str
    metric: str
    color: str
    shape: str


MODELS = (
    Model("TF-IDF + ridge", "ridge", "mae", GRAY, "o"),
    Model("MiniLM, frozen, + SVR", "minilm", "mae", GRAY, "o"),
    Model("mpnet, frozen, + SVR", "mpnet", "mae", GRAY, "o"),
    Model("MiniLM, fine-tuned", "encoder", "mae", GREEN, "^"),
    Model("SmolLM2, regression head", "head", "mae", GREEN, "^"),
    Model("cross-entropy, greedy answer", "ce", "mae", BLUE, "s"),
    Model("cross-entropy, median", "ce", "median_mae", BLUE, "s"),
    Model("label smoothing, median", "label_smoothing", "median_mae", PINK, "v"),
    Model("HL-Gauss, median", "hl_gauss", "median_mae", ORANGE, "D"),
)

Runs = Mapping[str, Mapping[str, Mapping[int, Mapping[str, float]]]]
"""Test metrics of the study's runs, by table, arm and seed."""


def main(path: Path = ROOT / "docs/images/finding.svg") -> None:
    """Draw the figure as an SVG that follows a light or dark color scheme."""
    with mpl.rc_context({**STYLE, **{key: INK for key, color in STYLE.items() if color == TEXT}}):
        draw_finding(load_runs()).savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    rules = "".join(f'[style*="fill: {light}"]{{fill:{dark}!important}}' for light, dark in DARK.items())
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    text = re.sub(r"(<svg [^>]*>)", lambda match: match[1] + style, path.read_text(encoding="utf-8"), count=1)
    path.write_text(text, encoding="utf-8")


def load_runs() -> Runs:
    """Read the reported runs of the study from its pack."""
    table, _ = read_runs([ROOT / "studies/ten_epochs/results"])
    found: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for row in table[table["test"] == "test"].itertuples():
        runs = found.setdefault(row.dataset, {}).setdefault(row.row, {})
        runs.setdefault(row.seed, {})[row.metric] = row.value
    return found


def draw_finding(runs: Runs) -> Figure:
    """Draw the figure of the home page: each model's error on each table, narrow enough for a phone."""
    figure = Figure(figsize=(4.6, 5.7))
    figure.subplots_adjust(left=0.42, right=0.97, top=0.875, bottom=0.125, hspace=0.3)
    found = []
    for ax, (table, title) in zip(figure.subplots(len(TASKS), 1), TASKS.items(), strict=True):
        arms = runs[table]
        ax.set_ylim(len(MODELS) - 0.5, -0.5)
        ax.set_yticks(range(len(MODELS)), [model.label for model in MODELS], fontsize=8)
        ax.tick_params(axis="y", length=0)
        for y, (_, arm, key, color, shape) in enumerate(MODELS):
            errors = [metrics[key] for metrics in arms[arm].values()]
            found.append(len(errors))
            ax.plot([min(errors), max(errors)], [y, y], color=color, lw=1.4)
            ax.plot([np.mean(errors)], [y], shape, color=color, ms=5)
            style = {"va": "center", "fontsize": 7.5, "color": TEXT_COLORS[color]}
            ax.annotate(
                f"{np.mean(errors):.1f}", (max(errors), y), (5, 0), textcoords="offset points", **style
            )
        ax.axvline(np.mean([metrics["mae"] for metrics in arms["constant"].values()]), **FLOOR)
        ax.set_xlim(left=0)
        ax.set_title(title, fontsize=9.5)
    ax.set_xlabel("mean absolute error (dashed: the median of the training answers)", fontsize=8, x=0.2)
    title = "Ten epochs on 600 rows: a language model that\nwrites the number, and what else you could use"
    figure.text(0.02, 0.985, title, va="top", weight="bold", fontsize=11)
    seeds = f"{min(found)}" if min(found) == max(found) else f"{min(found)} to {max(found)}"
    note = f"SmolLM2-135M, upper four layers. Mean, lowest and highest of {seeds} seeds"
    figure.text(0.02, 0.012, note, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
