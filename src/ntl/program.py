"""How every program of the lab runs, and prints the errors that its user can fix."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from ntl.errors import UserError

HELP_OPTIONS = {"-h", "--help"}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        return discard_output()
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


def discard_output() -> int:
    """Discard all that is still printed, because `| head` has closed stdout; return the exit code for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # the shell's exit code for SIGPIPE
