"""What is written between a score and the largest score of its scale: `8 out of 10`, `8 von 10`.

Such a pair is no number of its own (`joins`), and `parsing` reads the score if the scale is known (`of=10`).
"""

from __future__ import annotations

from ntloss.numbers.alphabet import SPACES

_SPACE = f"[{SPACES}-]"  # also 8-out-of-10
_LARGEST = rf"(?:possible|total|max(?:imum)?)(?:{_SPACE}of)?"
_SMALLEST = rf"(?:[01]|zero|one)(?:{_SPACE}to|{_SPACE}?[-\u2013])"
IN_ENGLISH = (
    rf"(?:out{_SPACE})?of(?:{_SPACE}(?:the|an?))?(?:{_SPACE}{_LARGEST})?"
    rf"|on{_SPACE}an?{_SPACE}scale{_SPACE}(?:of|from|to)(?:{_SPACE}{_SMALLEST})?"
)
IN_OTHERS = rf"von(?:{_SPACE}maximal)?|sur|de|sobre|su|из"
OF = rf"{IN_ENGLISH}|{IN_OTHERS}|em|av|z"
"""Words, of several languages and in any case. In those of few letters, they are common prepositions, too."""
FRACTION_BARS = "/\u2044\u2215\uff0f"
POINT_SCALE = r"[- ](?:points?|Punkte)[- ](?:\w+[- ])?(?:scale|Skala)"
"""What follows the largest score in `4 on a 5-point scale`."""
