"""Code that a user writes beside a study, named as `module:function`: losses, datasets and encodings."""

import ast
import sys
from functools import cache
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
    """Return the digest of the file of `module:function` and of what it imports from beside it.

    What is installed elsewhere is no part of it. The digest is empty if there is no such file.
    """
    source, digest = find_source(name), sha256()
    if source is None:
        return ""
    # The folder in which the first part of the module's name is found.
    root = source.parents[name.partition(":")[0].count(".") + (source.name == "__init__.py")]
    files = [source]
    for file in files:  # to which those are added that it imports
        digest.update(code := file.read_bytes())
        if file.suffix == ".py":
            files += [each for each in _imported(ast.parse(code, str(file)), file, root) if each not in files]
    return digest.hexdigest()[:12]


@cache
def digest_of_code() -> str:
    """Return the digest of the Python code of the lab and of ntloss, without comments.

    What reports results is left out, because it changes none.
    """
    digest = sha256()
    for package in ("ntl", "ntloss"):
        for root in getattr(find_spec(package), "submodule_search_locations", None) or ():
            for file in sorted(Path(root).rglob("*.py")):
                if file.relative_to(root).parts[0] != "report":
                    code = ast.dump(ast.parse(file.read_bytes()))
                    digest.update(f"{file.relative_to(root)} {code}".encode())
    return digest.hexdigest()[:12]


def _imported(code: ast.Module, file: Path, root: Path) -> dict[Path, None]:
    """Return the files below a folder that a file imports, each once."""
    found = dict[Path, None]()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            folder, names = root, [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else root
            names = [
                node.module or "",
                *(f"{node.module or ''}.{each.name}".lstrip(".") for each in node.names),
            ]
        else:
            continue
        for path in (folder / each.replace(".", "/") for each in names):
            found |= dict.fromkeys(
                each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()
            )
    return found
