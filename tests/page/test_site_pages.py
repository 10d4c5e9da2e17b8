"""The built documentation site on a desktop and on a phone: what is cut, broken, wrapped or covered."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTHS = (1280, 390)
PAGES_OF_NAMES = ("ntloss.NumberVocabulary", "ntloss.reading.NumberReading", "ntloss.trainers.rewards")
# What the first screen of a laptop shows.
FIRST_SCREENS = {
    "index.html": ("img[src*=idea]", "#install ~ .language-bash", "#install ~ .language-python"),
    "reference/ntloss.NTLCrossEntropyLoss.html": (
        "article pre",
        ".md-sidebar--primary .md-nav__link--active",
    ),
}

# The theme frames tables after loading.
FRAMED = """[...document.querySelectorAll(".md-typeset table:not([class])")]
    .every((table) => table.closest(".md-typeset__scrollwrap"))"""
DEFECTS = """() => {
    const found = [];
    const lines = (node) => [...node.getClientRects()].filter(({ width }) => width);
    for (const mark of document.querySelectorAll(".headerlink")) {
        const words = document.createRange();
        words.selectNodeContents(mark.parentElement);
        words.setEndBefore(mark);
        const last = lines(words).at(-1);
        const isAlone = last && mark.getClientRects()[0].top > last.bottom - 3;
        if (isAlone) found.push(`¶ alone: ${mark.parentElement.id}`);
    }
    for (const code of document.querySelectorAll("code.whole"))
        if (lines(code).length > 1 && !code.closest("h1, pre, .cards"))
            found.push(`broken: ${code.textContent}`);
    const isWide = innerWidth > 1220;
    for (const code of document.querySelectorAll(":is(.language-bash, .language-python) pre > code"))
        if (isWide && code.scrollWidth > code.clientWidth) found.push(`cut: ${code.textContent}`);
    const search = [...document.querySelectorAll(".md-search")].find((each) => lines(each).length);
    const [box, bar] = [search, search?.closest("nav")].map((each) => each?.getBoundingClientRect());
    const margin = bar?.right - box?.right;
    if (isWide && !(margin < 40)) found.push(`the search field ends ${margin} before the header`);
    for (const row of innerWidth < 500 ? document.querySelectorAll(".cards tr") : [])
        if (row.scrollWidth > row.clientWidth) found.push(`card: ${row.textContent.slice(0, 80)}`);
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth > clientWidth) found.push(`the page is ${scrollWidth} wide`);
    const button = document.querySelector(".md-sidebar-button");
    const header = document.querySelector(".md-header").getBoundingClientRect();
    if (button && button.getBoundingClientRect().bottom > header.bottom) found.push("the button covers text");
    return found;
}"""


def build(folder):
    """Build the site in a folder of its own, from the repository's files."""
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)  # the generator follows links
    for name in ("docs", "benchmarks", "examples", "src", "studies"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "tools", folder / "tools")
    command = [sys.executable, "tools/build_site.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


def test_pages_are_whole_on_a_desktop_and_on_a_phone(browser, tmp_path):
    pytest.importorskip("zensical", reason="the site's generator is not installed")
    site = build(tmp_path)
    window = browser.new_page()
    window.route("**/search*.js", lambda route: route.abort())  # each page would read the whole index
    defects = {}
    for path in (*site.glob("*.html"), *(site / "reference" / f"{name}.html" for name in PAGES_OF_NAMES)):
        if path.name == "404.html":  # its addresses are those of a server
            continue
        window.goto(path.as_uri())
        window.wait_for_function(FRAMED)
        for width in WIDTHS:
            window.set_viewport_size({"width": width, "height": 900})
            if lines := window.evaluate(DEFECTS):
                defects[f"{path.name} at {width}"] = lines
    window.set_viewport_size({"width": 1280, "height": 900})
    for name, parts in FIRST_SCREENS.items():
        window.goto((site / name).as_uri())
        boxes = [window.locator(part).locator("visible=true").first.bounding_box() for part in parts]
        if below := [part for part, box in zip(parts, boxes, strict=True) if box["y"] + box["height"] > 900]:
            defects[name] = below
    window.close()
    assert defects == {}
