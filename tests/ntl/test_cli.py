"""The `ntl` command itself; other files test its subcommands."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ntl
from ntl import cli

ROOT = Path(__file__).parents[2]


SCRIPT = ROOT / "src/ntl/run_language_modeling.py"


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("tqdm", "from ntl.cli import main; raise SystemExit(main(['compare']))"),
        ("hydra", "from ntl.cli import main; raise SystemExit(main(['train']))"),
        ("hydra", f"sys.argv = [{str(SCRIPT)!r}]; runpy.run_path(sys.argv[0], run_name='__main__')"),
    ],
)
def test_a_missing_dependency_of_the_lab_is_reported_with_the_install_command(missing, command):
    block = f"import runpy, sys; sys.modules[{missing!r}] = None"  # as if it were not installed
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; {command}"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(ntl.__file__).parents[1])},
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"ntl: {missing} is not installed")
    assert "pip install '.[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_module_of_the_lab_itself_is_raised(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "compare", "ntl.nowhere")
    with pytest.raises(ModuleNotFoundError, match=r"ntl\.nowhere"):
        cli.main(["compare"])


def test_the_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ntl {version('ntloss')}\n"
