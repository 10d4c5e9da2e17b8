"""The `ntl` command itself; other files test its subcommands."""

import math
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

import ntl
from ntl import __main__ as cli
from ntl.data import DATASETS
from ntl.errors import UserError
from ntl.settings import SECTIONS


def test_the_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ntl {version('ntloss')}\n"


PAGES = ["", "train", "compare"]


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
for wrong, code in [("trian", 2), ("train --hlep", 2), ("train loss=crsp", 1), ("compare nowhere.yaml", 1)]:
    assert main(wrong.split()) == code, wrong
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
    ("command", "close", "code"),
    [
        ("trian", "ntl train", 2),
        ("--versoin", "ntl --version", 2),
        ("train dataset_arg=tabular", "dataset_arg", 1),  # by Hydra
        ("compare loss=crsp", "crps", 1),
    ],
)
def test_a_mistyped_word_is_answered_with_a_close_one(command, close, code, capsys):
    assert cli.main(command.split()) == code
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
    assert "model_args.name=" not in printed
    keys = printed.partition("dataset_args=tabular: ")[2]
    assert max(map(len, keys.splitlines())) <= 100


@pytest.mark.parametrize("kind", [*DATASETS.values(), *SECTIONS.values()])
def test_every_key_has_a_help(kind):
    assert all(each.metadata.get("help") for each in fields(kind) if each.name != "dataset_name")


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (UserError, 2)])
def test_an_error_that_a_user_can_fix_and_an_interrupt_are_one_line(raised, code, monkeypatch, capsys):
    def fail(*_):
        raise raised("x is wrong.")

    monkeypatch.setattr(cli, "import_module", fail)
    assert cli.main(["report"]) == code
    assert capsys.readouterr().err.count("\n") == 1
