from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from report_cases import make_run, report, rows_of

from ntl.cli import main

pytestmark = pytest.mark.usefixtures("quick_figures")


def test_a_failed_report_leaves_nothing_behind_and_can_be_repeated(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)

    def fail(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.figures.draw_dataset", fail)
        assert report(tmp_path) == 130
        assert not (tmp_path / "out").exists()
    assert report(tmp_path) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.figures.draw_dataset", fail)
        assert report(tmp_path, "--overwrite") == 130
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_full_disk_while_drawing_leaves_no_report(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("matplotlib.figure.Figure.savefig", full)
        assert report(tmp_path) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert report(tmp_path) == 0


def test_an_error_of_the_disk_without_a_number_is_quoted(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise OSError("image file is truncated")

    make_run(tmp_path / "runs/a", "T5", 0)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert report(tmp_path) == 2
    assert "cannot be written (image file is truncated)" in capsys.readouterr().err


def test_a_killed_report_does_not_block_the_next_one(tmp_path, monkeypatch):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "out/.unfinished-abc").mkdir(parents=True)  # killed while drawing
    assert report(tmp_path) == 0
    replace_file = os.replace

    def replace_one(source, target):  # killed while moving
        if Path(target).name == "table.csv":
            raise KeyboardInterrupt
        replace_file(source, target)

    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.program.os.replace", replace_one)
        assert report(tmp_path, "--overwrite") == 130
    assert report(tmp_path, "--overwrite") == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == "0.75"


def test_a_report_is_replaced_only_on_request_and_completely(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, dataset="gsm8k")
    assert report(tmp_path) == 0
    before = (tmp_path / "out/table.md").read_text()
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    assert report(tmp_path) == 2
    assert "holds a report" in capsys.readouterr().err
    assert (tmp_path / "out/table.md").read_text() == before
    (tmp_path / "out/mine.txt").write_text("kept")
    assert report(tmp_path, "--overwrite") == 0
    assert "Replaced" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert "mine.txt" in written
    assert not any(name.startswith("gsm8k") for name in written)
    assert set(json.loads((tmp_path / "out/report.json").read_text())["files"]) < written


def test_a_folder_with_other_files_is_never_written_to(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "runs"), "--overwrite"]) == 2
    assert "holds files that are not a report" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
