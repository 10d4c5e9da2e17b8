"""The `ntl` command itself; other files test its subcommands."""

import math
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ntl
from ntl import __main__ as cli
from ntl.data import DATASETS
from ntl.errors import UserError
from ntl.settings import SECTIONS
from ntl.terminal import describe_fields

ROOT = Path(__file__).parents[2]


SCRIPT = ROOT / "src/ntl/run_language_modeling.py"


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("yaml", "from ntl.__main__ import main; raise SystemExit(main(['compare']))"),
        ("hydra", "from ntl.__main__ import main; raise SystemExit(main(['train']))"),
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
    assert f"{missing} is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ntl {version('ntloss')}\n"


PAGES = ["", "prepare", "train", "compare"]


@pytest.mark.parametrize("command", PAGES)
def test_a_commands_help_fits_a_screen(command, capsys):
    assert cli.main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert sum(math.ceil(len(line) / 100) or 1 for line in lines) <= 40
    assert lines[0].startswith(f"usage: ntl {command}".rstrip())
    assert sum(line.startswith("  ntl ") for line in lines) >= 2


def test_help_and_mistakes_do_not_wait_for_torch():
    code = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing either raises
from ntl.__main__ import main
for command in {PAGES}:
    assert main([*command.split(), "--help"]) == 0
assert main(["train", "dataset_args=tabular", "--help"]) == 0
for wrong in ("trian", "train --hlep", "train loss=crsp", "compare nowhere.yaml", "prepare gsmk"):
    assert main(wrong.split()) == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(ntl.__file__).parents[1])},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "close"),
    [
        ("trian", "ntl train"),
        ("--versoin", "ntl --version"),
        ("train --hlep", "--help"),
        ("train dataset_arg=tabular", "dataset_arg"),
        ("compare loss=crsp", "crps"),
        ("train weights=nope", "upper_layers"),
        ("train dataset_args=tabulr --help", "tabular"),
        ("train -m --cfg job", "--cfg"),
    ],
)
def test_a_mistyped_word_is_answered_with_a_close_one(command, close, capsys):
    assert cli.main(command.split()) == 2
    assert close in capsys.readouterr().err


def test_help_behind_a_choice_explains_its_keys(capsys):
    assert cli.main(["train", "dataset_args=tabular", "dataset_args.target=y", "loss=ntl_was", "--help"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "dataset_args.target=y\n +the",
        "dataset_args.longest=null\n",
        "loss.mode=add\n +add, replace;",
    ):
        assert re.search(f"^ +{line}", printed, re.MULTILINE), line
    assert "model_args" not in printed.partition("loss=ntl_was")[0]
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize("kind", [*DATASETS.values(), *SECTIONS.values()])
def test_every_key_has_a_help(kind):
    assert not [key for key, help in describe_fields(kind).items() if not help and key != "dataset_name"]


@pytest.mark.parametrize("command", [["-m", "ntl", "--help"], [str(SCRIPT), "--help"]], ids=" ".join)
def test_help_piped_to_head_ends_without_a_traceback(command):
    reads, writes = os.pipe()
    os.close(reads)  # as `| head -1` does after its line
    done = subprocess.run(
        [sys.executable, *command],
        stdout=writes,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(Path(ntl.__file__).parents[1])},
        timeout=120,
    )
    os.close(writes)
    assert done.stderr.decode() == ""
    assert done.returncode == 141


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (UserError, 2)])
def test_an_error_that_a_user_can_fix_and_an_interrupt_are_one_line(raised, code, monkeypatch, capsys):
    def fail(*_):
        raise raised("x is wrong.")

    monkeypatch.setattr(cli, "import_module", fail)
    assert cli.main(["report"]) == code
    assert capsys.readouterr().err.count("\n") == 1
