"""Is the model better than what is as easy? Errors on held-out rows, beside those of simple models."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ntloss.reading.intervals import conformal_score
from ntloss.regression.baselines import MEDIAN, Baseline
from ntloss.regression.columns import Numbers
from ntloss.regression.formats import AnswerFormat

SELF = "NumberRegressor"


def evaluate(
    models: dict[str, Baseline], held_out: pd.DataFrame, form: AnswerFormat, level: float
) -> tuple[pd.DataFrame, str]:
    """Compare models on held-out rows.

    Args:
        models: the regressor and simple ones.
        held_out: the rows that they predicted, with the columns `answer` and, of the regressor, `lower` and
            `upper`, NaN if there are no intervals.
        form: how answers are written. Of logarithms, errors and widths are factors.
        level: of the intervals of the others, which are as wide as conformal prediction makes them on these
            rows.

    Returns:
        A row for each model, from the smallest error: `mae`, the mean absolute error, or `factor`, the power
        of ten of that of logarithms; the mean `width` of intervals, or of logarithms what divides their ends;
        `seconds`. And what this says, in words.
    """
    answers, lower, upper = (held_out[name].to_numpy() for name in ("answer", "lower", "upper"))
    errors = {name: form.errors(each.predicted, answers) for name, each in models.items()}
    rows = {}
    for name, each in models.items():
        margin = conformal_score(errors[name].tolist(), level)
        width = 2 * margin if math.isfinite(margin) else math.nan
        width = form.errors(lower, upper).mean() if name == SELF else width
        found = (in_words(form, errors[name].mean()), in_words(form, width), round(each.seconds, 1))
        rows[name] = dict(zip(("factor" if form.log else "mae", "width", "seconds"), found, strict=True))
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.sort_values(table.columns[0]), summarize(errors, form.log)


def in_words(form: AnswerFormat, error: float) -> float:
    """Return a mean error as it is shown: of logarithms as a factor."""
    return 10.0**error if form.log else error


def show(table: pd.DataFrame, summary: str) -> str:
    """Write a table with its summary."""
    return f"{table.to_string(float_format=short)}\n\n{summary}"


def summarize(errors: dict[str, Numbers], log: bool = False) -> str:
    """Say which model has the smallest error, and whether the difference is more than chance.

    That no model is better than the median is said first.

    Args:
        errors: `[rows]` of each model.
        log: whether they are errors of logarithms to base 10, which are shown as factors.

    Example:
        >>> print(summarize({"boosted trees": np.ones(100), SELF: np.linspace(2, 3, 100)}))
        ... # doctest: +NORMALIZE_WHITESPACE
        On 100 held-out rows, the error of boosted trees is 60 % lower than that of NumberRegressor
        (1 against 2.5; 95 % interval: 59 to 61 %). Use boosted trees.
    """
    rows = f"{len(errors[SELF])} held-out rows"
    means = {name: each.mean() for name, each in errors.items()}
    shown = {name: f"a factor of {10.0**mean:.3g}" if log else short(mean) for name, mean in means.items()}
    others = [name for name in errors if name != SELF]
    if not others:
        return f"{'Mean factor' if log else 'Mean absolute error'} on {rows}: {SELF} {shown[SELF]}."
    name, warning = min(others, key=lambda name: means[name]), ""
    first = min(errors, key=lambda name: means[name])
    if MEDIAN in errors and not _bootstrapped_gain(errors[first], errors[MEDIAN])[0] > 0:
        warning = f"No model is significantly better than the median answer ({shown[MEDIAN]}). "
    best, last = (name, SELF) if means[name] < means[SELF] else (SELF, name)
    compared = f"{shown[best]} against {shown[last]}"
    low, high = _bootstrapped_gain(errors[best], errors[last])
    if not low > 0:
        return (
            f"{warning}On {rows}, the errors of {best} and {last} do not differ significantly ({compared})."
        )
    share = 100 * (1 - means[best] / means[last])
    text = f"{warning}On {rows}, the error of {best} is {share:.0f} % lower than that of {last} ({compared}; "
    text += f"95 % interval: {100 * low:.0f} to {100 * high:.0f} %)."
    return f"{text} Use {name}." if best != SELF else text


def _bootstrapped_gain(better: Numbers, worse: Numbers) -> tuple[float, float]:
    """Return the 95 % interval of the share by which a mean error is lower, by bootstrap of the rows."""
    chosen = np.random.default_rng(0).integers(0, len(better), (2000, len(better)))
    sums = worse[chosen].sum(1)
    gains = 1 - np.divide(better[chosen].sum(1), sums, out=np.ones_like(sums), where=sums > 0)
    low, high = np.quantile(gains, [0.025, 0.975])
    return float(low), float(high)


def short(number: float) -> str:
    """Write an error with three digits."""
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e7 else f"{number:.3g}"
