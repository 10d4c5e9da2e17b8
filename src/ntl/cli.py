"""The `ntl` command, which dispatches to its subcommands."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version

from ntl.errors import UserError

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

`ntl COMMAND --help` lists the options; `ntl --version` prints the version."""
HELP_OPTIONS = {"-h", "--help"}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. See `run_program`; the exit code is 1 if a run failed."""
    return run_program("ntl", _dispatch, arguments)


def run_program(
    name: str, program: Callable[[Sequence[str]], int], arguments: Sequence[str] | None, advice: str = ""
) -> int:
    """Run a program. If the user can fix its error, print one line instead of a traceback.

    Args:
        name: Name of the program, for messages.
        program: Function from the arguments to the exit code.
        arguments: Command-line arguments. Default: `sys.argv[1:]`.
        advice: How to continue after an interrupt or once a full disk has room.

    Returns:
        The exit code: the program's own, 2 for a user-fixable error, 130 if interrupted, 141 if the reader of
        `--help` closed the pipe.

    Raises:
        BrokenPipeError, OSError: The error is neither a closed pipe of `--help` nor a full disk.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = program(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        message, code = str(error), 2
    except KeyboardInterrupt:
        message, code = f"interrupted. {advice}", 130
    except BrokenPipeError:
        if not HELP_OPTIONS & {*arguments}:  # during training, the broken pipe may not be stdout
            raise
        # `ntl compare --help | head` has closed stdout; discard the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for SIGPIPE
    except OSError as error:
        if error.errno not in DISK_FULL and "No space left on device" not in str(error):
            raise
        where = f" writing {error.filename}" if error.filename else ""
        message = f"the disk is full{where} ({error.strerror or error}); expected room for the output. "
        message, code = f"{message}Free some space. {advice}", 2
    # Under torchrun every process raises the same error; only one prints it.
    if os.environ.get("RANK", "0") == "0":
        print(f"{name}: {message}".rstrip(), file=sys.stderr)  # there may be no advice
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    """Run the command that comes first.

    Raises:
        UserError: The command is unknown, or a package that the lab needs is not installed.
    """
    command, *rest = arguments or ["--help"]
    if command in HELP_OPTIONS:
        print(USAGE)
        return 0
    if command == "--version":
        print(f"ntl {version('ntloss')}")
        return 0
    if command not in COMMANDS:
        raise UserError(f"{command!r} is unknown; expected one of: {', '.join(COMMANDS)}. See `ntl --help`.")
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
