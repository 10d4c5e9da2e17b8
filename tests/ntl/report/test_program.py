import pytest
from report_cases import make_run, report, rows_of

from ntl.cli import main

pytestmark = pytest.mark.usefixtures("quick_figures")


def test_a_report_replaces_an_earlier_one_and_leaves_other_files(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("kept")
    assert report(tmp_path) == 0
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    assert report(tmp_path) == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == 0.75
    assert (tmp_path / "out/mine.txt").read_text() == "kept"


def test_an_output_that_cannot_be_written_is_an_error(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "runs"), "--study", str(tmp_path / "absent.yaml")]) == 2
