"""Test planned contrasts: differences between two rows of a report, paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from ntl.errors import UserError, describe, unknown_key
from ntl.metrics.registry import GREEDY, READINGS, find_metric, reading_metric
from ntl.report.runs import differing_tests
from ntl.report.statistics import holm, paired_difference
from ntl.settings import check_keys
from ntl.terminal import format_setting

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Contrast:
    """A planned difference: a metric of one row minus that of another.

    Args:
        of, minus: A row: the name of its loss (`ntl_was`; `head` for a regression head), a row of the
            tables, or a mapping of columns of metrics.csv to values, such as `{name: ntl_was,
            loss.weight: 0.3}`. A reading can follow a comma: `ce, median`.
        metric: A metric of the report, such as `mae` or `crps`.
        test: A test set. None: the first one that is not the validation set.
        dataset: A dataset. None: the only one. A list: the mean over these datasets, for the seeds that all
            have, in units of the second row's mean on each; of coverages, in shares.
    """

    of: Any
    minus: Any
    metric: str = "mae"
    test: str | None = None
    dataset: Any = None


def read_study(path: Path) -> dict[str, Any]:
    """Read the YAML file of a study, and add what it lacks of `contrasts`, `margin` and `names`.

    Raises:
        UserError: It cannot be read, or holds no settings, or a key that nothing reads.
    """
    try:
        text = path.read_text("utf-8")
        study = dict(yaml.safe_load(text))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UserError(
            f"{path} cannot be read ({describe(error)}); expected a YAML file of settings, such as "
            "margin: 5.0."
        ) from None
    if "defaults" not in study:  # files that a study extends may read other keys of it
        check_keys(map(str, study), text)
    return {"contrasts": [], "margin": 5.0, "names": {}, **study}


def check_margin(margin: Any) -> None:
    """Raise a UserError unless the margin of a study is a number."""
    if not isinstance(margin, int | float) or not margin >= 0:
        raise UserError(f"margin: {margin!r}; expected per cent, 0 or more, such as 5.0.")


def read_contrasts(given: Any) -> list[Contrast]:
    """Read the list `contrasts` of a study's YAML; a UserError names an unknown key or metric."""
    try:
        contrasts = [Contrast(**each) for each in given]
    except TypeError as error:
        raise UserError(
            f"contrasts: {given!r} ({error}); expected a list of mappings, such as - {{of: ntl_was, minus: "
            "ce}, which can have metric, test and dataset, too."
        ) from None
    for contrast in contrasts:
        find_metric(str(contrast.metric))
    return contrasts


def compare_rows(
    table: pd.DataFrame, contrasts: Sequence[Contrast], margin: float
) -> tuple[pd.DataFrame, list[str]]:
    """Compute the differences with paired t-tests, corrected by Holm's method for the number of contrasts.

    Args:
        table: The runs, see `ntl.report.runs`.
        contrasts: What is compared.
        margin: Bounds of "no effect", in per cent of the second row's mean.

    Returns:
        One row per contrast, with its number as the index: `dataset`, `of`, `minus`, `metric`, `test`,
        `seeds`; the mean `difference`, also in per cent of the second row's mean, or of coverages in
        percentage points; their 95 % intervals; `p` and `p_holm`; and the `verdict`. It says "no effect" only
        if the 90 % interval lies within the margin, which is the test of equivalence by two one-sided t-tests
        at 5 %. Then one line for each contrast that the runs do not allow, because a row, a dataset or a
        metric is missing; `p_holm` counts it, too.

    Raises:
        UserError: The margin is no number.
    """
    check_margin(margin)
    found, missing = {}, []
    for number, contrast in enumerate(contrasts):
        try:
            found[number] = _difference(table, contrast, margin)
        except UserError as error:
            missing.append(f"contrast {_name(contrast.of)} minus {_name(contrast.minus)}: {error}")
    tested = pd.DataFrame([*found.values()], [*found])
    if tested.empty:
        return tested, missing
    tested["p_holm"] = holm(tested["p"], len(contrasts))
    tested["verdict"] = [_verdict(row, margin) for _, row in tested.iterrows()]
    return tested.drop(columns="is_equivalent"), missing


def _difference(table: pd.DataFrame, contrast: Contrast, margin: float) -> dict[str, Any]:
    names = contrast.dataset if isinstance(contrast.dataset, list | tuple) else [contrast.dataset]
    datasets = [_of_dataset(table, name) for name in names]
    tests = list(datasets[0]["test"].unique())
    test = contrast.test or next((each for each in tests if not each.startswith("validation")), "validation")
    columns = [values for runs in datasets for values in _sides(runs, contrast, test)]
    shared = pd.concat(columns, axis=1, keys=range(len(columns))).dropna()  # of the seeds that all have
    if shared.empty:
        raise UserError(f"no seed has {contrast.metric} on {test} in both rows.")
    of, minus = (shared.iloc[:, first::2].set_axis(names, axis=1) for first in (0, 1))
    units = pd.Series(1.0, names) if find_metric(contrast.metric).in_points else minus.mean().abs()
    if len(names) > 1:
        of, minus, units = of / units, minus / units, pd.Series(1.0, names)
    found = paired_difference(of.mean(axis=1), minus.mean(axis=1))
    mean = float(units.iloc[0])
    if not mean:  # of 0, equal values differ by 0 %
        mean = math.inf if not found.mean and not found.half else math.nan
    percent, half, inner = (each * (100 / mean) for each in (found.mean, found.half, found.inner))
    return {
        "dataset": ", ".join(dict.fromkeys(runs["dataset"].iloc[0] for runs in datasets)),
        "of": _name(contrast.of),
        "minus": _name(contrast.minus),
        "metric": contrast.metric,
        "test": test,
        "seeds": found.pairs,
        "difference": found.mean,
        "percent": percent,
        "lower": found.mean - found.half,
        "upper": found.mean + found.half,
        "percent_lower": percent - half,
        "percent_upper": percent + half,
        "p": found.p,
        "is_equivalent": abs(percent) + inner <= margin,
    }


def _sides(runs: pd.DataFrame, contrast: Contrast, test: str) -> list[pd.Series]:
    """Return the metric of both rows by seed."""
    compared, sides = [], []
    for given in (contrast.of, contrast.minus):
        label, reading = find_row(runs, given)
        compared.append(runs[(runs["row"] == label) & (runs["test"] == test)])
        values = compared[-1].set_index("seed")
        sides.append(values["value"][values["metric"] == reading_metric(reading, contrast.metric)])
    if differing_tests(pd.concat(compared)):  # of one seed
        raise UserError(f"the rows answered different questions on {test}.")
    return sides


def _verdict(row: pd.Series, margin: float) -> str:
    if row["p_holm"] < SIGNIFICANT:
        is_higher, is_better = row["difference"] > 0, find_metric(row["metric"]).higher_is_better
        judged = "" if is_better is None else " (better)" if is_higher == is_better else " (worse)"
        return f"{'higher' if is_higher else 'lower'}{judged}"
    unit = "points" if find_metric(row["metric"]).in_points else "%"
    if row["is_equivalent"]:
        return f"no effect within ± {margin:g} {unit}"
    if row["seeds"] < 2:
        return "one seed"
    if math.isnan(row["percent_lower"]):
        return "no significant difference"
    return f"no significant difference ({row['percent_lower']:+.1f} to {row['percent_upper']:+.1f} {unit})"


def _of_dataset(table: pd.DataFrame, name: str | None) -> pd.DataFrame:
    names = list(table["dataset"].unique())
    if name is None and len(names) == 1:
        return table
    if name not in names:
        raise UserError(f"dataset={name} was not run; expected one of: {', '.join(names)}.")
    return table[table["dataset"] == name]


def find_row(runs: pd.DataFrame, given: Any) -> tuple[str, str]:
    """Return the label and the reading of a row; a UserError tells that it is missing or ambiguous."""
    name, _, reading = str(given).rpartition(", ")
    if reading not in READINGS:
        name, reading = given, GREEDY
    found = runs["row"][_matches(runs, name)].unique()
    if len(found) != 1:
        count, dataset = "several rows" if len(found) else "no row", runs["dataset"].iloc[0]
        raise UserError(
            f"{_name(given)} names {count} of {dataset}, whose rows are: {'; '.join(runs['row'].unique())}. "
            "Name a row, or columns as {loss.weight: 0.3}."
        )
    return found[0], reading


def _matches(runs: pd.DataFrame, name: Any) -> pd.Series:
    if not isinstance(name, Mapping):
        return (runs["row"] == name) | (runs["name"] == name)
    if unknown := [key for key in name if key not in runs]:
        settings = [key for key in runs if "." in key]
        raise unknown_key("settings that differ between runs: ", unknown[0], ["name", "row", *settings])
    columns = pd.DataFrame({key: runs[key].astype(str) == format_setting(name[key]) for key in name})
    return columns.all(axis=1)


def _name(name: Any) -> str:
    if isinstance(name, Mapping):
        return ", ".join(f"{key}={format_setting(value)}" for key, value in name.items())
    return str(name)
