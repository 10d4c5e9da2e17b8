"""What a type of the schema accepts, in words: for error messages, and to check what omegaconf cannot.

omegaconf knows neither ranges (`Annotated[int, whole(1)]`) nor `Literal`: `storable` makes a class of the
types that it checks, and `rule_of` returns the check of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, field, fields, make_dataclass
from functools import cache, reduce
from math import inf
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


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


def above(bound: float) -> Rule:
    """Return a rule that accepts a number above `bound`."""
    return Rule(f"a number that is above {bound:g}", 1.0, lambda value: bound < value < inf)


def number_between(low: float, high: float) -> Rule:
    """Return a rule that accepts a number between two bounds, without them."""
    return Rule(f"a number that is above {low:g} and below {high:g}", 0.1, lambda value: low < value < high)


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


PLAIN = {
    bool: Rule("true or false", "true"),
    int: Rule("a whole number", 8),
    float: Rule("a number", 0.1),
    str: Rule("a non-empty string", "text", bool),
    dict: Rule("keys and values", "'{key: 1}'"),
}


# transformers types fsdp as a text and takes true, which omegaconf would turn into a text.
_TYPED_TOO_NARROWLY = ("fsdp",)


def rule_of(hint: Any) -> Rule | None:
    """Return the rule of a type, or None for one that is not checked."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return next(part for part in hint.__metadata__ if isinstance(part, Rule))
    if kind is Literal:
        return one_of(*parts)
    if kind is list:
        return _list_of(rule_of(parts[0]))
    if kind in (Union, UnionType):
        rules = [rule_of(part) for part in parts if part is not NoneType]
        if None in rules:
            return None
        null = ["null"] if NoneType in parts else []
        expected = " or ".join([*null, *(rule.expected for rule in rules if rule)])
        return Rule(expected, rules[0].example, lambda v: v is None or any(r.fits(v) for r in rules if r))  # type: ignore[union-attr]
    return PLAIN.get(kind or hint)


def _list_of(item: Rule | None) -> Rule:
    rule = item or Rule("text", "a")

    def fits(values: Any) -> bool:
        return bool(values) and all(map(rule.fits, values)) and len({*values}) == len(values)

    expected = f"a non-empty list without duplicates, in which each item is {rule.expected}"
    return Rule(expected, f"[{rule.example}]", fits)


@cache
def storable(schema: type, *more: type) -> type:
    """Make a dataclass of types that omegaconf checks.

    Args:
        schema: Dataclass of types that `rule_of` knows.
        more: Dataclasses whose other fields may be added; they have no value until then.
    """
    hints = hints_of(schema, *more)
    known = [(each.name, each) for each in fields(schema)]
    return make_dataclass(
        schema.__name__,
        [(name, _plain(hints[name]), _copy(each)) for name, each in known]
        + [
            (name, Any if name in _TYPED_TOO_NARROWLY else _plain(hint), field(default="???"))
            for name, hint in hints.items()
            if name not in dict(known)
        ],
        namespace={"hints": hints, "own": list(dict(known))},
    )


def hints_of(*schemas: type) -> dict[str, Any]:
    """Return the types of the fields, with their annotations; the first class that has a field counts."""
    return reduce(or_, (get_type_hints(each, include_extras=True) for each in reversed(schemas)))


def _copy(each: Field[Any]) -> Any:
    return field(default=each.default, default_factory=each.default_factory)  # type: ignore[call-overload]


def _plain(hint: Any) -> Any:
    """Return the type that omegaconf checks in place of another one."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _plain(parts[0])
    if kind is Literal:
        return str
    if kind is list:
        return list[_plain(parts[0])]  # type: ignore[misc]
    if hint is float:  # a whole number is written as it was given
        return int | float
    if kind in (Union, UnionType):
        return reduce(or_, map(_plain, parts)) if _is_stored(parts) else Any
    return hint if hint in PLAIN or hint is NoneType or kind is dict else Any


def _is_stored(parts: Iterable[Any]) -> bool:
    """Return whether omegaconf stores a union: of numbers and texts, or of null and one other type."""
    kinds = {_plain(part) for part in parts} - {NoneType}
    return Any not in kinds and (
        len(kinds) == 1 or not any((get_origin(k) or k) in (list, dict) for k in kinds)
    )
