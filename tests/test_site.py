"""The documentation site's own checks: what they find, and that the sources have no such defect."""

import importlib
import json
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
    assert 'href="../quickstart.html"' in page
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


def test_a_table_of_sentences_is_cards_with_labels_and_a_table_of_numbers_stays(build_site, tmp_path):
    sentence = "with noise in proportion to the number, and greedy answers"
    head = "<thead><tr><th></th><th><code>λ</code></th></tr></thead>"
    page = tmp_path / "index.html"
    page.write_text(
        f"<table>{head}<tr><td>CE</td><td>{sentence}</td></tr><tr><td>NTL</td><td>–</td></tr></table>"
    )
    build_site.finish(tmp_path)
    text = page.read_text()
    assert text.startswith(
        '<div class="cards"><table><thead><tr><td></td><th><code class="whole">λ</code></th>'
    )
    assert f'<td data-label=""><div>CE</div></td><td data-label="λ"><div>{sentence}</div></td>' in text
    assert '<td data-label="λ" class="none"><div>–</div></td>' in text
    assert text.endswith("</table></div>")
    page.write_text("<table><thead><tr><th>error</th></tr></thead><tr><td>1 ± 2</td></tr></table>")
    build_site.finish(tmp_path)
    assert "<td>1 ± 2</td>" in page.read_text()


def test_the_search_shows_guides_before_the_reference_and_no_raw_results(build_site, tmp_path):
    way_back = "<p>API reference / ntloss</p>"
    raw = (
        "studies/demo/results/index.html",
        "studies/earlier.html",
        "studies/whole_numbers/index.html",
    )
    sources = ("LICENSE.html", "CITATION.cff.html", "src/ntloss/__init__.py.html", "examples/tiny.py.html")
    kept = [
        "guide.html",
        "scores.html",
        "reference/ntloss.crps.html#ntloss.crps",
        "repository/CHANGELOG.html",
    ]
    given = {kept[0]: "", **{f"repository/{name}": "" for name in (*raw, *sources)}, kept[2]: ""}
    write_index(tmp_path, {**given, "reference/ntloss.crps.html": way_back, kept[3]: "", kept[1]: ""})
    build_site.finish(tmp_path)
    assert list(read_index(tmp_path)) == kept


def write_index(folder, texts):
    items = [{"location": location, "text": text} for location, text in texts.items()]
    (folder / "search.js").write_text(f"var __index = {json.dumps({'items': items})};")


def read_index(folder):
    text = (folder / "search.js").read_text().removeprefix("var __index = ").removesuffix(";")
    return {item["location"]: item["text"] for item in json.loads(text)["items"]}
