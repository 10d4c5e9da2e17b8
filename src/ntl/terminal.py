"""What people read: tables of settings."""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from textwrap import fill, wrap
from typing import Any, get_args, get_type_hints

HELP_OPTIONS = {"-h", "--help"}


def print_keys(title: str, kind: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Print the keys of a settings class, with the values of a choice and what they mean.

    Args:
        title: What the values are of, such as `loss=ntl_was`.
        kind: A dataclass whose fields are declared with `setting`.
        values: Maps each key to its value.
        prefix: What stands before a key on the command line, such as `loss.`.
    """
    first_line, *_ = (inspect.getdoc(kind) or "").splitlines()
    print(fill(f"{title}: {first_line}", 100))
    meaning = describe_fields(kind)
    for key in sorted(values, key=lambda key: key not in inspect.get_annotations(kind)):  # its own come first
        print(f"  {prefix}{key}={format_setting(values[key])}")
        print(*(f"      {line}" for line in wrap(meaning.get(key, ""), 90)), sep="\n")
    print()


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
