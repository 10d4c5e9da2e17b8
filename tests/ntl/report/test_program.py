import pytest
from report_cases import make_run, report, rows_of

from ntl.errors import UserError
from ntl.report.program import main

pytestmark = pytest.mark.usefixtures("no_figures")


def test_a_report_replaces_an_earlier_one_if_it_has_runs_and_leaves_other_files(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("kept")
    assert report(tmp_path) == 0
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    assert report(tmp_path) == 0
    before = rows_of(tmp_path)
    assert before[0]["interpolate accuracy"] == 0.75
    assert (tmp_path / "out/mine.txt").read_text() == "kept"
    with pytest.raises(UserError, match="mistyped"):
        main([str(tmp_path / "mistyped"), "--output", str(tmp_path / "out")])
    assert rows_of(tmp_path) == before


def test_a_study_declares_contrasts_and_a_margin(tmp_path):
    for name in ("ce", "ntl_was"):
        for seed in (0, 1):
            make_run(tmp_path / f"runs/{name}{seed}", name, seed, metrics={"mae": 4.0 + seed})
    (tmp_path / "study.yaml").write_text(
        "defaults: [/compare]\nmargin: 2\ncontrasts: [{of: ntl_was, minus: ce}]"
    )
    assert report(tmp_path, "--study", tmp_path / "study.yaml") == 0
    assert "no effect within ± 2 %" in (tmp_path / "out/contrasts.csv").read_text()


@pytest.mark.parametrize(
    "text", [None, "contrasts: [", "hello", "\xff", "contrasts:", "margin: wide", "contrast: []"]
)
def test_a_study_that_cannot_be_used_is_an_error_before_anything_is_written(text, tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    if text is not None:
        (tmp_path / "study.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(UserError):
        report(tmp_path, "--study", tmp_path / "study.yaml")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{columns: [mae]}", "study"),
        ("{sudy: a}", "study"),
        ("{study: study.yaml, columns: [accuracy], datasets: [arithmetics]}", "arithmetic"),
        ("{study: study.yaml, columns: [accuracy], test: test}", "interpolate"),
        ("{study: mistyped_names.yaml, columns: [accuracy], test: interpolate}", "RT"),
        ("{study: study.yaml, columns: [accuracy], test: interpolate}", "several"),  # runs of two weights
        ("{study: study.yaml, contrasts: true}", "T6"),
    ],
)
def test_a_block_of_a_page_that_cannot_be_written_is_an_error_and_the_page_stays(
    given, named, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text("{names: {T5: ours}, contrasts: [{of: T6, minus: RT}]}")
    (tmp_path / "mistyped_names.yaml").write_text("names: {T6: ours}")
    make_run(tmp_path / "runs/RT", "RT", 0)
    for weight in (0.3, 0.8):
        make_run(tmp_path / f"runs/{weight}", "T5", 0, settings={"loss": {"weight": weight}})
    page = tmp_path / "page.md"
    page.write_text(text := f"<!-- report: {given} -->\nold\n<!-- end of report -->\n")
    with pytest.raises(UserError, match=named):
        main([str(tmp_path / "runs"), "--into", str(page)])
    assert page.read_text() == text


def test_a_name_of_a_study_without_runs_is_told_and_the_others_are_written(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, test="test")
    study, page = tmp_path / "study.yaml", tmp_path / "page.md"
    study.write_text("{names: {T5: ours, T6: theirs}}")
    page.write_text(f"<!-- report: {{study: {study}, columns: [accuracy]}} -->\n<!-- end of report -->\n")
    assert main([str(tmp_path / "runs"), "--into", str(page)]) == 0
    assert "T6" in capsys.readouterr().err
    assert "| ours |" in page.read_text()
    for unused in (["--study", str(study)], ["--output", str(tmp_path / "out")]):
        with pytest.raises(UserError, match=unused[0]):
            main([str(tmp_path / "runs"), "--into", str(page), *unused])
