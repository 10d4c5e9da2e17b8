"""Make every table, claim and figure of the study from its runs. `python results/study/tables.py`.

Reads `results/study/runs` and writes `tables.md`, `overview.png`, `losses.png` and `learning_curves.png`
beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, median_low

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter
from run import BASELINE, HERE, STUDY, is_weighted, selection_results, selection_tasks
from scipy.stats import ttest_1samp

from ntl.config.paper_keys import compared_settings
from ntl.report.groups import mean_and_interval
from ntl.report.style import FLOOR, STYLE, add_legend, new_figure, plot_seeds, styles
from ntl.scores import reading_metric
from ntl.training.run_folder import Metrics, RunFolder

READINGS = ("greedy", "median", "mean")
ACCURACY = "exact_number"
NAMES = {
    "ce": "CE", "ntl_was": "CE + NTL-WAS", "ntl_mse": "CE + NTL-MSE", "crps": "CE + CRPS",
    "regression_head": "regression head", "regression_head_log": "regression head, log scale", "xval": "xVal",
    "ntl_was_reweigh": "CE + NTL-WAS, reweigh", "ntl_mae": "CE + NTL-MAE", "ntl_huber": "CE + NTL-Huber",
    "gaussian": "Gaussian smoothing", "dist2": "CE + DIST2", "digit_entropy": "CE + DEL", "smmd": "CE + SMMD",
    "ntil": "CE + NTIL", "number_level": "CE + number-level NTL", "raft": "RAFT",
}  # fmt: skip
NOTE = (
    "Means over seeds with the half-width of their 95 % confidence intervals (Student's t). All seeds "
    "share one training and one test set, so the intervals do not cover the choice of data. *Over CE* is "
    "the mean difference to cross-entropy alone with the same reading and the same seeds, negative where "
    "the other is better; *p* is of the paired t-test, corrected by Holm's method over the rows of a "
    "table with the same reading; *won* counts the seeds with a lower error. *Invalid* answers hold no "
    "number, and have no error. *CE's result at* is the share of cross-entropy's training steps after "
    "which the validation error first is that of cross-entropy at its end. For exact arithmetic, *over CE*, "
    "*won* and *CE's result at* compare the share of exact answers, in percentage points, where more is "
    "better; *wrong by* is the mean absolute error of the wrong answers of all seeds. *NLL* is per token. "
    "*Time* is that of training, evaluations included, over cross-entropy's, on a machine with other work."
)
NONE = "–"
TREES = json.loads((HERE / "trees.json").read_text(encoding="utf-8"))
ENOUGH = 100  # validation questions of a learning curve that is compared
# Text, objective and reading, baseline and reading, metric.
CLAIMS = (
    ("NTL-WAS is better than cross-entropy, both greedy", "ntl_was", "greedy", "ce", "greedy", "mae"),
    ("NTL-MSE is better than cross-entropy, both greedy", "ntl_mse", "greedy", "ce", "greedy", "mae"),
    ("CRPS is better than cross-entropy, both greedy", "crps", "greedy", "ce", "greedy", "mae"),
    ("NTL-WAS is better than NTL-MSE, both greedy", "ntl_was", "greedy", "ntl_mse", "greedy", "mae"),
    ("CRPS is better than NTL-WAS, both greedy", "crps", "greedy", "ntl_was", "greedy", "mae"),
    ("The regression head beats NTL-WAS, greedy", "regression_head", "greedy", "ntl_was", "greedy", "mae"),
    ("The regression head beats CRPS's median", "regression_head", "greedy", "crps", "median", "mae"),
    ("Cross-entropy's median beats its greedy answer", "ce", "median", "ce", "greedy", "mae"),
    ("Cross-entropy's median beats NTL-WAS, greedy", "ce", "median", "ntl_was", "greedy", "mae"),
    ("Cross-entropy's median beats NTL-MSE, greedy", "ce", "median", "ntl_mse", "greedy", "mae"),
    ("Cross-entropy's median beats CRPS, greedy", "ce", "median", "crps", "greedy", "mae"),
    ("NTL-WAS's median beats its greedy answer", "ntl_was", "median", "ntl_was", "greedy", "mae"),
    ("NTL-WAS is better than cross-entropy, both by the median", "ntl_was", "median", "ce", "median", "mae"),
    ("CRPS is better than cross-entropy, both by the median", "crps", "median", "ce", "median", "mae"),
    ("Cross-entropy's mean beats its median, root mean squared error", "ce", "mean", "ce", "median", "rmse"),
    ("Cross-entropy's greedy answer is exact more often", "ce", "greedy", "ce", "median", ACCURACY),
    ("NTL-WAS answers exactly more often, both greedy", "ntl_was", "greedy", "ce", "greedy", ACCURACY),
    ("CRPS answers exactly more often, both greedy", "crps", "greedy", "ce", "greedy", ACCURACY),
    ("NTL-WAS lowers the negative log-likelihood", "ntl_was", "greedy", "ce", "greedy", "ce"),
    ("CRPS lowers the negative log-likelihood", "crps", "greedy", "ce", "greedy", "ce"),
    ("NTL-WAS lowers the CRPS of the numbers", "ntl_was", "greedy", "ce", "greedy", "crps"),
    ("CRPS lowers the CRPS of the numbers", "crps", "greedy", "ce", "greedy", "crps"),
)
# Columns of the summary: an objective and a reading.
SUMMARY = (
    ("ce", "greedy"), ("ntl_was", "greedy"), ("ntl_mse", "greedy"), ("crps", "greedy"),
    ("ce", "median"), ("ntl_was", "median"), ("ntl_mse", "median"), ("crps", "median"),
    ("regression_head", "greedy"),
)  # fmt: skip
# As the lab's figures name these objectives, so that they have the same colours here.
LOOKS = styles(["T5", "T5 + NTL-WAS", "T5 + NTL-MSE", "T5 + CRPS", "T5 regression head"])
LOOKS = dict(zip(("ce", "ntl_was", "ntl_mse", "crps", "regression_head"), LOOKS.values(), strict=True))
LOOKS |= styles([o for o in STUDY["objectives"] if o not in LOOKS])
Row = dict[str, str]


@dataclass(frozen=True)
class Run:
    """A finished run: its test metrics, its learning curve, its updates and its seconds of training."""

    metrics: Metrics
    curve: Sequence[Metrics]
    steps: int
    seconds: float

    def value(self, reading: str, metric: str) -> float | None:
        """Return a metric of a reading on the test set, or None if the run does not have it."""
        return self.metrics.get(reading_metric(reading, metric))


Setting = Mapping[str, Mapping[int, Run]]  # objective -> seed -> run


@dataclass(frozen=True)
class Effect:
    """The paired difference of an objective to a baseline.

    Args:
        mean: Mean difference over seeds.
        interval: Half-width of its 95 % confidence interval.
        share: Mean difference over the baseline's mean.
        share_interval: Half-width of the interval of `share`.
        p: Of the paired t-test. Not corrected.
        won: Number of seeds on which the objective is better.
        seeds: Number of pairs.
    """

    mean: float
    interval: float
    share: float
    share_interval: float
    p: float
    won: int
    seeds: int


def main() -> None:
    """Write the tables and figures."""
    settings = load_settings()
    parts = [
        "<!-- Made by `python results/study/tables.py`. Do not edit. -->",
        "# Tables of the study",
        NOTE,
        "## Summary",
        "Mean absolute errors on test data.",
        summary(settings),
        *(table(name, setting) for name, setting in settings.items() if family(name) != "text"),
        *(text_table(name, setting) for name, setting in settings.items() if family(name) == "text"),
        "## Claims",
        "Yes or no where the 95 % confidence interval of the paired difference excludes 0; in brackets the "
        "difference over the second one's result: in mean absolute error, unless the claim names another "
        "metric; exact answers differ by percentage points. Claims on errors leave out exact arithmetic, "
        "where most errors are 0. The intervals are not corrected for the number of claims and settings.",
        "\n".join(f"- {claim}" for claim in claims(settings)),
        "## Selected settings",
        "Results on validation data of one run per candidate, with a seed and, for generated tasks, data "
        "that no table above uses. The other runs use the candidate with the least greedy error.",
        *selection_tables(),
    ]
    (HERE / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    numeric = {name: setting for name, setting in settings.items() if family(name) != "text"}
    noisy = {name: setting for name, setting in numeric.items() if family(name) != "exact"}
    with mpl.rc_context(STYLE):
        if noisy:
            draw_overview(noisy)
            draw_losses(noisy)
        draw_curves(numeric)


def load_settings() -> dict[str, Setting]:
    """Load the finished runs of every task and budget, in the order of study.yaml."""
    found = {}
    for name, settings in STUDY["settings"].items():
        for steps in settings["steps"]:
            folder = HERE / "runs" / f"{name}-{steps}"
            runs = {o: load_runs(folder / o) for o in STUDY["objectives"]}
            if runs[BASELINE]:
                found[f"{name}-{steps}"] = {objective: seeds for objective, seeds in runs.items() if seeds}
    return found


def load_runs(folder: Path) -> dict[int, Run]:
    """Load the finished runs in the subfolders of a folder, by seed."""
    runs, settings = {}, {}
    for path in sorted(folder.glob("seed*/metrics.json")):
        run = RunFolder(path.parent)
        record = run.record()
        if record.status == "finished":
            settings.setdefault(str(compared_settings(record.config)), str(path.parent))
            if len(settings) > 1:
                raise SystemExit(
                    f"{' and '.join(settings.values())} differ in more than their seed; repeat one."
                )
            tests = [test for test in run.metrics() if test != "validation"]
            runs[record.seed] = Run(run.metrics()[tests[0]], run.curve(), record.steps, record.train_seconds)
    return dict(sorted(runs.items()))


def effect(
    runs: Mapping[int, Run],
    baseline: Mapping[int, Run],
    reading: str = "greedy",
    other: str | None = None,
    metric: str = "mae",
) -> Effect | None:
    """Compare an objective with a baseline on the seeds that both have; None for fewer than two.

    Args:
        runs: Runs of the objective, by seed.
        baseline: Runs of the baseline, by seed.
        reading: Reading of the objective.
        other: Reading of the baseline. None: `reading`.
        metric: The metric that is compared. Lower is better, except for `exact_number`.
    """
    pairs = [
        (runs[s].value(reading, metric), baseline[s].value(other or reading, metric))
        for s in runs
        if s in baseline
    ]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    if len(known) < 2:
        return None
    differences = [mine - theirs for mine, theirs in known]
    scale = float(np.mean([theirs for _, theirs in known]))
    mean, interval = mean_and_interval(differences)
    p = float(ttest_1samp(differences, 0).pvalue)
    won = sum(d > 0 if metric == ACCURACY else d < 0 for d in differences)
    return Effect(mean, interval, mean / scale, interval / scale, p, won, len(known))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number (Holm 1979).

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - place) * p[name]))
        corrected[name] = largest
    return corrected


def summary(settings: Mapping[str, Setting]) -> str:
    """Return a table of the mean errors of the main objectives and readings in each setting."""
    rows = []
    for name, setting in settings.items():
        if family(name) != "text":
            first, trees = next(iter(setting[BASELINE].values())).metrics, TREES.get(task(name))
            errors = {
                short_name(o, reading): with_interval([r.value(reading, "mae") for r in setting[o].values()])
                for o, reading in SUMMARY
                if o in setting
            }
            rows.append(
                {
                    "task, steps": ", ".join(name.rsplit("-", 1)),
                    **errors,
                    "trees": three(sum(trees) / len(trees)) if trees else NONE,
                    "floor": three(first["noise_mae"]) if first.get("noise_mae") else NONE,
                }
            )
    return markdown(rows)


def short_name(objective: str, reading: str) -> str:
    """Return the heading of a column of the summary."""
    name = NAMES[objective].removeprefix("CE + ")
    return name if objective == "regression_head" else f"{name}, {reading}"


def table(name: str, setting: Setting) -> str:
    """Return the table of a task and a budget, with a heading."""
    rows, metric = [], ACCURACY if family(name) == "exact" else "mae"
    for reading in READINGS:
        effects = {
            o: effect(runs, setting[BASELINE], reading, metric=metric)
            for o, runs in setting.items()
            if o != BASELINE
        }
        known = {o: found for o, found in effects.items() if found is not None}
        corrected = holm({o: found.p for o, found in known.items()})
        for objective, runs in setting.items():
            if any(run.value(reading, "mae") is not None for run in runs.values()):
                rows.append(row(objective, reading, setting, known.get(objective), corrected, metric))
    if errors := TREES.get(task(name)):
        rows.append(
            {"objective": "gradient-boosted trees", "seeds": str(len(errors)), "MAE": with_interval(errors)}
        )
    first = next(iter(setting[BASELINE].values())).metrics
    floor = first.get("noise_mae")
    lines = [
        f"## {name}",
        f"Test error of always answering the median: {three(first['constant_mae'])}"
        + (f"; of a model that knows all but the noise: {three(floor)}." if floor else "."),
        markdown(rows),
    ]
    return "\n\n".join(lines)


def task(name: str) -> str:
    """Return the task of a task with its budget, such as `sums-800`."""
    return name.rpartition("-")[0]


def family(name: str) -> str:
    """Return the family of a task with its budget."""
    return STUDY["settings"][task(name)]["family"]


def text_table(name: str, setting: Setting) -> str:
    """Return the table of a task whose answers are texts: the loss on text and on numbers, with a heading."""
    rows = []
    for objective, runs in setting.items():
        cells = {"objective": NAMES[objective], "seeds": str(len(runs))}
        for metric, title in {"ce_text": "NLL of text", "ce_numbers": "NLL of numbers"}.items():
            found = None if objective == BASELINE else effect(runs, setting[BASELINE], metric=metric)
            cells[title] = with_interval([run.metrics.get(metric) for run in runs.values()])
            cells[f"{title} over CE"] = rounded(found.mean, found.interval, "+") if found else NONE
        if objective in (
            BASELINE,
            "ntl_was",
        ):  # their `ntl` is NTL-WAS; that of other objectives is their own
            cells["error of a digit"] = with_interval([run.metrics.get("ntl") for run in runs.values()])
        rows.append(cells)
    return (
        f"## {name}\n\nPer token of 200 of the test set's solutions, teacher-forced. *Error of a digit* is "
        f"its expected absolute error, E|X − y|, which NTL-WAS minimises.\n\n{markdown(rows)}"
    )


def row(
    objective: str,
    reading: str,
    setting: Setting,
    found: Effect | None,
    corrected: Mapping[str, float],
    metric: str,
) -> Row:
    """Return a row of a table, whose objectives are compared by a metric."""
    runs, baseline = setting[objective], setting[BASELINE]
    is_greedy, is_exact = reading == "greedy", metric == ACCURACY
    points = 100 if is_exact else 1
    cells = {
        "objective": NAMES[objective],
        "reading": reading,
        "seeds": str(len(runs)),
        "MAE": with_interval([run.value(reading, "mae") for run in runs.values()]),
        "wrong by": wrong_by(runs.values(), reading) if is_exact else "",
        "invalid": percent([run.value(reading, "invalid_rate") for run in runs.values()]),
        "exact": percent([run.value(reading, ACCURACY) for run in runs.values()]),
        "over CE": rounded(points * found.mean, points * found.interval, "+") if found else NONE,
        "p": f"{corrected[objective]:.2g}" if found else NONE,
        "won": f"{found.won} of {found.seeds}" if found else NONE,
        "CE's result at": steps_needed(runs, baseline, metric) if is_greedy else "",
        "NLL": with_interval([run.metrics.get("ce") for run in runs.values()]) if is_greedy else "",
        "CRPS": with_interval([run.metrics.get("crps") for run in runs.values()]) if is_greedy else "",
        "90 % covers": percent([run.metrics.get("interval_coverage") for run in runs.values()])
        if is_greedy
        else "",
        "time over CE": cost(runs, baseline) if is_greedy else "",
    }
    return cells


def wrong_by(runs: Iterable[Run], reading: str) -> str:
    """Return the mean absolute error of the wrong answers of all runs."""
    results = [(run.value(reading, "mae"), run.value(reading, ACCURACY)) for run in runs]
    known = [(error, 1 - right) for error, right in results if error is not None and right is not None]
    errors, wrong = (sum(column) for column in zip(*known, strict=True)) if known else (0.0, 0.0)
    return three(errors / wrong) if wrong else NONE


def steps_needed(runs: Mapping[int, Run], baseline: Mapping[int, Run], metric: str) -> str:
    """Return the median share of the baseline's steps after which its final validation result is reached."""
    if any(len(run.curve) == 0 or run.curve[-1]["eval_count"] < ENOUGH for run in baseline.values()):
        return NONE
    shares = []
    for seed in runs.keys() & baseline.keys():
        goal = score(baseline[seed].curve[-1], metric)
        reached = [point["step"] for point in runs[seed].curve if score(point, metric) >= goal]
        shares.append(reached[0] / baseline[seed].steps if reached else float("inf"))
    middle = median_low(shares) if shares else float("inf")
    return "never" if middle == float("inf") else f"{100 * middle:.0f} %"


def score(point: Metrics, metric: str) -> float:
    """Return a metric of a point of a learning curve with a sign such that higher is better."""
    value = point[f"eval_{metric}"]
    if value is None:
        return -float("inf")
    return value if metric == ACCURACY else -value


def cost(runs: Mapping[int, Run], baseline: Mapping[int, Run]) -> str:
    """Return the median time of training, with its evaluations, over the baseline's with the same seed."""
    ratios = [runs[s].seconds / baseline[s].seconds for s in runs.keys() & baseline.keys()]
    return f"{median(ratios):.2f}" if ratios else NONE


def claims(settings: Mapping[str, Setting]) -> list[str]:
    """Return one line for each claim, with the settings that support it and those that contradict it."""
    lines = []
    for text, one, reading, other, other_reading, metric in CLAIMS:
        known = {
            name: found
            for name, s in settings.items()
            if family(name) not in (("text",) if metric == ACCURACY else ("text", "exact"))
            and (found := effect(s.get(one, {}), s.get(other, {}), reading, other_reading, metric))
            is not None
        }
        is_share = metric == ACCURACY
        sign, unit = (-1, "points") if is_share else (1, "%")
        better = sum(sign * found.mean + found.interval < 0 for found in known.values())
        worse = sum(sign * found.mean - found.interval > 0 for found in known.values())
        sizes = {
            name: (found.mean, found.interval) if is_share else (found.share, found.share_interval)
            for name, found in known.items()
        }
        shown = ", ".join(
            f"{name} {100 * size:+.1f} ± {100 * width:.1f} {unit}" for name, (size, width) in sizes.items()
        )
        if known:
            undecided = len(known) - better - worse
            lines.append(f"{text}: yes in {better}, no in {worse}, undecided in {undecided} ({shown}).")
    return lines


def selection_tables() -> list[str]:
    """Return a table of the candidates' validation results for each family of tasks."""
    tables = []
    for name in selection_tasks():
        kind, rows = STUDY["settings"][name]["family"], []
        for objective in (BASELINE, *filter(is_weighted, STUDY["objectives"])):
            results = selection_results(kind, objective)
            best = min((metrics["mae"] for metrics in results.values()), default=None)
            for candidate, metrics in results.items():
                error = three(metrics["mae"])
                tried = "learning rate" if objective == BASELINE else "σ" if objective == "gaussian" else "λ"
                rows.append(
                    {
                        "objective": NAMES[objective],
                        "candidate": f"{tried} {candidate:g}",
                        "MAE": f"**{error}**" if metrics["mae"] == best else error,
                        "median's MAE": three(metrics["median_mae"]),
                        "NLL": three(metrics["ce"]),
                        "90 % covers": percent([metrics["interval_coverage"]]),
                    }
                )
        if rows:
            tables.append(f"### {kind}, on {name}\n\n{markdown(rows)}")
    return tables


def draw_overview(settings: Mapping[str, Setting]) -> None:
    """Draw the effect of the main objectives in each setting: of greedy answers, and twice of medians."""
    panels = (("greedy", "greedy"), ("median", "greedy"), ("median", "median"))
    figure, axes = new_figure(3, 3, (3.6, 0.8 + 0.45 * len(settings)), (0.0, 0.6))
    for ax, (reading, base) in zip(axes, panels, strict=True):
        objectives = [o for o in STUDY["groups"]["core"] if o != BASELINE or reading != base]
        for i, objective in enumerate(objectives):
            effects = [effect(s.get(objective, {}), s[BASELINE], reading, base) for s in settings.values()]
            draw_effects(ax, effects, 0.6 * (i / len(objectives) - 0.5), objective)
        label_effects(ax, list(settings) if ax is axes[0] else [""] * len(settings), reading, base)
    add_legend(figure, "paired difference in MAE with its 95 % confidence interval; left of 0 is better")
    figure.savefig(HERE / "overview.png", dpi=150)


def draw_losses(settings: Mapping[str, Setting]) -> None:
    """Draw the effect of every objective in the settings that have them all."""
    settings = {n: s for n, s in settings.items() if any(o in s for o in STUDY["groups"]["others"])}
    if not settings:
        return
    objectives = [o for o in STUDY["objectives"] if o != BASELINE]
    size = 4.5, 0.8 + 0.25 * len(objectives)
    figure, axes = new_figure(2 * len(settings), 2, size, (0.0, 0.6))
    for ax, ((name, setting), reading) in zip(axes, product(settings.items(), READINGS[:2]), strict=True):
        for y, objective in enumerate(objectives):
            found = effect(setting.get(objective, {}), setting[BASELINE], reading)
            draw_effects(ax, [found], y, objective)
        label_effects(ax, [NAMES[o] for o in objectives], f"{name}, {reading}", reading)
    figure.savefig(HERE / "losses.png", dpi=150)


def draw_effects(ax: Axes, effects: Sequence[Effect | None], first: float, objective: str) -> None:
    """Draw the effects of an objective below each other, the first one at the given height."""
    known = [(100 * e.share, first + y, 100 * e.share_interval) for y, e in enumerate(effects) if e]
    x, y, widths = zip(*known, strict=True) if known else ((), (), ())
    look = LOOKS[objective]
    ax.errorbar(x, y, xerr=widths, fmt=look.marker, color=look.colour, ms=4, lw=1, label=NAMES[objective])


def label_effects(ax: Axes, names: Sequence[str], title: str, base: str) -> None:
    """Label a panel of effects over cross-entropy with a reading, and draw a line at 0."""
    ax.axvline(0, **FLOOR)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(f"error over cross-entropy's, {base}, %")
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
            ax.yaxis.set_major_formatter(LogFormatter())
            ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        ax.set_title(name)
        ax.set_xlabel("steps")
        ax.set_ylabel("MAE" if metric == "mae" else "exact answers")
    add_legend(figure, "greedy, on validation data; lines: median over seeds, bands: all seeds")
    figure.savefig(HERE / "learning_curves.png", dpi=150)


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table without columns that are empty, a dash or zero in every row."""
    nothing = ("", NONE, None, "0.0 %", "0.0 ± 0.0 %")
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if any(row.get(name) not in nothing for row in rows)]
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_interval(values: Sequence[float | None]) -> str:
    """Return the mean with its interval to two digits, or a dash if a value is missing."""
    mean, interval = mean_and_interval(values)
    if mean is None:
        return NONE
    return rounded(mean, interval)


def rounded(mean: float, interval: float | None, sign: str = "") -> str:
    """Return a mean with its interval, rounded to two digits of the interval."""
    if not interval:
        return three(mean)
    places = max(0, 1 - math.floor(math.log10(interval)))
    return f"{mean:{sign}.{places}f} ± {interval:.{places}f}"


def percent(shares: Sequence[float | None]) -> str:
    """Return the mean of shares with its interval, in per cent."""
    mean, interval = mean_and_interval(shares)
    if mean is None:
        return NONE
    return f"{100 * mean:.1f}" + ("" if interval is None else f" ± {100 * interval:.1f}") + " %"


def three(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


if __name__ == "__main__":
    main()
