"""Write tables as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

Columns = Mapping[tuple[str, str], Sequence[str]]
"""Maps the title and the heading of each column to its cells; a title may be empty."""


def markdown_table(columns: Columns) -> str:
    """Write a table as Markdown, with the first column left-aligned; `|` in a cell is escaped."""
    headings = [" ".join(names).strip() for names in columns]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    for row in zip(*columns.values(), strict=True):
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |")
    return "\n".join(lines)


def latex_table(columns: Columns, caption: str) -> str:
    r"""Write a table as LaTeX with the booktabs package.

    Args:
        columns: The columns. Neighbors with one title share it, above their headings. Cells are plain text,
            and bold if enclosed in `**`.
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
        *(" & ".join(map(_latex_cell, row)) + r" \\" for row in zip(*columns.values(), strict=True)),
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
