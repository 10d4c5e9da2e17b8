"""What a fit says: rows, example and simple models before it, errors and intervals after it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ntloss.reading.intervals import Calibration, conformal_score
from ntloss.regression.answers import AnswerFormat, find_errors, find_leaks
from ntloss.regression.baselines import MEDIAN, Baseline
from ntloss.regression.questions import Numbers, Questions
from ntloss.regression.training import best_epoch

SELF = "NumberRegressor"
_FEW_ROWS = 50  # calibration rows below which intervals are a rough estimate
_SHOWN = 160  # characters of the example


def describe_simple_models(
    found: dict[str, Baseline], failed: dict[str, str], truths: Numbers, form: AnswerFormat
) -> str:
    """Say which errors the simple models have, and which ones cannot be fitted."""
    errors = {name: form.errors(each.predicted, truths).mean() for name, each in found.items()}
    shown = " · ".join(f"{name} {short(in_words(form, error))}" for name, error in errors.items())
    what = "mean factor between prediction and answer" if form.log else "mean absolute error"
    lines = [f"simple models   {what} on {len(truths)} held-out rows: {shown}"]
    return "\n".join([*lines, *(f"left out        {name}: {why}" for name, why in failed.items())])


def describe_rows(
    table: pd.DataFrame,
    answers: Numbers,
    parts: Sequence[slice],
    questions: Questions,
    form: AnswerFormat,
) -> str:
    """Say what rows are used for, what is left out or looks wrong, and how one is asked and answered."""
    texts = questions.write(table)
    training, choosing, calibrating = (texts[part] for part in parts)
    both = f"{len(calibrating):,} that calibrate the intervals"
    if choosing:
        both = f"{len(choosing):,} that choose the epoch, {both}"
    lines = [f"rows            {len(training):,} for training, {both}"]
    known = {*training}
    if repeated := sum(text in known for text in (*choosing, *calibrating)):
        lines.append(f"repeated        {repeated:,} held-out rows ask what a training row asks, too")
    for name, why in questions.left_out.items():
        lines.append(f"left out        the column {name!r}: {why}")
    for each in find_leaks(questions.table(table), questions.numbers(table), answers):
        lines.append(f"leak?           {each}")
    question = texts[0]
    if len(question) > _SHOWN:
        question = f"{question[: _SHOWN // 2]} ... {question[-_SHOWN // 2 :]}"
    of_log = f", the logarithm of {answers[0]:.4g} to base 10" * form.log
    lines.append(f"example         {question!r} -> {form.write(answers[:1])[0]!r}{of_log}")
    if (is_far := find_errors(answers)).any():
        others, far = answers[~is_far], answers[is_far]
        shown = ", ".join(f"{number:.15g}" for number in dict.fromkeys(far[:3]))
        lines.append(
            f"far out         {len(far):,} answer{'s' * (len(far) > 1)}, such as {shown}, where others "
            f"are {others.min():g} to {others.max():g}: errors, or marks of gaps? Then pass "
            f"--missing={far[0]:.15g}, in Python leave these rows out"
        )
    return "\n".join(lines)


def describe_training(history: Sequence[float], calibration: Calibration, level: float, refit: bool) -> str:
    """Say which epoch was best, and how many new answers intervals hold, before a refit if there is one."""
    rows, best = len(calibration), ""
    if history:
        best = f"epochs          {len(history)}, of which number {best_epoch(history)} was best\n"
    if not calibration.covers(level):
        return f"{best}intervals       none of {level:.0%}: {rows} rows cannot calibrate them"
    low, high = calibration.expected_coverage(level)
    few = f", because only {rows} rows calibrate them" if rows < _FEW_ROWS else ""
    first = "; this is of the model before it is trained again on all rows" if refit else ""
    return (
        f"{best}intervals       of {level:.0%} hold {low:.0%} to {high:.0%} of new answers from the same "
        f"source in 19 of 20 fits{few}{first}"
    )


def evaluate(
    models: dict[str, Baseline], held_out: pd.DataFrame, form: AnswerFormat, level: float
) -> tuple[pd.DataFrame, str]:
    """Compare models on held-out rows.

    Args:
        models: the regressor and simple ones.
        held_out: the rows that they predicted, as in `NumberRegressor.held_out_`.
        form: how answers are written.
        level: of the intervals of the simple models, which are as wide as conformal prediction makes them on
            these rows.

    Returns:
        `report_` and `summary_` of `NumberRegressor`.
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
