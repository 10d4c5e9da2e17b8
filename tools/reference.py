"""Pages of the API reference: one for each public module, from the docstrings, by griffe and mkdocstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The navigation lists them.
MODULES = re.findall(r"reference/(ntloss[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
MODULE = (
    "# {0}\n\n::: {0}\n    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}"
)


def sections(text: str) -> list[tuple[str, list[str]]]:
    """List a module's public names under the comments of its `__all__`.

    Args:
        text: The module's source.

    Returns:
        Pairs of a heading, "" if there is none, and names. A module without `__all__` has one section: the
        functions and classes that it defines, without a leading underscore.
    """
    menu = re.search(r"^__all__ = \[\n(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)
    if menu is None:
        defined = [
            node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]
        return [("", [name for name in defined if not name.startswith("_")])]
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in map(str.strip, menu[1].splitlines()):
        if line.startswith("# "):
            found.append((line[2:3].upper() + line[3:], []))
        else:
            found[-1][1].append(line.strip('",'))
    return [section for section in found if section[1]]


def write_pages(folder: Path) -> None:
    """Write one page for each module, of names that no page before it has."""
    folder.mkdir()
    shown: set[str] = set()
    for module in MODULES:
        path = ROOT / "src" / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        parts = [MODULE.format(module)]
        for heading, names in sections(source.read_text(encoding="utf-8")):
            new = [name for name in names if name not in shown]
            shown |= {*new}
            parts += [f"## {heading}"] if heading and new else []
            parts += [f"::: {module}.{name}" for name in new]
        (folder / f"{module}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
