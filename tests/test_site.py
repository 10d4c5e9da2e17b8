"""The documentation site's own checks: what they find, and that the sources have no such defect."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build_site(monkeypatch):
    pytest.importorskip("latex2mathml", reason="the extra 'docs' is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("build_site")


def test_the_reference_has_every_module_with_public_names(build_site):
    modules = build_site.MODULES
    for file in (ROOT / "src" / "ntloss").rglob("__init__.py"):
        if "__all__ = [" in file.read_text(encoding="utf-8"):
            assert ".".join(file.parent.relative_to(ROOT / "src").parts) in modules
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in modules if f"| `{name}` |" not in page] == []
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in modules if f"reference/{name}.md" not in navigation] == []


def test_the_comments_of_a_menu_are_the_headings_of_its_page(build_site):
    menu = '__all__ = [\n    "first",\n    # losses.py: how wrong\n    "Loss",\n]\n'
    assert build_site.sections(menu) == [("", ["first"]), ("How wrong", ["Loss"])]
    assert build_site.sections('__all__ = ["first", "Loss"]\n') == [("", ["first", "Loss"])]
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
def test_a_defect_of_a_built_page_is_found(body, defect, build_site, tmp_path):
    good = '<h1 id="top">x</h1><a href="#top">x</a><a href="https://example.org">x</a>'
    (tmp_path / "index.html").write_text(good)
    assert build_site.check(tmp_path) == []
    (tmp_path / "index.html").write_text(good + body)
    assert build_site.check(tmp_path) == [f"index.html {defect}"]


def test_the_interactive_page_links_to_pages_of_the_site(build_site, tmp_path, monkeypatch):
    monkeypatch.setattr(build_site, "PAGES", tmp_path)
    (tmp_path / "playground").mkdir()
    build_site.STAGED.clear()
    build_site.stage_playground(ROOT / "docs" / "playground" / "index.html")
    page = (tmp_path / "playground" / "index.html").read_text(encoding="utf-8")
    assert 'href="../quickstart.html#install"' in page
    assert 'href="../index.html"' in page
    assert ".md" not in page
    assert (tmp_path / "repository" / "src" / "ntloss" / "__init__.py.md").is_file()


def test_formulas_become_mathml_and_nothing_is_loaded_from_a_network(build_site, tmp_path):
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


def test_a_figure_has_both_color_schemes_and_links_to_its_full_size(build_site, tmp_path):
    style = "<style>@media (prefers-color-scheme: dark){path{fill:#fff}}</style>"
    (tmp_path / "themed.svg").write_text(f"<svg>{style}</svg>")
    (tmp_path / "plain.svg").write_text("<svg/>")
    page = tmp_path / "index.html"
    page.write_text('<img alt="a" src="themed.svg"><img alt="b" src="plain.svg">')
    build_site.finish(tmp_path)
    assert build_site.check(tmp_path) == []
    text = page.read_text()
    assert 'href="themed.svg"><img alt="a" src="themed.light.svg" class="on-light">' in text
    assert 'src="themed.dark.svg" class="on-dark"></a><img alt="b" src="plain.svg">' in text
    assert "@media all{path" in (tmp_path / "themed.dark.svg").read_text()
    assert "@media not all{path" in (tmp_path / "themed.light.svg").read_text()


def test_a_name_of_the_reference_has_a_page_and_its_first_sentence_in_the_modules_table(build_site, tmp_path):
    build_site.write_reference(tmp_path / "reference")
    table = (tmp_path / "reference" / "ntloss.md").read_text(encoding="utf-8")
    assert "| [`NTLCrossEntropyLoss`](ntloss.NTLCrossEntropyLoss.md) | Cross-entropy plus" in table
    page = (tmp_path / "reference" / "ntloss.NTLCrossEntropyLoss.md").read_text(encoding="utf-8")
    assert "\n::: ntloss.NTLCrossEntropyLoss\n" in page


def test_cards_have_labels_and_module_names_break_at_their_dots(build_site, tmp_path):
    table = "<thead><tr><th>loss</th><th><code>λ</code></th></tr></thead><tr><td>CE</td><td>–</td></tr>"
    page = tmp_path / "index.html"
    page.write_text(
        f'<title>ntloss.criteria</title><div class="cards"><table>{table}</table></div><b>ntloss.criteria</b>'
    )
    build_site.finish(tmp_path)
    text = page.read_text()
    assert '<td data-label="loss"><div>CE</div></td><td data-label="λ" class="none"><div>–</div></td>' in text
    assert "<title>ntloss.criteria</title>" in text
    assert "<b>ntloss.<wbr>criteria</b>" in text


def test_the_header_has_repository_version_and_install_where_an_address_is_configured(build_site):
    header = '<div class="md-header__source">\n</div>\n</nav><ul class="md-tabs__list"></ul>'
    assert build_site.with_address(header, None, "1.0.0", "") == header
    found = build_site.with_address(header, "https://example.org/ntloss", "1.0.0", "../")
    assert '<a class="md-source" href="https://example.org/ntloss">example.org/ntloss 1.0.0</a>' in found
    assert '<a class="md-tabs__link" href="../quickstart.html#install">Install</a>' in found


def test_the_search_has_no_formulas_and_the_reference_no_private_bases(build_site, tmp_path):
    base = '<p class="doc">Bases: <code><span title="a._Base">_Base</span></code></p>'
    public = '<p class="doc">Bases: <code><span title="a.Base">Base</span></code></p>'
    (tmp_path / "index.html").write_text(base + public)
    words = "<p> Bases: <code>_Base</code></p> one \\\\(x^2\\\\) two"
    (tmp_path / "search.js").write_text('var __index = {"items":[{"text":"' + words + '"}]};')
    build_site.finish(tmp_path)
    assert (tmp_path / "index.html").read_text() == public
    assert (tmp_path / "search.js").read_text() == 'var __index = {"items": [{"text": " one  two"}]};'
