"""Results print as their text, show as tables in a notebook, become tables of pandas, and are drawn."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from tolerances import approx

from ntloss.reading import AnswerComparison, AnswerErrors, Change, NumberQuantiles, WrittenNumber
from ntloss.scores import ScoreReading


def reading_of(median, low, high, starts=1.0, distributions=()):
    nothing = torch.zeros(1, dtype=torch.float64)
    values = torch.tensor([[low, median, high]], dtype=torch.float64)
    probabilities = (nothing + starts, nothing, nothing)
    levels = (0.05, 0.5, 0.95)
    return NumberQuantiles(
        levels, values, values, values, nothing, nothing, *probabilities, 1, 1, distributions
    ).row(0)


def errors_of(median):
    return AnswerErrors(median, 0.5, median, math.nan, 0.9, 1.5, torch.ones(2))


READING = reading_of(11.0, 2.0, 40.5)
SCORE = ScoreReading(
    {"calm": 0.5, "annoyed": 0.25, "<angry>": 0.25}, values={"calm": 0, "annoyed": 1, "<angry>": 4}
)
COMPARISON = AnswerComparison(
    {"before": errors_of(4.0), "after": errors_of(2.0)}, {"after": Change(-0.5, -0.7, -0.1)}
)
RESULTS = {
    "reading": (READING, "11 [2, 40.5]", {"median": [11.0], "high": [40.5]}),
    "written": (WrittenNumber("12", 3, 12.0, 0.25, READING), "0.25", {"value": [12.0], "median": [11.0]}),
    "score": (SCORE, "1.25 (calm: 0.5", {"mean": [1.25], "P(<angry>)": [0.25], "none": [0.0]}),
    "comparison": (COMPARISON, "-50%", {"median": [4.0, 2.0], "coverage": [0.9, 0.9]}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_printed_as_its_text_and_becomes_a_table(name):
    result, text, columns = RESULTS[name]
    assert text in str(result)
    assert repr([result]) == f"[{result}]"
    table = pd.concat([result.to_frame(), result.to_frame()])
    for column, values in columns.items():
        assert table[column].tolist() == approx(2 * values)
    shown = result._repr_html_()
    assert shown.count("<tr>") == 1 + len(result.to_frame())
    assert "<angry>" not in shown


def test_a_reading_prints_all_digits_of_its_numbers_and_says_where_none_begins():
    assert str(reading_of(1234567.0, -0.25, 3e9)) == "1234567 [-0.25, 3000000000]"
    assert str(reading_of(math.nan, math.nan, math.nan)) == "no number"
    assert "0.21" in str(reading_of(8.0, 2.0, 9.0, starts=0.21))
    assert str(reading_of(8.0, 2.0, 9.0, starts=0.6)) == "8 [2, 9]"
    assert replace(READING, high=3.0) != READING


def test_results_are_drawn():
    pytest.importorskip("matplotlib").use("agg")
    ax = SCORE.plot()
    assert [bar.get_height() for bar in ax.containers[0]] == approx([0.5, 0.25, 0.25])
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.containers[0]] == approx([0, 1, 4], scale=1.0)
    assert ax.lines[0].get_xdata()[0] == SCORE.mean
    assert approx(4.0) in [bar.get_height() for bars in COMPARISON.plot().containers for bar in bars]
    # Whole numbers from 0 to 3 are bars as high as their probabilities; a fixed width has a density.
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    few = reading_of(2.0, 0.0, 3.0, distributions=((torch.arange(4.0), shares),))
    assert [bar.get_height() for bar in few.plot().containers[0]] == approx(shares.tolist())
    for result in (READING, few):
        ax = result.plot()
        assert ax.lines[0].get_xdata()[0] in (11.0, 2.0)
        assert result.plot(ax) is ax
    reading_of(math.nan, math.nan, math.nan).plot(ax)
