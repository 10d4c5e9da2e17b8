"""Code that a user writes beside a study, named as `module:function`: losses, datasets and encodings."""

import sys
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ntl.errors import UserError


def find_own_code(folder: str) -> None:
    """Let `module:function` be found in the folder of the command, behind all that is installed."""
    sys.path[:] = [*(path for path in sys.path if path not in ("", folder)), folder]


def is_own(name: Any) -> bool:
    """Return whether a setting names code of the user, and not the lab's."""
    return isinstance(name, str) and ":" in name and not name.startswith("ntl.")


def load_own(key: str, name: str) -> Any:
    """Import what a setting names as `module:function`.

    Raises:
        UserError: There is no such module or function. Other errors of the module are the user's to see.
    """
    module, _, function = name.partition(":")
    if find_source(name) is None:
        raise UserError(
            f"{key}={name}: there is no module {module}; expected module:function, with {module}.py in the "
            "folder of the command."
        )
    found = getattr(import_module(module), function, None)
    if found is None:
        raise UserError(f"{key}={name}: the module {module} has no {function}.")
    return found


def find_source(name: str) -> Path | None:
    """Return the file of `module:function`, None if there is none."""
    try:
        found = find_spec(name.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found is not None and found.origin else None


def digest_of_source(name: str) -> str:
    """Return the digest of the file of `module:function`; empty if there is none."""
    source = find_source(name)
    return "" if source is None else sha256(source.read_bytes()).hexdigest()[:12]
