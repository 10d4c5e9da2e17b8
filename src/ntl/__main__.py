"""The commands of the lab: `ntl train | compare | report | prepare`, or `python -m ntl ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from ntl.errors import CONTINUES, UserError, unknown_key
from ntl.own import find_own_code
from ntl.terminal import HELP_OPTIONS

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
        The exit code: the command's own, 2 for a user-fixable error, 130 if interrupted, 141 if the reader of
        `--help` closed the pipe.
    """
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = f"ntl {command}" if command in COMMANDS else "ntl"
    find_own_code(os.getcwd())
    try:
        if command in HELP_OPTIONS:
            print(USAGE)
            code = 0
        elif command == "--version":
            print(f"ntl {version('ntloss')}")
            code = 0
        elif command not in COMMANDS:
            raise unknown_key("ntl ", command, [*COMMANDS, "--help", "--version"])
        else:
            module, function = COMMANDS[command]
            try:
                run = getattr(import_module(module), function)
            except ModuleNotFoundError as error:
                missing = (error.name or "ntl").partition(".")[0]
                if missing in ("ntl", "ntloss"):  # a bug of ours, which no installation fixes
                    raise
                raise UserError(
                    f"{missing} is not installed; the lab needs it, though the library does not. In this "
                    "repository, run: make install."
                ) from None
            code = run(rest)
        sys.stdout.flush()
        return code
    except UserError as error:
        message, code = str(error), 2
    except KeyboardInterrupt:
        message, code = f"interrupted. {CONTINUES}", 130
    except BrokenPipeError:
        if not HELP_OPTIONS & {command, *rest}:  # during training, the broken pipe may not be stdout
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for SIGPIPE
    if os.environ.get("RANK", "0") == "0":  # under torchrun every process raises the same error
        print(f"{name}: {message.rstrip()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
