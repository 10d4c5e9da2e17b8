"""The levels of a score, and the one rule by which a text is read as one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Levels = Iterable[Any] | Mapping[Any, float]

NONE, UNKNOWN = "another answer than a level", "not known"
"""What the probability of an answer counts for that is no level, or that nobody knows."""

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)")
_COMMA = re.compile(r"^([+-]?\d+),(?!\d{3})(?=\d|$)")  # a decimal comma; 1,000 is a thousand
DIGIT = re.compile(r"\d|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2150-\u215e]")
"""What makes another number of a level that it stands directly behind: 44, 4½, 4²."""
_GOES_ON = re.compile(rf"[.,]?{DIGIT.pattern}")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# Thai, Chinese, Japanese and Korean, where words follow each other without a space, or with a particle.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LEAST = 1e-9  # a level that is less likely is not followed further, to see whether it is another number


class Scale:
    """The levels of a score.

    Args:
        levels: numbers, of which a text of a number has the number's value, or words with their values.

    Attributes:
        values: level to its value.
        texts: level to how it is written.
        levels: text to its level; beside negative ones, positive ones may have a sign, too; `.5` is 0.5.
        top: the largest level that is a number; None for words.
    """

    def __init__(self, levels: Levels) -> None:
        try:
            pairs = levels.items() if isinstance(levels, Mapping) else [(level, level) for level in levels]
            self.values: dict[Any, float] = {level: float(value) for level, value in pairs}
        except (TypeError, ValueError, OverflowError):
            raise TypeError(
                f"levels={levels!r}: expected numbers, such as range(1, 6), or words with their values, such "
                "as {'yes': 1, 'no': 0}"
            ) from None
        self.texts = {
            level: level.strip() if isinstance(level, str) else f"{level:.15g}" for level in self.values
        }
        self.levels = {text: level for level, text in self.texts.items()}
        is_finite = all(map(math.isfinite, self.values.values()))
        if not is_finite or not 2 <= len(self.values) == len(self.levels) or "" in self.levels:
            raise ValueError(
                f"levels={levels!r}: expected two or more different scores with finite values, such as "
                "range(1, 6)"
            )
        numbers = [self.values[level] for name, level in self.levels.items() if _NUMBER.fullmatch(name)]
        self.top = max(numbers, default=None)
        self.levels |= {name[1:]: level for name, level in self.levels.items() if name.startswith("0.")}
        if any(name.startswith("-") for name in self.levels):
            self.levels |= {f"+{name}": level for name, level in self.levels.items() if name[0].isdigit()}


class Begun(NamedTuple):
    """What an answer is so far."""

    level: Any  # or NONE
    longer: bool  # whether the text begins a longer level, as `1` begins 10
    goes_on: bool  # whether digits or letters directly behind it would make another answer of the level


def read_level(text: str, levels: Mapping[str, Any]) -> Begun:
    """Read the level that an answer begins with.

    It is the longest one of `Scale.levels`, behind any spaces. `10`, `4.5` and `nothing` are none of the
    levels 4 and `no`, but `4.0` is 4, and so is `4.` with or without words behind it.

    Example:
        >>> levels = Scale(range(1, 11)).levels
        >>> [read_level(text, levels).level for text in ("10", "4.0", "4 of", " 4.", "2024")]
        [10, 4, 4, 4, 'another answer than a level']
        >>> read_level("1", levels)
        Begun(level=1, longer=True, goes_on=True)
    """
    text = _COMMA.sub(r"\1.", text.lstrip(), count=1) if "," in text else text.lstrip()
    longer = any(name.startswith(text) and name != text for name in levels)
    number = _NUMBER.match(text)
    ends = {len(name) for name in levels if text.startswith(name)} | ({number.end()} if number else set())
    end = max((end for end in ends if _plain(text[:end]) in levels), default=0)
    if not end:
        return Begun(NONE, longer, False)
    name, behind = _plain(text[:end]), text[end:]
    if text[end - 1].isdigit():
        has_point = "." in name  # 0.5.1 is no longer number
        goes_on = bool((DIGIT if has_point else _GOES_ON).match(behind))
        is_open = behind in ("", "" if has_point else ".") and text[:end] in levels
    else:
        goes_on = bool(_LETTER_OR_DIGIT.match(behind)) and not _UNSPACED.match(text[end - 1])
        is_open = not behind
    return Begun(NONE if goes_on else levels[name], longer, is_open)


def _plain(number: str) -> str:
    """Return `4` of `4.0` and `0.5` of `.50`."""
    return re.sub(r"\.?0+$", "", number) if re.fullmatch(r"[+-]?\d*\.\d+", number) else number


class Node(NamedTuple):
    """A text that may become a level."""

    text: str
    share: float  # its probability
    state: Any  # what its source knows it by


Ask = Callable[[Sequence[Node]], Sequence[Iterable[tuple[str, float, Any]] | None]]
"""The pieces that may follow each text, with their probabilities and states; None where they are unknown."""


def walk_levels(
    ask: Ask, starts: Sequence[Any], levels: Mapping[str, Any], rest_is_known: bool = False
) -> list[dict[Any, float]]:
    """Follow the texts that may become a level, and add up what each level is written with.

    Args:
        ask: says what may follow a text, of a model or of a list of log-probabilities; the empty piece is
            the end of the answer.
        starts: the states of the answers before their first piece.
        levels: levels by their texts.
        rest_is_known: whether pieces that `ask` does not return make no level, and no other number of one.

    Returns:
        For each answer, the probability of each level, of NONE and of UNKNOWN.
    """
    found = [dict.fromkeys([*levels.values(), NONE, UNKNOWN], 0.0) for _ in starts]
    nodes = [(shares, Node("", 1.0, state)) for shares, state in zip(found, starts, strict=True)]
    while nodes:
        further = []
        for (shares, node), pieces in zip(nodes, ask([node for _, node in nodes]), strict=True):
            level, longer, _ = read_level(node.text, levels)
            is_open = longer or level is NONE
            if pieces is None:
                shares[UNKNOWN if is_open or node.text[-1:] in (".", ",") else level] += node.share
                continue
            left = 1.0
            for piece, share, state in pieces:
                left -= share
                after = Node(node.text + piece, node.share * share, state)
                now = read_level(after.text, levels)
                if piece and (now.longer or (now.goes_on and after.share > _LEAST)):
                    further.append((shares, after))
                else:
                    shares[now.level] += after.share
            rest = level if rest_is_known or not is_open else UNKNOWN
            shares[rest] += node.share * max(left, 0.0)
        nodes = further
    return found
