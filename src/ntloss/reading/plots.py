"""Readings as figures; matplotlib is imported when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ntloss.results import axes

_MOST_BARS = 40


def plot_numbers(
    shares: Mapping[float, float], quantiles: Mapping[float, float], median: float, given: Any
) -> Any:
    """Draw numbers with their probabilities, the median, and the interval between the outermost quantiles.

    Numbers of few steps are bars, others a density. Without numbers, it is uniform between the quantiles.
    Numbers farther from the interval than its width are left out.
    """
    ax = axes(given)
    if math.isnan(median):
        ax.set_title("no number")
        return ax
    low, high = quantiles[min(quantiles)], quantiles[max(quantiles)]
    ax.axvspan(low, high, color="tab:blue", alpha=0.15, linewidth=0, label=f"[{low:.15g}, {high:.15g}]")
    width = high - low
    inside = [number for number in sorted(shares) if low - width <= number <= high + width]
    weights = [shares[number] for number in inside]
    gap = min((after - before for before, after in pairwise(inside)), default=1.0)
    has_bars = bool(inside) and inside[-1] - inside[0] < _MOST_BARS * gap
    if has_bars:
        ax.bar(inside, weights, width=0.8 * gap)
    elif inside:
        ax.hist(inside, bins=_MOST_BARS, weights=weights, density=True)
    else:
        steps = [(a, b) for a, b in pairwise(sorted(quantiles)) if quantiles[b] > quantiles[a]]
        edges = [quantiles[a] for a, _ in steps] + [quantiles[b] for _, b in steps[-1:]]
        if steps:
            ax.stairs([(b - a) / (quantiles[b] - quantiles[a]) for a, b in steps], edges, fill=True)
    ax.set_ylabel("probability" if has_bars else "density")
    ax.axvline(median, color="black", label=f"median {median:.15g}")
    ax.set_xlabel("number")
    ax.legend()
    return ax


def plot_errors(errors: Mapping[str, Mapping[str, float]], given: Any) -> Any:
    """Draw the errors of each model by the answer that is measured, as groups of bars."""
    ax, kinds = axes(given), [*dict.fromkeys(kind for found in errors.values() for kind in found)]
    for i, kind in enumerate(kinds):
        places = [row + (i - (len(kinds) - 1) / 2) * 0.8 / len(kinds) for row in range(len(errors))]
        ax.bar(
            places, [of_model.get(kind, 0.0) for of_model in errors.values()], 0.8 / len(kinds), label=kind
        )
    ax.set_xticks(range(len(errors)), [*errors])
    ax.set_ylabel("mean absolute error")
    ax.legend()
    return ax
