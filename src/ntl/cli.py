"""The `ntl` command, which dispatches to its subcommands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from ntl.errors import UserError, unknown_key
from ntl.program import HELP_OPTIONS, run_program

# Maps each command to its module. Only the requested module is imported; its `main` receives the remaining
# arguments.
COMMANDS = {
    "prepare": "ntl.data.prepare",
    "train": "ntl.train",
    "report": "ntl.report.program",
    "compare": "ntl.compare",
}
USAGE = """\
usage: ntl COMMAND [argument ...]

commands:
  prepare   convert a dataset's official files into training, validation and test files
  train     run the paper's program: one model, one loss, one dataset; with -m several
  report    collect runs of the paper's program into tables over seeds and figures
  compare   train with several objectives and seeds, and report tables and figures

  ntl train model_args=vanilla_t5 run_specific_config@_global_=debug_config
  ntl report outputs/mathematics_dataset

`ntl COMMAND --help` shows what matters of each; `ntl --version` prints the version; and
`eval "$(ntl -sc install=bash)"` installs tab completion."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. See `run_program`; the exit code is 1 if a run failed."""
    return run_program("ntl", _dispatch, arguments)


def _dispatch(arguments: Sequence[str]) -> int:
    """Run the command that comes first."""
    command, *rest = arguments or ["--help"]
    if command in ("-sc", "--shell-completion"):
        return _complete(rest)
    if command in HELP_OPTIONS:
        print(USAGE)
        return 0
    if command == "--version":
        print(f"ntl {version('ntloss')}")
        return 0
    if command not in COMMANDS:
        raise unknown_key("ntl ", command, [*COMMANDS, "--help", "--version"])
    try:
        module = import_module(COMMANDS[command])
    except ModuleNotFoundError as error:
        missing = (error.name or "ntl").partition(".")[0]
        if missing in ("ntl", "ntloss"):  # a bug of ours, which no installation fixes
            raise
        raise UserError(
            f"{missing} is not installed; the lab needs it, though the library does not. In this repository, "
            "run: pip install '.[lab]'."
        ) from None
    code: int = module.main(rest)
    return code


def _complete(options: Sequence[str]) -> int:
    """Let Hydra complete the words of `ntl train` and `ntl compare`, in every shell that it knows."""
    from ntl import compare, train

    if not options:
        raise UserError("ntl -sc has to know what to do; expected install=bash, or another shell.")
    line, program = os.environ.get("COMP_LINE", ""), train
    if "query" in options[0]:
        name, _, words = line.partition(" ")
        command, space, rest = words.partition(" ")
        if not space:
            print(*COMMANDS)
            return 0
        if command not in ("train", "compare"):
            return 0
        program = compare if command == "compare" else train
        os.environ["COMP_LINE"] = f"{name} {rest}"
    return program.main(["-sc", *options])
