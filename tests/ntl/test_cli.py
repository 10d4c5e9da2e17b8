"""The `ntl` command itself; other files test its subcommands."""

import io
import math
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ntl
from ntl import cli
from ntl.config import DATASETS, Tabular
from ntl.terminal import describe_fields, print_error

ROOT = Path(__file__).parents[2]


SCRIPT = ROOT / "src/ntl/run_language_modeling.py"


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("rich", "from ntl.cli import main; raise SystemExit(main(['compare']))"),
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
from ntl.cli import main
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
    ("command", "advice"),
    [
        ("trian", "Did you mean ntl train?"),
        ("--versoin", "Did you mean ntl --version?"),
        ("train --hlep", "Did you mean --help?"),
        ("train dataset_arg=tabular", "Did you mean dataset_args?"),
        ("compare loss=crsp", "Did you mean crps?"),
        ("train weights=nope", "Available: all, lora, upper_layers\n"),
        ("train dataset_args=tabulr --help", "Did you mean tabular?"),
    ],
)
def test_a_mistyped_word_is_answered_with_a_close_one(command, advice, capsys):
    assert cli.main(command.split()) == 2
    assert advice in capsys.readouterr().err


def test_help_behind_a_choice_explains_its_keys(capsys):
    assert cli.main(["train", "dataset_args=tabular", "dataset_args.target=y", "loss=ntl_was", "--help"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "dataset_args=tabular: A table as text",
        "dataset_args.target=y +the column to predict",
        "dataset_args.longest=null +characters of a question; rows with longer ones",
        "loss.criterion=ntl_was +a name of",
        "loss.mode=add +add, replace; replace: the criterion replaces",
    ):
        assert re.search(f"^{line}", printed, re.MULTILINE), line
    assert "model_args" not in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_comments_of_fields_are_their_meaning():
    meaning = describe_fields(Tabular)
    assert meaning["file"] == "the table; sample: 2,000 diamonds that ship with the lab"
    assert meaning["ratings"].startswith("A column with the numbers of several people")  # above it
    assert (
        meaning["shots"] == "training examples before each question, for models that are not trained"
    )  # Data's
    assert all(describe_fields(kind)["cache_dir"] for kind in DATASETS)


def test_errors_have_colours_in_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = []
    for is_terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda found=is_terminal: found
        monkeypatch.setattr(sys, "stderr", stream)
        print_error("ntl train", "[bold]seed=x[/bold] " + "is no number. " * 20)
        printed.append(stream.getvalue())
    assert "\x1b[1;31mntl train:\x1b[0m [bold]seed=x" in printed[0]
    assert re.sub(r"\x1b\[[\d;]*m", "", printed[0]).rstrip() == printed[1].rstrip()
    assert printed[1].count("\n") == 1


def test_the_documented_line_installs_completion(capsys):
    page = (ROOT / "docs/lab.md").read_text(encoding="utf-8")
    option = re.search(r"`eval \"\$\(ntl (-sc install=bash)\)\"`", page)[1]
    assert cli.main(option.split()) == 0
    assert "complete -o nospace -o default -F hydra_bash_completion" in capsys.readouterr().out
