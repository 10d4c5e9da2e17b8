"""Pages of the API reference: one for each public module, from the docstrings, by griffe and mkdocstrings."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

SOURCE = Path(__file__).resolve().parents[1] / "src"

# docs/reference.md lists them for the reader.
MODULES = [
    "ntloss",
    "ntloss.criteria",
    "ntloss.decoding",
    "ntloss.metrics",
    "ntloss.numbers",
    "ntloss.numbers.parsing",
    "ntloss.numbers.inspection",
    "ntloss.integrations.transformers",
    "ntloss.integrations.callback",
    "ntloss.integrations.outputs",
    "ntloss.integrations.collator",
    "ntloss.integrations.trl",
    "ntloss.integrations.rewards",
]


@cache
def _package() -> griffe.Module:
    package = griffe.load("ntloss", search_paths=[str(SOURCE)])
    assert isinstance(package, griffe.Module)
    return package


def _module(name: str) -> griffe.Module:
    inside = name.removeprefix("ntloss").lstrip(".")
    module = _package()[inside] if inside else _package()
    assert isinstance(module, griffe.Module)
    return module


def sections(name: str) -> list[tuple[str, list[str]]]:
    """A module's public names, under the comments of its `__all__`.

    Args:
        name: a module, such as "ntloss.criteria".

    Returns:
        Pairs of a heading, "" if there is none, and names. A module without `__all__` has one section: the
        functions and classes that it defines, without a leading underscore.
    """
    module = _module(name)
    text = Path(str(module.filepath)).read_text(encoding="utf-8")
    menu = re.search(r"^__all__ = \[\n(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)
    if menu is None:
        defined = [n for n, o in module.members.items() if not o.is_alias and (o.is_class or o.is_function)]
        return [("", [n for n in defined if not n.startswith("_")])]
    found: list[tuple[str, list[str]]] = []
    for line in map(str.strip, menu[1].splitlines()):
        if line.startswith("# "):
            found.append((line[2:3].upper() + line[3:], []))
        else:
            if not found:
                found.append(("", []))
            found[-1][1].append(line.strip('",'))
    return found


def undocumented() -> list[str]:
    """Paths of the public modules, objects and public methods that have no docstring."""
    missing = [name for name in MODULES if not _module(name).has_docstring]
    for name in MODULES:
        for public in (_module(name)[public] for _, names in sections(name) for public in names):
            if public.is_attribute:
                continue  # a constant, explained by the comment beside it
            members = public.all_members.values() if public.is_class else ()
            methods = [m for m in members if m.is_function and not m.name.startswith("_")]
            missing += [thing.path for thing in (public, *methods) if not thing.has_docstring]
    return sorted({*missing})


def write_pages(folder: Path) -> None:
    """Write one page for each module, of names that no page before it has."""
    folder.mkdir()
    shown: set[str] = set()
    for name in MODULES:
        lines = [
            f"# {name}",
            "",
            f"::: {name}",
            "    options: {members: false, show_root_heading: false, show_root_toc_entry: false}",
            "",
        ]
        for heading, names in sections(name):
            new = [n for n in names if _module(name)[n].canonical_path not in shown]
            if heading and new:
                lines += [f"## {heading}", ""]
            for public in new:
                shown.add(_module(name)[public].canonical_path)
                lines += [f"::: {name}.{public}", ""]
        (folder / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
