"""Pictures of predictions."""

import numpy as np
import pytest

from ntloss.regression.plots import plot_predictions

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("log", [False, True])
def test_intervals_that_miss_are_drawn_apart(log):
    answers = np.array([1.0, 20, 300])
    found = np.array([[0.5, 1, 2], [30, 40, 50], [100, 200, 400]])
    axes = plot_predictions(answers, found, log, "price")
    held, missed = (lines.get_segments() for lines in axes.collections[:2])
    assert [segment[0][0] for segment in held] == [1, 300]
    assert [segment[0][0] for segment in missed] == [20]
    assert (axes.get_xscale(), "price" in axes.get_xlabel()) == ("log" if log else "linear", True)


def test_without_intervals_predictions_are_drawn_on_given_axes():
    nothing = np.full(3, np.nan)
    found = np.column_stack([nothing, [1.0, 2, 3], nothing])
    axes = plot_predictions(np.array([1.0, 2, 4]), found)
    assert plot_predictions(np.array([1.0, 2, 4]), found, axes=axes) is axes
    assert np.array_equal(axes.collections[0].get_offsets()[:, 1], [1, 2, 3])
