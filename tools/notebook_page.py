"""Convert a notebook with its saved outputs to a page of the site."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def convert(notebook: Path, page: Path) -> str:
    """Convert a notebook to Markdown; its pictures are written beside `page`.

    Args:
        notebook: the .ipynb file.
        page: where the text will be written.

    Returns:
        The page's text.
    """
    parts: list[str] = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for position, output in enumerate(cell.get("outputs", [])):
            parts.append(_output(output, page.with_name(f"{notebook.stem}-{number}-{position}.png")))
    return "\n\n".join(part for part in parts if part) + "\n"


def _output(output: dict[str, Any], picture: Path) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output of the cell above]({picture.name})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""
