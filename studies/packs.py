"""Packs of runs that a study makes itself."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV."""
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def merge(pack: Path, outputs: Path, key: Sequence[str]) -> list[dict[str, Any]]:
    """Read the runs of a pack and of a folder of outputs, and write all of them to the pack.

    Args:
        pack: File with one run a line, JSON, compressed.
        outputs: Folder with one JSON file for each run.
        key: The entries that tell runs apart. Of two runs, the one of the outputs stays.
    """
    packed = lzma.decompress(pack.read_bytes()).decode().splitlines() if pack.is_file() else []
    texts = [*packed, *(path.read_text("utf-8") for path in sorted(outputs.glob("*.json")))]
    runs = {tuple(run[name] for name in key): run for run in map(json.loads, texts)}
    ordered = [runs[each] for each in sorted(runs)]
    if ordered:
        pack.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{json.dumps(run, separators=(',', ':'))}\n" for run in ordered)
        part = pack.with_suffix(".writing")
        part.write_bytes(lzma.compress(lines.encode(), preset=9))
        part.replace(pack)
    return ordered
