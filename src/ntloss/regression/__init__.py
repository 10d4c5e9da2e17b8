"""Predict a number from texts or rows of a table, with intervals, in scikit-learn's interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ntloss.regression.tables import mark_gaps, read_table

if TYPE_CHECKING:
    from ntloss.regression.answers import AnswerFormat
    from ntloss.regression.estimator import NumberRegressor

__all__ = [
    "NumberRegressor",
    # how answers are written as numbers of fixed width
    "AnswerFormat",
    # tables as people have them
    "read_table",
    "mark_gaps",
]
# They need torch, and are imported when they are used: errors in tables are said before.
_LATER = {"NumberRegressor": "estimator", "AnswerFormat": "answers"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
