"""Save figures as SVGs that follow a light or dark color scheme, and label the ends of their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntl.report.style import BLUE, GRAY, GREEN, ORANGE, PINK, SKY, VERMILION

# Texts in a series' color, with enough contrast on white.
TEXT_COLORS = {
    GRAY: "#5F5F5F", BLUE: "#00629B", ORANGE: "#8A5E00", GREEN: "#00714F", PINK: "#9C3F73", SKY: "#1B6C9E",
    VERMILION: "#A84A00",
}  # fmt: skip
# What each color of an SVG becomes on a dark background.
DARK = {
    "#ffffff": "#0b0c0f", "#333333": "#d9dbe3", "#555555": "#b9bcc8", "#999999": "#777b8a",
    "#e6e6e6": "#343743",
    GRAY: "#a3a3a3", BLUE: "#4da6e0", ORANGE: "#e8a93a", GREEN: "#2dbd90", PINK: "#db93bc", SKY: "#7cc4ee",
    VERMILION: "#f08336", "#5F5F5F": "#bdbdbd", "#00629B": "#7cbdea", "#8A5E00": "#efbf68",
    "#00714F": "#58cfa8", "#9C3F73": "#e6b0cd", "#1B6C9E": "#9dd3f3", "#A84A00": "#f5a369",
}  # fmt: skip
DARK = {light.lower(): dark for light, dark in DARK.items()}
DARK_RULES = "@media (prefers-color-scheme: dark)"


def save_svg(figure: Figure, path: Path) -> None:
    """Save a figure as an SVG that follows the reader's light or dark color scheme.

    Raises:
        ValueError: A color of the figure is not in `DARK`.
    """
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    text = path.read_text(encoding="utf-8")
    if unknown := {color.lower() for color in re.findall(r"#[0-9a-fA-F]{6}\b", text)} - {*DARK}:
        raise ValueError(
            f"the figure uses {', '.join(sorted(unknown))}, which have no dark counterpart; use a color "
            "of ntl.report.style, or add a pair to DARK"
        )
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
        if f"{part}: {light}" in text
    ).replace("}", "!important}")
    style = f"<style>{DARK_RULES}{{{rules}}}</style>"
    path.write_text(re.sub(r"(<svg [^>]*>)", rf"\1{style}", text, count=1), encoding="utf-8")


def label_ends(ax: Axes, ends: Sequence[tuple[float, str, str]], gap: float) -> None:
    """Write labels right of the axis at given heights, at least `gap` of the axis's height apart.

    Args:
        ax: The axis, with its final limits.
        ends: Height, text and series color of each label.
        gap: Share of the axis's height.
    """
    transform = ax.transData + ax.transAxes.inverted()
    places = sorted((transform.transform((0, y))[1], text, color) for y, text, color in ends)
    heights = [min(max(place[0], 0.0), 1.0) for place in places]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    shift = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for height, (_, text, color) in zip(heights, places, strict=True):
        ax.text(
            1.02,
            height - shift,
            text,
            color=TEXT_COLORS[color],
            transform=ax.transAxes,
            va="center",
            fontsize=8,
        )
