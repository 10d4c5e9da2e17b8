"""Write tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import groupby

_LATEX = str.maketrans(
    {
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
)

Rows = Sequence[Sequence[str]]


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
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()


def latex_table(columns: Sequence[tuple[str, str]], rows: Rows, caption: str) -> str:
    r"""Write a table as LaTeX with the booktabs package.

    Args:
        columns: Title and heading of each column. Neighbours with one title share it, above their headings;
            columns without one have an empty title.
        rows: Rows of cells as plain text; a cell enclosed in `**` is bold.
        caption: Caption as plain text.

    Returns:
        A `table*` environment, as wide as the page.
    """
    titles, rules, first = [], [], 1
    for title, group in groupby(title for title, _ in columns):
        count = len(list(group))
        if title:
            titles.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(title)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        else:
            titles += [""] * count
        first += count
    lines = [
        r"\begin{table*}",
        r"\centering\scriptsize",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        " & ".join(titles) + r" \\",
        " ".join(rules),
        " & ".join(escape_latex(heading) for _, heading in columns) + r" \\",
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
    return text.translate(_LATEX)


def _latex_cell(cell: str) -> str:
    if cell.startswith("**") and cell.endswith("**") and len(cell) > 4:
        return rf"\textbf{{{escape_latex(cell[2:-2])}}}"
    return escape_latex(cell)
