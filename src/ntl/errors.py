"""The one error that a user of the lab can mend."""


class UserError(Exception):
    """Something that was asked for cannot be done; the message says what was given, expected, and what to do.

    The command line prints it as one line and exits with code 2, without a traceback.
    """
