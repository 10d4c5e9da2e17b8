"""Draw the pages' figures, from the library and packed runs of `studies/`: `python tools/figures.py`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from ntl.report.figures import BLUE, GRAY, GREEN, LINE, ORANGE, PINK, STYLE, TEXT
from ntl.report.runs import read_runs
from ntloss import NTLCrossEntropyLoss, NumberVocabulary

ROOT = Path(__file__).resolve().parents[1]
INK = {"#333333": "#d9dbe3", "#000000": "#ffffff"}  # of text and lines on a light page, and on a dark one
TASKS = {"sentiment": "Rated texts, 0 to 80", "places": "Latitudes of airports, degrees"}

ON_PAGES = {**STYLE, **{key: next(iter(INK)) for key, color in STYLE.items() if color == TEXT}}

Metrics = Mapping[str, float]
Runs = Mapping[str, Mapping[str, Mapping[int, Metrics]]]
"""Test metrics of a study's runs, by setting, arm and seed."""


def main() -> None:
    """Draw all figures; those of the gallery by its own programs, with the model of `make model`."""
    for name in FIGURES:
        write(name, ROOT / name)
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the files
    text = (ROOT / "docs/gallery.md").read_text("utf-8")
    program = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    model = str(ROOT / ".models/smollm2")
    with mpl.rc_context({**ON_PAGES, "savefig.transparent": True}), contextlib.chdir(ROOT / "docs/images"):
        exec(program.replace("HuggingFaceTB/SmolLM2-135M-Instruct", model), {})
    for name in re.findall(r'savefig\("(.*?)"\)', program):
        add_dark_scheme(ROOT / "docs/images" / name)


def write(name: str, path: Path) -> None:
    """Draw one of `FIGURES` from its study's runs."""
    study, draw = FIGURES[name]
    with mpl.rc_context(ON_PAGES):
        figure = draw() if study is None else draw(load_runs(study))
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    add_dark_scheme(path)


def add_dark_scheme(path: Path) -> None:
    """Let an SVG follow the light or dark color scheme of its reader."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in INK.items()
        for kind in ("fill", "stroke")
    )
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


def draw_idea() -> Figure:
    """Draw what a model pays that is 70 % sure of a digit, and 30 % of the true one, 4."""
    digits = NumberVocabulary.from_mapping({digit: str(digit) for digit in range(10)}, vocab_size=10)
    probs = 0.7 * torch.eye(10) + 0.3 * torch.eye(10)[4]
    terms = [NTLCrossEntropyLoss(digits).terms(row.clamp_min(1e-9).log(), torch.tensor(4)) for row in probs]
    ce = np.array([float(term.ce) for term in terms])
    whole = np.array([float(term.loss) for term in terms])
    figure = Figure(figsize=(7.0, 1.7))
    figure.subplots_adjust(left=0.075, right=0.99, top=0.8, bottom=0.28, wspace=0.16)
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


def draw_rates() -> Figure:
    """Draw the cost of actions under four losses at four learning rates, seed by seed."""
    costs = pd.read_csv(ROOT / "studies/actions/results/rates.csv")
    costs = costs[costs["reading"] == "median"]
    looks = {
        "ce": ("cross-entropy", BLUE, "s"),
        "ntl_was": ("NTL-WAS", ORANGE, "D"),
        "crps": ("CRPS", GREEN, "o"),
        "hl_gauss": ("HL-Gauss", PINK, "v"),
    }
    rates = sorted(costs["rate"].unique())
    figure = Figure(figsize=(7.0, 3.1))
    figure.subplots_adjust(left=0.095, right=0.99, top=0.97, bottom=0.27)
    ax = figure.subplots()
    for place, (arm, (label, color, shape)) in enumerate(looks.items()):
        for x, rate in enumerate(rates):
            found = costs[(costs["arm"] == arm) & (costs["rate"] == rate)]
            ratios = found["cost"] / found["expert"]
            at = x + 0.18 * (place - 1.5)
            ax.plot([at] * len(ratios), ratios, shape, color=color, ms=3.5, alpha=0.45, mew=0)
            mean = 2 ** found["log_ratio"].mean()
            ax.plot([at], [mean], shape, color=color, ms=8, label=label if x == 0 else None)
    ax.set_yscale("log", base=2)
    ax.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    ax.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("learning rate")
    ax.set_ylabel("cost / cost of the expert")
    figure.legend(*ax.get_legend_handles_labels(), loc="lower center", ncols=4, fontsize=8.5)
    return figure


def draw_trajectories() -> Figure:
    """Draw how policies of four losses bring a point mass to rest, after the same training, seed by seed."""
    found = pd.read_csv(ROOT / "studies/actions/results/trajectories.csv")
    expert = found[found["arm"] == "expert"].groupby("step")["place"].mean()
    arms = {"ce": "cross-entropy", "hl_gauss": "HL-Gauss", "ntl_was": "NTL-WAS", "crps": "CRPS"}
    colors = dict(zip(arms, (BLUE, PINK, ORANGE, GREEN), strict=True))
    rates = sorted(found["rate"][found["arm"] != "expert"].unique())
    figure = Figure(figsize=(7.0, 3.6))
    figure.subplots_adjust(left=0.12, right=0.99, top=0.93, bottom=0.13, wspace=0.1, hspace=0.15)
    grid = figure.subplots(len(rates), len(arms), sharex=True, sharey=True)
    for row, rate in zip(grid, rates, strict=True):
        row[0].set_ylabel(f"learning rate {rate:g}\nplace")
        for ax, (arm, title) in zip(row, arms.items(), strict=True):
            for _, run in found[(found["arm"] == arm) & (found["rate"] == rate)].groupby("seed"):
                ax.plot(run["step"], run["place"], color=colors[arm], lw=0.9, alpha=0.6)
            ax.plot(expert.index, expert, "--", color=TEXT, lw=1)
            if rate == rates[0]:
                ax.set_title(title)
            if rate == rates[-1]:
                ax.set_xlabel("step")
    return figure


FIGURES: Mapping[str, tuple[str | None, Callable[..., Figure]]] = {
    "docs/images/idea.svg": (None, draw_idea),
    "docs/images/seeds.svg": ("all_layers", draw_seeds),
    "docs/images/rates.svg": (None, draw_rates),
    "docs/images/trajectories.svg": (None, draw_trajectories),
}

if __name__ == "__main__":
    main()
