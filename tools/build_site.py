"""Build the documentation site, `make docs`: build/site, or an error.

Pages are copied to build/pages together with the files of the repository that they link to, and the pages of
the API reference are made from the library's public names. Zensical then builds the site in strict mode. At
the end, every link of the built pages is checked, images included, which strict mode does not cover.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference
from built_pages import check, finish

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"

# In the navigation, and not below docs/.
FILES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"]
COPIED = {".png", ".svg", ".pdf", ".csv", ".json", ".tex"}  # as they are; other files become pages
# Inline links and images of Markdown, without those of code blocks and inline code.
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def main() -> None:
    """Build the site; a defect ends the program with a message."""
    stage()
    generate()
    finish(SITE)
    if defects := check(SITE):
        sys.exit("\n".join([*defects, f"{len(defects)} defects"]))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}; every link leads somewhere")


def stage() -> None:
    """Fill build/pages: docs/, the API reference, and every file of the repository that a page links to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
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
        target.write_text(notebook_page(source, target), encoding="utf-8")
        return []
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".md":
        name = source.relative_to(ROOT).as_posix()
        target.write_text(f"# {name}\n\n````{source.suffix[1:]}\n{text}````\n", encoding="utf-8")
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
            sys.exit(f"{source.relative_to(ROOT)} links to {path}, which is no file of the repository")
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
        sys.exit(f"zensical build --strict failed:\n{done.stdout}{done.stderr}")


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


if __name__ == "__main__":
    main()
