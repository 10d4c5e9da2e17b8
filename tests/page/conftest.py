"""The page in a real browser: fixtures for the tests that need Chromium, which skip where there is none."""

import os
import shutil
import sys
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLAYGROUND = Path(__file__).parents[2] / "docs" / "playground"
PAGE = (PLAYGROUND / "index.html").as_uri()
sys.path.insert(0, str(PLAYGROUND))  # for make_data


def pytest_itemcollected(item):
    """Leave what needs a browser to `make test-site`."""
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.site)


def find_chromium():
    """Path of an installed Chromium, or of the one that the environment variable CHROMIUM names."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser():
    path = find_chromium()
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on the PATH, and CHROMIUM is not set")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        # Containers run as root and have little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = started.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Open the page with options of a browser context; afterwards, nothing may have gone wrong in it.

    `script` runs before the page's own.
    """
    problems: list[str] = []
    contexts = []

    def check(message):
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def open_it(script="", **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)  # a busy machine takes long to start a page
        page.on("console", check)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(f"{request.url} failed"))
        page.on("request", lambda request: _check_local(request.url, problems))
        if script:
            page.add_init_script(script)
        page.goto(PAGE)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not problems


def _check_local(url, problems):
    if not url.startswith(("file:", "data:", "blob:")):
        problems.append(f"{url} is not a local file")


@pytest.fixture
def page(open_page):
    """The page on a desktop, without animations."""
    return open_page(reduced_motion="reduce")
