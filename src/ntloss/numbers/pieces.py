"""Which tokens may begin a written number, continue it, or change it from after its end."""

from __future__ import annotations

import functools
import re

from ntloss.numbers.alphabet import (
    APOSTROPHES,
    CURRENCIES,
    DIGITS,
    HIDDEN,
    OTHER_DIGIT,
    POWERS,
    POWERS_OF_CJK,
    PRIMES,
    SIGN,
    SIGNS,
    SPACES,
    D,
)
from ntloss.numbers.joins import MARKS_AFTER, THAI, WORDS

SUBWORDS = frozenset(
    word[i:j]
    for word in (*(word + "s" for word in POWERS), *WORDS)
    for i in range(len(word))
    for j in range(i + 1, len(word) + 1)
)
"""What tokens may hold of magnitudes and of other words in a number, in lower case."""
MARKS = tuple(
    dict.fromkeys(
        f"{CURRENCIES}{APOSTROPHES}{''.join(SIGNS)}.,:/\u00d7÷·⋅±*^_~\\{{}}()[]{SPACES}%"
        f"\u2044\u2215\uff0f∙\u2217\u2022\u2236\uff1a{PRIMES}°‰√π!\u2014\u301c\uff5e⁺⁻₊₋\ufe0f\u20e3…"
        f"{HIDDEN}{POWERS_OF_CJK}{MARKS_AFTER}"
    )
)
"""Characters that may stand in a number, before it, or directly after it."""
# Of scripts that put no space between words, so that a token may go on: `万元`.
UNSPACED_MAGNITUDE = f"(?:[{POWERS_OF_CJK}]|{THAI})"
_PIECE = re.compile(
    rf"[{re.escape(''.join(MARKS))}]*"
    rf"(?:{D}.*|{OTHER_DIGIT}.*|{UNSPACED_MAGNITUDE}.*|[eE]{SIGN}?(?:{D}.*)?)?",
    re.DOTALL,
)


def is_piece(text: str) -> bool:
    """Return whether a token may begin a written number, continue it, or change it from after its end."""
    return text != "" and (_PIECE.fullmatch(text) is not None or text.lstrip(" -").lower() in SUBWORDS)


@functools.cache
def characters() -> tuple[str, ...]:
    """Return all characters that may stand in a number or directly beside it, but ASCII letters."""
    digits = re.findall(OTHER_DIGIT, "".join(map(chr, [*range(0x80, 0xD800), *range(0xE000, 0x20000)])))
    letters = sorted({c for word in SUBWORDS for c in (*word, *word.upper()) if not c.isascii()})
    return tuple(dict.fromkeys([*DIGITS, *MARKS, *digits, *letters]))
