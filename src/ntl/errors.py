"""The lab's user-fixable error."""


class UserError(Exception):
    """A user-fixable error, whose message says what was given, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """
