"""What the lab uses of the library, everybody can use."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import ntl

FILES = sorted(Path(ntl.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-2:]))
def test_the_lab_uses_public_names_of_the_library_alone(file):
    imports = [n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)]
    for each in (each for each in imports if (each.module or "").partition(".")[0] == "ntloss"):
        public = import_module(each.module).__all__
        assert {name.name for name in each.names} <= {*public}, each.module
