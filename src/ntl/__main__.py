"""The commands of the lab: `ntl train | compare | report | prepare`, or `python -m ntl ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from ntl.errors import CONTINUES, UserError, unknown_key
from ntl.own import find_own_code

# Maps each command to its module and function, which gets the remaining arguments and returns the exit code.
COMMANDS = {
    "train": ("ntl.commands", "train"),
    "compare": ("ntl.commands", "compare"),
    "report": ("ntl.report.program", "main"),
    "prepare": ("ntl.data.prepare", "main"),
}
USAGE = """\
usage: ntl COMMAND [argument ...]

commands:
  train     run the paper's program: one model, one loss, one dataset; with -m several
  compare   train with several losses and seeds, and report tables and figures
  report    collect runs into tables over seeds and figures
  prepare   convert a dataset's official files into training, validation and test files

  ntl train model_args=vanilla_t5 run_specific_config@_global_=debug_config
  ntl compare studies/whole_numbers/sentiment.yaml
  ntl report outputs/mathematics_dataset

`ntl COMMAND --help` shows what matters of each, and `ntl --version` prints the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. If the user can fix its error, print one line instead of a traceback.

    Args:
        arguments: Command-line arguments. Default: `sys.argv[1:]`.

    Returns:
        The exit code: the command's own, 2 for a user-fixable error, 130 if interrupted.
    """
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command == "--version":
        print(f"ntl {version('ntloss')}")
        return 0
    find_own_code(os.getcwd())
    try:
        if command not in COMMANDS:
            raise unknown_key("ntl ", command, [*COMMANDS, "--help", "--version"])
        module, function = COMMANDS[command]
        code: int = getattr(import_module(module), function)(rest)
        return code
    except UserError as error:
        message, code = f"{error}", 2
    except KeyboardInterrupt:
        message, code = f"interrupted. {CONTINUES}", 130
    if os.environ.get("RANK", "0") == "0":  # under torchrun every process raises the same error
        print(f"ntl {command}: {message.rstrip()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
