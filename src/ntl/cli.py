"""The `ntl` command: its subcommands by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

# Command -> its module, whose `main` takes the other arguments; only the one that is asked for is imported.
COMMANDS = {
    "prepare": "ntl.prepare",
    "train": "ntl.run_language_modeling",
    "report": "ntl.report",
    "compare": "ntl.comparison.program",
}
USAGE = """\
usage: ntl COMMAND [argument ...]

commands:
  prepare   make a dataset's training, validation and test files from its official files
  train     the paper's program: one model, one loss, one dataset (also installed as ntl-train)
  report    collect runs of the paper's program: tables over seeds, and figures
  compare   train the same small T5 with several objectives and seeds; print a table, draw figures

`ntl COMMAND --help` lists what can be set."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: Those of the command line, without the program's name. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 all is done, 1 a run failed, 2 something asked for cannot be done, 130 interrupted,
        141 nobody reads on.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not {"-h", "--help"} & {*arguments}:  # a training may have met another broken pipe than its output
            raise
        # `ntl compare --help | head` has read enough; the rest goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell says of a program that a closed pipe ended
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
            if missing in ("ntl", "ntloss"):  # no installation mends it
                raise
            print(
                f"ntl: {missing} is not installed; the library does without it, the lab does not. "
                f"In this repository: pip install '.[lab]'.",
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
