"""Merge runs into the pack, choose weights by each rule, test the planned contrasts, and print tables.

    python -m studies.all_layers.results                 # runs of outputs/all_layers and the pack
    python -m studies.all_layers.results --rates         # what the tuning seeds choose

The pack, `runs.jsonl.xz`, holds one run a line, with everything that was read. Runs in the pack that the
folder of outputs lacks stay there, so that the study can be made in pieces and on several machines.
"""

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from ntl.metrics import crps
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.tables import contrast_columns, markdown_table
from ntl.scores import SPACED, SPACED_LEVELS
from ntloss.reading import interval_margin, widen
from studies.all_layers.train import ARMS, CHOSEN, COMMON, FOLDER
from studies.packs import merge, write

TUNING = (12, 13)
COVERAGE = 0.9
COMPARED = ("of", "minus", "metric", "test")
KEY = ("table", "arm", "seed", "rate", "train_rows")
NAMES = {
    "ce": "cross-entropy", "hl_gauss": "HL-Gauss", "jittered": "jittered labels", "ntl_was": "NTL-WAS",
    "label_smoothing": "label smoothing", "head": "regression head",
    "upper_ce": "cross-entropy, upper layers", "upper_hl_gauss": "HL-Gauss, upper layers",
    "upper_head": "regression head, upper layers", "encoder": "MiniLM, fine-tuned",
}  # fmt: skip
OTHERS = {"upper_ce": "ce", "upper_hl_gauss": "hl_gauss", "upper_head": "head", "encoder": "encoder"}
"""Models of the study of ten epochs, which have the same rows: the name here, and there."""
SHOWN = {
    "greedy": "greedy_mae", "CRPS": "crps", "inside 90 %": "coverage", "width": "width",
    "calibrated: inside": "calibrated_coverage", "width, calibrated": "calibrated_width",
    "stopped after": "step",
}  # fmt: skip
SHARES = ("coverage", "calibrated_coverage")
RULES = {
    "last": "after the last step",
    "median": "lowest validation error of the median",
    "crps": "lowest validation CRPS",
}


class Reading(NamedTuple):
    """What was read from one set of weights for validation or test rows; a head has no quantiles."""

    truths: np.ndarray  # `[rows]`
    answers: np.ndarray  # `[rows]`, greedy answers, or the head's
    quantiles: np.ndarray | None  # `[rows, levels]`, levels of train.py

    @property
    def spaced(self) -> np.ndarray:
        """The spaced quantiles, ascending; the head's answer stands for all of them."""
        if self.quantiles is None:
            return np.repeat(self.answers[:, None], SPACED, axis=1)
        return np.sort(self.quantiles[:, :SPACED])

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lower end, the median and the upper end of the 90 % interval."""
        if self.quantiles is None:
            return self.answers, self.answers, self.answers
        lower, median, upper = self.quantiles[:, SPACED:].T
        return np.minimum(lower, upper), median, np.maximum(lower, upper)


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, choose, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs/all_layers"))
    parser.add_argument("--results", type=Path, default=Path("studies/all_layers/results"))
    parser.add_argument("--rates", action="store_true", help="print what the tuning seeds choose, and end")
    parser.add_argument(
        "--train-size", type=int, help="runs with so many training rows; default: the study's"
    )
    given = parser.parse_args(arguments)
    runs = merge(given.results / "runs.jsonl.xz", given.outputs, KEY)
    metrics = pd.DataFrame(rows_of_metrics(runs))
    if given.rates:
        print(tried_rates(runs))
        return
    plan = yaml.safe_load((FOLDER / "contrasts.yaml").read_text("utf-8"))
    print(what_is_there(metrics, plan))
    if metrics.empty:
        return
    metrics.to_csv(given.results / "metrics.csv.xz", index=False, lineterminator="\n")
    figures = pd.concat([with_chosen_rates(metrics, given.train_size), of_other_models()])
    for name, seeds in plan["seeds"].items():
        own = figures[figures["seed"].isin(seeds)]
        print(f"\n## Seeds {seeds[0]} to {seeds[-1]} ({name})\n")
        print("\n\n".join(tables_of(own)))
        found = contrasts(own, plan)
        if len(found):
            of_size = "" if given.train_size is None else f"_{given.train_size}_rows"
            write(found, given.results / f"contrasts_{name}{of_size}.csv")
            print("", markdown_table(contrast_columns(found)), sep="\n")


def rows_of_metrics(runs: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one row for each run, rule and metric, of the test rows."""
    for run in runs:
        for rule in RULES:
            chosen = chosen_by(run, rule)
            validation, test = (reading(run, chosen, part) for part in ("validation", "test"))
            for metric, value in {**measures(validation, test), "step": chosen["step"]}.items():
                yield {**{name: run[name] for name in KEY}, "rule": rule, "metric": metric, "value": value}


def reading(run: Mapping[str, Any], point: Mapping[str, Any], part: str) -> Reading:
    """Return what was read at a compared step for the rows of a part."""
    quantiles = point[part].get("quantiles")
    return Reading(
        np.array(run["truths"][part]),
        np.array(point[part]["answers"]),
        None if quantiles is None else np.array(quantiles),
    )


def chosen_by(run: Mapping[str, Any], rule: str) -> Mapping[str, Any]:
    """Choose the compared step by a rule; the earliest, if several are equal."""
    if rule == "last":
        return run["read"][-1]
    return min(run["read"], key=lambda point: error(reading(run, point, "validation"), rule))


def error(found: Reading, rule: str = "median") -> float:
    """Compute the error of the median, or the CRPS; a head has only the former."""
    if rule == "crps" and found.quantiles is not None:
        return crps(found.spaced, found.truths, SPACED_LEVELS)
    return float(np.abs(found.interval[1] - found.truths).mean())


def measures(validation: Reading, test: Reading) -> dict[str, float]:
    """Measure the test rows; the validation rows calibrate the intervals (split conformal)."""
    lower, median, upper = test.interval
    ends = validation.interval
    margin = interval_margin(ends[0].tolist(), ends[2].tolist(), validation.truths.tolist(), COVERAGE)
    low, high = (end.numpy() for end in widen(lower.tolist(), median.tolist(), upper.tolist(), margin))
    found = {
        "median_mae": error(test),
        "calibrated_coverage": inside(low, high, test.truths),
        "calibrated_width": float((high - low).mean()),
    }
    if test.quantiles is None:
        return found
    return found | {
        "greedy_mae": float(np.abs(test.answers - test.truths).mean()),
        "mean_mae": float(np.abs(test.spaced.mean(-1) - test.truths).mean()),
        "crps": error(test, "crps"),
        "coverage": inside(lower, upper, test.truths),
        "width": float((upper - lower).mean()),
    }


def inside(lower: np.ndarray, upper: np.ndarray, truths: np.ndarray) -> float:
    """Return the share of true numbers within their intervals, ends included."""
    return float(((lower <= truths) & (truths <= upper)).mean())


def tried_rates(runs: Iterable[Mapping[str, Any]]) -> str:
    """Write the lowest validation error of the median of each arm, rate and tuning seed."""
    rows = [
        {**run, "error": min(error(reading(run, point, "validation")) for point in run["read"])}
        for run in runs
        if run["seed"] in TUNING
    ]
    if not rows:
        return f"No run of the tuning seeds {TUNING} is there."
    index = ["table", "arm", "rate"]
    found = pd.DataFrame(rows).pivot_table(index=index, columns="seed", values="error")
    found["mean"] = found.mean(axis=1)
    best = found.groupby(["table", "arm"])["mean"].transform("min")
    return found.assign(chosen=np.where(found["mean"] == best, "chosen", "")).to_string(float_format="%.3f")


def with_chosen_rates(metrics: pd.DataFrame, train_size: int | None) -> pd.DataFrame:
    """Return the runs at the rate that was chosen for their arm and table, with as many training rows."""
    chosen = pd.Series({(table, arm): rate for table, arms in CHOSEN.items() for arm, rate in arms.items()})
    rates = chosen.reindex(pd.MultiIndex.from_frame(metrics[["table", "arm"]])).to_numpy()
    rows = metrics["train_rows"]
    fits = rows <= COMMON["train_size"] if train_size is None else rows == train_size
    return metrics[(metrics["rate"] == rates) & fits]


def of_other_models() -> pd.DataFrame:
    """Return the errors of the models of the study of ten epochs on the same rows, under each rule."""
    packed = pd.read_csv(FOLDER.parent / "ten_epochs/results/metrics.csv.xz")
    parts = []
    for name, there in OTHERS.items():
        metric = "median_mae" if there in ("ce", "hl_gauss") else "mae"
        is_test = (packed["test"] == "test") & (packed["metric"] == metric)
        own = packed[(packed["row"] == there) & is_test]
        own = own.rename(columns={"dataset": "table"})[["table", "seed", "value"]]
        parts += [own.assign(arm=name, metric="median_mae", rule=rule) for rule in RULES]
    return pd.concat(parts)


def what_is_there(metrics: pd.DataFrame, plan: Mapping[str, Any]) -> str:
    """Write which seeds each arm has on each table, and how many it lacks."""
    have = set() if metrics.empty else {*metrics[["table", "arm", "seed"]].itertuples(index=False, name=None)}
    wanted = [*plan["seeds"]["decide"], *plan["seeds"]["pilot"]]
    lines = ["| table | arm | seeds | missing |", "| --- | --- | --- | ---: |"]
    for table in plan["tables"]:
        for arm in ARMS:
            done = sorted(seed for seed in wanted if (table, arm, seed) in have)
            lines.append(
                f"| {table} | {NAMES[arm]} | {', '.join(map(str, done))} | {len(wanted) - len(done)} |"
            )
    return "\n".join(lines)


def tables_of(figures: pd.DataFrame) -> Iterator[str]:
    """Write a Markdown table for each rule and table: the median's error by seed, then means of the rest."""
    for rule, title in RULES.items():
        for table in dict.fromkeys(figures["table"]):
            own = figures[(figures["rule"] == rule) & (figures["table"] == table)]
            trained = own[~own["arm"].isin(OTHERS)]
            if trained.empty:
                continue
            seeds = sorted(trained["seed"].unique())
            own = own[own["seed"].isin(seeds)]
            wide = own.pivot_table(index="arm", columns=["metric", "seed"], values="value")
            heads = [f"{table}, {title}", *map(str, seeds), "mean", *SHOWN]
            lines = [f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
            for arm in [name for name in NAMES if name in wide.index]:
                errors = wide.loc[arm, "median_mae"].reindex(seeds)
                means = {m: wide.loc[arm, m].mean() if m in wide.columns else np.nan for m in SHOWN.values()}
                cells = [*map(written, errors), written(errors.mean())]
                cells += [written(value, metric) for metric, value in means.items()]
                lines.append(f"| {NAMES[arm]} | {' | '.join(cells)} |")
            yield "\n".join(lines)


def written(value: float, metric: str = "") -> str:
    """Write a figure; nothing where there is none."""
    if not np.isfinite(value):
        return ""
    if metric in SHARES:
        return f"{value:.0%}".replace("%", " %")
    return f"{value:.0f}" if metric == "step" else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def contrasts(figures: pd.DataFrame, plan: Mapping[str, Any]) -> pd.DataFrame:
    """Test the planned contrasts that at least two seeds allow: see `ntl.report.contrasts.compare_rows`.

    Returns:
        A row for each contrast, rule (`test`) and table (`dataset`); `p_holm` is corrected over the family.
        Rows of several tables are means over those that share two seeds or more, and are not corrected.
    """
    table = figures.rename(columns={"table": "dataset", "arm": "row", "rule": "test"})
    table = table.assign(name=table["row"], questions="")
    tables = [name for name in plan["tables"] if name in {*table["dataset"]}]

    def test(planned: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        found, _ = compare_rows(table, read_contrasts(planned), plan["margin"])
        return found[found["seeds"] > 1] if len(found) else found

    parts = []
    for family, planned in plan["families"].items():
        ruled = [{**each, "test": rule} for each, rule in itertools.product(planned, plan["rules"])]
        single = test([{**each, "dataset": name} for each in ruled for name in tables])
        parts.append(single)
        for each in ruled if len(single) else ():
            own = single[(single[[*COMPARED]] == [*map(each.get, COMPARED)]).all(axis=1)]
            if len(own) > 1:
                parts.append(test([{**each, "dataset": [*own["dataset"]]}]).assign(p_holm=np.nan, verdict=""))
        parts = [part.assign(family=family) if "family" not in part else part for part in parts]
    return pd.concat(parts)


if __name__ == "__main__":
    main()
