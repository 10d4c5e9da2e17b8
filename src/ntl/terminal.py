"""What people read, errors and tables of settings: with colours in a terminal, and plain elsewhere."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100  # columns of a table that is written to a file or a pipe
HELP_OPTIONS = {"-h", "--help"}


def console(stderr: bool = False) -> Console:
    """Return the terminal, or whatever stdout or stderr is; NO_COLOR and TERM=dumb are respected."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


def print_error(name: str, message: str) -> None:
    """Print a program's message to stderr, on lines of any length."""
    message = message.rstrip()  # there may be no advice
    if not sys.stderr.isatty():  # also where rich is not installed, of which this may be the message
        print(f"{name}: {message}", file=sys.stderr)
        return
    from rich.markup import escape

    console(stderr=True).print(f"[bold red]{name}:[/] {escape(message)}", soft_wrap=True)


def print_keys(title: str, kind: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Print the keys of a settings class, with the values of a choice and what they mean.

    Args:
        title: What the values are of, such as `loss=ntl_was`.
        kind: A dataclass whose fields are declared with `setting`.
        values: Maps each key to its value.
        prefix: What stands before a key on the command line, such as `loss.`.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", overflow="fold", max_width=44)
    table.add_column(overflow="fold")
    meaning = describe_fields(kind)
    for key in sorted(values, key=lambda key: key not in inspect.get_annotations(kind)):  # its own come first
        table.add_row(Text(f"{prefix}{key}={format_setting(values[key])}"), Text(meaning.get(key, "")))
    out = console()
    out.print(Text.assemble((title, "bold cyan"), ": ", (inspect.getdoc(kind) or "").partition("\n")[0]))
    out.print(table, "")


def describe_fields(kind: type) -> dict[str, str]:
    """Map the fields of a settings class to their help, after the values that a choice allows."""
    found = {}
    for each in fields(kind):
        hint = get_type_hints(kind)[each.name]
        kinds = [
            part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Enum)
        ]
        choices = [str(value.value) for part in kinds for value in part]
        found[each.name] = "; ".join(filter(None, [", ".join(choices), each.metadata.get("help")]))
    return found


def format_setting(value: Any) -> str:
    """Write a setting as a user types it.

    Example:
        >>> [format_setting(value) for value in (None, True, 0.3, ["greedy", "median"], {"sigma": 1.0})]
        ['null', 'true', '0.3', '[greedy,median]', '{sigma: 1.0}']
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {format_setting(each)}' for key, each in value.items())}}}"
    return f"[{','.join(map(format_setting, value))}]" if isinstance(value, list) else str(value)
