"""Pack the runs of the study with the alternatives, and test the planned contrasts.

    python -m studies.ten_epochs.results outputs/ten_epochs alternatives.csv results/ten_epochs

Adds to the pack `metrics.csv.xz` the test metrics of every finished run, the step whose weights gave them,
and the errors of the alternatives; writes `contrasts.csv`; prints both as Markdown, and tables of the last
step on the validation rows. Runs in the pack that the folder no longer has stay there, so that the study can
be made in pieces. Without runs, the pack alone is read:

    python -m studies.ten_epochs.results results/ten_epochs
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import yaml

from ntl.evaluate import read_results
from ntl.report.statistics import half_width, holm, p_value

COLUMNS = ["dataset", "objective", "seed", "metric", "value"]
"""Of the pack: `objective` is an arm of the study or a model of alternatives.py."""
OF_DISTRIBUTIONS = ("median_mae", "mae", "crps", "interval_coverage")
"""In the pack also on the validation rows, with a prefix such as `step370_`."""
NAMES = {
    "ce": "cross-entropy", "hl_gauss": "HL-Gauss", "label_smoothing": "label smoothing",
    "digits": "Gaussian on single digits", "ntl_was": "NTL-WAS", "jittered": "jittered labels",
    "fixed_width": "HL-Gauss, fixed width",
    "head": "regression head",
    "constant": "constant", "ridge": "TF-IDF + ridge", "minilm": "MiniLM, frozen, + SVR",
    "mpnet": "mpnet, frozen, + SVR", "encoder": "MiniLM, fine-tuned",
}  # fmt: skip

OTHERS = {
    "greedy": ("mae", None), "CRPS": ("crps", None),
    "inside 90 %": ("interval_coverage", "{:.0%}"), "stopped after": ("chosen_step", "{:.0f}"),
}  # fmt: skip
"""Columns of models with a distribution: the metric, and how its mean is written; None: as errors are."""


def main(arguments: Sequence[str]) -> None:
    """Pack, if runs are given; then test and print."""
    folder = Path(arguments[-1])
    if len(arguments) > 1:
        runs, others = arguments[:-1]
        pack = folder / "metrics.csv.xz"
        parts = [pd.read_csv(pack)] if pack.is_file() else []
        parts += [pd.DataFrame(read_runs(Path(runs)), columns=COLUMNS), pd.read_csv(others)]
        packed = pd.concat(parts).drop_duplicates(COLUMNS[:-1], keep="last")
        folder.mkdir(parents=True, exist_ok=True)
        packed.sort_values(COLUMNS[:-1]).to_csv(pack, index=False, lineterminator="\n")
    metrics = read_pack(folder / "metrics.csv.xz")
    planned = yaml.safe_load((Path(__file__).parent / "contrasts.yaml").read_text("utf-8"))
    tested = contrasts(metrics, planned["contrasts"], planned["margin"])
    print(tables_of(metrics), tables_of(metrics, "step370_"), sep="\n\n")
    if len(tested):
        tested.to_csv(folder / "contrasts.csv", index=False, lineterminator="\n")
        print(f"\n{table_of_contrasts(tested)}\n\nMeans over tables:\n{means_over_tables(metrics)}")


def read_runs(folder: Path) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield the test metrics of the finished runs in a folder, as rows of the pack."""
    for path in sorted(folder.glob("*/*/test/metrics.json")):
        run, state = path.parents[1], json.loads((path.parents[1] / "trainer_state.json").read_text("utf-8"))
        found = read_results(path.parent)
        if found is None:
            continue
        metrics = {**found["metrics"]["test"], "chosen_step": state["best_global_step"]}
        for point in state["log_history"]:
            of_point = ((name, point.get(f"eval_{name}")) for name in OF_DISTRIBUTIONS)
            metrics |= {f"step{point['step']}_{name}": value for name, value in of_point if value is not None}
        row = run.parent.name, found["name"], found["seed"]
        yield from ((*row, name, value) for name, value in metrics.items() if value is not None)


def read_pack(file: Path) -> pd.DataFrame:
    """Read a pack: a row for each dataset, objective and seed, a column for each metric."""
    return pd.read_csv(file).pivot_table(index=COLUMNS[:3], columns="metric", values="value")


def contrasts(metrics: pd.DataFrame, planned: Sequence[dict[str, str]], margin: float) -> pd.DataFrame:
    """Test the planned contrasts that at least two seeds allow, by paired t-tests.

    Returns:
        A row for each: the number of `seeds`, the mean difference in per cent of the second model's mean (of
        coverage, in percentage points) with its 95 % interval, `p` and `p_holm`, and whether the 90 %
        interval lies within the margin (`equivalent`), which tests equivalence at 5 %.
    """
    found = []
    for contrast in planned:
        metric = contrast.get("metric", "mae")
        pair = [values(metrics, contrast["dataset"], contrast[side], metric) for side in ("of", "minus")]
        differences = (pair[0] - pair[1]).dropna()
        if len(differences) < 2:
            continue
        scale = 100.0 if metric == "interval_coverage" else 100 / pair[1][differences.index].mean()
        differences *= scale
        mean, half, inner = differences.mean(), half_width(differences), half_width(differences, 0.9)
        row = {**contrast, "metric": metric, "seeds": len(differences), "difference": mean}
        row |= {"lower": mean - half, "upper": mean + half, "p": p_value(differences)}
        found.append({**row, "equivalent": abs(mean) + inner <= margin})
    tested = pd.DataFrame(found)
    if len(tested):
        tested["p_holm"] = holm(tested["p"])
    return tested


def means_over_tables(metrics: pd.DataFrame) -> str:
    """Average HL-Gauss minus cross-entropy by the median over the tables, for the seeds that all have.

    A line for the two tables with the most seeds, for the three with the most, and so on.
    """
    tables = {}
    for dataset in metrics.index.unique(0):
        of, minus = (values(metrics, dataset, f"{arm}, median", "mae") for arm in ("hl_gauss", "ce"))
        differences = (of - minus).dropna()
        tables[dataset] = 100 * differences / minus[differences.index].mean()
    names = sorted(tables, key=lambda name: -len(tables[name]))
    lines = []
    for count in range(2, len(names) + 1):
        shared = pd.concat([tables[name] for name in names[:count]], axis=1, join="inner").mean(axis=1)
        if len(shared) > 1:
            shown = f"{shared.mean():+.1f} ± {half_width(shared):.1f} %, {len(shared)} seeds"
            lines.append(f"{', '.join(names[:count])}: {shown}")
    return "\n".join(lines)


def values(metrics: pd.DataFrame, dataset: str, name: str, metric: str) -> pd.Series:
    """Return a metric by seed of an arm such as `ce` or `ce, median`; empty without runs."""
    arm, _, reading = name.partition(", ")
    column = f"{reading}_{metric}" if reading else metric
    known = (dataset, arm) in {key[:2] for key in metrics.index} and column in metrics
    return metrics.loc[(dataset, arm), column] if known else pd.Series(dtype=float)


def tables_of(metrics: pd.DataFrame, prefix: str = "") -> str:
    """Write a Markdown table for each dataset, with a row for each model.

    It has the error of each seed, which is the median's where a model has a distribution, and their mean;
    then the means of other measures.
    """
    metrics = metrics.dropna(subset=f"{prefix}mae")
    shown = [(title, measure) for title, measure in OTHERS.items() if prefix + measure[0] in metrics]
    parts = []
    for dataset in metrics.index.unique(0):
        runs = metrics.loc[dataset]
        error = "{:.3f}" if runs[f"{prefix}mae"].max() < 1 else "{:.2f}"
        seeds = sorted(runs.index.unique(1))
        heads = [dataset, *map(str, seeds), "mean", *(title for title, _ in shown)]
        lines = [f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
        for name in [name for name in NAMES if name in runs.index.unique(0)]:
            own = runs.loc[name]
            errors = own[f"{prefix}median_mae"].fillna(own[f"{prefix}mae"])
            cells = [error.format(errors[seed]) if seed in own.index else "" for seed in seeds]
            cells.append(error.format(errors.mean()))
            if own[f"{prefix}median_mae"].notna().all():
                means = [(form or error).format(own[prefix + metric].mean()) for _, (metric, form) in shown]
                cells += [mean.replace("%", " %") for mean in means]
            else:
                cells += [""] * len(shown)
            lines.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def named(name: str) -> str:
    """Write out the name of an arm and its reading, such as `ce, median`."""
    arm, _, reading = name.partition(", ")
    return " ".join(filter(None, (NAMES[arm], reading)))


def table_of_contrasts(tested: pd.DataFrame) -> str:
    """Write the contrasts as a Markdown table."""
    lines = [
        "| table | contrast | seeds | difference | p | p, Holm |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in tested.itertuples():
        half = (row.upper - row.lower) / 2
        unit = "points" if row.metric == "interval_coverage" else "%"
        shown = f"{row.difference:+.1f} ± {half:.1f} {unit}"
        of, minus = (named(name) for name in (row.of, row.minus))
        name = f"{of} minus {minus}" + ("" if row.metric == "mae" else f": {row.metric}")
        lines.append(f"| {row.dataset} | {name} | {row.seeds} | {shown} | {row.p:.2g} | {row.p_holm:.2g} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
