"""The tables and figures of pages are those of the packed runs of studies/, written once more."""

import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("hydra")
from ntl.errors import UserError
from ntl.report.pages import END, START, fill_page
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


@pytest.mark.parametrize("name", ["idea", "seeds", "rates", "trajectories"])
def test_a_figure_of_the_pages_is_that_of_the_runs(name, tmp_path, monkeypatch):
    path = f"docs/images/{name}.svg"
    monkeypatch.syspath_prepend(ROOT / "tools")
    figures = importlib.import_module("figures")
    figures.write(path, tmp_path / "figure.svg")
    old, new = (file.read_text("utf-8") for file in (ROOT / path, tmp_path / "figure.svg"))
    written = re.compile("<text [^>]*>(.*?)</text>")
    assert len(written.findall(new)) > 10
    assert written.findall(old) == written.findall(new)


def test_writing_the_claims_of_the_page_of_evidence_again_changes_nothing(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/evidence.md").read_text("utf-8")
    assert fill_page(text, None) == text


def test_a_claim_that_the_runs_do_not_support_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    group = "- {study: studies/prices/contrasts.yaml, setting: prices, claims: [{says: a, %s}]}"
    for contrast in ("of: one_width, minus: ce", "of: ce, minus: one_width, metric: median_mae"):
        (tmp_path / "claims.yaml").write_text(group % contrast)
        with pytest.raises(UserError, match="one_width"):
            fill_page(f"{START}{{evidence: {tmp_path}/claims.yaml}} -->\n{END}", None)


def test_stopping_cross_entropy_by_crps_is_mostly_too_early_for_its_greedy_answers():
    table, _ = read_runs([STUDIES / "ten_epochs/results"])
    runs = table[(table["row"] == "ce") & table["dataset"].isin(["sentiment", "places"])]
    found = runs.pivot_table(index=["dataset", "seed"], columns=["test", "metric"], values="value")
    chosen = found["test", "chosen_step"]
    at_chosen = [found.loc[key, (f"validation, step {step:.0f}", "mae")] for key, step in chosen.items()]
    assert len(found) == 12
    assert (found["validation, step 370", "mae"] < at_chosen).sum() == 9
