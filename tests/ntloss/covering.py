"""A few cases that together hold every pair of options, instead of the full product."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def covering(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cases in which each value of each option meets each value of every other; deterministic.

    Args:
        options: the values of each option; at least two options.
    """
    names = list(options)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(options[a]))
        for j in range(len(options[b]))
    }
    cases = []
    while missing:
        case: dict[str, int] = {}
        # Start from a pair that is still missing, then give each option the value that adds most pairs.
        a, i, b, j = min(missing, key=lambda pair: (names.index(pair[0]), names.index(pair[2]), pair))
        case[a], case[b] = i, j
        for name in names:
            if name not in case:
                gains = [
                    sum(_pair(names, name, value, other, at) in missing for other, at in case.items())
                    for value in range(len(options[name]))
                ]
                # Ties go round, so that no value is the favourite.
                turn = len(cases) % len(gains)
                case[name] = max(range(len(gains)), key=lambda v: (gains[v], (v - turn) % len(gains)))
        missing -= {
            _pair(names, first, case[first], second, case[second])
            for first, second in itertools.combinations(names, 2)
        }
        cases.append({name: options[name][case[name]] for name in names})
    return cases


def _pair(names: list[str], a: str, i: int, b: str, j: int) -> tuple[str, int, str, int]:
    return (a, i, b, j) if names.index(a) < names.index(b) else (b, j, a, i)
