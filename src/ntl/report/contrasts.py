"""Test declared contrasts: differences between two rows of a report, paired by seed."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd
from scipy.stats import ttest_1samp

from ntl.errors import UserError, unknown_key
from ntl.report.groups import READINGS, Dataset, Group, settings_of
from ntl.scores import METRIC_NAMES, is_metric, larger_is_better
from ntl.terminal import format_setting

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Contrast:
    """A declared difference: a metric of one row minus that of another.

    Args:
        of, minus: A row: the choice of `objective` or `loss` (`ntl_was`), a label of the tables, or a mapping
            of settings to values. A reading can follow a comma: `ce, median`.
        metric: A metric of the report, such as `mae` or `crps`.
        test: A test set. None: the first one that is not the validation set.
        dataset: A dataset. None: the only one.
    """

    of: Any
    minus: Any
    metric: str = "mae"
    test: str | None = None
    dataset: str | None = None


def read_contrasts(given: Sequence[Mapping[str, Any]]) -> list[Contrast]:
    """Read the list `contrasts` of a sweep's YAML; a UserError names an unknown key or metric."""
    keys = [field.name for field in fields(Contrast)]
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        raise UserError(
            f"contrasts: {given!r} is no list of mappings; expected some such as - {{of: ntl_was, minus: "
            "ce}, or []. Correct it."
        )
    for each in given:
        if unknown := [key for key in each if key not in keys]:
            raise unknown_key("contrasts: ", unknown[0], keys)
        if not {"of", "minus"} <= {*each}:
            raise UserError(f"contrasts: {dict(each)} lacks of or minus; expected both rows.")
        if not is_metric(metric := str(each.get("metric", Contrast.metric))):
            raise unknown_key("contrasts: metric ", metric, METRIC_NAMES)
    return [Contrast(**each) for each in given]


def compare_rows(
    datasets: Sequence[Dataset], contrasts: Sequence[Contrast], margin: float
) -> tuple[pd.DataFrame, list[str]]:
    """Compute the differences with paired t-tests, corrected for their number by Holm's method.

    Args:
        datasets: The runs.
        contrasts: What is compared.
        margin: Bounds of "no effect", in per cent of the second row's mean.

    Returns:
        One row per contrast: `dataset`, if there are several; `of`, `minus`, `metric`, `test`, `seeds`; the
        mean `difference` with its 95 % interval `lower`, `upper`; the same in per cent of the second row's
        mean; `p` and `p_holm`; and the `verdict`. It says "no effect" only if the 90 % interval lies within
        the margin, which is the test of equivalence by two one-sided t-tests at 5 %. Then one line for each
        contrast that the runs do not allow, because a row, a dataset or a metric is missing.
    """
    found, missing = [], []
    for contrast in contrasts:
        try:
            found.append(_difference(datasets, contrast, margin))
        except UserError as error:
            missing.append(f"contrast {_name(contrast.of)} minus {_name(contrast.minus)}: {error}")
    table = pd.DataFrame(found)
    if table.empty:
        return table, missing
    table["p_holm"] = holm(table["p"])
    table["verdict"] = [_verdict(row, margin) for _, row in table.iterrows()]
    return table.drop(columns="is_equivalent"), missing


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number (Holm, 1979); unknown ones stay unknown.

    Example:
        >>> holm(pd.Series([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    known = p.dropna().sort_values()
    factors = pd.Series(range(len(known), 0, -1), index=known.index)
    return (known * factors).cummax().clip(upper=1.0).reindex(p.index)


def _difference(datasets: Sequence[Dataset], contrast: Contrast, margin: float) -> dict[str, Any]:
    dataset = _choose(datasets, contrast)
    test = contrast.test or next((t for t in dataset.tests if t != "validation"), "validation")
    rows = _find(dataset, (contrast.of, contrast.minus))
    of, minus = (row.values(test, contrast.metric).dropna() for row in rows)
    pairs = (of - minus).dropna()
    if pairs.empty:
        raise UserError(f"no seed has {contrast.metric} on {test} in both rows.")
    mean = abs(minus[pairs.index].mean())
    percent = 100 / mean if mean else math.nan if pairs.any() else 0.0  # of 0, equal values differ by 0 %
    found: dict[str, Any] = {"dataset": dataset.name} if len(datasets) > 1 else {}
    found |= {
        "of": _name(contrast.of), "minus": _name(contrast.minus), "metric": contrast.metric, "test": test,
        "seeds": len(pairs), "difference": pairs.mean(), "percent": percent * pairs.mean(),
    }  # fmt: skip
    if len(pairs) < 2:
        unknown = ("lower", "upper", "percent_lower", "percent_upper", "p")
        return {**found, **dict.fromkeys(unknown, float("nan")), "is_equivalent": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences, for which p is near 0
        tested = ttest_1samp(pairs, 0)
        inner, (lower, upper) = tested.confidence_interval(0.9), tested.confidence_interval(0.95)
    return {
        **found,
        "lower": lower,
        "upper": upper,
        "percent_lower": percent * lower,
        "percent_upper": percent * upper,
        "p": float(tested.pvalue) if pairs.any() else 1.0,
        "is_equivalent": -margin <= percent * inner.low and percent * inner.high <= margin,
    }


def _verdict(row: pd.Series, margin: float) -> str:
    if row["p_holm"] < SIGNIFICANT:
        is_higher, larger_is = row["difference"] > 0, larger_is_better(row["metric"])
        judged = "" if larger_is is None else " (better)" if is_higher == larger_is else " (worse)"
        return f"{'higher' if is_higher else 'lower'}{judged}"
    if row["is_equivalent"]:
        return f"no effect within ± {margin:g} %"
    if row["seeds"] < 2:
        return "undecided (one seed)"
    half = (row["percent_upper"] - row["percent_lower"]) / 2
    return "undecided" if math.isnan(half) else f"undecided ± {half:.1f} %"


def _choose(datasets: Sequence[Dataset], contrast: Contrast) -> Dataset:
    names = [dataset.name for dataset in datasets]
    if contrast.dataset is None and len(datasets) == 1:
        return datasets[0]
    if contrast.dataset not in names:
        raise UserError(f"dataset={contrast.dataset} was not run; expected one of: {', '.join(names)}.")
    return datasets[names.index(contrast.dataset)]


def _find(dataset: Dataset, names: Sequence[Any]) -> list[Group]:
    """Find the rows that a contrast names; a UserError tells of each that is missing or ambiguous."""
    rows, wrong = [], []
    for name in names:
        label, _, reading = name.rpartition(", ") if isinstance(name, str) else ("", "", "")
        label, reading = (label, reading) if reading in READINGS else (name, "greedy")
        found = [group for group in dataset.groups if _matches(group, label)]
        if len(found) == 1:
            rows.append(replace(found[0], reading=reading))
        else:
            wrong.append(f"{_name(name)} names {'several rows' if found else 'no row'}")
    if wrong:
        labels = "; ".join(group.label for group in dataset.groups)
        raise UserError(
            f"{' and '.join(wrong)} of {dataset.name}, whose rows are: {labels}. Name a label, or settings "
            "as {loss.weight: 0.3}."
        )
    return rows


def _matches(group: Group, name: Any) -> bool:
    first = group.runs[0]
    if isinstance(name, Mapping):
        settings = settings_of(first)
        values = {"objective": first.record.objective, **settings}
        return all(format_setting(values.get(key)) == format_setting(value) for key, value in name.items())
    return name in (group.label, first.record.objective)


def _name(name: Any) -> str:
    if isinstance(name, Mapping):
        return ", ".join(f"{key}={format_setting(value)}" for key, value in name.items())
    return str(name)
