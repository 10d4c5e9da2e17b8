"""The published tables of results/ are those of the runs beside them, read and computed here once more."""

import importlib
import json
import lzma
import re
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import pytest

stats = pytest.importorskip("scipy.stats")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
READINGS = ("greedy", "median", "mean")
PRETRAINED = {
    "CE": "ce",
    "CE + CRPS": "crps",
    "CE + NTL-WAS": "ntl_was",
    "RAFT": "raft",
    "regression head": "head",
    "CE, LoRA": "ce_lora",
    "CE + NTL-WAS, LoRA": "ntl_was_lora",
    "untouched": "zero_shot",
    "untouched, 8 examples in the prompt": "few_shot",
    "TF-IDF + ridge": "ridge",
    "gradient-boosted trees": "trees",
    "training median": "constant",
}
SMALL = {
    "CE": "ce",
    "CE + NTL-WAS": "ntl_was",
    "CE + NTL-MSE": "ntl_mse",
    "CE + CRPS": "crps",
    "CE + DIST2": "dist2",
    "regression head": "regression_head",
    "xVal": "xval",
    "Gaussian smoothing": "gaussian",
    "RAFT": "raft",
}
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")


def runs_of(study):
    """Metrics of the reported runs, by setting, arm and seed."""
    found = {}
    with lzma.open(RESULTS / study / "runs.jsonl.xz", "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            setting, arm, *seed = run["run"].split("/")
            if arm != "selection":
                metrics = run["metrics"].get("test", run["metrics"])
                found.setdefault(setting, {}).setdefault(arm, {})[int(seed[0].removeprefix("seed"))] = metrics
    return found


def tables_of(study):
    """Rows of the first table below each heading."""
    found = {}
    for section in re.split(r"^##+ ", (RESULTS / study / "tables.md").read_text("utf-8"), flags=re.MULTILINE):
        lines = [line for line in section.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        head = cells[0] if cells else []
        rows = [dict(zip(head, row, strict=True)) for row in cells[2:] if len(row) == len(head)]
        found[section.splitlines()[0]] = rows
    return found


def assert_cell(cell, values, factor=1.0):
    """Compare a cell, such as `8.60 ± 0.14`, with the mean and the 95 % interval of values."""
    values = [factor * value for value in values if value is not None]
    shown = re.findall(r"[-+]?\d[\d.]*", cell)
    half = (
        [stats.t.ppf(0.975, len(values) - 1) * stdev(values) / sqrt(len(values))] if len(values) > 1 else []
    )
    assert len(shown) == 1 + len(half), cell
    for text, value in zip(shown, [mean(values), *half], strict=True):
        digits = len(text.partition(".")[2])
        assert abs(float(text) - value) <= 0.5001 * 10**-digits, (cell, value)


def differences(mine, theirs, key, other, seeds=()):
    """Differences by seed, of the seeds that both have, and the mean of what is subtracted."""
    shared = [seed for seed in sorted({*mine} & {*theirs}) if not seeds or seed in seeds]
    pairs = [(mine[seed][key], theirs[seed][other]) for seed in shared]
    return [a - b for a, b in pairs], mean(b for _, b in pairs)


def holm(p):
    order, found = sorted(p), []
    for place, value in enumerate(order):
        found.append(max([*found[-1:], min(1.0, (len(order) - place) * value)]))
    return dict(zip(order, found, strict=True))


def test_tables_of_the_pretrained_study_are_those_of_its_runs():
    runs, tables = runs_of("pretrained"), tables_of("pretrained")
    checked = 0
    for heading, rows in tables.items():
        if not (named := re.fullmatch(r"(\w+), (\d+) training rows", heading)):
            continue
        for row in rows:
            metrics = list(runs["-".join(named.groups())][PRETRAINED[row[""]]].values())
            assert int(row["seeds"]) == len(metrics)
            scores = {"90 % covers": ("coverage", 100), "width": ("width", 1), "CRPS": ("crps", 1)}
            for title, (key, factor) in {**{r: (f"{r}_mae", 1) for r in READINGS}, **scores}.items():
                if row[title]:
                    assert_cell(row[title], [m[key] for m in metrics if key in m], factor)
                    checked += 1
    assert checked > 200


def test_planned_contrasts_of_the_pretrained_study_are_those_of_its_runs():
    runs, groups = runs_of("pretrained"), {}
    for row in tables_of("pretrained")["Planned contrasts"]:
        setting, _, contrast = row["contrast"].partition(": ")
        task, rows = re.fullmatch(r"(\w+)(?:, (\d+) rows)?", setting).groups()
        terms = [term.rpartition(", ") for term in contrast.split(" minus ")]
        (mine, _, reading), (theirs, _, other) = terms
        arms = runs[f"{task}-{rows or 600}"]
        seeds = range(5, 12) if row["group"] == "diamonds" else ()
        values, base = differences(
            arms[PRETRAINED[mine]], arms[PRETRAINED[theirs]], f"{reading}_mae", f"{other}_mae", seeds
        )
        assert_cell(row["difference"].removesuffix(" %"), values, 100 / base)
        assert row["seeds better"] == f"{sum(value < 0 for value in values)} of {len(values)}"
        groups.setdefault(row["group"], []).append((row, stats.ttest_1samp(values, 0).pvalue))
    for rows in groups.values():
        corrected = holm([p for _, p in rows])
        assert [row["p, Holm"] for row, _ in rows] == [f"{corrected[p]:.2g}" for _, p in rows]
    assert {*groups} == {"losses", "readings", "diamonds", "housing", "more_housing"}


@pytest.mark.parametrize(
    "path", ["docs/images/finding.svg", "results/small_models/effects.svg", "results/small_models/losses.svg"]
)
def test_a_figure_of_the_pages_is_that_of_the_runs(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    figures = importlib.import_module("figures")
    figures.write(path, tmp_path / "figure.svg")
    old, new = (file.read_text("utf-8") for file in (ROOT / path, tmp_path / "figure.svg"))
    written = re.compile("<text [^>]*>(.*?)</text>")
    assert len(written.findall(new)) > 20
    assert written.findall(old) == written.findall(new)


@pytest.mark.parametrize("page", ["README.md", "docs/playground/index.html"])
def test_the_gain_on_the_home_pages_is_that_of_the_study_of_ten_epochs(page):
    metrics, _ = ten_epochs()
    gains = []
    for table in ("sentiment", "places"):
        ce, mine = (metrics.loc[table, name]["median_mae"] for name in ("ce", "hl_gauss"))
        gains.append(100 * (ce - mine) / ce.mean())
    mean_gain = sum(gains) / 2
    half = stats.sem(mean_gain) * stats.t.ppf(0.975, len(mean_gain) - 1)
    text = re.sub(r"<.*?>|\s+", " ", (ROOT / page).read_text("utf-8"))
    assert f"{mean_gain.mean():.0f} %" in text
    assert f"{mean_gain.mean() - half:.0f} to {mean_gain.mean() + half:.0f} %" in text


def test_tables_of_the_study_on_small_models_are_those_of_its_runs():
    runs, tables = runs_of("small_models"), tables_of("small_models")
    checked = 0
    for setting, arms in runs.items():
        if setting.startswith(("exact", "gsm8k")):  # other columns
            continue
        for row in tables[setting]:
            arm, reading = arms.get(SMALL.get(row["objective"])), row["reading"]
            if arm is None:
                continue
            key = "mae" if reading == "greedy" else f"{reading}_mae"
            assert int(row["seeds"]) == len(arm)
            assert_cell(row["MAE"], [m.get(key) for m in arm.values()])
            if row["minus CE"] != "–":
                assert_cell(row["minus CE"], differences(arm, arms["ce"], key, key)[0])
            checked += 1
    assert checked > 200


WHOLE_NUMBERS = ["sentiment", "places", "diamonds", "bikes"]
WHOLE_NUMBERS += [f"{table}, 240 steps" for table in ("sentiment", "diamonds", "bikes")]
WHOLE_NUMBERS += [f"{t}, 100 rows{more}" for more in ("", ", 240 steps") for t in ("sentiment", "diamonds")]


def whole_numbers():
    """Metrics of the runs on whole numbers, a row for each table, objective and seed."""
    pd = pytest.importorskip("pandas")
    metrics = pd.read_csv(RESULTS / "whole_numbers" / "metrics.csv.xz")
    return metrics.pivot_table(index=["dataset", "objective", "seed"], columns="metric", values="value")


def whole_number_tables():
    """The cells of each table of the study on whole numbers, without its heading."""
    text = (RESULTS / "whole_numbers" / "README.md").read_text("utf-8")
    rows = [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", text, re.M)]
    starts = [i for i, row in enumerate(rows) if row[0] == "table"]
    return [rows[start + 2 : end] for start, end in zip(starts, [*starts[1:], starts[-1] + 6], strict=True)]


def assert_measured(cell, runs, keys=("median_mae", "mae", "crps")):
    """Compare a cell, such as `7.99; 8.79; 5.71; 92 %`, with means of runs."""
    values = [runs[key].mean() for key in keys]
    values += [100 * runs["interval_coverage"].mean()] if len(keys) > 1 else []
    shown = [float(x) for x in cell.removesuffix(" %").split(";")]
    for i, (x, y) in enumerate(zip(shown, values, strict=True)):
        assert abs(x - y) <= (0.51 if i == 3 else 0.0051), cell


def assert_share(cell, values):
    """Compare a cell, such as `5.0 ± 3.9`, with the mean and the 95 % interval of values."""
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    shown = cell.replace("−", "-").split(" ± ")
    assert all(abs(float(x) - y) <= 0.051 for x, y in zip(shown, (mean(values), half), strict=True)), cell


def test_tables_of_the_study_on_whole_numbers_are_those_of_its_runs():
    metrics, keys = whole_numbers(), ("median_mae", "mae", "crps")
    ce, mine, was, head = names = [
        "smollm2", "smollm2 + HL-Gauss", "smollm2 + NTL-WAS", "smollm2 regression head"
    ]  # fmt: skip
    measured, contrasts, _ = whole_number_tables()
    found = []
    for table, (_, seeds, *cells, others, constant) in zip(WHOLE_NUMBERS, measured, strict=True):
        of = {name: metrics.loc[table, name] for name in names if name in metrics.loc[table].index}
        assert int(seeds) == len(of[ce])
        assert float(constant) == round(of[ce]["constant_mae"].mean(), 2)
        for name, cell in zip(names, cells, strict=True):
            assert (cell != "–") == (name in of)
            if name in of:
                assert_measured(cell, of[name], ("mae",) if name == head else keys)
        for other in others.split("; ") if others != "–" else []:
            name, _, error = other.partition(" ")
            errors = metrics.loc[table.partition(",")[0], name]["mae"]  # the same rows, whatever the steps
            assert float(error) == round(errors[of[ce].index].mean(), 2)
        pairs = [(of[mine][key], of[ce][key]) for key in keys]
        pairs.append((of[mine]["median_mae"], of[was]["median_mae"]) if was in of else None)
        pairs.append((of[mine]["median_mae"], of[head]["mae"]) if head in of else None)
        found.append([pair and 100 * (pair[0] - pair[1]).dropna() / pair[1].mean() for pair in pairs])
    found.insert(4, [sum(row[i] for row in found[:4]) / 4 for i in range(5)])  # over the seeds
    for row, shares in zip(contrasts, found, strict=True):
        for cell, values in zip(row[1:], shares, strict=True):
            assert (cell == "–") == (values is None)
            if values is not None:
                assert_share(cell, values)


def test_widths_and_single_digits_of_the_study_on_whole_numbers_are_those_of_its_runs():
    metrics = whole_numbers()
    rule, *others = names = [
        "smollm2 + HL-Gauss", "smollm2 + HL-Gauss, fixed", "smollm2 + Gaussian on digits"
    ]  # fmt: skip
    for table, (_, seeds, *cells) in zip(WHOLE_NUMBERS[:4], whole_number_tables()[2], strict=True):
        shared = metrics.loc[table, others[0]].index
        of = {name: metrics.loc[table, name].loc[shared] for name in names}
        assert int(seeds) == len(shared)
        for name, cell in zip(names, cells, strict=False):
            assert_measured(cell, of[name])
        for name, cell in zip(others, cells[3:], strict=True):
            one, other = of[rule]["median_mae"], of[name]["median_mae"]
            assert_share(cell, 100 * (one - other) / other.mean())


TEN_EPOCHS = {
    "cross-entropy": "ce",
    "HL-Gauss": "hl_gauss",
    "label smoothing": "label_smoothing",
    "Gaussian on single digits": "digits",
    "NTL-WAS": "ntl_was",
    "jittered labels": "jittered",
    "HL-Gauss, fixed width": "fixed_width",
    "regression head": "head",
    "constant": "constant",
    "TF-IDF + ridge": "ridge",
    "MiniLM, frozen, + SVR": "minilm",
    "mpnet, frozen, + SVR": "mpnet",
    "MiniLM, fine-tuned": "encoder",
}


def ten_epochs():
    """Metrics of the study of ten epochs by table, model and seed, and the rows of its page's tables."""
    pd = pytest.importorskip("pandas")
    metrics = pd.read_csv(RESULTS / "ten_epochs" / "metrics.csv.xz")
    text = (RESULTS / "ten_epochs" / "README.md").read_text("utf-8")
    rows = [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", text, re.M)]
    index = ["dataset", "objective", "seed"]
    return metrics.pivot_table(index=index, columns="metric", values="value"), rows


def split_tables(rows):
    """Split the rows of a page's tables at their headings, which are followed by rules."""
    starts = [i - 1 for i, row in enumerate(rows) if set(row[0]) == {"-"}]
    return [(rows[i], rows[i + 2 : end]) for i, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def test_the_errors_of_the_study_of_ten_epochs_are_those_of_its_runs():
    metrics, rows = ten_epochs()
    tables, shown = split_tables(rows)[:-1], {}
    others = {"greedy": "mae", "CRPS": "crps", "inside 90 %": "interval_coverage"}
    others["stopped after"] = "chosen_step"
    for (dataset, *heads), rows in tables:
        prefix = "step370_" if dataset in shown else ""
        shown.setdefault(dataset, [])
        for name, *cells in rows:
            own = metrics.dropna(subset=f"{prefix}mae").loc[dataset, TEN_EPOCHS[name]]
            errors = own[f"{prefix}median_mae"].fillna(own[f"{prefix}mae"])
            expected = {**{str(seed): error for seed, error in errors.items()}, "mean": errors.mean()}
            if own[f"{prefix}crps"].notna().all():
                measured = own[[f"{prefix}{metric}" for metric in (*others.values(),)[: 3 if prefix else 4]]]
                expected |= dict(zip(others, measured.mean(), strict=False))
            found = {head: cell for head, cell in zip(heads, cells, strict=True) if cell}
            assert found.keys() == expected.keys()
            for head, cell in found.items():
                value = expected[head] * (100 if cell.endswith(" %") else 1)
                text = cell.removesuffix(" %")
                assert abs(float(text) - value) <= 0.5001 * 10 ** -len(text.partition(".")[2])
            shown[dataset].append(name)
    for dataset, names in shown.items():
        assert {TEN_EPOCHS[name] for name in names} == {*metrics.loc[dataset].index.unique(0)}


def test_stopping_cross_entropy_by_crps_is_mostly_too_early_for_its_greedy_answers():
    metrics, _ = ten_epochs()
    runs = metrics.xs("ce", level="objective").loc[["sentiment", "places"]]
    chosen = [run[f"step{run['chosen_step']:.0f}_mae"] for _, run in runs.iterrows()]
    assert len(runs) == 12
    assert (runs["step370_mae"] < chosen).sum() == 9


def test_the_contrasts_of_the_study_of_ten_epochs_are_those_of_its_runs():
    metrics, rows = ten_epochs()
    tests = []
    _, rows = split_tables(rows)[-1]
    for table, contrast, seeds, difference, p, corrected in rows:
        sides, _, metric = contrast.partition(": ")
        pair = []
        for side in sides.split(" minus "):
            name, _, reading = side.rpartition(" ") if side.endswith(" median") else (side, "", "")
            pair.append(
                metrics.loc[table, TEN_EPOCHS[name]][f"{reading}_mae" if reading else metric or "mae"]
            )
        differences = (pair[0] - pair[1]).dropna()
        assert len(differences) == int(seeds)
        points = metric == "interval_coverage"
        scale = 100 if points else 100 / pair[1][differences.index].mean()
        assert_share(difference.removesuffix(" points" if points else " %"), scale * differences)
        tests.append((p, corrected, stats.ttest_1samp(differences, 0).pvalue))
    known = holm([value for *_, value in tests])
    assert [(p, corrected) for p, corrected, _ in tests] == [
        (f"{value:.2g}", f"{known[value]:.2g}") for *_, value in tests
    ]
