"""Build the documentation site: `make docs`.

    python tools/build_site.py          # build/site, or an error
    python tools/build_site.py --serve  # the same, then served at http://localhost:8000

Pages are copied to build/pages together with the files of the repository that they link to, and the pages of
the API reference are made from the library's public names. Zensical then builds the site in strict mode. At
the end, every link of the built pages is checked, images included, which strict mode does not cover.
"""

from __future__ import annotations

import argparse
import http.server
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import notebook_page
import reference
from built_pages import check, finish

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"

# In the navigation, and not below docs/.
FILES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"]
COPIED = {".png", ".svg", ".pdf", ".csv", ".json", ".tex"}  # as they are; other files become pages
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".toml": "toml", ".cff": "yaml"}
# Inline links and images of Markdown, without those of code blocks and inline code.
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


class SiteError(Exception):
    """The site cannot be built; the message says what to mend."""


def main() -> int:
    """Build the site, and serve it if asked to.

    Returns:
        The exit code: 0, or 1 if the site has a defect.
    """
    parser = argparse.ArgumentParser(description="Build the documentation site in build/site.")
    parser.add_argument("--serve", action="store_true", help="serve it at http://localhost:8000 afterwards")
    arguments = parser.parse_args()
    try:
        stage()
        generate()
        finish(SITE)
        defects = check(SITE)
    except SiteError as error:
        defects = [str(error)]
    if defects:
        print(*defects, f"{len(defects)} defects", sep="\n", file=sys.stderr)
        return 1
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}; every link leads somewhere")
    if arguments.serve:
        serve()
    return 0


def stage() -> None:
    """Fill build/pages: docs/, the API reference, and every file of the repository that a page links to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    missing = reference.undocumented()
    if missing:
        raise SiteError("\n".join(f"{name} has no docstring" for name in missing))
    reference.write_pages(PAGES / "reference")
    waiting = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in FILES)]
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source not in done:
            done.add(source)
            waiting += stage_file(source)


def stage_file(source: Path) -> list[Path]:
    """Write one file of the repository as a page, or copy it.

    Returns:
        The files outside of docs/ that it links to.
    """
    target = PAGES / page_of(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix in COPIED:
        shutil.copyfile(source, target)
        return []
    if source.suffix == ".ipynb":
        target.write_text(notebook_page.convert(source, target), encoding="utf-8")
        return []
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".md":
        name, language = source.relative_to(ROOT).as_posix(), LANGUAGES.get(source.suffix, "text")
        target.write_text(f"# {name}\n\n````{language}\n{text}````\n", encoding="utf-8")
        return []
    linked: list[Path] = []
    target.write_text(rewrite_links(text, source, target, linked), encoding="utf-8")
    return linked


def rewrite_links(text: str, source: Path, target: Path, linked: list[Path]) -> str:
    """Let a page's relative links lead to pages of the site; append the files that they need to `linked`."""

    def rewrite(match: re.Match[str]) -> str:
        opening, path, anchor = match[1], match[2], match[3] or ""
        if ":" in path:
            return match[0]
        file = Path(os.path.normpath(source.parent / path))
        if not file.is_file() and not (PAGES / page_of(file)).is_file():
            raise SiteError(f"{source.relative_to(ROOT)} links to {path}, which is no file of the repository")
        if not file.is_relative_to(ROOT / "docs"):
            linked.append(file)
        return f"{opening}{os.path.relpath(PAGES / page_of(file), target.parent)}{anchor})"

    pieces, end = [], 0
    for code in _CODE.finditer(text):
        pieces += [_LINK.sub(rewrite, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, _LINK.sub(rewrite, text[end:])])


def page_of(file: Path) -> str:
    """Path of a repository's file below build/pages."""
    path = file.relative_to(ROOT).as_posix()
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":  # the home page
        return "index.md"
    keeps_name = file.suffix == ".md" or file.suffix in COPIED
    return f"repository/{path}" if keeps_name else f"repository/{path}.md"


def generate() -> None:
    """Run the generator in strict mode."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode or "Warning" in done.stderr + done.stdout:
        raise SiteError(f"zensical build --strict failed:\n{done.stdout}{done.stderr}")


def serve() -> None:
    """Serve the built site until interrupted."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("localhost", 8000), handler) as server:
        print("http://localhost:8000 (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    raise SystemExit(main())
