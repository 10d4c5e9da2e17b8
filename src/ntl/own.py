"""Code that a user writes beside a study, named as `module:function`: losses, datasets and encodings."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import getfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ntl.errors import UserError, describe


def find_own_code(folder: str) -> None:
    """Let `module:function` be found in the folder of the command, behind all that is installed."""
    sys.path[:] = [*(path for path in sys.path if path not in ("", folder)), folder]


def is_own(name: Any) -> bool:
    """Return whether a setting names code of the user, and not the lab's."""
    return isinstance(name, str) and ":" in name and not name.startswith("ntl.")


def load_own(key: str, name: str) -> Any:
    """Import what a setting names as `module:function`.

    Raises:
        UserError: It cannot be imported.
    """
    try:
        if ":" not in name:
            raise ValueError("it names no function")
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{key}={name} cannot be imported ({describe(error)}); expected module:function, with the module "
            "in the folder of the command."
        ) from error


def digest_of_source(key: str, name: str) -> str:
    """Return the digest of the module of `module:function` and of what it imports from beside it.

    What is installed elsewhere is no part of it.
    """
    load_own(key, name)
    module = name.partition(":")[0]
    source = Path(getfile(import_module(module)))
    # The folder in which the first part of the module's name is found.
    root = source.parents[module.count(".") + (source.name == "__init__.py")]
    digest, files = sha256(), [source]
    for file in files:  # to which those are added that it imports
        digest.update(file.read_bytes())
        for each in _imported(file, root) if file.suffix == ".py" else ():
            if each not in files:
                files.append(each)
    return digest.hexdigest()[:12]


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """Find the files below a folder that a file imports."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            folder, names = root, [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else root
            names = [node.module or "", *(f"{node.module or ''}.{each.name}" for each in node.names)]
        else:
            continue
        for path in (folder.joinpath(*name.split(".")) for name in names):
            yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))


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
