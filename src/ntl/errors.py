"""The one error that a user of the lab can mend."""

import errno

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Something that was asked for cannot be done; the message says what was given, expected, and what to do.

    The command line prints it as one line and exits with code 2, without a traceback.
    """


def disk_full(error: OSError, advice: str) -> UserError | None:
    """Make the error of a disk without room.

    Args:
        error: That some library raised.
        advice: How to go on once there is room.

    Returns:
        The error, to be raised; None where something else went wrong.
    """
    if error.errno not in FULL and "No space left on device" not in str(error):
        return None
    where = f" writing {error.filename}" if error.filename else ""
    return UserError(
        f"the disk is full{where} ({error.strerror or error}); expected room for what is written. Free some: "
        f"{advice}"
    )
