"""The figure of the home page: it says what the study's results say."""

from __future__ import annotations

import pytest

from studies import finding
from studies.small_models.effects import Effect


def effects(*shares: float) -> list[Effect]:
    return [Effect(0.0, 0.0, share, 0.05, 0.5, 0, 5) for share in shares]


def test_only_intervals_without_zero_count() -> None:
    found = effects(-0.1, -0.04, 0.06, 0.2)
    assert finding.count(found, -1) == 1
    assert finding.count(found, 1) == 2


def test_a_title_that_the_results_do_not_carry_is_an_error() -> None:
    median, was = finding.READING[0], finding.LOSSES[0][0]
    assert "median" in finding.title_of({median: effects(-0.1, -0.1), was: effects(-0.1, 0.0)})
    with pytest.raises(SystemExit, match="change the title"):
        finding.title_of({median: effects(-0.1, 0.0), was: effects(-0.1, -0.1)})


def test_the_drawn_figure_is_the_one_of_the_stored_runs(monkeypatch, tmp_path, capsys) -> None:
    kept = finding.PATH.read_text(encoding="utf-8")
    monkeypatch.setattr(finding, "ROOT", tmp_path)
    monkeypatch.setattr(finding, "PATH", tmp_path / "finding.svg")
    finding.main()
    words = [
        line.split(": ")[1].split(",")[0].split()[2:] for line in capsys.readouterr().out.splitlines()[:6]
    ]
    assert all(f">{better} of {total} better" in kept for better, _, total in words)
