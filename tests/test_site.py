"""The documentation site's own checks: what they find, and that the sources have no such defect."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for library in ("griffe", "latex2mathml"):
        pytest.importorskip(library, reason="the extra 'docs' is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("build_site")


def test_every_public_name_has_a_docstring(build_site: ModuleType) -> None:
    assert build_site.reference.undocumented() == []


def test_the_reference_has_every_module_with_public_names(build_site: ModuleType) -> None:
    modules = build_site.reference.MODULES
    for file in (ROOT / "src" / "ntloss").rglob("__init__.py"):
        if "__all__ = [" in file.read_text(encoding="utf-8"):
            assert ".".join(file.parent.relative_to(ROOT / "src").parts) in modules
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in modules if f"| `{name}` |" not in page] == []
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in modules if f"reference/{name}.md" not in navigation] == []


def test_a_missing_docstring_is_named(
    build_site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ntloss"
    package.mkdir()
    (package / "__init__.py").write_text(
        '"""A package."""\n\nfrom ntloss.losses import Loss\n\n__all__ = [\n    # losses\n    "Loss",\n]\n'
    )
    (package / "losses.py").write_text(
        '"""Losses."""\n\n\nclass Loss:\n    """A loss."""\n\n    def forward(self):\n        return 0\n'
    )
    reference = build_site.reference
    monkeypatch.setattr(reference, "SOURCE", tmp_path)
    monkeypatch.setattr(reference, "MODULES", ["ntloss"])
    monkeypatch.setattr(reference, "_package", reference._package.__wrapped__)
    assert reference.sections("ntloss") == [("Losses", ["Loss"])]
    assert reference.undocumented() == ["ntloss.Loss.forward"]


@pytest.mark.parametrize(
    ("body", "defect"),
    [
        ('<a href="gone.html">x</a>', "links to gone.html, which does not exist"),
        ('<a href="#gone">x</a>', "links to #gone, which has no such anchor"),
        ('<img src="gone.png">', "links to gone.png, which does not exist"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js from a network"),
    ],
)
def test_a_defect_of_a_built_page_is_found(
    body: str, defect: str, build_site: ModuleType, tmp_path: Path
) -> None:
    good = '<h1 id="top">x</h1><a href="#top">x</a><a href="https://example.org">x</a>'
    (tmp_path / "index.html").write_text(good)
    assert build_site.check(tmp_path) == []
    (tmp_path / "index.html").write_text(good + body)
    assert build_site.check(tmp_path) == [f"index.html {defect}"]


def test_formulas_become_mathml_and_nothing_is_loaded_from_a_network(
    build_site: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "reference" / "page.html"
    page.parent.mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "iframe-worker.js").touch()
    page.write_text(
        '<span class="arithmatex">\\(a &lt; b\\)</span><script src="https://example.org/iframe-worker/shim"></script>'
    )
    build_site.finish(tmp_path)
    assert "<math" in page.read_text()
    assert build_site.check(tmp_path) == []
