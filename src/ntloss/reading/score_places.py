"""Where the score stands in the answer of a judge: `{"score": 4}`, "I rate this **4** out of 5"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ntloss.numbers.grammar import find_in_text
from ntloss.numbers.scales import FRACTION_BARS, OF, POINT_SCALE

_NEAR = 80  # characters before a level in which a name or the beginning of a scale is looked for
_MARKS = r"[\"'`*_|<>$]*"
# What a score stands after. In English, names are words or parts of a name (`overall_rating`, `finalScore`).
_NAME = r"""
    (?: scor[^\W\d]*
    |   (?:(?<![^\W_])|(?<=[a-z])(?=(?-i:[RG])))(?:rat(?:es?|ed|ings?)|grad(?:es?|ed|ing))(?![^\W\d_])
    |   Bewertung|Punktzahl|puntuación|calificación|punteggio|pontuação|оценка
    |   评分|得分|分数|打分|評分|評価|スコア|점수|평점
    )"""
# Common words name a score only at the beginning of a line or of a name, and before a colon or "of".
_COMMON_NAME = r"""
    (?:^|[{,]|\b(?:total|final|overall|full|a)\b)
    [\s"'*_#-]*(?:marks?|points?)["'*_]*[ \t]*(?:[:=\uff1a\uff1d]|\bof\b)"""
# What may stand between the name of a score and its colon: (1-5), [1-5], from 1 to 5, out of 10.
_SCALE = rf"""
    (?: \s*[(\[\uff08][^()\[\]\uff08\uff09\n]*[)\]\uff09]
    |   \s+(?: (?:on[ ]an?[ ]scale[ ])?(?:from|of)[ ][0-9]+(?:[ ]to[ ]|[ ]?[-\u2013][ ]?)[0-9]+
            |   out[ ]of[ ][0-9]+
            |   on[ ]an?[ ]\w+{POINT_SCALE}
            )(?=\s*[:=])
    )"""
_NAMED = re.compile(
    rf"""
    (?: {_NAME}{_MARKS} {_SCALE}?{_MARKS}
        \s*(?:[:=\uff1a\uff1d\u2013\u2014-]>?|\u2192|\b(?:is|of|as)\b|[为為是はが])?
    |   {_COMMON_NAME}(?![ \t]*\n)
    )
    [\s"'`*_|<>$(\[\uff08]* (?:\\boxed\{{)? ["'`*_$(\[]* \Z
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_UNIT = r"(?:scor\w*|rating|grade|marks?|points?)"
# The number after it is an end of a scale: 4 out of `5`, `"max_score": 5`, `5` in 1 to 5.
_END_OF_SCALE = re.compile(
    rf"""
    (?: [0-9]{_MARKS} (?:\s*(?:stars?|points?|pts|marks?|Punkten?|分|점))?{_MARKS} \s*\(?
        (?:[{FRACTION_BARS}]|[ \t]*[-\u2013\u2014]|\b(?:{OF}|to|bis|à)\b)
    |   \bout[ -]of(?:[ ]an?)?(?:[ ]possible)?
    |   \bscale[ ](?:of|from|to) | (?<!point[ -])scale["'*_]*\s*[:=]
    |   (?<![^\W_])(?:max(?:imum)?|min(?:imum)?(?=["'*_]*\s*[:=]|[ _]?{_UNIT}))[ _]?(?:possible[ _]?)?{_UNIT}?
        ["'*_]*\s*(?:[:=]|\b(?:is|of)\b)?
    |   (?:scor|rating|grade)[^\W\d_]*?[ _-]?(?:min|max|range|scale)(?:imum)?["'*_]*\s*[:=]?\s*[\[(]?
        (?:[0-9.]+\s*,\s*)?
    |   满分|滿分|満点|만점
    )
    {_MARKS}[ \t]*{_MARKS}\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BEGIN_OF_SCALE = re.compile(
    rf"\s+(?:to|bis|à)\s+[0-9]|[-\u2013\u2014][0-9]|{POINT_SCALE}|[分点點점]?\s?(?:满分|滿分|満点|만점)",
    re.IGNORECASE,
)
_SPACED_DASH = re.compile(r"\s[-\u2013\u2014]\s(?P<number>[0-9]+)(?![0-9])")  # 1 - 10, or 4 - 2 errors
# What begins and ends the thoughts before an answer, of models whose server does not set them apart.
_THOUGHT = r"(?:\w+:)?(?:think|thinking|thought|reasoning)"
_THOUGHTS_BEGIN = re.compile(rf"\s*(?:<{_THOUGHT}>|\[THINK\]|(?:<\|start\|>\w+)?<\|channel\|>(?!final)\w+)")
_THOUGHTS_END = re.compile(rf"</{_THOUGHT}>|\[/THINK\]|<\|channel\|>final<\|message\|>")
_CLOSING_TAG = re.compile(r"</[\w-]+>")
_QUOTED = ("{", "[{", '"', "`")  # the beginning of an answer in JSON, which may quote anything


def place_of_score(text: str, levels: Mapping[str, Any], after: str | None) -> int | None:
    """Return where the score begins in an answer.

    Args:
        text: the answer, with what the model has thought before it.
        levels: the levels by their texts.
        after: the text that stands before the score; None if the answer decides.

    Returns:
        The place of the level behind `after`, or of the last level that stands behind a name of a score, or
        of the last level; None if the answer holds none.
    """
    first = _behind_thoughts(text)
    if first is None:
        return None
    if after is not None:
        if after not in text[first:]:
            return None
        first = text.rindex(after) + len(after)
    # The end of a tag is no name of what follows it.
    text = _CLOSING_TAG.sub(lambda tag: " " * len(tag[0]), text)
    # Longer words first, so that `good` is not found in `very good`.
    words = sorted((word for word in levels if not word[-1].isdigit()), key=len, reverse=True)
    either = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)") if words else None
    places = [] if either is None else [match.start() for match in either.finditer(text, first)]
    places = sorted([*places, *_numbers(text, levels, first)])
    if after is not None:
        return places[0] if places else None
    named = [place for place in places if _NAMED.search(text, max(first, place - _NEAR), place)]
    found = named or places
    return found[-1] if found else None


def _numbers(text: str, levels: Mapping[str, Any], first: int) -> list[int]:
    """Return where levels that are numbers begin, without the ends of scales."""
    places = []
    for number in find_in_text(text):
        if number.start < first:
            continue
        plain = number.plain.removeprefix("-") if text[number.start] not in "-\u2212" else number.plain
        if level_of(plain, levels) is None or _BEGIN_OF_SCALE.match(text, number.end):
            continue
        further = _SPACED_DASH.match(text, number.end)
        if further and [plain, further["number"]] == [min(levels, key=_size), max(levels, key=_size)]:
            continue
        start = text.index(plain.removeprefix("-")[0], number.start)
        start -= plain.startswith("-") or (f"+{plain}" in levels and text[start - 1 : start] == "+")
        if not _END_OF_SCALE.search(text, max(first, start - _NEAR), start):
            places.append(start)
    return places


def _size(level: str) -> float:
    try:
        return float(level)
    except ValueError:
        return 0.0


def level_of(text: str, levels: Mapping[str, Any]) -> str | None:
    """Return the text of the level that is written: itself, or `4` of `4.0` and `0.5` of `.50`."""
    if text in levels or not re.fullmatch(r"[+-]?[0-9]*\.[0-9]+", text):
        return text if text in levels else None
    short = re.sub(r"^([+-]?)\.", r"\g<1>0.", text).rstrip("0").rstrip(".")
    return short if short in levels else None


def _behind_thoughts(text: str) -> int | None:
    """Return where the answer begins behind what the model has thought; None if it has not ended that.

    Some templates of chats write what begins the thoughts, so that the model only ends them.
    """
    place = 0
    ends = _THOUGHTS_END.search(text)
    if ends and not (text.lstrip().startswith(_QUOTED) or _THOUGHTS_BEGIN.search(text, 0, ends.start())):
        place = ends.end()
    while begins := _THOUGHTS_BEGIN.match(text, place):
        ends = _THOUGHTS_END.search(text, begins.end())
        if ends is None:
            return None
        place = ends.end()
    return place
