"""The lab's user-fixable error, and how others are quoted in it."""


class UserError(Exception):
    """A user-fixable error, whose message says what was given, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """


def describe(error: Exception) -> str:
    """Return an error's type and the first line of its message, for the message of another one."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
