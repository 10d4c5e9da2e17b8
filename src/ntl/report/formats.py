"""Write tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "λ": r"$\lambda$",
    "·": r"$\cdot$",
    "|": r"\textbar{}",
    "\u2212": "$-$",
}

Rows = Sequence[Sequence[str]]


class Columns(NamedTuple):
    """A group of columns.

    Args:
        title: Title above the group; empty for none.
        headings: Heading of each column.
    """

    title: str
    headings: Sequence[str]


def markdown_table(headings: Sequence[str], rows: Rows) -> str:
    """Write a table as Markdown, with the first column left-aligned and the others right-aligned.

    Args:
        headings: One heading per column.
        rows: Rows of cells; any `|` in a cell is escaped.

    Returns:
        The table, without a trailing line feed.
    """
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def csv_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table as CSV.

    Args:
        headings: One heading per column.
        rows: Rows of cells; None gives an empty cell.

    Returns:
        The content of the file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


def latex_table(columns: Sequence[Columns], rows: Rows, caption: str) -> str:
    r"""Write a table as LaTeX with the booktabs package.

    Args:
        columns: Groups of columns.
        rows: Rows of cells as plain text; a cell enclosed in `**` is bold.
        caption: Caption as plain text.

    Returns:
        A `table*` environment, as wide as the page.
    """
    titles, rules, at = [], [], 1
    for group in columns:
        count = len(group.headings)
        titles.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(group.title)}}}" if group.title else "")
        if group.title:
            rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
        titles += [""] * (count - 1 if not group.title else 0)
        at += count
    headings = [escape_latex(heading) for group in columns for heading in group.headings]
    lines = [
        r"\begin{table*}",
        r"\centering\scriptsize",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        r"\toprule",
        " & ".join(titles) + r" \\",
        " ".join(rules),
        " & ".join(headings) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_cell, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    r"""Escape a text so that LaTeX prints it literally.

    Example:
        >>> print(escape_latex("R² of a_b: 5 % ± 1"))
        R$^2$ of a\_b: 5 \% $\pm$ 1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_cell(cell: str) -> str:
    if cell.startswith("**") and cell.endswith("**") and len(cell) > 4:
        return rf"\textbf{{{escape_latex(cell[2:-2])}}}"
    return escape_latex(cell)
