"""Print lines that somebody may have stopped to read."""

from __future__ import annotations

import os
import sys


def say(text: str, end: str = "\n") -> None:
    """Print a text; if nobody reads standard output any more, as after `| head`, it is dropped."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
