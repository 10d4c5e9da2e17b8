"""Helpers that all of the lab's programs use to write their results."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ntloss", "torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see it half written.

    Args:
        path: Path of the file.
        text: Its content.

    Raises:
        OSError: The file cannot be written; an existing file is left unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def installed_versions() -> dict[str, str]:
    """Return the installed version of each package that results depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree
            found[package] = "not installed"
    return found
