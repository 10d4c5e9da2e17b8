"""The lab's user-fixable error, and helpers for its messages."""


class UserError(Exception):
    """A user-fixable error, whose message says what was given, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """


def not_a_number(answer: str, reader: str, advice: str) -> UserError:
    """Make the error of an answer that is not a single number, but read by something that expects one."""
    return UserError(
        f"the answer {answer[:80]!r} is not a single number; {reader} expects answers such as -12.5. Choose "
        f"another dataset, or {advice}."
    )


def describe(error: Exception) -> str:
    """Return an error's type and the first line of its message, for the message of another one."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
