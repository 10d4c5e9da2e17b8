"""The `ntl` command, which dispatches to its subcommands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

# Maps each command to its module. Only the requested module is imported; its `main` receives the remaining
# arguments.
COMMANDS = {
    "prepare": "ntl.data.prepare",
    "train": "ntl.run_language_modeling",
    "report": "ntl.report.program",
    "compare": "ntl.training.sweep",
}
USAGE = """\
usage: ntl COMMAND [argument ...]

commands:
  prepare   convert a dataset's official files into training, validation and test files
  train     run the paper's program: one model, one loss, one dataset (also installed as ntl-train)
  report    collect runs of the paper's program into tables over seeds and figures
  compare   train with several objectives and seeds, and report tables and figures

`ntl COMMAND --help` lists the options."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: Command-line arguments without the program's name. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 for success, 1 if a run failed, 2 for a user-fixable error, 130 if interrupted, 141
        if the output pipe was closed.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not {"-h", "--help"} & {*arguments}:  # during training, the broken pipe may not be stdout
            raise
        # `ntl compare --help | head` has closed stdout; discard the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for SIGPIPE
    return code


def _run(arguments: Sequence[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command in COMMANDS:
        try:
            module = import_module(COMMANDS[command])
        except ModuleNotFoundError as error:
            missing = (error.name or "ntl").partition(".")[0]
            if missing in ("ntl", "ntloss"):  # a bug of ours, which no installation fixes
                raise
            print(
                f"ntl: {missing} is not installed; the lab needs it, though the library does not. "
                f"In this repository, run: pip install '.[lab]'.",
                file=sys.stderr,
            )
            return 2
        code: int = module.main(rest)
        return code
    print(
        f"ntl: {command!r} is unknown; expected one of: {', '.join(COMMANDS)}. See `ntl --help`.",
        file=sys.stderr,
    )
    return 2
