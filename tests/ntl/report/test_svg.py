"""The SVGs of figures: their colors on light and dark pages, and their labels."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
import pytest
from lxml import etree
from matplotlib.figure import Figure
from ntl.report.svg import DARK, label_ends, save_svg

from ntl.report.style import GREEN, STYLE


def make_figure(color: str) -> Figure:
    figure = Figure(figsize=(2, 2))
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color=color)
    ax.set_title("a finding")
    return figure


def test_an_svg_has_a_dark_counterpart_of_every_color_and_text_that_can_be_read(tmp_path: Path) -> None:
    with mpl.rc_context(STYLE):
        save_svg(make_figure(GREEN), tmp_path / "figure.svg")
        save_svg(make_figure(GREEN), tmp_path / "again.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert text == (tmp_path / "again.svg").read_text()
    root = etree.fromstring(text.encode())
    (rules,) = [style.text for style in root.iter("{*}style") if "prefers-color-scheme: dark" in style.text]
    assert f'[style*="stroke: {GREEN.lower()}"]{{stroke:{DARK[GREEN.lower()]}!important}}' in rules
    assert "a finding" in [node.text for node in root.iter("{*}text")]


def test_a_color_without_a_dark_counterpart_is_an_error(tmp_path: Path) -> None:
    with mpl.rc_context(STYLE), pytest.raises(ValueError, match="#123456, which have no dark counterpart"):
        save_svg(make_figure("#123456"), tmp_path / "figure.svg")


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    ax = Figure().subplots()
    ax.set_ylim(0, 10)
    label_ends(ax, [(9.9, "a", GREEN), (9.95, "b", GREEN), (5, "c", GREEN), (5, "d", GREEN)], gap=0.1)
    heights = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert [*heights] == ["c", "d", "a", "b"]
    assert max(heights.values()) <= 1
    ordered = [*heights.values()]
    assert min(b - a for a, b in itertools.pairwise(ordered)) > 0.099
