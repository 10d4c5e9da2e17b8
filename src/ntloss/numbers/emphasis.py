"""Emphasis around a number, as in `**67** million`: it hides what the number is a part of."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from ntloss.numbers.alphabet import CURRENCY, DIGITS, SIGN, D

# Around nothing but a number. Next to a word or a digit, asterisks may be operators, as in 2**3**4; after a
# minus and a space, the number may be an item of a list; and marks keep it apart from another number, as in
# 1 **200** and `5`,`6`.
_EMPHASIS = re.compile(
    rf"(?<![\w*`,.])(?<![{DIGITS}] )(?<!{SIGN} )(?P<mark>\*{{1,3}}|`|<(?P<tag>b|strong|i|em)>)"
    rf"(?={SIGN}?(?:{CURRENCY})?\.?{D})(?P<number>{SIGN}?(?:{CURRENCY})?[{DIGITS}.,]*{D}%?)"
    rf"(?(tag)</(?P=tag)>|(?P=mark))(?!\w|\s?[({DIGITS}]|,[*`<])"
)


class WithoutEmphasis(NamedTuple):
    """A text without the marks around its numbers.

    Args:
        text: what is left.
        places: where marks stood in it, ascending.
        lengths: characters of all marks before each of them, and of all.
    """

    text: str
    places: list[int]
    lengths: list[int]

    def start(self, place: int) -> int:
        """Return where what begins at a place of this text begins in the text with marks."""
        return place + self.lengths[bisect_right(self.places, place)]

    def end(self, place: int) -> int:
        """Return where what ends at a place of this text ends in the text with marks."""
        return place + self.lengths[bisect_left(self.places, place)]


def without_emphasis(text: str) -> WithoutEmphasis | None:
    """Take the marks around numbers off; None if there are none.

    Example:
        >>> shown = without_emphasis("about **67** million")
        >>> shown.text, shown.start(6), shown.end(8), shown.end(16)
        ('about 67 million', 8, 10, 20)
    """
    found = [*_EMPHASIS.finditer(text)] if "*" in text or "`" in text or "</" in text else []
    if not found:
        return None
    marks = [
        span
        for each in found
        for span in ((each.start(), each.start("number")), (each.end("number"), each.end()))
    ]
    lengths = [0, *accumulate(end - start for start, end in marks)]
    places = [start - before for (start, _), before in zip(marks, lengths, strict=False)]
    return WithoutEmphasis(_EMPHASIS.sub(lambda each: each["number"], text), places, lengths)
