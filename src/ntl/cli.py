"""The `ntl` command: its subcommands by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """\
usage: ntl COMMAND [ARGUMENT ...]

commands:
  compare   train the same small T5 with several objectives and seeds; print a table, draw figures
  report    collect runs of the paper's program: tables over seeds, and figures

`ntl COMMAND --help` lists what can be set."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: Those of the command line, without the program's name. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 all is done, 1 a run failed, 2 something asked for cannot be done, 130 interrupted.
    """
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command == "compare":
        from ntl.compare import main as compare

        return compare(rest)
    if command == "report":
        from ntl.report import main as report

        return report(rest)
    print(
        f"ntl: {command!r} is unknown; expected one of: compare, report. See `ntl --help`.", file=sys.stderr
    )
    return 2
