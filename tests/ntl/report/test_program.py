import re

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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("contrasts: [", r"cannot be read \(while parsing a flow node .* at line 1, column 13: "),
        ("margin: ${", r"cannot be read \("),
        ("hello", "holds the str 'hello'; expected settings"),
        ("- {of: ntl_was, minus: ce}", "holds the list .*; expected settings"),
        ("", "holds nothing; expected settings"),
        ("\xff", r"cannot be read \(.*utf-8"),
    ],
)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_file_without_settings_is_an_error_of_one_line(command, text, complaint, tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)
    study = tmp_path / "study.yaml"
    study.write_text(text, encoding="latin-1")
    given = [str(tmp_path / "runs"), "--study", str(study)] if command == "report" else [str(study)]
    assert main([command, *given]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert re.match(rf"ntl {command}: {study} {complaint}", err), err


@pytest.mark.parametrize("text", ["contrasts:", "contrasts: ce", "margin:", "margin: wide"])
def test_an_empty_declaration_is_an_error_that_names_it(text, tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "study.yaml").write_text(text)
    given = ["report", str(tmp_path / "runs"), "--study", str(tmp_path / "study.yaml")]
    assert main([*given, "--output", str(tmp_path / "out")]) == 2
    assert f"ntl report: {text.partition(':')[0]}: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
