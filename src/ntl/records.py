"""What every program of the lab does to write down what it did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("ntloss", "torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is never seen half written.

    Args:
        path: The file.
        text: Its content.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested keys as one, with points between: `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def installed_versions() -> dict[str, str]:
    """Package -> version, of those that a result depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree
            found[package] = "not installed"
    return found
