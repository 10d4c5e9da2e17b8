"""What the fields of a schema accept, in words: for error messages, and to check what omegaconf cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import field
from functools import cache
from math import inf
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints


class Rule(NamedTuple):
    """A rule for a value of the right type.

    `expected` describes valid values in error messages; `example` is one, as the user writes it.
    """

    expected: str
    example: Any
    fits: Callable[[Any], bool] = lambda value: True


def at_least(least: int) -> Rule:
    """Return a rule that accepts a number of at least `least`."""
    return Rule(f"a number that is at least {least}", 0.1, lambda value: value >= least)


def between(low: float, high: float = inf) -> Rule:
    """Return a rule that accepts a number between two bounds, without them."""
    bounds = f"above {low:g}" + (f" and below {high:g}" if high < inf else "")
    return Rule(f"a number that is {bounds}", 0.1, lambda value: low < value < high)


def whole(least: int, most: float = inf) -> Rule:
    """Return a rule that accepts a whole number from `least` to `most`."""
    bounds = f"of at least {least}" if most == inf else f"from {least} to {most}"
    return Rule(f"a whole number {bounds}", max(least, 1), lambda value: least <= value <= most)


def one_of(*names: str) -> Rule:
    """Return a rule that accepts one of several names."""
    return Rule(f"one of: {', '.join(names)}", names[0], lambda value: value in names)


def text(expected: str, example: str) -> Rule:
    """Return a rule that accepts any text but the empty one."""
    return Rule(expected, example, bool)


def list_of(item: Rule) -> Rule:
    """Return a rule that accepts a list of different values, each of which `item` accepts."""
    return Rule(
        f"a non-empty list without duplicates, in which each item is {item.expected}",
        f"[{item.example}]",
        lambda values: bool(values) and all(map(item.fits, values)) and len({*values}) == len(values),
    )


def key(default: Any, rule: Rule) -> Any:
    """Make a field of a schema with a default and a rule for its values, unless they are null."""
    metadata = {"rule": rule}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# Of fields without a rule of their own, by type.
PLAIN = {
    bool: Rule("true or false", "true", lambda value: isinstance(value, bool)),
    float: Rule("a number", 0.1, lambda value: isinstance(value, int | float)),
    int: Rule("a whole number", 8, lambda value: isinstance(value, int)),
    str: Rule("a non-empty string", "text", lambda value: isinstance(value, str) and value != ""),
    dict: Rule("keys and values", "'{key: 1}'", lambda value: isinstance(value, dict)),
    list: list_of(Rule("text", "a")),
}


@cache
def rules(schema: type) -> dict[str, Rule | None]:
    """Return the rule of each field of a schema; None if it has none and is of no plain type."""
    hints, found = get_type_hints(schema), {}
    for name, each in schema.__dataclass_fields__.items():
        parts = get_args(hints[name]) if get_origin(hints[name]) in (Union, UnionType) else [hints[name]]
        kinds = {get_origin(part) or part for part in parts} - {NoneType}
        plain = PLAIN.get(float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None)
        rule = each.metadata.get("rule", plain)
        found[name] = _or_null(rule) if rule is not None and NoneType in parts else rule
    return found


def _or_null(rule: Rule) -> Rule:
    return Rule(f"null or {rule.expected}", rule.example, lambda value: value is None or rule.fits(value))
