"""Warnings that point at the caller's line, however many of this library's functions stand between."""

from __future__ import annotations

import sys
import warnings


class UnlikelyNumberWarning(UserWarning):
    """The model hardly writes a number where it is read, or the number is only a part of what it writes."""


_BETWEEN = ("ntloss", "torch")  # packages whose frames are not the caller's; torch wraps functions


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of this library that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
