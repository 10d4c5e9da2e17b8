"""Build the documentation site, `make docs`: build/site, or an error.

Pages are copied to build/pages together with the files of the repository that they link to, and the pages of
the API reference are made from the library's public names. Zensical then builds the site in strict mode. At
the end, every link of the built pages is checked, images included, which strict mode does not cover.
"""

from __future__ import annotations

import ast
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import griffe
import tomllib
from latex2mathml.converter import convert
from lxml import etree

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
CONFIG = ROOT / "build" / "mkdocs.yml"  # the repository's, with the names of the API in the navigation

# In the navigation, and not below docs/.
FILES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"]
STAGED: set[Path] = set()  # files that have been written as pages
COPIED = {".png", ".svg", ".pdf", ".csv", ".json", ".tex"}  # as they are; other files become pages
# The navigation lists the modules of the API reference.
MODULES = re.findall(r"reference/(ntloss[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
MODULE = (
    "---\ntitle: {0}\n---\n\n# {0}\n\n::: {0}\n"
    "    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}"
)
NAME = """---
title: {1}
---

[API reference](../reference.md) / [{0}]({0}.md)

::: {0}.{1}
    options: {{heading_level: 1}}
"""
CARDS = '<div class="cards" markdown="1">\n\n| | |\n| --- | --- |\n{}\n\n</div>'
# Inline links and images of Markdown, without those of code blocks and inline code.
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
# The generator loads this script of its search from the network, for pages that are opened from a folder.
_SHIM = re.compile(r'https://[^"]*/iframe-worker/shim')
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_IMAGE = re.compile(r'<img ([^>]*?)src="([^":]+)\.svg"([^>]*)>')
_DARK = "@media (prefers-color-scheme: dark)"  # of ntl.report.svg
_PRIVATE_BASE = re.compile(r"<p[^>]*>\s*Bases: <code>(?:<span[^>]*>)?_\w+(?:</span>)?</code></p>")
_TEX = re.compile(r"\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_TABLE = re.compile(r'(<div class="cards">\s*)?<table>(.*?)</table>', re.DOTALL)
_CELL = re.compile(r"<t([dh])\b([^>]*)>(.*?)</t\1>", re.DOTALL)
_EMPTY_HEAD = re.compile(r"<th\b([^>]*)>\s*</th>")
_TAG = re.compile(r"<[^>]*>")
_PRE = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
_INLINE_CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
_HEADING = re.compile(r"<h[1-6]\b.*?</h[1-6]>", re.DOTALL)
_BEFORE_MARK = re.compile(r"\s*(</span>)?\s*(?=<a )")
_OUTPUT = re.compile(r'<div class="language-text (highlight"><pre>.*?</pre>)', re.DOTALL)
_COLUMNS = re.compile(r"\S {2,}[^\s#]")
_HEADER = re.compile(r'(<div class="md-header__source">).*?(</div>\s*</nav>)', re.DOTALL)
_TABS = re.compile(r'<ul class="md-tabs__list">.*?(?=</ul>)', re.DOTALL)
_UNSEARCHED = re.compile(r"repository/((benchmarks|studies)/|LICENSE|.*\.(py|yaml|cff)\.html)")
SENTENCE = 40  # characters of a cell that needs a line of its own on a phone
UNBROKEN = 40  # characters of code that fit a phone's line
WIDTH = 98  # columns of code that fit beside the navigation
_HREF = re.compile(r'href="(\.\.?/[^"#:]+)(#[^"]*)?"')
_LINKED = "//link[not(@rel='canonical')]/@href"


def main() -> None:
    """Build the site; a defect ends the program with a message."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(CONFIG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode or "Warning" in done.stderr + done.stdout:
        sys.exit(f"zensical build --strict failed:\n{done.stdout}{done.stderr}")
    finish(SITE)
    if defects := check(SITE):
        sys.exit("\n".join([*defects, f"{len(defects)} defects"]))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}; every link leads somewhere")


def stage() -> None:
    """Fill build/pages: docs/, the API reference, and every file of the repository that a page links to."""
    for folder in (PAGES, ROOT / "build" / "src"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for module in (ROOT / "src" / "ntloss").rglob("*.py"):
        copy = ROOT / "build" / module.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # The generator knows a docstring's section "Example:" as "Examples:".
        copy.write_text(re.sub(r"^( *)Example:$", r"\1Examples:", module.read_text(), flags=re.MULTILINE))
    names = write_reference(PAGES / "reference")
    given = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    CONFIG.write_text(with_names(given.replace("build/", ""), names), encoding="utf-8")
    for source in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in FILES)]:
        stage_file(source)
    stage_playground(ROOT / "docs" / "playground" / "index.html")


def stage_file(source: Path) -> None:
    """Write a file of the repository as a page, or copy it, and then the files that it links to."""
    if source in STAGED:
        return
    STAGED.add(source)  # before its links are followed: pages may link to each other
    target = page_of(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix in COPIED:
        shutil.copyfile(source, target)
        return
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        text = notebook_page(source, target)
    elif source.suffix != ".md":
        text = f"# `{source.relative_to(ROOT).as_posix()}`\n\n````{source.suffix[1:]}\n{text}````\n"
    else:
        text = rewrite_links(text, source)
        if source.name == "reference.md":  # the modules' pages exist only in the site
            text = re.sub(r"^\| `(ntloss[\w.]*)` ", r"| [`\1`](reference/\1.md) ", text, flags=re.MULTILINE)
    target.write_text(text, encoding="utf-8")


def stage_playground(source: Path) -> None:
    """Let the interactive page link to pages of the site, not to files of the repository."""

    def rewrite(match: re.Match[str]) -> str:
        file = Path(os.path.normpath(source.parent / match[1]))
        if not file.is_file():
            sys.exit(f"{source.relative_to(ROOT)} links to {match[1]}, which is no file of the repository")
        if not file.is_relative_to(ROOT / "docs"):
            stage_file(file)
        page = os.path.relpath(page_of(file).with_suffix(".html"), page_of(source).parent)
        return f'href="{page}{match[2] or ""}"'

    page_of(source).write_text(_HREF.sub(rewrite, source.read_text(encoding="utf-8")), encoding="utf-8")


def rewrite_links(text: str, source: Path) -> str:
    """Let a page's relative links lead to pages of the site, which are written if necessary."""

    def rewrite(match: re.Match[str]) -> str:
        opening, path, anchor = match[1], match[2], match[3] or ""
        if ":" in path:
            return match[0]
        file = Path(os.path.normpath(source.parent / path))
        if not file.is_file() and not page_of(file).is_file():
            sys.exit(f"{source.relative_to(ROOT)} links to {path}, which is no file of the repository")
        if not file.is_relative_to(ROOT / "docs"):
            stage_file(file)
        return f"{opening}{os.path.relpath(page_of(file), page_of(source).parent)}{anchor})"

    pieces = _CODE.split(text)  # every second one is code
    return "".join(piece if i % 2 else _LINK.sub(rewrite, piece) for i, piece in enumerate(pieces))


def page_of(file: Path) -> Path:
    """Path of a repository's file below build/pages."""
    path = file.relative_to(ROOT).as_posix()
    if path.startswith("docs/"):
        return PAGES / path.removeprefix("docs/")
    if path == "README.md":  # the home page
        return PAGES / "index.md"
    keeps_name = file.suffix == ".md" or file.suffix in COPIED
    return PAGES / "repository" / (path if keeps_name else f"{path}.md")


def notebook_page(notebook: Path, page: Path) -> str:
    """Convert a notebook with its saved outputs to Markdown; its pictures are written beside `page`."""
    parts: list[str] = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for position, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
            if "image/png" in data:
                picture = page.with_name(f"{notebook.stem}-{number}-{position}.png")
                picture.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture.name})")
            elif text:
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def write_reference(folder: Path) -> dict[str, list[str]]:
    """Write a page with a table for each module, and one for each name that no module before it has.

    Returns:
        The names that have pages, by module.
    """
    folder.mkdir()
    package = griffe.load("ntloss", search_paths=[str(ROOT / "src")], resolve_aliases=True)
    shown: dict[str, list[str]] = {}
    for module in MODULES:
        path = ROOT / "src" / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        parts = [MODULE.format(module)]
        for heading, names in sections(source.read_text(encoding="utf-8")):
            new = [name for name in names if name not in chain(*shown.values())]
            shown.setdefault(module, []).extend(new)
            rows = [f"| [`{name}`]({module}.{name}.md) | {summary(package, module, name)} |" for name in new]
            parts += [f"## {heading}"] if heading and new else []
            parts += [CARDS.format("\n".join(rows))] if new else []
            for name in new:
                (folder / f"{module}.{name}.md").write_text(NAME.format(module, name), encoding="utf-8")
        (folder / f"{module}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return shown


def with_names(config: str, names: Mapping[str, Sequence[str]]) -> str:
    """Let each module's entry of the navigation hold the names that have pages."""

    def nest(match: re.Match[str]) -> str:
        indent, module = match[1], match[2]
        pages = (f"{name}: reference/{module}.{name}.md" for name in names[module])
        lines = [f"- {page}" for page in (f"reference/{module}.md", *pages)]
        return f"{indent}- {module}:" + "".join(f"\n{indent}    {line}" for line in lines)

    return re.sub(r"^( *)- (ntloss[\w.]*): reference/\2\.md$", nest, config, flags=re.MULTILINE)


def summary(package: griffe.Object, module: str, name: str) -> str:
    """Return the first sentence of a public name's docstring, as a cell of a table."""
    documented = package[f"{module}.{name}".removeprefix("ntloss.")]
    text = documented.docstring.value if documented.docstring else ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def sections(text: str) -> list[tuple[str, list[str]]]:
    """List a module's public names under the comments of its `__all__` ("" without one).

    Without `__all__`, these are the functions and classes that it defines, without a leading underscore.
    """
    menu = re.search(r"^__all__ = \[(.*?)\]", text, flags=re.MULTILINE | re.DOTALL)
    if menu is None:
        kinds = ast.ClassDef | ast.FunctionDef
        names = [node.name for node in ast.parse(text).body if isinstance(node, kinds)]
        return [("", [name for name in names if not name.startswith("_")])]
    found: list[tuple[str, list[str]]] = [("", [])]
    for heading, name in re.findall(r'# (?:\w+\.py: )?(.*)|"(\w+)"', menu[1]):
        if heading:
            found.append((heading[0].upper() + heading[1:], []))
        else:
            found[-1][1].append(name)
    return [section for section in found if section[1]]


def finish(site: Path) -> None:
    """Convert formulas to MathML, give figures two color schemes, and mend tables, code and the search."""
    write_schemes(site)
    clean_search(site)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address, version = project["urls"].get("Repository"), project["version"]

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[2]).strip()
        display = "block" if match[1] == "div" else "inline"
        return f'<span class="formula">{convert(formula, display=display)}</span>'

    for page in site.rglob("*.html"):
        root = "../" * (len(page.relative_to(site).parts) - 1)
        text = _FORMULA.sub(mathml, page.read_text(encoding="utf-8"))
        text = _PRIVATE_BASE.sub("", _IMAGE.sub(lambda match, page=page: figure(match, page), text))
        text = mark_code(_TABLE.sub(label_cells, text))
        text = _HEADING.sub(lambda match: _BEFORE_MARK.sub(r"\1", match[0]), text)
        text = _SHIM.sub(f"{root}assets/iframe-worker.js", text)
        page.write_text(with_address(text, address, version, root), encoding="utf-8")


def label_cells(match: re.Match[str]) -> str:
    """Let each row of a table of sentences be a card on a phone, with its columns' heads beside the cells.

    Tables of short cells scroll there. An empty head, as above the names of rows, becomes an ordinary cell.
    """
    head, _, body = match[2].partition("</thead>")
    labels = [plain(cell[3]) for cell in _CELL.finditer(head)]
    is_cards = match[1] or any(len(plain(cell[3])) > SENTENCE for cell in _CELL.finditer(body))
    if is_cards:
        rows = body.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").split("<tr>")
        body = "<tr>".join(label_row(row, labels) for row in rows)
    head = _EMPTY_HEAD.sub(r"<td\1></td>", head)
    table = f"<table>{head}</thead>{body}</table>"
    return f'<div class="cards">{table}' + ("" if match[1] else "</div>") if is_cards else table


def label_row(row: str, labels: Sequence[str]) -> str:
    """Give each cell of a row its column's head."""
    places = iter(labels)

    def label(cell: re.Match[str]) -> str:
        none = ' class="none"' if plain(cell[3]) in ("", "\N{EN DASH}") else ""
        return f'<td{cell[2]} data-label="{html.escape(next(places, ""))}"{none}><div>{cell[3]}</div></td>'

    return _CELL.sub(label, row)


def mark_code(text: str) -> str:
    """Mark code that is not to be broken, and outputs whose long lines may be: those that are no columns."""

    def whole(match: re.Match[str]) -> str:
        words = plain(match[1])
        is_whole = len(words) <= (UNBROKEN if " " not in words else UNBROKEN // 2)
        return f'<code class="whole">{match[1]}</code>' if is_whole else match[0]

    def output(match: re.Match[str]) -> str:
        lines = html.unescape(_TAG.sub("", match[1])).splitlines()
        has_columns = any(len(line) > WIDTH and _COLUMNS.search(line) for line in lines)
        return match[0] if has_columns else f'<div class="language-text sentences {match[1]}'

    pieces = _PRE.split(_OUTPUT.sub(output, text))  # every second one is a block of code
    return "".join(piece if i % 2 else _INLINE_CODE.sub(whole, piece) for i, piece in enumerate(pieces))


def plain(text: str) -> str:
    """Return the words of a piece of HTML."""
    return html.unescape(_TAG.sub("", text)).strip()


def with_address(text: str, address: str | None, version: str, root: str) -> str:
    """Put the repository, the version and the way to install into a page's header, if there is an address."""
    if address is None:
        return text
    name = address.removesuffix("/").rpartition("://")[2]
    link = f'<a class="md-source" href="{address}">{name} {version}</a>'
    install = f'<a class="md-tabs__link" href="{root}index.html#install">Install</a>'
    text = _HEADER.sub(lambda match: match[1] + link + match[2], text, count=1)
    return _TABS.sub(lambda match: f'{match[0]}<li class="md-tabs__item">{install}</li>', text, count=1)


def write_schemes(site: Path) -> None:
    """Write a light and a dark file of each SVG that follows the system."""
    for picture in [*site.rglob("*.svg")]:
        text = picture.read_text(encoding="utf-8")
        if _DARK in text:
            for kind, media in (("light", "not all"), ("dark", "all")):
                themed = text.replace(_DARK, f"@media {media}")
                picture.with_suffix(f".{kind}.svg").write_text(themed, encoding="utf-8")


def figure(match: re.Match[str], page: Path) -> str:
    """Return an SVG image in both color schemes, as a link to its full size; others stay as they are."""
    before, name, after = match.groups()
    if not (page.parent / unquote(f"{name}.dark.svg")).is_file():
        return match[0]
    images = (f'<img {before}src="{name}.{kind}.svg" class="on-{kind}"{after}>' for kind in ("light", "dark"))
    return f'<a class="figure" title="Enlarge" href="{name}.svg">{"".join(images)}</a>'


def clean_search(site: Path) -> None:
    """Let the search find guides and the reference, and no raw results or sources.

    Pages that are equally good matches are shown in the index's order. TeX and private bases are removed.
    """
    for index in site.glob("search.js*"):
        head, brace, data = index.read_text(encoding="utf-8").partition("{")
        found, end = json.JSONDecoder().raw_decode(brace + data)
        items = [item for item in found["items"] if is_searched(item)]
        for item in items:
            item["text"] = _TEX.sub("", _PRIVATE_BASE.sub("", item["text"]))
        found["items"] = sorted(
            items, key=lambda item: item["location"].startswith(("reference/", "repository/"))
        )
        text = head + json.dumps(found, ensure_ascii=False) + (brace + data)[end:]
        index.write_text(text, encoding="utf-8")


def is_searched(item: Mapping[str, Any]) -> bool:
    """Say whether an item of the search's index is to be found: the way back of a name's page is not."""
    return not (_UNSEARCHED.match(item["location"]) or item["text"].startswith("<p>API reference / "))


def check(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere, missing image, and file loaded from a network."""
    pages = {path: etree.parse(path, etree.HTMLParser()) for path in sorted(site.rglob("*.html"))}
    anchors = {path: {*page.xpath("//@id | //@name")} for path, page in pages.items()}
    defects = []
    for path, page in pages.items():
        loaded = page.xpath("//script/@src | //img/@src | //iframe/@src | //source/@src | " + _LINKED)
        for url in page.xpath("//a/@href") + loaded if path.name != "404.html" else ():  # its are absolute
            parts, where = urlsplit(url), path.relative_to(site)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if parts.scheme or parts.netloc:
                if url in loaded and parts.scheme != "data":
                    defects.append(f"{where} loads {url} from a network")
            elif not target.is_file():
                defects.append(f"{where} links to {url}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in anchors[target]:
                defects.append(f"{where} links to {url}, which has no such anchor")
    return defects


if __name__ == "__main__":
    main()
