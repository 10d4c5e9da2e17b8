"""Datasets by their section of the configuration, and files for them."""

from __future__ import annotations

from pathlib import Path

from ntl.config import compose_config
from ntl.data import Example, TaskData, load_task


def task(*overrides: str) -> TaskData:
    """Load a dataset, given overrides of `ntl compare`."""
    return load_task(compose_config(overrides, "compare").dataset_args)


def splits(data: TaskData) -> dict[str, list[Example]]:
    return {"train": list(data.train), "validation": list(data.validation)} | {
        test: list(examples) for test, examples in data.tests.items()
    }


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return str(folder)
