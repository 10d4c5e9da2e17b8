"""Pictures of predictions."""

import numpy as np
import pytest

from ntloss.regression.plots import plot_predictions

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("log", [False, True])
def test_intervals_that_miss_are_drawn_apart_and_none_without_intervals(log):
    answers = np.array([1.0, 20, 300])
    found = np.array([[0.5, 1, 2], [30, 40, 50], [100, 200, 400]])
    axes = plot_predictions(answers, found, log, "price")
    held, missed = (lines.get_segments() for lines in axes.collections[:2])
    assert [segment[0][0] for segment in held] == [1, 300]
    assert [segment[0][0] for segment in missed] == [20]
    assert (axes.get_xscale(), "price" in axes.get_xlabel()) == ("log" if log else "linear", True)
    found[:, [0, 2]] = np.nan
    assert len(plot_predictions(answers, found).collections) == 1
    assert plot_predictions(answers, found, axes=axes) is axes
