"""Draw a comparison's figures: learning curves, predicted against true numbers, and an overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from ntl.comparison.tables import BASELINE, display_name
from ntl.drawing import BLUE, GREEN, GREY, ORANGE, PINK, SKY, STYLE, VERMILION, new_figure, save_figure
from ntl.metrics import mean_and_error

COLOURS = {"ce": GREY, "ntl_was": BLUE, "ntl_mse": ORANGE, "regression_head": GREEN}
SPARE = (PINK, SKY, VERMILION)

Records = Sequence[Mapping[str, Any]]


def draw(records: Records, floors: Mapping[str, float | None], folder: Path) -> None:
    """Draw all figures.

    Args:
        records: Finished runs, see `store.RunStore.save`.
        floors: Maps each test set to its noise floor, or to None.
        folder: Output folder for learning_curves.png, predicted_vs_true.png and overview.png.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["objective"], []).append(record)
    spare = iter(SPARE * len(groups))
    colours = {name: COLOURS.get(name) or next(spare) for name in groups}
    test = next(iter(records[0]["metrics"]))
    floor = floors.get(test)

    with mpl.rc_context(STYLE):
        measures = {"mae": "validation MAE", "cross_entropy": "cross-entropy", "ntl": "NTL-WAS"}
        figure, axes = new_figure(len(measures), (11, 3.4))
        for ax, (key, label) in zip(axes, measures.items(), strict=True):
            _curves(ax, groups, colours, key, floor if key == "mae" else None)
            ax.set_title(label)
        axes[0].legend(fontsize=8, loc="upper right")
        save_figure(figure, folder / "learning_curves.png")

        figure, axes = new_figure(len(groups), (2.9 * len(groups), 3.2))
        _scatters(axes, list(groups), groups, colours, test)
        save_figure(figure, folder / "predicted_vs_true.png")

        pair = [name for name in (BASELINE, "ntl_was") if name in groups] or list(groups)[:2]
        widths = [1.25, 1.35, *[1.0] * len(pair)]
        figure, axes = new_figure(len(widths), (3.0 * sum(widths), 3.3), widths)
        _curves(axes[0], groups, colours, "mae", floor)
        axes[0].set_title("validation MAE during training")
        axes[0].legend(fontsize=8, loc="upper right")
        _points(axes[1], groups, colours, test, floor)
        _scatters(axes[2:], pair, groups, colours, test)
        save_figure(figure, folder / "overview.png")


def _curves(
    ax: Axes,
    groups: Mapping[str, Records],
    colours: Mapping[str, str],
    key: str,
    floor: float | None,
) -> None:
    """Plot the median over seeds against steps, with a band from the first to the third quartile."""
    for name, runs in groups.items():
        values = np.array([[point.get(key) for point in run["curve"]] for run in runs], dtype=float)
        known = ~np.isnan(values).any(axis=0)  # early models may write no numbers
        if not known.any():
            continue  # a regression head has no cross-entropy
        steps = np.array([point["step"] for point in runs[0]["curve"]])[known]
        values = values[:, known]
        # Quantiles, because one number with an extra digit changes a seed's MAE by hundreds.
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        ax.fill_between(steps, low, high, color=colours[name], alpha=0.15, lw=0)
        ax.plot(steps, middle, color=colours[name], lw=1.8, label=display_name(name))
    if key == "mae":
        # Early models write numbers that are several digits too long; scale the axis for the later ones.
        final = [run["curve"][-1]["mae"] for runs in groups.values() for run in runs if run["curve"]]
        smallest = min((value for value in final if value), default=1.0)
        ax.set_yscale("log")
        ax.set_ylim(0.8 * min(smallest, floor or smallest), 15 * smallest)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    if floor is not None:
        ax.axhline(floor, color="#333333", lw=0.9, ls=(0, (4, 3)), label="noise floor")
    ax.set_xlabel("steps")


def _points(
    ax: Axes,
    groups: Mapping[str, Records],
    colours: Mapping[str, str],
    test: str,
    floor: float | None,
) -> None:
    """Plot each seed's MAE as a dot, next to the mean with its standard error."""
    for i, (name, runs) in enumerate(groups.items()):
        values = [run["metrics"][test]["mae"] for run in runs]
        known = [v for v in values if v is not None]
        ax.scatter([i - 0.12] * len(known), known, s=22, color=colours[name], alpha=0.45, lw=0)
        mean, error = mean_and_error(values)
        if mean is not None:
            ax.errorbar(i + 0.12, mean, yerr=error, fmt="o", color=colours[name], ms=6, capsize=3)
            ax.annotate(
                f"{mean:.1f}", (i + 0.12, mean), xytext=(7, 0), textcoords="offset points", va="center"
            )
    if floor is not None:
        ax.axhline(floor, color="#333333", lw=0.9, ls=(0, (4, 3)))
    labels = [display_name(name).replace(" + ", " +\n").replace(" head", "\nhead") for name in groups]
    ax.set_xticks(range(len(groups)), labels)
    ax.set_xlim(-0.5, len(groups) - 0.3)
    ax.grid(axis="x", visible=False)
    ax.set_title(f"{test} MAE (dots: seeds)")


def _scatters(
    axes: Sequence[Axes],
    names: Sequence[str],
    groups: Mapping[str, Records],
    colours: Mapping[str, str],
    test: str,
) -> None:
    """Plot predicted against true numbers for the first seed of each objective."""
    true = np.array(groups[names[0]][0]["predictions"][test]["true"])
    low, high = true.min(), true.max()
    margin = 0.06 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    for ax, name in zip(axes, names, strict=True):
        run = groups[name][0]
        values = run["predictions"][test]["predicted"]
        # Numbers far outside are drawn at the edge, so that they neither vanish nor compress the rest.
        predicted = np.array([np.nan if v is None else v for v in values], dtype=float).clip(*limits)
        ax.plot(limits, limits, color="#333333", lw=0.9, ls=(0, (4, 3)))
        ax.scatter(true, predicted, s=7, color=colours[name], alpha=0.4, lw=0)
        ax.set(xlim=limits, ylim=limits, xlabel="true", aspect="equal")
        ax.set_title(f"{display_name(name)} (seed {run['seed']})")
    axes[0].set_ylabel("predicted")
