"""The tables and figures of pages are those of the packed runs of studies/, written once more."""

import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("hydra")
from scipy import stats

from ntl.report.pages import START, fill_page
from ntl.report.runs import read_runs

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"
PAGES = [path for path in sorted(STUDIES.glob("*/results/README.md")) if START in path.read_text("utf-8")]
pytestmark = pytest.mark.skipif(not PAGES, reason="an sdist has no results")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parents[1].name)
def test_writing_the_tables_of_a_page_again_changes_nothing(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    table, left_out = read_runs([page.parent])
    text = page.read_text("utf-8")
    assert fill_page(text, table) == text
    assert not left_out


def test_tables_of_a_page_are_written_between_their_comments(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    table, _ = read_runs([PAGES[0].parent])
    written = PAGES[0].read_text("utf-8")
    emptied = re.sub(rf"({re.escape(START)}.*? -->\n).*?(<!-- end)", r"\1\2", written, flags=re.DOTALL)
    assert emptied != written
    assert fill_page(emptied, table) == written


@pytest.mark.parametrize(
    "path",
    [
        "docs/images/finding.svg",
        "studies/small_models/results/effects.svg",
        "studies/small_models/results/losses.svg",
    ],
)
def test_a_figure_of_the_pages_is_that_of_the_runs(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    figures = importlib.import_module("figures")
    figures.write(path, tmp_path / "figure.svg")
    old, new = (file.read_text("utf-8") for file in (ROOT / path, tmp_path / "figure.svg"))
    written = re.compile("<text [^>]*>(.*?)</text>")
    assert len(written.findall(new)) > 20
    assert written.findall(old) == written.findall(new)


def medians(name):
    """Errors of the median with all layers trained, stopped by validation rows, by table and seed."""
    table, _ = read_runs([STUDIES / "all_layers/results"])
    asked = (table["row"] == name) & (table["metric"] == "median_mae")
    asked &= table["test"] == "lowest error of the median"
    return table[asked].set_index(["dataset", "seed"])["value"]


@pytest.mark.parametrize("page", ["README.md", "docs/playground/index.html"])
def test_the_gain_on_the_home_pages_is_that_of_the_study_of_all_layers(page):
    ce, mine = medians("ce"), medians("hl_gauss")
    gains = [100 * (ce - mine)[table] / ce[table].mean() for table in ("sentiment", "places")]
    mean_gain = sum(gains) / 2
    half = stats.sem(mean_gain) * stats.t.ppf(0.975, len(mean_gain) - 1)
    text = re.sub(r"<.*?>|\s+", " ", (ROOT / page).read_text("utf-8"))
    assert f"{mean_gain.mean():.0f} %" in text
    assert f"{mean_gain.mean() - half:.0f} to {mean_gain.mean() + half:.0f} %" in text


def test_stopping_cross_entropy_by_crps_is_mostly_too_early_for_its_greedy_answers():
    table, _ = read_runs([STUDIES / "ten_epochs/results"])
    runs = table[(table["row"] == "ce") & table["dataset"].isin(["sentiment", "places"])]
    found = runs.pivot_table(index=["dataset", "seed"], columns=["test", "metric"], values="value")
    chosen = found["test", "chosen_step"]
    at_chosen = [found.loc[key, (f"validation, step {step:.0f}", "mae")] for key, step in chosen.items()]
    assert len(found) == 12
    assert (found["validation, step 370", "mae"] < at_chosen).sum() == 9
