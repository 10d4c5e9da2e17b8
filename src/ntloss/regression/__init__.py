"""Predict a number from texts or rows of a table, with intervals, in scikit-learn's interface."""

from ntloss.regression.columns import mark_gaps
from ntloss.regression.estimator import NumberRegressor
from ntloss.regression.tables import read_table

__all__ = [
    "NumberRegressor",
    # tables as people have them
    "read_table",
    "mark_gaps",
]
