"""Where the score stands in the answer of a judge.

Structure comes before words, and the first of these that an answer has decides:

1. an object of JSON: the value under the name of a score, the outermost one; texts in it never count;
2. a mark: `[RESULT] 4`, `[[4]]`, `<score>4</score>`;
3. a line or sentence that begins with the name of a score, `Score: 4`; of indented lines, as in YAML, the
   outermost one; then `\\boxed{4}`;
4. an answer whose first or last line is nearly nothing but a level: `4`, `4/5 because ...`;
5. a sentence: the scale beside a level, `... so 4/5`, then prose, "I give it a 4". Both are guesses.

A name is that of a score if all its words are of `_SCORES` and `_OF_ALL` (for levels that are words, of
`_VERDICTS` and `_OF_ALL`); of an object, the names around it count, too. `clarity_score` and `Expected score`
are scores of something else. What stands at that place and is no level, or is followed by another number or a
verb, is no score. Thoughts before the answer do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ntloss.scores.levels import NONE, Scale, read_level

_SCORES = "scores?|ratings?|grades?"
_VERDICTS = "answer|verdict|judge?ment|evaluation|decision|result|label|choice|sentiment"
_OF_ALL = "overall|total|final|combined|points|marks?"
_FILLING = r"\b(?:the|my|your|our|this|of|for)\b"
_FOREIGN = """(?:gesamt|最终|综合|总|総合|최종)?
    (?:bewertung|punktzahl|puntuación|calificación|punteggio|pontuação|оценка
    |评分|得分|分数|打分|評分|評価|スコア|점수|평점)"""

_NUMBER = r"(?<![A-Za-z\d_.,/-])[+-]?(?:\d+(?:[.,]\d+)*|\.\d+)"
_UNIT = r"[\"'`*_)\]]*(?:\s*(?:(?:stars?|points?|marks?|Punkten?)\b|[分点점%])[\"'`*_)\]]*)?"
_TOP = rf"""{_UNIT}\s*\(?(?:/|out[ -]of\b(?:[ ]an?\b)?|\b(?:of|von|sur|de|su|из)\b
    |on\ an?\ scale\ (?:of|from)\ [\d.]+\s?(?:-|to\b))\s*[*_]*(?P<top>\d+(?:\.\d+)?)(?![\d.]*\d){_UNIT}"""
_OPENING = r"""(?:\$*\\(?:boxed|text|textbf|mathbf)\{|\{\s*["']value["']\s*:|<[^<>\n]*>|->|-(?=\s)
    |[\s"'`*_|\[({:=\\→⭐★☆]){0,40}"""
_CLOSING = r"""(?:[\s"'`*_~$|\])}.!\\]|</?[^<>\n]*>)*"""
# Behind a level, another number: 4th, 4:30, 4+, 4-5, 4 to 5, 4; 3; 5, and in `3, maybe 4`; but `4, 3 errors`.
_BARE = r"\d(?!(?:[.,/]?\d)*\s?-?[^\W\d])"
_PART = rf"""[a-z?]|[ ]?\.\.|[+-](?!\s)|[ ]?[:;~][ ]?\d|[ ]?[^\W\d]{{1,3}}[ ]?\d
    |[^\n.:;=("'<{{}}\#]{{0,40}}?{_BARE}"""
# Behind a level that is a word, another one: A or B, A > B, A-B, A-.
_EITHER = r"[ ]?(?:[/<>=|]|[^\W\d]{1,3}[ ])[ ]?LEVEL|[+-](?:LEVEL|(?!\w))"
# What a number counts, or a sentence about it: `2 flaws`, `5 would need sources`, but not `4 because`.
_COUNTED = r"""[^\S\n]+(?=(?-i:[a-z]))
    (?!(?:out|for|because|as|on|in|since|with|given|but|so|due|overall|based|here)\b)|[^\S\n]*="""
_DENIED = r"""(?:\b(?:not|never|cannot|than|most|least|if|unless|could|might)\b|n\Wt\b)
    (?:(?!\b(?:so|but)\b)[^.!?;,:\n]){0,40}\Z"""

_TEXT = r"""(?:"(?:[^"\\]|\\.)*(?:"|\Z)|'(?:[^'\\]|\\.)*?'(?=\s*[:,}\]]))"""
_OBJECT = r"""\{\s*(?:"[^"\n]*"|'[^'\n]*'|\w+)\s*:"""
_LEXEME = rf"(?s)(?P<name>{_TEXT}|\w+)\s*:|{_TEXT}|[{{}}\[\]]"
_MARK = r"""(?P<sure>\[\[(?=[^\[\]\n]*\]\])|\[RESULT\])\s*(?:[A-Za-z ]+:)?
    |[\[<](?P<name>[A-Za-z][\w -]*?)(?:\s+\w+=[^<>\n]*)?[\]>](?!\()"""
_LINE = r"""(?m)(?:^(?P<indent>[ \t]*)(?![ \t])|(?<=[.!?][ ])(?=[A-Z]))(?:[^\w\n]|_)*(?:\d+[.)][ \t]+[*_]*)?
    (?P<name>[^\W\d_][^\n:=|<>→\d.?!(\[]{0,40}?)[ \t*_`"')]{0,9}
    (?:(?P<scale>[(\[][^\n)\]]*[)\]]|\b(?:from|on|out\ of)\b[^\n:=]*)[ \t*_`"')\]]{0,9})?
    (?:(?:=>|[:=|→])[*_ \t]*(?=[^\s*_])|[ \t]-+>?[ \t]|[是为為はが]
      |:?[*_\s]{1,9}(?=[^\w\n]{0,9}LEVEL[\d./]*[^\w\n]*$))"""
_BOXED = r"\\boxed\{(?=[^\n}]{0,40}LEVEL)"
_ALONE = rf"""\A(?:[^\w\n\#$€£~≈<>≤≥+]|_)*(?=LEVEL{_UNIT}(?:{_CLOSING}(?:\n|\Z)|(?<=[^\W\d])[.!]
        |\s*(?:[;:(]|,(?!\s*\d)|-+\s|because\b|since\b)(?!(?:.|\n)*\n\W*\d+\s*[-:(])))
    |\A\W*(?=LEVEL{_UNIT}\s?(?:/|out\ of\b)\s?[*_]*TOP(?!\d|\.\d|\ of\b))
    |\n(?:[^\w\n\#$€£~≈<>≤≥+]|_)*(?=LEVEL{_UNIT}{_CLOSING}\Z)"""
_WORDS = (
    rf"(?=LEVEL{_UNIT}\s*(?:/|out[ -]of\b)(?:\s+an?)?\s*[*_]*TOP(?!\d|\.\d|\ of\b))",
    rf"""(?:\b(?:(?:I|we)(?:\W(?:d|ll)|\ would|\ will)?
            \ (?:rate|score|grade|give|assign|award|say|vote|choose|pick)
            |(?:it|this|the)(?:\ \w+)?\ (?:deserves|earns|gets|merits|warrants|receives))\b
            [^.!?;:(\n\d]{{0,60}}?
          |\b(?:the|my|our)\ (?:(?:{_OF_ALL})\ )*(?:score|rating|grade|verdict|answer)\b
            [^.!?;:(\n\d]{{0,30}}?\b(?:is|was|of)\b
          |[给給打])[\s"'`*_(\[:]*?(?=LEVEL)""",
    rf"\A[^\n]*?(?:\ban?\b|\bis\b(?!\W*\d))[\s'`*_]{{0,9}}(?=LEVEL{_UNIT}{_CLOSING}\Z)",
)
_THOUGHTS = r"""(?P<end>[<\[◁]\|?(?:/|end_)(?:\w+[:_])*(?:think|thought)\w*\|?[>\]▷]|assistantfinal
    |<\|channel\|>final[^\n]*?<\|message\|>)
    |[<\[◁]\|?(?:\w+[:_])*(?:think|thought)\w*\|?[>\]▷]|<\|channel\|>|\A\s*(?:analysis|commentary)(?-i:[A-Z"'])"""


class Place(NamedTuple):
    """Where a score may stand: the index of its first character, that behind it, and the level or NONE."""

    start: int
    end: int
    level: Any
    is_guess: bool = False


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
    for begin, end, _ in objects:
        text = _blank(text, begin, end)
    in_marks = [(m["sure"] or m["name"], 0, m.end()) for m in _find(scale, _MARK, text)]
    in_lines = [
        (m["name"] + (f"({m['scale']}" if m["scale"] else ""), len(m["indent"] or ""), m.end())
        for m in _find(scale, _LINE, text)
    ]
    if found := _best(in_marks, text, scale) or _best(in_lines, text, scale):
        return found
    for pattern in (_BOXED, _ALONE, *_WORDS):
        places = [_at(scale, text, match.end()) for match in _find(scale, pattern, text)]
        if found := [place._replace(is_guess=pattern in _WORDS) for place in places if _is_said(place, text)]:
            return found
    return []


def _at(scale: Scale, text: str, start: int) -> Place:
    """Return the place of the score behind marks such as quotes and stars."""
    start = _end(_OPENING, text, start)
    level = read_level(text[start:], scale.levels).level
    number = _compiled(_NUMBER).match(text, start)
    if number is None:
        end = _end(_level_in(scale), text, start)
        is_either = _compiled(_EITHER.replace("LEVEL", _level_in(scale))).match(text, end)
        return Place(start, end, NONE if is_either else level)
    top, unit = _compiled(_TOP).match(text, number.end()), _end(_UNIT, text, number.end())
    end = top.end() if top else unit
    is_of_other = (top and float(top["top"]) != scale.top) or (
        "%" in text[number.end() : unit] and scale.top != 100
    )
    return Place(start, end, NONE if is_of_other or _compiled(_PART).match(text, end) else level)


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
    """Return 2 for the name of a score, 1 for another name of a level, else 0.

    `Score (out of 10)` is the name of another score than one of 1 to 5.
    """
    name, _, said = name.partition("(")
    top = re.findall(r"\d+(?:\.\d+)?", said)[-1:]
    words = re.sub(_FILLING, "", re.sub(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+", " ", name).lower()).strip()
    own, other = (_VERDICTS, _SCORES) if scale.top is None else (_SCORES, _VERDICTS)

    def is_of(*names: str) -> bool:
        return _compiled(rf"(?:(?:{'|'.join(names)})(?:\s+|\Z))+").fullmatch(words) is not None

    is_sure = name in ("[[", "[RESULT]")
    says_nothing = _compiled(rf"\W*(?:(?:{_OF_ALL}|stars?)\W*)?").fullmatch(said) is not None
    is_of_scale = float(top[0]) == scale.top if top else says_nothing
    is_named = is_sure or (is_of(own, other, _OF_ALL, _FOREIGN) and is_of_scale)
    if not is_named or _is_counted(place, text):
        return 0
    is_level = place.level is not NONE
    ends_with_it = _compiled(rf"(?:.*\s)?(?:{own}|{_FOREIGN})").fullmatch(words)
    return 2 if is_sure or ends_with_it or (is_level and is_of(own, _OF_ALL)) else int(is_level)


def _objects(text: str) -> Iterator[tuple[int, int, list[tuple[str, int, int]]]]:
    """Yield where objects of JSON or Python begin and end (or are cut off), and their names, see `_best`.

    A name has the names of the objects around it before it.
    """
    end = 0
    while begins := _compiled(_OBJECT).search(text, end):
        names: dict[int, str] = {}
        entries, depth, end = [], 0, len(text)
        for lexeme in _compiled(_LEXEME).finditer(text, begins.start()):
            if lexeme["name"]:
                names = {outer: name for outer, name in names.items() if outer < depth}
                names[depth] = lexeme["name"].strip("\"'")
                entries.append((" ".join(names.values()), depth, lexeme.end()))
            depth += (lexeme[0] in "{[") - (lexeme[0] in "}]")
            if not depth:
                end = lexeme.end()
                break
        yield begins.start(), end, entries


def _is_said(place: Place, text: str) -> bool:
    """Whether a score counts nothing, and is not denied."""
    return not (
        _is_counted(place, text) or _compiled(_DENIED).search(text[max(0, place.start - 80) : place.start])
    )


def _is_counted(place: Place, text: str) -> bool:
    return text[place.start : place.start + 1].isdigit() and bool(_compiled(_COUNTED).match(text, place.end))


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.VERBOSE)


def _end(pattern: str, text: str, start: int) -> int:
    """Return where a pattern ends that may begin there."""
    match = _compiled(pattern).match(text, start)
    return match.end() if match else start


def _blank(text: str, begin: int, end: int) -> str:
    """Return a text of the same length without a part of it."""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
