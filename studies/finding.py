"""Draw the figure of the home page, titled with its finding. `python -m studies.finding`.

Writes `docs/images/finding.svg`: how often reading the median, and each loss, lowers cross-entropy's error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ntl.report.style import BLUE, FLOOR, GRAY, STYLE, TEXT_COLORS, save_svg
from studies.packing import ROOT
from studies.small_models.effects import Effect, Setting, effect, family, load_settings
from studies.small_models.run import BASELINE

PATH = ROOT / "docs" / "images" / "finding.svg"
# Label, objective and reading; each is compared with cross-entropy's greedy answers.
READING = ("cross-entropy, read the median", BASELINE, "median")
LOSSES = (
    ("NTL-WAS, greedy answer", "ntl_was", "greedy"),
    ("CRPS, greedy answer", "crps", "greedy"),
    ("NTL-MSE, greedy answer", "ntl_mse", "greedy"),
    ("DIST2, greedy answer", "dist2", "greedy"),
)
OTHERS = (("regression head, no text", "regression_head", "greedy"),)
WIDEST = 20.0  # of the axis, in per cent


def main() -> None:
    """Draw the figure from the runs of the study."""
    settings = [s for name, s in load_settings().items() if family(name) not in ("text", "exact")]
    rows = {label: effects_of(settings, o, reading) for label, o, reading in (READING, *LOSSES, *OTHERS)}
    with mpl.rc_context(STYLE):
        save_svg(draw_finding(title_of(rows), rows, READING[0]), PATH)
    for label, effects in rows.items():
        print(f"{label}: better in {count(effects, -1)} of {len(effects)}, worse in {count(effects, 1)}")
    print(f"wrote {PATH.relative_to(ROOT)}")


def effects_of(settings: Sequence[Setting], objective: str, reading: str) -> list[Effect]:
    """Return the effect of an objective and a reading in every setting where it was measured."""
    found = [effect(s.get(objective, {}), s[BASELINE], reading, "greedy") for s in settings]
    return [one for one in found if one is not None]


def count(effects: Sequence[Effect], side: int) -> int:
    """Count the effects whose interval lies on one side of 0; -1 is less error."""
    return sum(side * one.share > one.share_interval for one in effects)


def title_of(rows: Mapping[str, Sequence[Effect]]) -> str:
    """Return the finding as a title; a `SystemExit` where the results no longer carry it."""
    shares = {label: count(effects, -1) / len(effects) for label, effects in rows.items() if effects}
    best = max(shares[label] for label, *_ in LOSSES if label in shares)
    if shares[READING[0]] <= best:
        raise SystemExit(
            f"the median helps in {shares[READING[0]]:.0%}, a loss in {best:.0%}: change the title"
        )
    return "Reading the median helps more often\nthan any of these losses"


def draw_finding(title: str, rows: Mapping[str, Sequence[Effect]], first: str) -> Figure:
    """Draw one dot a setting for each row, narrow enough for a phone.

    Args:
        title: The finding, in at most two lines of 40 characters.
        rows: Effects by label. Where the interval excludes 0, the dot is filled.
        first: Label of the row that the title is about.
    """
    figure = Figure(figsize=(4.4, height := 1.35 + 0.5 * len(rows)))
    ax = figure.subplots()
    figure.subplots_adjust(left=0.05, right=0.95, top=1 - 0.87 / height, bottom=0.47 / height)
    for y, (label, effects) in enumerate(rows.items()):
        color = BLUE if label == first else GRAY
        shares = np.array([100 * one.share for one in effects])
        sure = np.array([abs(one.share) > one.share_interval for one in effects])
        inside = np.clip(shares, -WIDEST, WIDEST)
        for found, marker in (
            (np.abs(shares) <= WIDEST, "o"),
            (shares < -WIDEST, "<"),
            (shares > WIDEST, ">"),
        ):
            heights = y + 0.16 + 0.05 * (np.arange(len(shares)) % 3 - 1)
            for filled in (False, True):
                chosen = found & (sure == filled)
                face = color if filled else "none"
                ax.plot(inside[chosen], heights[chosen], marker, color=color, mfc=face, ms=5, clip_on=False)
        words = f"{count(effects, -1)} of {len(effects)} better"
        if worse := count(effects, 1):
            words += f", {worse} worse"
        style = {"va": "center", "fontsize": 8.5, "color": TEXT_COLORS[color]}
        weight = "bold" if label == first else "normal"
        ax.text(-WIDEST, y - 0.2, label, ha="left", weight=weight, **style)
        ax.text(WIDEST, y - 0.2, words, ha="right", weight=weight, **style)
    ax.plot([0, 0], [-0.45, len(rows) - 0.5], **FLOOR)
    ax.set_xlim(-WIDEST, WIDEST)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xticks([-20, -10, 0, 10, 20], ["−20 %", "−10 %", "0", "+10 %", "+20 %"])
    ax.set_xlabel("change of the mean absolute error; left is better", fontsize=8.5)
    figure.text(0.05, 1 - 0.08 / height, title, ha="left", va="top", weight="bold", fontsize=11)
    note = "a dot: one task and training length; arrows: further out\nfilled: the 95 % interval excludes 0"
    figure.text(0.05, 1 - 0.46 / height, note, ha="left", va="top", fontsize=8)
    return figure


if __name__ == "__main__":
    main()
