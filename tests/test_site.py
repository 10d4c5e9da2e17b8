"""The documentation site's own checks: what they find, and that the sources have no such defect."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("latex2mathml", reason="the extra 'docs' is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("build_site")


def test_the_reference_has_every_module_with_public_names(build_site: ModuleType) -> None:
    modules = build_site.MODULES
    for file in (ROOT / "src" / "ntloss").rglob("__init__.py"):
        if "__all__ = [" in file.read_text(encoding="utf-8"):
            assert ".".join(file.parent.relative_to(ROOT / "src").parts) in modules
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in modules if f"| `{name}` |" not in page] == []
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in modules if f"reference/{name}.md" not in navigation] == []


def test_the_comments_of_a_menu_are_the_headings_of_its_page(build_site: ModuleType) -> None:
    menu = '__all__ = [\n    "first",\n    # losses\n    "Loss",\n]\n'
    assert build_site.sections(menu) == [("", ["first"]), ("Losses", ["Loss"])]
    module = "class Loss: ...\ndef _private(): ...\n"
    assert build_site.sections(module) == [("", ["Loss"])]


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
