"""The lab's user-fixable error, and helpers for its messages.

Whatever a user of the lab can get wrong raises it: settings, files, models and folders.
"""

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

CONTINUES = (
    "The same command continues from what is saved; omit training_args.overwrite_output_dir=true, which "
    "starts again."
)


class UserError(SystemExit):
    """A user-fixable error, whose message says what was given, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2. As a
    SystemExit, it passes through Hydra, which prints other errors of a run with a traceback.
    """


def unknown_key(prefix: str, key: str, known: Collection[str]) -> UserError:
    """Make the error of an unknown key, with the closest known key or, if none is close, all of them."""
    if near := difflib.get_close_matches(key, known, n=1):
        return UserError(f"{prefix}{key} is unknown. Did you mean {prefix}{near[0]}?")
    return UserError(f"{prefix}{key} is unknown; expected one of: {', '.join(known)}.")


@contextmanager
def writing_to(given: object, expected: str, advice: str) -> Iterator[None]:
    """Turn errors of writing to what the user has `given` into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{given} cannot be written ({error.strerror or error}); expected {expected}. {advice}"
        ) from None


def describe(error: Exception) -> str:
    """Return an error's type and the first line of its message, for the message of another one."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
