"""Where the score stands in the answer of a judge.

Structure comes before words, and the first of these that an answer has decides:

1. an object of JSON: the value under the name of a score, the outermost one; texts in it never count;
2. a mark: `[RESULT] 4`, `[[4]]`, `<score>4</score>`;
3. a line that begins with the name of a score, `Score: 4`; of indented lines, as in YAML, the outermost one;
   then `\\boxed{4}`;
4. the scale beside it: `4/5`, `4 out of 5`;
5. prose: "a rating of 4", "I give it a 4", unless it is denied or only considered ("a 4 would need sources");
6. an answer whose first or last line is nearly nothing but a level.

A score is named by words of `_SCORES` and `_OF_ALL` (for levels that are words, `_VERDICTS` and `_OF_ALL`). A
name that ends with one of them, such as `clarity_score`, counts if there is no other. What stands at that
place and is no level is no score. Thoughts before the answer do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ntloss.scores.levels import NONE, Scale, read_level

_SCORES = "scores?|ratings?|grades?"
_VERDICTS = "answer|verdict|judge?ment|decision|result|label|choice|sentiment"
_OF_ALL = "overall|total|final|combined|points|marks?"
_FILLING = r"\b(?:the|a|my|your|our|this|of|for)\b"
_OF_THE_SCALE = r"\b(?:max\w*|min\w*|highest|lowest|possible|confidence|expected)\b"
_FOREIGN = (
    "Bewertung|Punktzahl|puntuación|calificación|punteggio|pontuação|оценка"
    "|评分|得分|分数|打分|評分|評価|スコア|점수|평점"
)

_NUMBER = r"(?<![A-Za-z\d_.,/-])[+-]?(?:\d+(?:[.,]\d+)*|\.\d+)"
_UNIT = r"[\"'`*_)\]]*(?:\s*(?:(?:stars?|points?|marks?|Punkten?)\b|[分点점])[\"'`*_)\]]*)?"
_TOP = rf"""{_UNIT}\s*(?:/|out[ -]of\b(?:[ ]an?\b)?|\b(?:of|von|sur|de|su|из)\b)\s*[*_]*
    (?P<top>\d+(?:\.\d+)?){_UNIT}"""
_OPENING = r"""(?:\\(?:boxed|text|textbf|mathbf)\{|\{\s*["']value["']\s*:|<[^<>\n]*>|->|-(?=\s)
    |[\s"'`*_~$|>\[({:=\\#→⭐★☆]){0,40}"""
_CLOSING = r"""(?:[\s"'`*_~$|\])}.!\\]|</?[^<>\n]*>)*"""
# Another number, a range, a sum or a list: 4th, 4:30, 4-5, 4 to 5, 4 + 1, [4, 5].
_PART = r"[a-z]|:\d|-\w|\s-\s\d+(?!\s*[a-z])|\s?(?:to|or|and|[+*=])\s?\d|,\s*\d+(?:\.\d+)?\s*[,\]]"
# What a number counts: `2 flaws`, but not `4 because`.
_COUNTED = r"""\s+(?=(?-i:[a-z]))
    (?!(?:out|of|for|because|as|on|in|since|with|given|and|but|or|so|due|is|was|overall|based|here)\b)"""
_ONLY_BEFORE = r"""(?:\b(?:not|never|cannot|unable|than|if|unless|why|going|could|might|(?<!\bi\ )would
    |for\ an?|to\ (?:be|get|earn|reach|receive|deserve)|(?:perfect|full|max\w*|highest)\ (?:score|rating))\b
    |n't\b)(?:(?!\b(?:so|but)\b)[^.!?;,:\n]){0,40}\Z"""
_ONLY_BEHIND = r"""\W{0,3}\b(?:would|could|should|might|requires?|needs?|means?
    |(?:is|are)\ (?:for|only|reserved|given|the\ (?:max|min|high|low|best|worst)\w*))\b|\s*="""

_TEXT = r"""(?:"(?:[^"\\]|\\.)*(?:"|\Z)|'(?:[^'\\]|\\.)*?'(?=\s*[:,}\]]))"""
_OBJECT = r"""\{\s*(?:"[^"\n]*"|'[^'\n]*'|\w+)\s*:"""
_LEXEME = rf"(?s)(?P<name>{_TEXT}|\w+)\s*:|{_TEXT}|[{{}}\[\]]"
_MARK = r"""(?P<sure>\[\[(?=[^\[\]\n]*\]\])|\[RESULT\])\s*(?:[A-Za-z ]+:)?
    |[\[<](?P<name>[A-Za-z][\w -]*)[\]>](?!\()"""
_LINE = r"""(?m)^(?P<indent>[ \t]*)(?![ \t])(?:[^\w\n]|_)*(?:\d+[.)][ \t]+[*_]*)?
    (?P<name>[^\W\d_][^\n:=|<>→\d.?!(\[]{0,40}?)[ \t*_`"')]{0,9}
    (?:(?:[(\[][^\n)\]]*[)\]]|\b(?:from|on|out\ of)\b[^\n:=]*)[ \t*_`"')\]]{0,9})?
    (?:[:=|→][*_ \t]*(?=[^\s*_])|[ \t]-+>?[ \t]|[是为為はが]
      |:?[*_\s]{1,9}(?=[^\w\n]{0,9}LEVEL[\d./]*[^\w\n]*$))"""
_WORDS = (
    r"\\boxed\{(?=[^\n}]{0,40}LEVEL)",
    rf"(?=LEVEL{_UNIT}\s*(?:/|out[ -]of\b)(?:\s+an?)?\s*[*_]*TOP(?!\d|\.\d))",
    rf"""(?:\b(?:rat(?:e|es|ed)|scor(?:e|es|ed)|grad(?:e|es|ed)|giv(?:e|es|en)|gave|assign(?:s|ed)?|award(?:s|ed)?
            |deserves?|earn(?:s|ed)?|gets?|got|merits?|warrants?|receives?|say|vote|choose|pick)\b[^.!?;:(\n\d]{{0,60}}?
          |(?:\bscore|\brating|\bgrade|\bverdict|\banswer|{_FOREIGN})
            (?:[\s"'*_]*(?:\b(?:of|is|was|be|as|at|an?)\b|[:=]))+
          |[给給打])[\s"'`*_(\[]*?(?=LEVEL)""",
    rf"\A[^\n]*?(?:\b(?:an?|is|say)\b|:)\W{{0,9}}(?=LEVEL{_UNIT}{_CLOSING}\Z)",
    rf"""\A\W*(?=LEVEL{_UNIT}(?:{_CLOSING}(?:\n|\Z)|(?<=[^\W\d])[.!]
            |\s*(?:[;:(]|,(?!\s*\d)|-+\s|because\b|since\b)))
        |\n[^\w\n]*(?=LEVEL{_UNIT}{_CLOSING}\Z)""",
)
_THOUGHTS = r"""(?P<end>[<\[◁]\|?(?:/|end_)(?:\w+[:_])*(?:think|thought)\w*\|?[>\]▷]|assistantfinal
    |<\|channel\|>final[^\n]*?<\|message\|>)
    |[<\[◁]\|?(?:\w+[:_])*(?:think|thought)\w*\|?[>\]▷]|<\|channel\|>|\A\s*(?:analysis|commentary)(?-i:[A-Z"'])"""


class Place(NamedTuple):
    """Where a score may stand: the index of its first character, that behind it, and the level or NONE."""

    start: int
    end: int
    level: Any


def places_of_score(text: str, scale: Scale, after: str | None = None) -> list[Place]:
    """Return the places at which an answer has its score: one, or several of the same rank, in their order.

    Args:
        text: the answer, in plain characters.
        scale: the levels.
        after: what stands before the score, whatever spaces are in it; None if the answer decides.
    """
    is_json = re.match(r"[\s`]*(?:json)?\s*\[?\s*[{\"]", text)  # its texts may quote anything
    marks = [] if is_json else [*_compiled(_THOUGHTS).finditer(text)]
    if marks:
        text = _blank(text, 0, marks[-1].end() if marks[-1]["end"] else len(text))
    if after is not None:
        words = r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", after)))
        if not words:
            raise ValueError(f"after={after!r}: expected the text that stands before the score")
        return [_at(scale, text, match.end()) for match in re.finditer(words, text)]
    objects = [*_objects(text)]
    if found := _best((entry for *_, entries in objects for entry in entries), text, scale):
        return found
    for begin, end, entries in objects:
        single = _at(scale, text, entries[0][2])
        if len(entries) == 1 and single.level is not NONE and not re.search(r"\w", text[:begin] + text[end:]):
            return [single]
        text = _blank(text, begin, end)
    in_marks = [(m["sure"] or m["name"], 0, m.end()) for m in _find(scale, _MARK, text)]
    in_lines = [(m["name"], len(m["indent"]), m.end()) for m in _find(scale, _LINE, text)]
    if found := _best(in_marks, text, scale) or _best(in_lines, text, scale):
        return found
    for pattern in _WORDS:
        places = [_at(scale, text, match.end()) for match in _find(scale, pattern, text)]
        if found := [place for place in places if _is_said(place, text)]:
            return found
    return []


def _at(scale: Scale, text: str, start: int) -> Place:
    """Return the place of the score behind marks such as quotes and stars."""
    start = _end(_OPENING, text, start)
    number = _compiled(_NUMBER).match(text, start)
    if number is None:
        end = _end(_level_in(scale), text, start)
        return Place(start, end, read_level(text[start:], scale.levels).level)
    level, end = read_level(number[0], scale.levels).level, number.end()
    top, percent = _compiled(_TOP).match(text, end), text.startswith("%", end)
    is_of_other = (top and float(top["top"]) != scale.top) or (percent and scale.top != 100)
    if is_of_other or _compiled(_PART).match(text, end):
        level = NONE
    return Place(start, top.end() if top else _end(_UNIT, text, end), level)


def _find(scale: Scale, pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Find a pattern, in which LEVEL stands for any number or level, and TOP for the largest one."""
    top = "(?!)" if scale.top is None else f"{scale.top:g}"
    return _compiled(pattern.replace("TOP", top).replace("LEVEL", _level_in(scale))).finditer(text)


def _level_in(scale: Scale) -> str:
    words = [re.escape(name) for name in scale.levels if not re.fullmatch(_NUMBER, name)]
    either = [rf"(?<!\w)(?-i:{'|'.join(sorted(words, key=len, reverse=True))})(?!\w)"] if words else []
    return f"(?:{'|'.join([*either, *([] if scale.top is None else [_NUMBER])])})"


def _best(named: Iterable[tuple[str, int, int]], text: str, scale: Scale) -> list[Place]:
    """Return the places of the best name, of these the outermost; given the name, depth and start of each."""
    found = [(name, -depth, _at(scale, text, start)) for name, depth, start in named]
    ranked = [((_rank(name, place, text, scale), depth), place) for name, depth, place in found]
    best = max((rank for rank, _ in ranked), default=(0, 0))
    return [place for rank, place in ranked if rank == best and best[0]]


def _rank(name: str, place: Place, text: str, scale: Scale) -> int:
    """Return 3 for the name of a score, 2 for that of a part, 1 for another one of a level, else 0."""
    words = re.sub(_FILLING, "", re.sub(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+", " ", name).lower()).strip()
    own, other = (_VERDICTS, _SCORES) if scale.top is None else (_SCORES, _VERDICTS)
    is_level = place.level is not NONE

    def is_of(*names: str) -> bool:
        return re.fullmatch(rf"(?:(?:{'|'.join(names)})(?:\s+|\Z))+", words) is not None

    if name in ("[[", "[RESULT]"):
        return 4
    if re.search(_OF_THE_SCALE, words) or _compiled(_ONLY_BEHIND).match(text, place.end):
        return 0
    if (is_of(own, _OF_ALL) and (is_level or not is_of(_OF_ALL))) or _compiled(f".*(?:{_FOREIGN})").fullmatch(
        name
    ):
        return 3
    if re.search(rf"\b(?:{own})\Z", words):
        return 2
    return int(is_of(own, other, _OF_ALL) and is_level and not _compiled(_COUNTED).match(text, place.end))


def _objects(text: str) -> Iterator[tuple[int, int, list[tuple[str, int, int]]]]:
    """Yield where objects of JSON or Python begin and end (or are cut off), and their names, see `_best`."""
    end = 0
    while begins := _compiled(_OBJECT).search(text, end):
        entries, depth, end = [], 0, len(text)
        for lexeme in _compiled(_LEXEME).finditer(text, begins.start()):
            if lexeme["name"]:
                entries.append((lexeme["name"].strip("\"'"), depth, lexeme.end()))
            depth += (lexeme[0] in "{[") - (lexeme[0] in "}]")
            if not depth:
                end = lexeme.end()
                break
        yield begins.start(), end, entries


def _is_said(place: Place, text: str) -> bool:
    """Whether a score in words counts nothing, and is neither denied nor only considered."""
    is_counted = text[place.start].isdigit() and _compiled(_COUNTED).match(text, place.end)
    before = _compiled(_ONLY_BEFORE).search(text[max(0, place.start - 80) : place.start])
    return not (is_counted or before or _compiled(_ONLY_BEHIND).match(text, place.end))


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.VERBOSE)


def _end(pattern: str, text: str, start: int) -> int:
    """Return where a pattern ends that may begin there."""
    match = _compiled(pattern).match(text, start)
    return match.end() if match else start


def _blank(text: str, begin: int, end: int) -> str:
    """Return a text of the same length without a part of it."""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
