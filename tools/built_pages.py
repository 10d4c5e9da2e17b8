"""Finish the built pages (formulas without JavaScript, search without a network), and check their links."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

# The generator loads this script of its search from the network, for pages that are opened from a folder.
_SHIM = re.compile(r'https://[^"]*/iframe-worker/shim')
_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL
)  # \( inline \), \[ block \]
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


def finish(site: Path) -> None:
    """Convert formulas to MathML, and load the search's script from the site."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        up = "../" * (len(page.relative_to(site).parts) - 1)
        new = _SHIM.sub(f"{up}assets/iframe-worker.js", _FORMULA.sub(_mathml, text))
        if new != text:
            page.write_text(new, encoding="utf-8")


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[1] == "div" else "inline"
    formula = convert(html.unescape(match[2]).strip(), display=display)
    return f'<span class="formula">{formula}</span>'


class _Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and anchors of a tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in _LOADED and _LOADED[tag] in given and given.get("rel") != "canonical":
            self.loaded.append(given[_LOADED[tag]])


def check(site: Path) -> list[str]:
    """Find links that lead nowhere, missing images, and what a page would load from a network.

    Returns:
        One line for each defect.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    defects = []
    for path, page in pages.items():
        where = path.relative_to(site)
        if path.name == "404.html":  # its links are absolute, for any folder
            continue
        for url in page.links + page.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.loaded and parts.scheme != "data":
                    defects.append(f"{where} loads {url} from a network")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                defects.append(f"{where} links to {url}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                defects.append(f"{where} links to {url}, which has no such anchor")
    return defects
