"""Imports, public names and metadata of the package."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ntloss
import ntloss.core

# Extras of the integrations; the lab and development have other minimum versions.
_EXTRAS = "transformers|trl|peft|lightning"
DIGITS = ntloss.NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)


def run(code):
    source = Path(ntloss.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_published_losses_alone_are_reweighed_by_default():
    for published in (ntloss.NTLoss, ntloss.NTLossDotProduct, ntloss.NumberLevelLoss):
        assert published(DIGITS).reweigh
    assert ntloss.NTLCrossEntropyLoss(DIGITS).criterion is ntloss.ntl_was


def test_the_commands_help_needs_no_torch():
    code = """
sys.modules["torch"] = None  # importing it raises
from ntloss.cli import main
for arguments in ([], ["--help"], ["inspect", "--help"], ["inspct"], ["inspect", "nowhere/at/all"]):
    try:
        main(arguments)
    except SystemExit:
        pass
"""
    run(code)


def test_a_loss_imports_torch_alone():
    # Not counting what torch imports. The names are imported when they are used.
    code = """
import torch
before = set(sys.modules)
sys.modules["transformers"] = sys.modules["tokenizers"] = None  # importing either raises
import ntloss, ntloss.reading, ntloss.numbers.parsing, ntloss.published
from ntloss import NTLoss, NumberVocabulary, read_number
loss = NTLoss(NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=12))
assert loss(torch.zeros(1, 12), torch.tensor([4])) > 0
print(*sorted(set(sys.modules) - before))
"""
    names = set(run(code).split())
    assert not {"ntloss.trainers", "ntloss.regression"} & names
    # torch imports some of these lazily, and two are blocked.
    others = {"torch", "numpy", "sympy", "mpmath", "transformers", "tokenizers", *sys.stdlib_module_names}
    ours = {name.partition(".")[0] for name in names} - others
    assert {name for name in ours if not name.startswith(("_", "cython"))} == {"ntloss"}


def test_every_name_of_the_published_package_exists_or_is_listed_as_gone(published):
    page = (Path(__file__).parents[2] / "docs/differences.md").read_text(encoding="utf-8")
    rows = page.partition("## Names that are gone")[2].splitlines()
    gone = {name for row in rows for name in re.findall(r"`(?:ntloss\.)?(\w+)", row.rpartition(" | ")[0])}
    for file in published.glob("ntloss/*.py"):
        assert file.stem in gone or importlib.import_module(f"ntloss.{file.stem}".removesuffix(".__init__"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name in gone:
                continue
            ours = vars(ntloss.core)[node.name](DIGITS)
            stored = [
                n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
            ]
            methods = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
            for name in {*methods, *(attribute.attr for attribute in stored)} - gone:
                assert name.startswith("_") or hasattr(ours, name), f"{node.name}.{name}"


def test_version_equals_that_of_the_distribution():
    try:
        installed = importlib.metadata.version("ntloss")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("ntloss is not installed, only on the path")
    assert ntloss.__version__ == installed


def test_all_lists_every_public_name_once():
    assert len(set(ntloss.__all__)) == len(ntloss.__all__)
    assert [name for name in ntloss.__all__ if not hasattr(ntloss, name)] == []  # imports them all
    ours = {n for n, x in vars(ntloss).items() if not n.startswith("_") and not inspect.ismodule(x)}
    assert ours == set(ntloss.__all__) <= set(dir(ntloss))
    with pytest.raises(AttributeError, match="crsp"):
        _ = ntloss.crsp


def test_every_file_that_names_the_version_names_the_same_one():
    release = re.sub(r"\.dev\d+$", "", ntloss.__version__)
    for name, line in (
        ("pyproject.toml", f'version = "{ntloss.__version__}"'),
        ("CHANGELOG.md", f"## {release} "),
        ("CITATION.cff", f"version: {release}\n"),
    ):
        assert line in (Path(__file__).parents[2] / name).read_text(encoding="utf-8"), name


INSTALLED = re.compile(r"ntloss/([\w/]+\.py|py\.typed)|ntloss-[^/]+\.dist-info/.*|bin/ntloss")


def test_the_line_that_readme_shows_installs_the_library_alone(tmp_path):
    """By the pip that this environment has, which is the one that Python brought."""
    root = Path(__file__).parents[2]
    line = re.search(
        r'^pip install "\./ntloss(\[\w+\])"', (root / "README.md").read_text("utf-8"), re.MULTILINE
    )
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--target", str(tmp_path)]
    install = [sys.executable, "-m", "pip", "install", "--quiet", *alone, f"{root}{line[1]}"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert [name for name in names if not INSTALLED.fullmatch(name)] == []
    assert {"ntloss/py.typed", "ntloss/engine/readout.py", "bin/ntloss"} <= names
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ntloss; print(ntloss.__file__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert Path(found.stdout).is_relative_to(tmp_path), found.stderr


def test_the_oldest_tested_releases_are_the_minimum_versions_in_the_metadata():
    root = Path(__file__).parents[2]
    metadata = (root / "pyproject.toml").read_text(encoding="utf-8")
    pins = dict(
        line.split("==")
        for line in (root / "constraints-oldest.txt").read_text().splitlines()
        if "==" in line
    )
    for name in ("torch", "transformers", "accelerate", "peft", "lightning"):  # TRL needs a newer Python
        floors = set(
            re.findall(rf'^(?:dependencies|{_EXTRAS}) = .*"{name}>=([\d.]+)', metadata, re.MULTILINE)
        )
        assert len(floors) == 1, name
        assert f"{pins[name]}.".startswith(f"{floors.pop()}."), name
