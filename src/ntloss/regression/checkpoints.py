"""The state that an interrupted training leaves in a file, and what it depends on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import types
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from ntloss.writing import digest_of_weights

# Parameters that a training does not depend on.
_NOT_IN_KEY = ("refit", "interval", "compare", "checkpoint", "verbose")


def open_checkpoint(
    folder: str | Path | None, name: str, parameters: dict[str, Any], rows: Sequence[Any]
) -> Checkpoint | None:
    """Return where the state of a training is kept, None without a folder.

    Args:
        folder: the folder, which is created.
        name: of the file.
        parameters: those of the estimator.
        rows: what else the training depends on: rows, answers and weights.
    """
    if folder is None:
        return None
    used = {**parameters, **dict.fromkeys(_NOT_IN_KEY)}
    if (weights := digest_of_weights(used["model"])) is not None:
        used["model"] = [used["model"], weights]
    return Checkpoint(Path(folder).expanduser() / name, [used, *rows])


class Checkpoint:
    """A file with the state of a training, from which the same training goes on.

    Args:
        file: its path; the folder is created.
        depends: what the training depends on: parameters, pretrained weights and rows.

    Attributes:
        held: the state that the file holds, None if it cannot be used.
        refused: why it cannot be used, as the rest of a sentence about the file; empty if there is no file.
    """

    def __init__(self, file: Path, depends: Any) -> None:
        self.file = file
        self._key = hashlib.sha256(json.dumps(depends, default=_as_key).encode()).hexdigest()
        self.held: dict[str, Any] | None = None
        self.refused = ""
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = torch.load(file, map_location="cpu", weights_only=True)
            if held["key"] == self._key:
                self.held = held
            else:
                self.refused = "was left by other rows, parameters or pretrained weights"
        except FileNotFoundError:
            pass
        except (EOFError, RuntimeError, UnpicklingError):
            self.refused = "is damaged"

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state in the file, at once."""
        partial_file = self.file.with_suffix(".partial")
        torch.save({"key": self._key, **state}, partial_file)
        os.replace(partial_file, self.file)


def as_json(value: Any) -> Any:
    """Return what is saved for a parameter that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    is_importable = getattr(sys.modules.get(module), name, None) is value
    return f"{module}:{name}" if is_importable else str(value)


def _as_key(value: Any) -> Any:
    """Return what a checkpoint depends on for a parameter: of a function its source, in any process."""
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if not isinstance(value, types.FunctionType):
        return as_json(value)
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):  # typed into an interpreter
        source = value.__code__.co_code.hex() + repr(value.__code__.co_consts)
    return [value.__module__, value.__qualname__, source]
