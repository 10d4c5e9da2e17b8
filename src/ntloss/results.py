"""Results that one can look at: printed as a person would write them, tables, and axes to draw on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from html import escape
from typing import Any


class Result(ABC):
    """What was read of a model. Its text is printed, also by `repr`; a notebook shows it above a table."""

    @abstractmethod
    def __str__(self) -> str: ...

    def __repr__(self) -> str:
        return str(self)

    @abstractmethod
    def _rows(self) -> Mapping[Any, Mapping[str, Any]]:
        """The columns of each row of the table, by the row's name."""

    def to_frame(self) -> Any:
        """Return a table of pandas; `pandas.concat` puts those of several results together."""
        from pandas import DataFrame

        return DataFrame.from_dict(self._rows(), orient="index")

    def _repr_html_(self) -> str:
        rows = self._rows()
        columns = [*dict.fromkeys(name for row in rows.values() for name in row)]
        lines = ["".join(f"<th>{escape(name)}</th>" for name in ("", *columns))]
        for name, row in rows.items():
            cells = [name, *(row.get(column, "") for column in columns)]
            texts = [f"{x:.6g}" if isinstance(x, float) and abs(x) < 1e6 else str(x) for x in cells]
            lines.append("".join(f"<td>{escape(text)}</td>" for text in texts))
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<pre>{escape(str(self))}</pre><table>{table}</table>"


def axes(given: Any) -> Any:
    """Return the axes of matplotlib that are given, or new ones; an ImportError that says what is missing."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1] if given is None else given
