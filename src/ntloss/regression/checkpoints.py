"""The state that an interrupted training leaves in a file, and what it depends on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from ntloss.writing import digest_of_weights

# Parameters that a training does not depend on.
_NOT_IN_KEY = ("refit", "interval", "compare", "checkpoint", "verbose")


class Checkpoint:
    """A file with the state of a training, from which the same training goes on.

    Args:
        folder: of the file, which is created. None: no state is kept.
        name: of the file.
        parameters: those of the estimator.
        rows: what else the training depends on: rows, answers and weights.

    Attributes:
        held: the state that the file holds, None if it cannot be used.
        refused: why it cannot be used, as the rest of a sentence about the file; empty if there is no file.
    """

    def __init__(
        self, folder: str | Path | None, name: str, parameters: dict[str, Any], rows: Sequence[Any]
    ) -> None:
        self.held: dict[str, Any] | None = None
        self.refused = ""
        self.file = None if folder is None else Path(folder).expanduser() / name
        if self.file is None:
            return
        used = {**parameters, **dict.fromkeys(_NOT_IN_KEY)}
        depends = [used, digest_of_weights(used["model"]), *rows]
        self._key = hashlib.sha256(json.dumps(depends, default=_as_key).encode()).hexdigest()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = torch.load(self.file, map_location="cpu", weights_only=True)
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
        if self.file is None:
            return
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
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return as_json(value)
