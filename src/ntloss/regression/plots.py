"""A picture of predictions beside true answers; this needs matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntloss.regression.questions import Numbers


def plot_predictions(
    answers: Numbers, found: Numbers, log: bool = False, name: str = "answer", axes: Any = None
) -> Any:
    """Draw predictions and their intervals over true answers, on axes or those of a new figure.

    `found` are lower ends, medians and upper ends, `[rows, 3]`; without intervals, the ends are NaN. With
    `log`, the scales are logarithmic.
    """
    from matplotlib.figure import Figure

    if axes is None:
        axes = Figure(figsize=(6, 6), layout="constrained").subplots()
    low, middle, high = found.T
    inside = (low <= answers) & (answers <= high)
    ends = [answers.min(), answers.max()]
    axes.plot(ends, ends, color="0.6", linewidth=1, label="prediction = true answer")
    if np.isfinite(low).any():
        for chosen, color, label in (
            (inside, "tab:blue", "interval"),
            (~inside, "tab:red", "interval that misses"),
        ):
            axes.vlines(answers[chosen], low[chosen], high[chosen], color=color, alpha=0.35, label=label)
    axes.scatter(answers, middle, s=12, color="black", zorder=3, label="prediction (median)")
    if log:
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return axes
