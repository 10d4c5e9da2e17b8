"""Make every table, claim and figure of the study from its runs. `python -m studies.small_models.tables`.

Writes `tables.md` and the figures to `results/small_models`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from ntl.report.groups import mean_and_interval
from ntl.training.run_folder import Metrics
from studies.small_models.effects import (
    ACCURACY,
    NAMES,
    READINGS,
    Result,
    Setting,
    effect,
    family,
    holm,
    load_settings,
    task_of,
)
from studies.small_models.figures import draw_figures
from studies.small_models.run import BASELINE, RESULTS, STUDY, selection_results, selection_tasks

NOTE = """\
Every cell is the mean of all seeds of its row, with the half-width of the 95 % confidence interval (Student's
t). All seeds share one training and one test set, so the intervals do not cover the choice of data.

- *MAE*: mean absolute error on the test set.
- *minus CE*: mean difference to cross-entropy alone, with the same reading and on the seeds that both have;
  below 0, the objective is better. For exact arithmetic it is the difference in the share of exact answers,
  in percentage points, and above 0 is better; *MAE, minus CE* is that in errors.
- *p*: of the paired t-test, corrected by Holm's method for the rows of a table with the same reading.
- *won*: the seeds with a better result than cross-entropy.
- *exact*: the share of answers that are exactly right. Regression heads, xVal and means do not give whole
  numbers, so for exact arithmetic they have none.
- *wrong by*: mean absolute error of the wrong answers of all seeds, with their number in brackets.
- *invalid*: the share of answers without a number. They have no error.
- *CE's result at*: the share of the training steps after which the validation result is first as good as
  cross-entropy's at its end (the median of the seeds). It is measured eight times in a run, on 250 questions,
  so noise moves it: compare it with cross-entropy's own row.
- *NLL*: cross-entropy per token of the answers. *CRPS*: error of the whole distribution. *90 % covers*: the
  share of answers inside the model's 90 % interval.

Columns without any value are left out. What a training step costs is measured
[apart](../../docs/lab.md#how-fast)."""
NONE = "–"
TREES = json.loads((RESULTS / "trees.json").read_text(encoding="utf-8"))
ENOUGH = 100  # validation questions of a learning curve that is compared
# Their answers are not whole numbers.
NOT_WHOLE = ("regression_head", "regression_head_log", "xval")
# Text, objective and reading, baseline and reading, metric.
CLAIMS = (
    ("NTL-WAS is better than cross-entropy, both greedy", "ntl_was", "greedy", "ce", "greedy", "mae"),
    ("NTL-MSE is better than cross-entropy, both greedy", "ntl_mse", "greedy", "ce", "greedy", "mae"),
    ("CRPS is better than cross-entropy, both greedy", "crps", "greedy", "ce", "greedy", "mae"),
    ("DIST2 is better than cross-entropy, both greedy", "dist2", "greedy", "ce", "greedy", "mae"),
    ("NTL-WAS is better than NTL-MSE, both greedy", "ntl_was", "greedy", "ntl_mse", "greedy", "mae"),
    ("CRPS is better than NTL-WAS, both greedy", "crps", "greedy", "ntl_was", "greedy", "mae"),
    ("The regression head beats NTL-WAS, greedy", "regression_head", "greedy", "ntl_was", "greedy", "mae"),
    ("The regression head beats CRPS's median", "regression_head", "greedy", "crps", "median", "mae"),
    ("The regression head beats cross-entropy's median", "regression_head", "greedy", "ce", "median", "mae"),
    ("xVal beats cross-entropy's median", "xval", "greedy", "ce", "median", "mae"),
    ("Cross-entropy's median beats its greedy answer", "ce", "median", "ce", "greedy", "mae"),
    ("Cross-entropy's median beats NTL-WAS, greedy", "ce", "median", "ntl_was", "greedy", "mae"),
    ("Cross-entropy's median beats NTL-MSE, greedy", "ce", "median", "ntl_mse", "greedy", "mae"),
    ("Cross-entropy's median beats CRPS, greedy", "ce", "median", "crps", "greedy", "mae"),
    ("NTL-WAS's median beats its greedy answer", "ntl_was", "median", "ntl_was", "greedy", "mae"),
    ("NTL-WAS is better than cross-entropy, both by the median", "ntl_was", "median", "ce", "median", "mae"),
    ("NTL-MSE is better than cross-entropy, both by the median", "ntl_mse", "median", "ce", "median", "mae"),
    ("DIST2 is better than cross-entropy, both by the median", "dist2", "median", "ce", "median", "mae"),
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
# Columns of the table of differences: heading, objective and reading, reading of cross-entropy.
DIFFERENCES = (
    ("CE's median", "ce", "median", "greedy"),
    ("NTL-WAS, greedy", "ntl_was", "greedy", "greedy"),
    ("CRPS, greedy", "crps", "greedy", "greedy"),
    ("regression head", "regression_head", "greedy", "median"),
)
# The losses and readings that are tested against cross-entropy in `all_tests`.
TESTED = [(o, reading) for o in ("ntl_was", "ntl_mse", "crps", "dist2") for reading in ("greedy", "median")]
FRESH = "dist2", 3  # its test error on the first three seeds is why it got more
# Columns of the summary: an objective and a reading.
SUMMARY = (
    ("ce", "greedy"), ("ntl_was", "greedy"), ("ntl_mse", "greedy"), ("crps", "greedy"),
    ("ce", "median"), ("ntl_was", "median"), ("ntl_mse", "median"), ("crps", "median"),
    ("regression_head", "greedy"),
)  # fmt: skip
Row = dict[str, str]


def main() -> None:
    """Write the tables and figures."""
    settings = load_settings()
    numeric = {name: setting for name, setting in settings.items() if family(name) != "text"}
    parts = [
        "<!-- Made by `python -m studies.small_models.tables`. Do not edit. -->",
        "# Tables of the study",
        NOTE,
        "## Summary",
        "Mean absolute errors on test data.",
        summary(numeric),
        "Differences by seed, in per cent of cross-entropy's greedy error, the head's of its median's. "
        "Negative is better; intervals without 0 are bold, uncorrected.",
        differences(numeric),
        *(table(name, setting) for name, setting in numeric.items()),
        *(text_table(name, setting) for name, setting in settings.items() if name not in numeric),
        "## Claims",
        "*Yes*: the 95 % confidence interval of the paired difference lies on the side of the claim; *no*: "
        "on the other side. In brackets is the difference, in per cent of the second result: of its mean "
        "absolute error unless the claim names another metric. Exact answers differ by percentage points. "
        "Decided settings are bold. Claims on errors leave out exact arithmetic, where most errors are 0. "
        "Nothing is corrected for the number of claims and settings.",
        "\n".join(f"- {claim}" for claim in claims(numeric)),
        "## All tests at once",
        all_tests(numeric),
        "## Selected settings",
        "Results on validation data of one run per candidate, with a seed and, for generated tasks, data "
        "that no table above uses. The other runs use the candidate with the least greedy error.",
        *selection_tables(),
    ]
    (RESULTS / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    draw_figures(settings)


def summary(settings: Mapping[str, Setting]) -> str:
    """Return a table of the mean errors of the main objectives and readings in each setting."""
    rows = []
    for name, setting in settings.items():
        first, trees = next(iter(setting[BASELINE].values())).metrics, TREES.get(task_of(name))
        errors = {
            short_name(o, reading): with_interval([r.value(reading, "mae") for r in setting[o].values()])
            for o, reading in SUMMARY
            if o in setting
        }
        rows.append(
            {
                "task, steps": ", ".join(name.rsplit("-", 1)),
                "seeds": str(len(setting[BASELINE])),
                **errors,
                "trees": three(sum(trees) / len(trees)) if trees else NONE,
                "floor": three(first["noise_mae"]) if first.get("noise_mae") else NONE,
            }
        )
    return markdown(rows)


def differences(settings: Mapping[str, Setting]) -> str:
    """Return a table of differences from cross-entropy in per cent, where answers are not exact."""
    rows = []
    for name, setting in settings.items():
        if family(name) != "exact":
            cells = {"task, steps": ", ".join(name.rsplit("-", 1))}
            errors = [result.value("greedy", "mae") for result in setting[BASELINE].values()]
            cells["CE, greedy"] = with_interval(errors)
            for heading, objective, reading, other in DIFFERENCES:
                found = effect(setting.get(objective, {}), setting[BASELINE], reading, other, "mae")
                if found is not None:
                    size = f"{100 * found.share:+.1f} ± {100 * found.share_interval:.1f}"
                    cells[heading] = f"**{size}**" if abs(found.share) > found.share_interval else size
            rows.append(cells)
    return markdown(rows)


def all_tests(settings: Mapping[str, Setting]) -> str:
    """Return what is left of the tests of the main losses when they are corrected together."""
    p, fresh = {}, []
    for name, setting in settings.items():
        for objective, reading in TESTED:
            results = setting.get(objective, {})
            if (found := effect(results, setting[BASELINE], reading, metric="mae")) is not None:
                p[f"{name} {short_name(objective, reading)}"] = found.p
            later = {seed: result for seed, result in results.items() if seed >= FRESH[1]}
            found = effect(later, setting[BASELINE], reading, metric="mae")
            if objective == FRESH[0] and len(later) > FRESH[1] and found is not None:
                fresh.append(
                    f"{name} {reading} {100 * found.share:+.1f} ± {100 * found.share_interval:.1f} %"
                )
    left = [f"{test} (p = {value:.2g})" for test, value in holm(p).items() if value < 0.05]
    return (
        "NTL-WAS, NTL-MSE, CRPS and DIST2 against cross-entropy, greedy and by the median, in errors: "
        f"{len(p)} tests, of which {sum(value < 0.05 for value in p.values())} have p < 0.05 uncorrected. "
        f"Holm's correction over all of them leaves {', '.join(left)}.\n\nDIST2 got its later seeds because "
        f"of its test error on the first three. Without these three: {', '.join(fresh)}."
    )


def short_name(objective: str, reading: str) -> str:
    """Return the heading of a column of the summary."""
    name = NAMES[objective].removeprefix("CE + ")
    return name if objective == "regression_head" else f"{name}, {reading}"


def table(name: str, setting: Setting) -> str:
    """Return the table of a setting, with a heading."""
    rows, metric = [], ACCURACY if family(name) == "exact" else "mae"
    for reading in READINGS:
        errors = effect_cells(setting, "mae", reading, "MAE") if metric == ACCURACY else {}
        rows += [
            row(objective, reading, setting, cells | errors.get(objective, {}), metric)
            for objective, cells in effect_cells(setting, metric, reading).items()
            if any(result.value(reading, "mae") is not None for result in setting[objective].values())
        ]
    if trees := TREES.get(task_of(name)):
        rows.append(
            {"objective": "gradient-boosted trees", "seeds": str(len(trees)), "MAE": with_interval(trees)}
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


def is_comparable(objective: str, reading: str, metric: str) -> bool:
    """Return whether a metric compares the answers of an objective: exact ones need to be whole numbers."""
    return metric != ACCURACY or (reading != "mean" and objective not in NOT_WHOLE)


def effect_cells(setting: Setting, metric: str, reading: str = "greedy", title: str = "") -> dict[str, Row]:
    """Return the cells that compare each objective of a table with cross-entropy.

    Args:
        setting: The results of the objectives.
        metric: What is compared. Exact answers are shown in percentage points.
        reading: How all of them are read.
        title: Of what, in the headings.
    """
    scale = 100 if metric == ACCURACY else 1
    known = {}
    for objective, results in setting.items():
        if objective != BASELINE and is_comparable(objective, reading, metric):
            found = effect(results, setting[BASELINE], reading, metric=metric)
            if found is not None:
                known[objective] = found
    p = holm({objective: found.p for objective, found in known.items()})
    headings = [f"{title}, {name}" if title else name for name in ("minus CE", "p", "won")]
    cells = {objective: dict.fromkeys(headings, NONE) for objective in setting}
    for objective, found in known.items():
        difference = rounded(scale * found.mean, scale * found.interval, "+")
        values = difference, f"{p[objective]:.2g}", f"{found.won} of {found.seeds}"
        cells[objective] = dict(zip(headings, values, strict=True))
    return cells


def row(objective: str, reading: str, setting: Setting, compared: Row, metric: str) -> Row:
    """Return a row of a table whose objectives are compared by a metric."""
    results, baseline = setting[objective], setting[BASELINE]
    comparable = is_comparable(objective, reading, metric)
    cells = {
        "objective": NAMES[objective],
        "reading": reading,
        "seeds": str(len(results)),
        "MAE": with_interval([result.value(reading, "mae") for result in results.values()]),
        "wrong by": "",
        "invalid": percent([result.value(reading, "invalid_rate") for result in results.values()]),
        "exact": NONE,
        **compared,
    }
    if comparable:
        cells["exact"] = percent([result.value(reading, ACCURACY) for result in results.values()])
        cells["wrong by"] = wrong_by(results.values(), reading) if metric == ACCURACY else ""
    if reading == "greedy":
        cells["CE's result at"] = steps_needed(results, baseline, metric) if comparable else NONE
        if objective not in NOT_WHOLE:  # xVal has other tokens
            cells["NLL"] = with_interval([result.metrics.get("ce") for result in results.values()])
        cells["CRPS"] = with_interval([result.metrics.get("crps") for result in results.values()])
        cells["90 % covers"] = percent([r.metrics.get("interval_coverage") for r in results.values()])
    return cells


def wrong_by(results: Iterable[Result], reading: str) -> str:
    """Return the mean absolute error of all wrong answers, and their number. A dash if some are invalid."""
    total, wrong = 0.0, 0
    for result in results:
        error, right = result.value(reading, "mae"), result.value(reading, ACCURACY)
        if error is None or right is None or result.value(reading, "invalid_rate"):
            return NONE
        total += error * result.metrics["count"]
        wrong += round((1 - right) * result.metrics["count"])
    return f"{three(total / wrong)} ({wrong})" if wrong else NONE


def steps_needed(results: Mapping[int, Result], baseline: Mapping[int, Result], metric: str) -> str:
    """Return the share of the baseline's steps after which its final validation result is reached.

    Of several seeds it is the median; of an even number, the larger one of the two in the middle.
    """
    if any(len(result.curve) == 0 or result.curve[-1]["eval_count"] < ENOUGH for result in baseline.values()):
        return NONE
    shares = []
    for seed in results.keys() & baseline.keys():
        goal = score(baseline[seed].curve[-1], metric)
        reached = [point["step"] for point in results[seed].curve if score(point, metric) >= goal]
        shares.append(reached[0] / baseline[seed].steps if reached else math.inf)
    middle = sorted(shares)[len(shares) // 2] if shares else math.inf
    return "never" if middle == math.inf else f"{100 * middle:.0f} %"


def score(point: Metrics, metric: str) -> float:
    """Return a metric of a point of a learning curve with a sign such that higher is better."""
    value = point[f"eval_{metric}"]
    if value is None:
        return -math.inf
    return value if metric == ACCURACY else -value


def text_table(name: str, setting: Setting) -> str:
    """Return the table of a setting whose answers are texts: losses on text and on numbers."""
    compared = {
        title: (metric, effect_cells(setting, metric, title=title))
        for title, metric in {"NLL of text": "ce_text", "NLL of numbers": "ce_numbers"}.items()
    }
    rows = []
    for objective, results in setting.items():
        cells = {"objective": NAMES[objective], "seeds": str(len(results))}
        for title, (metric, effects) in compared.items():
            cells[title] = with_interval([result.metrics.get(metric) for result in results.values()])
            cells |= effects[objective]
        errors = [digit_error(result.metrics, objective) for result in results.values()]
        if None not in errors:
            cells["error of a digit"] = with_interval(errors)
        rows.append(cells)
    return (
        f"## {name}\n\nPer token of 200 of the test set's solutions, teacher-forced. *Error of a digit* is "
        f"its expected absolute error, E|X − y|, which NTL-WAS minimizes.\n\n{markdown(rows)}"
    )


def digit_error(metrics: Metrics, objective: str) -> float | None:
    """Return the expected absolute error of a digit; None if the metric `ntl` is another number term."""
    error = metrics.get("ntl") if objective in (BASELINE, "ntl_was", "ntl_was_items") else None
    if error is None or objective != "ntl_was_items":
        return error
    # It is divided by all tokens; the losses imply the share of numbers among them.
    text = metrics["ce_text"]
    return error * (metrics["ce_numbers"] - text) / (metrics["ce"] - text)


def claims(settings: Mapping[str, Setting]) -> list[str]:
    """Return one line for each claim, with the settings that support it and those that contradict it."""
    lines = []
    for text, one, reading, other, other_reading, metric in CLAIMS:
        is_share, decisions, sizes = metric == ACCURACY, [], []
        for name, setting in settings.items():
            found = effect(setting.get(one, {}), setting.get(other, {}), reading, other_reading, metric)
            if found is None or (family(name) == "exact" and not is_share):
                continue
            better = found.mean if is_share else -found.mean
            decision = (better > found.interval) - (better < -found.interval)
            size = (found.mean, found.interval) if is_share else (found.share, found.share_interval)
            shown = f"{name} {100 * size[0]:+.1f} ± {100 * size[1]:.1f} {'points' if is_share else '%'}"
            decisions.append(decision)
            sizes.append(f"**{shown}**" if decision else shown)
        if decisions:
            yes, no, undecided = (decisions.count(each) for each in (1, -1, 0))
            counts = f"yes in {yes}, no in {no}, undecided in {undecided}"
            lines.append(f"{text}: {counts} ({', '.join(sizes)}).")
    return lines


def selection_tables() -> list[str]:
    """Return a table of the candidates' validation results for each family of tasks."""
    tables = []
    for task in selection_tasks():
        kind, rows = STUDY["tasks"][task]["family"], []
        for objective in STUDY["objectives"]:
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
            steps = STUDY["tasks"][task]["steps"][0]
            tables.append(f"### Family {kind}: selected on {task}, {steps} steps\n\n{markdown(rows)}")
    return tables


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
