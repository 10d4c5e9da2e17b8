"""Write results/pretrained/tables.md from the study's runs: `python -m studies.pretrained.tables`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct, t, ttest_1samp

from ntl.report.formats import markdown_table
from studies.packing import StoredRun
from studies.pretrained.run import READINGS, RUNS, STUDY, UNTRAINED, Run, selected, selected_layers, selection
from studies.small_models.effects import holm

NAMES = {
    "ce": "CE", "crps": "CE + CRPS", "ntl_was": "CE + NTL-WAS", "raft": "RAFT", "head": "regression head",
    "ntl_was_items": "NTL-WAS, by items", "ntl_was_numbers": "NTL-WAS, by numbers",
    "ntl_was_decay": "NTL-WAS, by items, λ falls to 0", "crps_items": "CRPS, by items",
    "crps_numbers": "CRPS, by numbers",
    "ce_lora": "CE, LoRA", "ntl_was_lora": "CE + NTL-WAS, LoRA",
    "zero_shot": "untouched", "few_shot": "untouched, 8 examples in the prompt", "ridge": "TF-IDF + ridge",
    "trees": "gradient-boosted trees",
    "constant": "training median",
}  # fmt: skip
Reader = tuple[str, str]  # arm and reading
MEASURES = {
    "loss on text": "text_loss",
    "loss on numbers": "number_loss",
    "error of a digit": "digit_error",
    "share of right digits": "digit_accuracy",
}


class Difference(NamedTuple):
    """A paired difference over seeds, in the units of the answers.

    Args:
        mean: Mean difference.
        base: Mean of what is subtracted.
        half_95, half_90: Half-widths of the confidence intervals.
        p: Of the paired t-test, not corrected.
        won: Seeds in which the difference is negative, which is better.
        seeds: Number of pairs.
    """

    mean: float
    base: float
    half_95: float
    half_90: float
    p: float
    won: int
    seeds: int

    def percents(self) -> str:
        """Write it in per cent of what is subtracted, with the 95 % interval."""
        return f"{100 * self.mean / self.base:+.1f} ± {100 * self.half_95 / self.base:.1f} %"

    def verdict(self, p: float) -> str:
        """Say what follows from a corrected p-value and from the bounds of equivalence."""
        share = STUDY["equivalence"]
        if p < 0.05:
            return "less error" if self.mean < 0 else "more error"
        if abs(self.mean) + self.half_90 <= share * self.base:
            return f"no effect (within ± {100 * share:.0f} %)"
        return f"undecided ± {100 * self.half_95 / self.base:.1f} %"


def load(task: str, rows: int) -> dict[str, dict[int, StoredRun]]:
    """Load the finished runs of a setting, by arm and seed."""
    found: dict[str, dict[int, StoredRun]] = {}
    for name, run in RUNS.all().items():
        record = run["record"]
        if "/selection/" not in name and (record["task"], record["rows"]) == (task, rows):
            found.setdefault(record["arm"], {})[record["seed"]] = run
    return {arm: dict(sorted(found[arm].items())) for arm in STUDY["arms"] if arm in found}


def difference(
    runs: Mapping[str, Mapping[int, StoredRun]], of: Reader, minus: Reader, seeds: int | None = None
) -> Difference | None:
    """Compare two readings of the mean absolute error, by seed; None for fewer than two pairs."""
    mine, theirs = (
        {seed: run["metrics"][f"{reading}_mae"] for seed, run in runs.get(arm, {}).items()}
        for arm, reading in (of, minus)
    )
    return paired(mine, theirs, seeds)


def paired(
    mine: Mapping[int, float], theirs: Mapping[int, float], seeds: int | None = None
) -> Difference | None:
    """Compare two measures, by seed; None for fewer than two pairs."""
    shared = sorted({*mine} & {*theirs})[:seeds]
    if len(shared) < 2:
        return None
    base = [theirs[seed] for seed in shared]
    values = np.array([mine[seed] for seed in shared]) - base
    error = float(values.std(ddof=1)) / sqrt(len(shared))
    half_95, half_90 = (float(t.ppf(level, len(shared) - 1)) * error for level in (0.975, 0.95))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences, for which p is near 0
        p = float(ttest_1samp(values, 0).pvalue) if values.any() else 1.0
    won = int((values < 0).sum())
    return Difference(float(values.mean()), mean(base), half_95, half_90, p, won, len(shared))


def smallest_visible(found: Difference, planned: int, power: float = 0.8) -> float:
    """Return the difference that a paired t-test finds with the given power, by the spread of `found`."""
    deviation = found.half_95 / float(t.ppf(0.975, found.seeds - 1)) * sqrt(found.seeds)
    limit = float(t.ppf(0.975, planned - 1))
    missing: Callable[[float], float] = lambda shift: 1 - nct.cdf(limit, planned - 1, shift) - power  # noqa: E731
    return float(brentq(missing, 0.0, 20.0)) * deviation / sqrt(planned)


def spread(values: Sequence[float], factor: float = 1.0, digits: int = 2) -> str:
    """Write a mean with its 95 % interval over seeds."""
    if not values:
        return ""
    text = f"{factor * mean(values):.{digits}f}"
    if len(values) < 2:
        return text
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return f"{text} ± {factor * half:.{digits}f}"


def table(cells: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a table of rows by heading."""
    if cells:
        yield markdown_table({("", key): [row[key] for row in cells] for key in cells[0]})


def setting_lines(task: str, rows: int) -> Iterator[str]:
    """Yield the table of a setting: errors of each reading, and scores of intervals and distributions."""
    runs = load(task, rows)
    if not runs:
        return
    yield from ("", f"### {task}, {rows} training rows", "")
    cells = []
    for arm, by_seed in runs.items():
        metrics = [run["metrics"] for run in by_seed.values()]
        line: dict[str, str] = {"": NAMES[arm], "seeds": str(len(metrics))}
        line |= {
            reading: spread([m[f"{reading}_mae"] for m in metrics if f"{reading}_mae" in m])
            for reading in READINGS
        }
        line["90 % covers"] = spread([m["coverage"] for m in metrics if "coverage" in m], 100, 1)
        line["width"] = spread([m["width"] for m in metrics if "width" in m], digits=1)
        line["CRPS"] = spread([m["crps"] for m in metrics if "crps" in m])
        if any("rater_crps" in run["metrics"] for found in runs.values() for run in found.values()):
            line["CRPS, raters"] = spread([m["rater_crps"] for m in metrics if "rater_crps" in m])
        cells.append(line)
    yield from table(cells)


def text_lines(name: str) -> Iterator[str]:
    """Yield the tables of a text: the measures of each arm, and their differences to cross-entropy's."""
    runs = load(name, STUDY["texts"][name]["rows"])
    if not runs:
        return
    measures = {arm: {seed: run["metrics"] for seed, run in found.items()} for arm, found in runs.items()}
    for arm in {*UNTRAINED} & {*measures}:  # all seeds are the same
        measures[arm] = {0: measures[arm][0]}
    cells, compared = [], []
    for arm, by_seed in measures.items():
        line = {"": NAMES[arm], "seeds": str(len(by_seed))}
        cells.append(
            line
            | {title: spread([m[key] for m in by_seed.values()], digits=4) for title, key in MEASURES.items()}
        )
    for title, key in MEASURES.items():
        columns = {arm: {seed: m[key] for seed, m in by_seed.items()} for arm, by_seed in measures.items()}
        arms = [arm for arm in columns if "weight" in STUDY["arms"][arm]]
        found = {arm: one for arm in arms if (one := paired(columns[arm], columns["ce"]))}
        corrected = holm({arm: one.p for arm, one in found.items()})
        for arm, one in found.items():
            compared.append(
                {
                    "measure": title,
                    "arm": NAMES[arm],
                    "difference": f"{one.mean:+.4f} ± {one.half_95:.4f}",
                    "per cent": one.percents(),
                    "seeds lower": f"{one.won} of {one.seeds}",
                    "p, Holm": f"{corrected[arm]:.2g}",
                    "visible": f"{smallest_visible(one, one.seeds):.4f}",
                }
            )
    yield from ("", f"## {name.capitalize()}", "")
    yield "Losses in nats per token on 100 test solutions; *error of a digit* is its expected absolute error,"
    yield "*right* is the likeliest token. λ is 0.3."
    yield ""
    yield from table(cells)
    yield from (
        "",
        "Minus cross-entropy, by seed. *Visible*: the difference that as many seeds find with a power",
    )
    yield from ("of 80 %.", "")
    yield from table(compared)


def contrast_lines() -> Iterator[str]:
    """Yield the table of the declared contrasts, corrected in each group."""
    cells = []
    for group, contrasts in STUDY["contrasts"].items():
        found = {}
        for each in contrasts:
            task, rows, first = each["task"], each.get("rows", STUDY["common"]), each.get("first_seed", 0)
            runs = {
                arm: {seed: run for seed, run in by_seed.items() if seed >= first}
                for arm, by_seed in load(task, rows).items()
            }
            if one := difference(runs, tuple(each["of"]), tuple(each["minus"])):
                name = " minus ".join(
                    f"{NAMES[arm]}, {reading}" for arm, reading in (each["of"], each["minus"])
                )
                four = difference(runs, tuple(each["of"]), tuple(each["minus"]), 4)
                setting = task if rows == STUDY["common"] else f"{task}, {rows} rows"
                found[f"{setting}: {name}"] = (one, four)
        corrected = holm({name: one.p for name, (one, _) in found.items()})
        for name, (one, four) in found.items():
            visible = f"{100 * smallest_visible(four, one.seeds) / one.base:.1f} %" if four else ""
            cells.append(
                {
                    "group": group,
                    "contrast": name,
                    "difference": one.percents(),
                    "seeds better": f"{one.won} of {one.seeds}",
                    "p, Holm": f"{corrected[name]:.2g}",
                    "verdict": one.verdict(corrected[name]),
                    "visible": visible,
                }
            )
    yield from table(cells)


def exploratory_lines() -> Iterator[str]:
    """Yield every arm's and reading's difference to cross-entropy's median."""
    cells = []
    for task in STUDY["tasks"]:
        for rows in STUDY["rows"]:
            runs = load(task, rows)
            for arm in runs:
                line = {"setting": f"{task}, {rows}", "": NAMES[arm]}
                for reading in READINGS:
                    known = all(f"{reading}_mae" in run["metrics"] for run in runs[arm].values())
                    found = difference(runs, (arm, reading), ("ce", "median")) if known else None
                    line[reading] = found.percents() if found and (arm, reading) != ("ce", "median") else ""
                if any(line[reading] for reading in READINGS):
                    cells.append(line)
    yield from table(cells)


def selection_lines() -> Iterator[str]:
    """Yield the validation errors of the selection's candidates."""
    options = STUDY["selection"]
    cells = []
    for task in STUDY["tasks"]:
        made = load(task, STUDY["common"])
        tuned = [arm for part in STUDY["parts"] if part.get("selection") == task for arm in part["arms"]]
        arms = [arm for arm in tuned if arm in made]
        if not arms:
            continue
        chosen = selected_layers()
        tried = [
            runs
            for layers in (options["layers"]["candidates"] if task == options["layers"]["task"] else [chosen])
            for runs in selection(task, "ce", layers)
        ]
        rate = selected(task, "ce", chosen).rate
        tried += [runs for arm in arms if arm != "ce" for runs in selection(task, arm, chosen, rate)]
        for runs in tried:
            first: Run = runs[0]
            reading = STUDY["arms"][first.arm]["reading"]
            best = selected(task, first.arm, chosen, rate) == first
            errors = [RUNS.get(run.name)["metrics"][f"{reading}_mae"] for run in runs]  # type: ignore[index]
            cells.append(
                {
                    "task": task,
                    "arm": NAMES[first.arm],
                    "layers": str(first.layers),
                    "rate": f"{first.rate:g}",
                    "λ": "" if first.weight is None else f"{first.weight:g}",
                    "reading": reading,
                    "validation errors": ", ".join(f"{error:.2f}" for error in errors),
                    "mean": f"{mean(errors):.2f}",
                    "": "selected" if best else "",
                }
            )
    yield from table(cells)


def lines() -> Iterator[str]:
    """Yield the page of tables."""
    yield from ("# The study on a pretrained model: tables", "")
    yield "Mean absolute errors on 500 test rows. ± is the half-width of a 95 % confidence interval over"
    yield "seeds, which redraw the training rows; all share the test set. A regression head's interval has a"
    yield "margin of split conformal prediction. `python -m studies.pretrained.tables` writes this page."
    yield from ("", "## Declared contrasts", "")
    yield "In per cent of what is subtracted; negative is better. *Visible*: the difference that this number"
    yield "of seeds finds with a power of 80 %, by the spread of the first four. Those on diamonds were"
    yield "declared after its seeds 0 to 4, for new ones; those on housing with 3,000 rows after the others,"
    yield "with seeds that share these rows and differ in their order."
    yield ""
    yield from contrast_lines()
    yield from ("", "## Settings")
    for task in STUDY["tasks"]:
        for rows in STUDY["rows"]:
            yield from setting_lines(task, rows)
    for name in STUDY["texts"]:
        yield from text_lines(name)
    yield from ("", "## Exploratory: each reading minus cross-entropy's median", "", "Not corrected.", "")
    yield from exploratory_lines()
    yield from ("", "## The selection, on validation data", "")
    yield from selection_lines()


def main() -> None:
    """Write the tables."""
    target = RUNS.pack.with_name("tables.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
