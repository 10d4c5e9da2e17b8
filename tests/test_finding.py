"""The figure of the home page, and its title."""

import matplotlib as mpl
import pytest

pytest.importorskip("transformers")
from studies import finding
from studies.pretrained.run import RUNS
from studies.pretrained.tables import Difference


def found(median):
    """Differences of all tasks, each with an interval of ± 0.1."""
    return {finding.MEDIAN: {task: Difference(median, 10.0, 0.1, 0.08, 0.01, 3, 3) for task in finding.TASKS}}


def test_the_title_is_refused_where_the_results_do_not_carry_it():
    assert "10 to 10 %" in finding.title_of(found(-1.0))
    with pytest.raises(SystemExit, match="change the title"):
        finding.title_of(found(-0.05))


def test_the_committed_figure_is_that_of_the_packed_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(RUNS, "folder", tmp_path)
    monkeypatch.setattr(finding, "ROOT", tmp_path)
    kept = finding.PATH.read_text(encoding="utf-8")
    monkeypatch.setattr(finding, "PATH", tmp_path / "finding.svg")
    with mpl.rc_context():
        finding.main()
    texts = [line for line in kept.splitlines() if "<text" in line]
    new = [line for line in (tmp_path / "finding.svg").read_text("utf-8").splitlines() if "<text" in line]
    assert len(texts) > 8
    assert [line.partition(">")[2] for line in texts] == [line.partition(">")[2] for line in new]
