"""Predict a number from texts or rows of a table, with intervals, in scikit-learn's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ntloss.regression.columns import mark_gaps
from ntloss.regression.tables import read_table

if TYPE_CHECKING:
    from ntloss.regression.estimator import NumberRegressor
    from ntloss.regression.formats import AnswerFormat

__all__ = [
    "NumberRegressor",
    # how answers are written as numbers of fixed width
    "AnswerFormat",
    # tables as people have them
    "read_table",
    "mark_gaps",
]


def __getattr__(name: str) -> Any:
    """Import the estimator and the format, and torch, when they are used: tables are checked before."""
    if name == "NumberRegressor":
        from ntloss.regression.estimator import NumberRegressor

        return NumberRegressor
    if name == "AnswerFormat":
        from ntloss.regression.formats import AnswerFormat

        return AnswerFormat
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
