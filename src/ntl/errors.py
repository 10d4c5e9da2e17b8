"""The lab's user-fixable error."""

import errno

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """A user-fixable error, whose message says what was given, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """


def disk_full_error(error: OSError, advice: str) -> UserError | None:
    """Convert an error of a full disk into a user-fixable error.

    Args:
        error: Error raised by a library.
        advice: What to do once the disk has room.

    Returns:
        The error to raise, or None if `error` has another cause.
    """
    if error.errno not in DISK_FULL_ERRNOS and "No space left on device" not in str(error):
        return None
    where = f" writing {error.filename}" if error.filename else ""
    return UserError(
        f"the disk is full{where} ({error.strerror or error}); expected room for the output. Free some "
        f"space: {advice}"
    )
