"""Draw the figures of the study: SVGs for light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ntl.report.style import FLOOR, STYLE, SeriesStyle, new_figure, plot_seeds, styles
from ntl.report.svg import TEXT_COLORS, label_ends, save_svg
from studies.small_models.effects import ACCURACY, NAMES, READINGS, Effect, Setting, effect, family, task_of
from studies.small_models.run import BASELINE, RESULTS, STUDY

# As the lab's figures name the main objectives, so that they have the same colors here.
LOOKS = styles(["T5", "T5 + NTL-WAS", "T5 + NTL-MSE", "T5 + CRPS", "T5 regression head"])
LOOKS = dict(zip(STUDY["groups"]["core"], LOOKS.values(), strict=True))
TASKS = {
    "sums": "sums", "sums_noisy": "sums, more noise", "sums_few": "sums, 1,000 examples",
    "sums_plain": "sums, not padded", "ratings": "ratings 0 to 10", "products": "products",
    "diamonds_few": "diamonds, 4,000 rows", "diamonds": "diamonds, 45,000 rows", "housing": "house sales",
    "exact_sums": "exact sums", "exact_products": "exact products",
}  # fmt: skip
GROUPS = {"sums": "Sums", "ratings": "Ratings", "products": "Products", "tables": "Tables", "exact": "Exact"}
WIDEST = 20  # of the axes of effects, in per cent of cross-entropy's error


class Series(NamedTuple):
    """A series of a figure of effects: what is compared with cross-entropy, and how it is drawn."""

    label: str
    objective: str
    reading: str
    base: str
    look: SeriesStyle


class WithoutExponent(LogFormatter):
    """Labels the ticks that `LogFormatter` labels, but with `40,000` instead of `4e+04`."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick at `x`, or an empty text."""
        return f"{x:,.10g}" if super().__call__(x, pos) else ""


def draw_figures(settings: Mapping[str, Setting]) -> None:
    """Write `effects.svg`, `losses.svg` and `learning_curves_*.svg`, each if there is something to draw."""
    numeric = {name: setting for name, setting in settings.items() if family(name) != "text"}
    noisy = {name: setting for name, setting in numeric.items() if family(name) != "exact"}
    with_all = {n: s for n, s in noisy.items() if all(o in s for o in STUDY["objectives"])}
    with mpl.rc_context(STYLE):
        if noisy:
            save_svg(draw_main_effects(noisy), RESULTS / "effects.svg")
        if with_all:
            save_svg(draw_losses(with_all), RESULTS / "losses.svg")
        for group, members in by_group(numeric).items():
            save_svg(draw_curves(members), RESULTS / f"learning_curves_{group}.svg")


def by_group(settings: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    """Return the settings of each group of tasks: their families, with ratings apart from other sums."""
    groups: dict[str, dict[str, Setting]] = {}
    for name, setting in settings.items():
        group = "ratings" if task_of(name) == "ratings" else family(name)
        groups.setdefault(group, {})[name] = setting
    return groups


def plain_name(setting: str) -> str:
    """Return a setting's name in plain words: `sums · 800 steps` for `sums-800`."""
    return f"{TASKS[task_of(setting)]} · {int(setting.rpartition('-')[2]):,} steps"


def draw_main_effects(settings: Mapping[str, Setting]) -> Figure:
    """Draw the effect of readings and losses in each setting, in a row of panels a group of tasks."""
    losses = [o for o in STUDY["groups"]["core"] if o != BASELINE]
    left = [Series("CE's median", BASELINE, "median", "greedy", LOOKS[BASELINE])]
    left += [Series(NAMES[o], o, "greedy", "greedy", LOOKS[o]) for o in losses]
    right = [Series(NAMES[o], o, "median", "median", LOOKS[o]) for o in losses]
    groups = by_group(settings)
    heights = [len(members) + 0.8 for members in groups.values()]
    figure = Figure(figsize=(9.0, 0.68 * sum(heights) + 0.7), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights, sharex=True)
    for row, ((group, members), panels) in enumerate(zip(groups.items(), axes, strict=True)):
        names = [plain_name(name) for name in members]
        for ax, series in zip(panels, (left, right), strict=True):
            draw_panel(ax, members, series, label_first=row == 0)
            label_effects(ax, names if ax is panels[0] else None, len(names))
            if row == len(groups) - 1:
                ax.set_xlabel(f"% of cross-entropy's {series[0].base} error; left of 0 is better")
        panels[0].set_title(f"{GROUPS[group]}: against CE's greedy answers")
        panels[1].set_title("by the median, against CE's median")
    return figure


def draw_panel(
    ax: Axes, settings: Mapping[str, Setting], series: Sequence[Series], label_first: bool
) -> None:
    """Draw the effects of several series below each other in each setting's row."""
    present = [one for one in series if any(find_effect(s, one) for s in settings.values())]
    for i, one in enumerate(present):
        shift = 0.9 * ((i + 0.5) / len(present) - 0.5)
        heights = [y + shift for y in range(len(settings))]
        effects = [find_effect(setting, one) for setting in settings.values()]
        draw_effects(ax, effects, heights, one.look)
        if label_first:
            color = TEXT_COLORS[one.look.color]
            ax.text(WIDEST - 0.3, heights[0], one.label, color=color, ha="right", va="center", fontsize=7)


def find_effect(setting: Setting, series: Series) -> Effect | None:
    """Return the effect of a series in a setting, or None if it was not measured there."""
    return effect(setting.get(series.objective, {}), setting[BASELINE], series.reading, series.base)


def draw_losses(settings: Mapping[str, Setting]) -> Figure:
    """Draw the effect of every objective in each setting, of greedy answers and of medians."""
    objectives = [o for o in STUDY["objectives"] if o != BASELINE]
    looks = styles(READINGS[:2])
    figure, axes = new_figure(len(settings), 2, (3.2, 0.8 + 0.3 * len(objectives)), (1.8, 0.4))
    for place, (ax, (name, setting)) in enumerate(zip(axes, settings.items(), strict=True)):
        for i, reading in enumerate(looks):
            effects = [effect(setting.get(o, {}), setting[BASELINE], reading) for o in objectives]
            draw_effects(ax, effects, [y + 0.4 * (i - 0.5) for y in range(len(effects))], looks[reading])
            if place == 0:
                words = f"{reading}, against CE's {reading}"
                ax.text(
                    0.02 + 0.49 * i, 1.0, words, transform=ax.transAxes, va="bottom", fontsize=7.5,
                    color=TEXT_COLORS[looks[reading].color],
                )  # fmt: skip
        is_first = ax.get_subplotspec().is_first_col()
        label_effects(ax, [NAMES[o] for o in objectives] if is_first else None, len(objectives))
        ax.set_xlabel("% of cross-entropy's error; left of 0 is better", fontsize=8)
        ax.set_title(plain_name(name), pad=16)
    return figure


def draw_effects(
    ax: Axes, effects: Sequence[Effect | None], heights: Sequence[float], look: SeriesStyle
) -> None:
    """Draw effects with their intervals; those off the axis are arrows at its edge with their size."""
    for found, y in zip(effects, heights, strict=True):
        if found is None:
            continue
        share, half = 100 * found.share, 100 * found.share_interval
        if abs(share) <= WIDEST:
            ax.errorbar([share], [y], xerr=[half], fmt=look.marker, color=look.color, ms=4, lw=1)
            for side, marker in ((-1, "<"), (1, ">")):
                if side * share + half > WIDEST:
                    ax.plot([side * WIDEST], [y], marker, color=look.color, ms=3.5, clip_on=False)
            continue
        side = 1 if share > 0 else -1
        text = f"{share:+,.0f} % →" if side > 0 else f"← {share:+,.0f} %"
        ax.text(
            side * (WIDEST - 0.3), y, text.replace("-", "−"), ha="right" if side > 0 else "left", va="center",
            color=TEXT_COLORS[look.color], fontsize=7.5,
        )  # fmt: skip


def label_effects(ax: Axes, names: Sequence[str] | None, rows: int) -> None:
    """Label a panel of differences to cross-entropy, without row names for None; draw a line at 0."""
    ax.axvline(0, **FLOOR)
    ax.set_xlim(-WIDEST, WIDEST)
    ax.set_yticks(range(rows), names or [""] * rows)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    for y in range(1, rows):
        ax.axhline(y - 0.5, color="#E6E6E6", lw=0.6)


def draw_curves(settings: Mapping[str, Setting]) -> Figure:
    """Draw the main objectives' validation results during training, for the settings of one group."""
    figure, axes = new_figure(len(settings), 2, (3.9, 2.6))
    for ax, (name, setting) in zip(axes, settings.items(), strict=True):
        metric = ACCURACY if family(name) == "exact" else "mae"
        ends = []
        for objective in STUDY["groups"]["core"]:
            curves = [
                {p["step"]: p[f"eval_{metric}"] for p in run.curve}
                for run in setting.get(objective, {}).values()
            ]
            if curves:
                plot_seeds(ax, curves, LOOKS[objective], NAMES[objective])
                line = ax.lines[-1]
                if len(line.get_ydata()):
                    ends.append((line.get_ydata()[-1], NAMES[objective], LOOKS[objective].color))
        if metric == "mae":
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(WithoutExponent())
            ax.yaxis.set_minor_formatter(WithoutExponent(minor_thresholds=(2, 0.5)))
            show_medians(ax)
        ax.set_title(plain_name(name))
        ax.set_xlabel("steps")
        label_ends(ax, ends, 0.09)
    what = (
        "share of exact answers" if metric == ACCURACY else "mean absolute error (bands may leave the panel)"
    )
    figure.suptitle(
        f"Greedy, on validation data: {what}\nlines: median over seeds, bands: all seeds", fontsize=8
    )
    return figure


def show_medians(ax: Axes) -> None:
    """Let a logarithmic axis show the lines, which a band of one bad seed would press together."""
    values = [y for line in ax.lines for y in line.get_ydata() if y > 0]
    if values:
        ax.set_ylim(min(values) / 1.15, max(values) * 1.3)
