"""Predict a number from texts or rows of a table, with intervals, in scikit-learn's interface."""

from ntloss.regression.estimator import NumberRegressor

__all__ = ["NumberRegressor"]
