"""Draw the figure of the home page, titled with its finding. `python -m studies.finding`.

Writes `docs/images/finding.svg`: what readings and losses change for a pretrained model that is fine-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure

from ntl.report.style import BLUE, FLOOR, GRAY, GREEN, ORANGE, PINK, STYLE, VERMILION
from ntl.report.svg import TEXT_COLORS, save_svg
from studies.packing import ROOT
from studies.pretrained.run import STUDY
from studies.pretrained.tables import Difference, difference, load

PATH = ROOT / "docs" / "images" / "finding.svg"
BASE = ("ce", "greedy")
MEDIAN = "cross-entropy, read the median"
ROWS = {
    MEDIAN: ("ce", "median"),
    "+ CRPS, greedy answer": ("crps", "greedy"),
    "+ NTL-WAS, greedy answer": ("ntl_was", "greedy"),
    "regression head": ("head", "mean"),
}
TASKS = {
    "sentiment": ("sentiment of a text", BLUE),
    "places": ("latitude of an airport", ORANGE),
    "diamonds": ("price of a diamond, from a table of numbers", GREEN),
    "housing": ("price of houses, from a table of numbers *", PINK),
    "populations": ("population of a city, from its name *", VERMILION),
}
LEFT, RIGHT = -44.0, 16.0  # ends of the axis, in per cent

Found = Mapping[str, Mapping[str, Difference]]
"""Differences to cross-entropy's greedy answers, by row and task."""


def main() -> None:
    """Draw the figure from the runs of the study."""
    runs = {task: load(task, STUDY["common"]) for task in TASKS}
    found = {
        label: {task: one for task in TASKS if (one := difference(runs[task], of, BASE))}
        for label, of in ROWS.items()
    }
    with mpl.rc_context(STYLE):
        save_svg(draw_finding(title_of(found), found), PATH)
    print(f"wrote {PATH.relative_to(ROOT)}")


def title_of(found: Found) -> str:
    """Return the finding as a title; a `SystemExit` where the results no longer carry it."""
    for task, median in found[MEDIAN].items():
        if median.mean + median.half_95 >= 0:
            raise SystemExit(f"{task}: the median's gain is not clear: change the title")
    gains = sorted(-100 * one.mean / one.base for one in found[MEDIAN].values())
    low, high = gains[0], gains[-1]
    return f"Reading the median lowers the error by\n{low:.0f} to {high:.0f} % in each of five tasks"


def draw_finding(title: str, found: Found) -> Figure:
    """Draw a difference with its interval for each row and task, narrow enough for a phone."""
    figure = Figure(figsize=(4.4, height := 2.1 + 0.74 * len(found)))
    ax = figure.subplots()
    figure.subplots_adjust(left=0.05, right=0.95, top=1 - 1.55 / height, bottom=0.6 / height)
    for y, (label, differences) in enumerate(found.items()):
        for place, (task, (name, color)) in enumerate(TASKS.items()):
            one = differences[task]
            share, half = 100 * one.mean / one.base, 100 * one.half_95 / one.base
            at = y + 0.13 * place
            ax.plot([share - half, share + half], [at, at], color=color, lw=2)
            ax.plot([share], [at], "osD^v"[place], color=color, ms=5, label=name if not y else None)
        weight = "bold" if label == MEDIAN else "normal"
        style = {"va": "center", "fontsize": 8.5, "color": TEXT_COLORS[BLUE if label == MEDIAN else GRAY]}
        ax.text(LEFT, y - 0.2, label, ha="left", weight=weight, **style)
    ax.plot([0, 0], [-0.3, len(found) - 0.35], **FLOOR)
    ax.set_xlim(LEFT, RIGHT)
    ax.set_ylim(len(found) - 0.35, -0.4)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xticks([-40, -30, -20, -10, 0, 10], ["−40 %", "−30 %", "−20 %", "−10 %", "0", "+10 %"])
    ax.set_xlabel("change of cross-entropy's greedy error; left is better", fontsize=8.5)
    ax.legend(loc="lower left", fontsize=8, bbox_to_anchor=(-0.03, 0.99), borderpad=0)
    figure.text(0.05, 1 - 0.08 / height, title, ha="left", va="top", weight="bold", fontsize=11)
    note = "SmolLM2-135M, 600 rows; bars: 95 % intervals over 5 or 12 seeds"
    figure.text(0.05, 1 - 0.47 / height, note, ha="left", va="top", fontsize=8)
    note = "* cross-entropy's median is no better than a constant"
    figure.text(0.05, 0.04 / height, note, ha="left", fontsize=8)
    return figure


if __name__ == "__main__":
    main()
