"""The levels of a score: what each is worth, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from ntloss.numbers.grammar import SIGNED
from ntloss.numbers.parsing import as_float

Levels = Iterable[Any] | Mapping[Any, float]


def level_values(levels: Levels) -> dict[Any, float]:
    """Return the levels with their values; a level that is a text of a number has the number's value."""
    if not isinstance(levels, Iterable):
        raise TypeError(f"levels={levels!r}: expected two or more scores, such as range(1, 6)")
    pairs = levels.items() if isinstance(levels, Mapping) else [(level, level) for level in levels]
    values: dict[Hashable, float] = {}
    for level, value in pairs:
        try:
            is_text = isinstance(value, str) and SIGNED.fullmatch(value.strip())
            values[level] = as_float(float(value) if is_text else value)
        except TypeError:
            raise TypeError(
                f"levels: expected numbers, such as range(1, 6), or words with their values, such as "
                f"{{'yes': 1, 'no': 0}}; given {value!r}"
            ) from None
    if not all(map(math.isfinite, values.values())):
        raise ValueError(f"levels={levels!r}: expected finite values")
    texts = {text_of_level(level) for level in values}
    if len(values) < 2 or len(texts) < len(values) or "" in texts:
        raise ValueError(f"levels={levels!r}: expected two or more different scores, such as range(1, 6)")
    return values


def text_of_level(level: Any) -> str:
    """Return how a level is written."""
    return level.strip() if isinstance(level, str) else f"{level:.15g}"
