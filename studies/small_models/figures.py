"""Draw the figures of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from ntl.report.style import FLOOR, STYLE, SeriesStyle, add_legend, new_figure, plot_seeds, styles
from studies.small_models.effects import ACCURACY, NAMES, READINGS, Effect, Setting, effect, family
from studies.small_models.run import BASELINE, RESULTS, STUDY

# As the lab's figures name the main objectives, so that they have the same colors here.
LOOKS = styles(["T5", "T5 + NTL-WAS", "T5 + NTL-MSE", "T5 + CRPS", "T5 regression head"])
LOOKS = dict(zip(STUDY["groups"]["core"], LOOKS.values(), strict=True))

WIDEST = 0.6  # of the axis, as a share of cross-entropy's error


class WithoutExponent(LogFormatter):
    """Labels the ticks that `LogFormatter` labels, but with `40,000` instead of `4e+04`."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick at `x`, or an empty text."""
        return f"{x:,.10g}" if super().__call__(x, pos) else ""


def draw_figures(settings: Mapping[str, Setting]) -> None:
    """Write `overview.png`, `losses.png` and `learning_curves.png`, each if there is something to draw."""
    numeric = {name: setting for name, setting in settings.items() if family(name) != "text"}
    noisy = {name: setting for name, setting in numeric.items() if family(name) != "exact"}
    with_all = {n: s for n, s in noisy.items() if all(o in s for o in STUDY["objectives"])}
    with mpl.rc_context(STYLE):
        if noisy:
            draw_overview(noisy)
        if with_all:
            draw_losses(with_all)
        if numeric:
            draw_curves(numeric)


def draw_overview(settings: Mapping[str, Setting]) -> None:
    """Draw the effect of the main objectives in each setting: of greedy answers, and twice of medians."""
    panels = (("greedy", "greedy"), ("median", "greedy"), ("median", "median"))
    figure, axes = new_figure(3, 3, (3.6, 0.8 + 0.45 * len(settings)), (0.0, 0.6))
    for ax, (reading, base) in zip(axes, panels, strict=True):
        objectives = [o for o in STUDY["groups"]["core"] if o != BASELINE or reading != base]
        for i, objective in enumerate(objectives):
            effects = [effect(s.get(objective, {}), s[BASELINE], reading, base) for s in settings.values()]
            draw_effects(ax, effects, 0.6 * (i / len(objectives) - 0.5), LOOKS[objective], NAMES[objective])
        label_effects(ax, list(settings), f"{reading} vs. CE's {base}", f"% of cross-entropy's {base} error")
    add_legend(figure, "paired difference in MAE with its 95 % confidence interval; left of 0 is better")
    figure.savefig(RESULTS / "overview.png", dpi=150)


def draw_losses(settings: Mapping[str, Setting]) -> None:
    """Draw the effect of every objective in each setting, of greedy answers and of medians."""
    objectives = [o for o in STUDY["objectives"] if o != BASELINE]
    readings = READINGS[:2]
    looks = styles(readings)
    figure, axes = new_figure(len(settings), 4, (2.7, 0.8 + 0.35 * len(objectives)), (1.6, 0.6))
    for ax, (name, setting) in zip(axes, settings.items(), strict=True):
        for i, reading in enumerate(readings):
            effects = [effect(setting.get(o, {}), setting[BASELINE], reading) for o in objectives]
            draw_effects(ax, effects, 0.4 * (i - 0.5), looks[reading], reading)
        label_effects(ax, [NAMES[o] for o in objectives], name, "% of cross-entropy's error")
    add_legend(figure, "paired difference in MAE, same reading, with its 95 % interval; left of 0 is better")
    figure.savefig(RESULTS / "losses.png", dpi=150)


def draw_effects(
    ax: Axes, effects: Sequence[Effect | None], first: float, look: SeriesStyle, label: str
) -> None:
    """Draw effects below each other, the first one at the given height. What lies off the axis is written."""
    known = [(100 * e.share, first + y, 100 * e.share_interval) for y, e in enumerate(effects) if e]
    drawn = [point for point in known if point[0] <= 100 * WIDEST]
    x, y, widths = zip(*drawn, strict=True) if drawn else ((), (), ())
    ax.errorbar(x, y, xerr=widths, fmt=look.marker, color=look.color, ms=4, lw=1, label=label)
    for share, height, _ in known:
        if share > 100 * WIDEST:
            ax.text(100 * WIDEST, height, f"{share:+.0f} % →", ha="right", va="center", color=look.color)


def label_effects(ax: Axes, names: Sequence[str], title: str, scale: str) -> None:
    """Label a panel of differences to cross-entropy, the rows only in the first column; draw a line at 0."""
    ax.axvline(0, **FLOOR)
    ax.set_xlim(-100 * WIDEST, 100 * WIDEST)
    is_first = ax.get_subplotspec().is_first_col()
    ax.set_yticks(range(len(names)), names if is_first else [""] * len(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(scale)
    ax.set_title(title)


def draw_curves(settings: Mapping[str, Setting]) -> None:
    """Draw the main objectives' validation results during training, for each setting."""
    figure, axes = new_figure(len(settings), 3, (3.6, 2.6), (0.0, 0.6))
    for ax, (name, setting) in zip(axes, settings.items(), strict=True):
        metric = ACCURACY if family(name) == "exact" else "mae"
        for objective in STUDY["groups"]["core"]:
            curves = [
                {p["step"]: p[f"eval_{metric}"] for p in run.curve}
                for run in setting.get(objective, {}).values()
            ]
            if curves:
                plot_seeds(ax, curves, LOOKS[objective], NAMES[objective])
        if metric == "mae":
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(WithoutExponent())
            ax.yaxis.set_minor_formatter(WithoutExponent(minor_thresholds=(2, 0.5)))
        ax.set_title(name)
        ax.set_xlabel("steps")
        ax.set_ylabel("MAE" if metric == "mae" else "exact answers")
    add_legend(figure, "greedy, on validation data; lines: median over seeds, bands: all seeds")
    figure.savefig(RESULTS / "learning_curves.png", dpi=150)
