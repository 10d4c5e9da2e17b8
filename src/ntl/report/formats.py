"""Write tables as Markdown and LaTeX."""

import html
from collections.abc import Mapping, Sequence
from itertools import groupby

import pandas as pd

_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", **{c: "\\" + c for c in "&%$#_{}"}}
    | {"±": r"$\pm$", "²": r"$^2$", "λ": r"$\lambda$", "·": r"$\cdot$", "\u2212": "$-$"}
)

Columns = Mapping[tuple[str, str], Sequence[str]]
"""Maps the title and the heading of each column to its cells; a title may be empty."""


def markdown_table(columns: Columns) -> str:
    """Write a table as Markdown, with the first column left-aligned; `|` and HTML in a cell are escaped."""
    headings = [escape_html(" ".join(names).strip()) for names in columns]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    for row in zip(*columns.values(), strict=True):
        lines.append("| " + " | ".join(escape_html(cell).replace("|", r"\|") for cell in row) + " |")
    return "\n".join(lines)


def escape_html(text: str) -> str:
    """Put a text on one line, and escape it so that Markdown shows HTML in it as text.

    Example:
        >>> escape_html("T5 <b>best</b>\\n")
        'T5 &lt;b&gt;best&lt;/b&gt;'
    """
    return html.escape(" ".join(text.split()), quote=False)


def latex_table(columns: Columns, caption: str) -> str:
    r"""Write a table as LaTeX with the booktabs package, as wide as the page.

    Args:
        columns: The columns. Neighbors with one title share it, above their headings. Cells are plain text,
            and bold if enclosed in `**`.
        caption: Caption as plain text.
    """
    names = pd.MultiIndex.from_tuples([(escape_latex(title), escape_latex(name)) for title, name in columns])
    frame = pd.DataFrame(zip(*columns.values(), strict=True), columns=names)
    table = (
        frame.style.hide(axis="index")
        .format(_latex_cell)
        .to_latex(
            column_format=f"l{'r' * (len(columns) - 1)}",
            caption=escape_latex(caption),
            environment="table*",
            position_float="centering",
            hrules=True,
            multicol_align="c",
        )
    )
    rules, first = [], 1
    for title, group in groupby(title for title, _ in columns):
        last = first + len(list(group)) - 1
        rules += [rf"\cmidrule(lr){{{first}-{last}}}"] if title else []
        first = last + 1
    above, line, below = table.partition(" \\\\\n")  # after the titles
    return (above + line + " ".join(rules) + "\n" + below).replace(r"\centering", r"\centering\scriptsize")


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
