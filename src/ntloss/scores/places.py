"""Where the score stands in the answer of a judge: `{"score": 4}`, `[RESULT] 4`, "I rate this **4**/5".

Structure comes before words. Candidates are looked for in this order, and the first kind that is there
counts:

1. the value under a key that is a score, of a JSON or YAML object; texts in it are never candidates;
2. explicit marks: `[RESULT] 4`, `[[4]]`, `\\boxed{4}`, `<score>4</score>`, a line that begins with `Score:`;
3. the scale beside it: `4/5`, `4 out of 5`;
4. words of prose: "a rating of 4", "I give it a 4";
5. an answer that is nearly nothing but a level.

What stands at that place and is no level is no score. Thoughts before the answer are no candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ntloss.scores.levels import NONE, read_level

_SCORE = ("score", "scores", "rating", "ratings", "rate", "grade", "mark", "marks", "points")
_VERDICT = (
    "answer",
    "verdict",
    "judgment",
    "judgement",
    "decision",
    "result",
    "label",
    "choice",
    "sentiment",
)
_OF_ALL = ("overall", "total", "final", "aggregate", "combined")
_FILLING = ("the", "a", "my", "your", "our", "this", "of", "for", "numeric", "numerical", "llm", "judge", "s")
_NO_SCORE = (
    *(
        "max",
        "min",
        "maximum",
        "minimum",
        "highest",
        "lowest",
        "possible",
        "range",
        "scale",
        "weight",
        "type",
    ),
    *(
        "confidence",
        "reason",
        "reasoning",
        "reasons",
        "explanation",
        "criteria",
        "criterion",
        "rubric",
        "key",
    ),
    *("threshold", "previous", "expected", "reference", "baseline", "guide", "guidelines", "per", "student"),
)
# Names of a score in other languages, alone or at the end of a longer one: Gesamtbewertung, 最终得分.
_OTHERS = (
    "Bewertung|Punktzahl|puntuación|calificación|punteggio|pontuação|оценка"
    "|评分|得分|分数|打分|評分|評価|スコア|점수|평점"
)
_NAME_ENDS = re.compile(rf"(?:score|rating|{_OTHERS})$", re.IGNORECASE)

_MARKUP = r"""[\s"'`*_~$<|>\[({:=\\#⭐★☆]"""
_OPENING = re.compile(rf"(?:\\(?:boxed|text|textbf|mathbf)\{{|->|→|{_MARKUP}|-(?=\s))*")
_CLOSING = r"""[\s"'`*_~$|>\])}.!\\]*"""
_NUMBER = re.compile(r"(?<![A-Za-z\d_.,/-])[+-]?(?:\d+(?:[.,]\d+)*|\.\d+)")
_UNIT = r"[\"'`*_)\]]*\s*(?:(?:stars?|points?|pts|marks?|Punkten?)\b|[分点點점])?[\"'`*_)\]]*"
_SLASH = r"(?:/|\bout[ -]of\b(?: an?\b)?(?: possible)?)"
_TOP = re.compile(
    rf"{_UNIT}\s*[(\[]?\s*(?:{_SLASH}|\b(?:of|von|sur|de|sobre|su|из)\b)\s*[\"'`*_]*(\d+(?:\.\d+)?)"
)
# A part of another number or of a range: 4-5, 4 to 5, 4:30, 4e1.
_PART = re.compile(r"-\d|\s-\s\d+(?![\w ]*[^\W\d_])|\s?(?:to|or)\s\d|:\d|[eE]-?\d")
# What a number counts (`2 flaws`); it is a score before these words, and before names in capitals.
_COUNTED = re.compile(
    r"[*_]*\s+(?!(?:out|of|for|because|on|as|since|and|but|or|stars?|points?|marks?|pts|overall|due|in|with"
    r"|based|given|from|at|which|that|is|was|here|so|by|if|von|de|sur|sobre|su|seems?|feels?)\b)[^\W\d_A-Z\u3040-\uffff]"
)
_VERBS = (
    r"\b(?:rat(?:e|es|ed|ing)|scor(?:e|es|ed|ing)|grad(?:e|es|ed|ing)|giv(?:e|es|en|ing)|gave|assign(?:s|ed)?"
    r"|award(?:s|ed)?|deserv(?:e|es|ed|ing)|earn(?:s|ed)?|gets?|got|merits?|warrants?|receives?|say)\b"
    r"[^.!?;:\n\d]{0,60}|[给給打]\s*"
)
_NAMES = rf"(?:\bscores?|\brat(?:ing|ed?)|\bgrade|\bverdict|\banswer|\bjudge?ment|{_OTHERS})"
_LINK = r"(?:(?:is|was|of|as|at|to|would be|should be|an?|the|only|just|about)\b|[:=→是为為はが]|->?)"
_NAMED = re.compile(rf"(?:{_VERBS}|{_NAMES}{_MARKUP}*(?:\s*{_LINK})*){_MARKUP}*\Z", re.IGNORECASE)
# What is only considered: "does not reach a score of 5", "a 5 would need sources".
_ONLY_BEFORE = re.compile(
    r"(?:\b(?:not?|never|cannot|why|than|instead of|if|unless|reach\w*|achiev\w*|to (?:be|get|earn|merit"
    r"|deserve|receive|justify|warrant)|perfect|full|top|max|maximum|highest|lowest|minimum)\b|n't\b)"
    r"(?:(?!\b(?:so|but|hence|thus|therefore|and I)\b)[^.!?;,:\n]){0,40}\Z|\bfor an? [\"'*]*\Z",
    re.IGNORECASE,
)
_ONLY_BEHIND = re.compile(
    rf"{_UNIT}(?:\s*{_SLASH}\s*\d+)?[\"'`*_)\]]*\s*(?:(?:would|could|should|might|requires?|needs?|means?)\b"
    r"|(?:is|are) (?:for|only|reserved|given|meant)\b|=)",
    re.IGNORECASE,
)

_THOUGHT = r"(?:\w+:)?(?:(?:begin_of|end_of|start|end)_)?(?:think|thinking|thoughts?|reasoning)"
_THOUGHTS = re.compile(rf"[<\[◁]\|?(?P<closing>/|(?=end_))?{_THOUGHT}\|?[>\]▷]", re.IGNORECASE)
_BEFORE_FINAL = re.compile(
    r".*(?:assistantfinal|<\|channel\|>final[^\n]*?<\|message\|>)", re.DOTALL
)  # gpt-oss
_NO_FINAL = re.compile(r"\s*(?:(?:analysis|commentary)(?=[A-Z\"'])|<\|(?:start|channel)\|>).*", re.DOTALL)

_OBJECT = re.compile(r"""\{\s*(?:"[^"\n]*"|'[^'\n]*'|\w+)\s*:""")
_LEXEME = re.compile(
    r'"(?:[^"\\]|\\.)*(?:"|\Z)|\'(?:[^\'\\]|\\.)*?\'(?=\s*[:,}\]])|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL
)
_YAML_LINE = re.compile(
    r"""[ ]*(?:-[ ]+)?["']?(?P<key>[^\W\d_](?:[^\W\d]|[ .'-])*?)["']?[ ]*:(?=[ ]|$)[ ]*(?P<value>.*)$"""
)
_LINE = re.compile(
    r"^[ \t>#*_|`\"'•+-]*(?:\d+[.)][ \t]+)?[*_]*(?P<name>[^\W\d_][^\n:=|<>→\d.?!]{0,60}?)[ \t*_`\"')\]]*"
    r"(?:[:=|→]|(?<=[ \t])-+>?[ \t]|[是为為はが](?=[ \t]*\d)|\bis\b|\n+(?=[*_ \t]*[+-]?\d))[*_]*",
    re.MULTILINE,
)
_TAG = re.compile(r"<(?P<name>[A-Za-z][\w -]*)>")
_BRACKETED = re.compile(r"\[(?P<name>[A-Za-z][A-Za-z _-]*)\](?!\()[ \t]*:?")
_DOUBLE = re.compile(r"\[\[(?=[^\[\]\n]*\]\])\s*(?:[A-Za-z ]+:)?")
_BOXED = re.compile(r"\\boxed\{")
_LISTED = re.compile(r"[ \t]*\d+[.):][ \t]+\S")
_BEGINNING = re.compile(
    r"(?:\W*\b(?:I|I'd|I'll|would|give|it's|its|it|this|that|an?|the|answer|response|is|say|rate|rated|rating"
    r"|score|scored|my|as|overall|final|verdict|label|choice|option)\b)*\W*\Z",
    re.IGNORECASE,
)


class Place(NamedTuple):
    """Where a score may stand: the index of its first character, that behind it, and the level or NONE."""

    start: int
    end: int
    level: Any


class Scale(NamedTuple):
    """Levels by their texts, and the ends of their scale as they are written; None for words."""

    levels: Mapping[str, Any]
    ends: tuple[str, str] | None

    @classmethod
    def of(cls, levels: Mapping[str, Any], values: Mapping[Any, float]) -> Scale:
        """Find the ends of a scale."""
        numbers = [name for name in levels if _NUMBER.fullmatch(name)]
        numbers.sort(key=lambda name: values[levels[name]])
        return cls(levels, (numbers[0], numbers[-1]) if numbers else None)

    def at(self, text: str, start: int) -> Place:
        """Return the place of the score behind marks such as quotes and stars."""
        opening = _OPENING.match(text, start)
        start = opening.end() if opening else start
        if number := _NUMBER.match(text, start):
            end, level = number.end(), read_level(number[0], self.levels).level
            top, percent = _TOP.match(text, end), text[end : end + 1] == "%"
            is_other_scale = (top and float(top[1]) != float(self.top)) or (percent and self.top != "100")
            return Place(start, end, NONE if is_other_scale or _PART.match(text, end) else level)
        names = [name for name in self.levels if text.startswith(name, start)]
        end = start + max(map(len, names), default=0)
        return Place(start, end, read_level(text[start:], self.levels).level)

    @property
    def top(self) -> str:
        """The largest level, as it is written."""
        return self.ends[1] if self.ends else "nan"

    def all_in(self, text: str) -> Iterator[Place]:
        """Return the numbers and levels of a text."""
        words = sorted((name for name in self.levels if not name[-1].isdigit()), key=len, reverse=True)
        either = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)") if words else None
        found = [] if either is None else [*either.finditer(text)]
        found += _NUMBER.finditer(text) if self.ends else []
        for match in sorted(found, key=re.Match.start):
            yield self.at(text, match.start())


def places_of_score(text: str, scale: Scale, after: str | None = None) -> list[Place]:
    """Return the places at which an answer has its score: one, or several of the same rank, in their order.

    Args:
        text: the answer, in plain characters.
        scale: the levels.
        after: what stands before the score, whatever spaces are in it; None if the answer decides.
    """
    text = _without_thoughts(text)
    if after is not None:
        words = r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", after)))
        return [scale.at(text, match.end()) for match in re.finditer(words, text)]
    if found := _best(_of_objects(text, scale), scale):
        return found
    for begin, end, entries in [*_objects(text)]:
        single = scale.at(text, entries[0][1]) if text.count(":") == len(entries) == 1 else None
        if single and single.level is not NONE and not re.search(r"\w", text[:begin] + text[end:]):
            return [single]
        text = _blank(text, begin, end)
    if found := _best(_of_yaml(text, scale), scale):
        return found
    text = _without_scales(text, scale)
    if found := _best(_of_marks(text, scale), scale):
        return found
    return _in_words(text, scale) or _alone(text, scale)


_Ranked = tuple[int, int, Place]  # what its name is worth, how deep it stands


def _best(found: Iterable[_Ranked], scale: Scale) -> list[Place]:
    """Return the places of the best name. A name of another kind than the levels has to stand before one."""
    kinds = [
        (worth if scale.ends or worth != 1 else 4, -depth, place)
        for worth, depth, place in found
        if worth and (place.level is not NONE or (worth > 1) == bool(scale.ends) or worth > 3)
    ]
    most = max((kind[:2] for kind in kinds), default=None)
    return [place for *kind, place in kinds if tuple(kind) == most]


def _worth(name: str) -> int:
    """Return 3 for the name of a score, 2 for that of a part of it, 1 for that of an answer, else 0."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    words = [word for word in words if word not in _FILLING]
    scores = [word in _SCORE or _NAME_ENDS.search(word) is not None for word in words]
    if not words or any(word in _NO_SCORE for word in words):
        return 0
    if all(score or word in (*_OF_ALL, *_VERDICT) for word, score in zip(words, scores, strict=True)):
        return 3 if any(scores) or all(word in _OF_ALL for word in words) else 1
    return 2 if len(words) < 5 and (scores[0] or scores[-1]) else 0


def _of_objects(text: str, scale: Scale) -> Iterator[_Ranked]:
    for _, _, entries in _objects(text):
        for name, start, depth in entries:
            place = scale.at(text, start)
            is_list = text[start] == "[" and "," in text[start : text.find("]", start)]
            yield _worth(name), depth, place._replace(level=NONE) if is_list else place


def _objects(text: str) -> Iterator[tuple[int, int, list[tuple[str, int, int]]]]:
    """Return where JSON objects begin and end, and of their members name, place of the value and depth.

    Objects may be cut off, have names without quotes, or single quotes as Python writes them.
    """
    end = 0
    while begins := _OBJECT.search(text, end):
        entries: list[tuple[str, int, int]] = []
        around: list[str] = []  # the names of the objects and lists around
        last, name = "", None
        end = len(text)
        for lexeme in _LEXEME.finditer(text, begins.start()):
            if name is not None and lexeme[0] != "{":
                # {"score": {"value": 4}} is a score.
                outer = around[-1] if around and name in ("value", "number", "level") else ""
                entries.append((outer or name, lexeme.start(), len(around)))
            if lexeme[0] in ("{", "["):
                around.append(name or "")
            elif lexeme[0] in ("}", "]"):
                around = around[:-1]
            if not around:
                end = lexeme.end()
                break
            name = last if lexeme[0] == ":" else None
            last = lexeme[0].strip("\"'")
        yield begins.start(), end, entries


def _of_yaml(text: str, scale: Scale) -> list[_Ranked]:
    """Return the members of a text that is YAML as a whole; texts of several lines are indented."""
    found, indent_of_text, start = [], None, 0
    for line in text.splitlines(keepends=True):
        indent, stripped = len(line) - len(line.lstrip()), line.strip()
        member = _YAML_LINE.match(line.rstrip("\n"))
        is_of_text = indent_of_text is not None and indent > indent_of_text
        if stripped and not is_of_text and not stripped.startswith(("#", "```", "---")):
            if member is None:
                return []
            indent_of_text = indent if member["value"] else None
            found.append((_worth(member["key"]), indent, scale.at(text, start + member.start("value"))))
        start += len(line)
    return found


def _of_marks(text: str, scale: Scale) -> Iterator[_Ranked]:
    for match in _DOUBLE.finditer(text):
        yield 5, 0, scale.at(text, match.end())
    for match in _BRACKETED.finditer(text):
        yield 5 if _worth(match["name"]) else 0, 0, scale.at(text, match.end())
    for match in _BOXED.finditer(text):
        yield 1, 0, scale.at(text, match.end())
    for match in _TAG.finditer(text):
        yield _worth(match["name"]), 0, scale.at(text, match.end())
    for match in _LINE.finditer(text):
        worth, place = _worth(match["name"]), scale.at(text, match.end())
        is_below = "\n" in text[match.start("name") : place.start]
        is_of_text = _LISTED.match(text, place.start) or _COUNTED.match(text, place.end)
        if _ONLY_BEHIND.match(text, place.end) or (is_below and (worth < 3 or is_of_text)):
            continue
        yield worth, 0, place


def _in_words(text: str, scale: Scale) -> list[Place]:
    """Return the scores in words: 4/5, 4 out of 5; then those behind the name of a score."""
    of_scale, named = [], []
    for place in scale.all_in(text):
        before, first = text[: place.start], text[place.start : place.end]
        top = _TOP.match(text, place.end) if scale.ends else None
        behind = top.end() if top else place.end
        is_counted = first[-1:].isdigit() and _COUNTED.match(text, behind)
        if is_counted or _ONLY_BEFORE.search(before[-80:]) or _ONLY_BEHIND.match(text, place.end):
            continue
        if (
            top
            and float(top[1]) == float(scale.top)
            and re.search(_SLASH, top[0])
            and place.level is not NONE
        ):
            of_scale.append(place)
        if _NAMED.search(before[-80:]):
            named.append(place)
    return of_scale or named


def _alone(text: str, scale: Scale) -> list[Place]:
    """Return the level of an answer that is nearly nothing else, or that stands in its first or last line."""
    text = re.sub(r"<[^<>\n]*>", lambda tag: " " * len(tag[0]), text)
    places = [*scale.all_in(text)]
    if not places:
        return []
    found = []
    lines = [line for line in re.finditer(r"[^\n]+", text) if re.search(r"\w", line[0])]
    for line in {lines[0].start(): lines[0], lines[-1].start(): lines[-1]}.values():
        place = scale.at(text, line.start())
        top = _TOP.match(text, place.end) if scale.ends else None
        rest = text[top.end() if top else place.end : line.end()]
        if place.level is not NONE and re.fullmatch(_UNIT + _CLOSING, rest):
            found.append(place)
    first, is_number = places[0], text[places[0].start : places[0].end][-1:].isdigit()
    begins, behind = text[: first.start], text[first.end :]
    is_list = sum(_LISTED.match(line[0]) is not None for line in lines) > 1
    if re.fullmatch(r"\W*", begins) and not found and not is_list:
        follows = r"[\"'`*_)\]]*\s*(?:[;:(]|,(?!\s*\d)|-+\s|(?:because|since)\b" + (
            ")" if is_number else r"|[.!])"
        )
        found = [first] if re.match(follows, behind) else []
    if not found:
        is_short = not is_number and len(begins.split()) < 5 and "not" not in begins.lower().split()
        is_last = len(places) == 1 and re.fullmatch(_UNIT + _CLOSING, behind) is not None
        found = [first] if is_last and (is_short or _BEGINNING.fullmatch(begins)) else []
    return found


def _without_thoughts(text: str) -> str:
    """Blank out what the model has thought; templates of chats may write what begins it."""
    if text.lstrip().startswith(("{", "[{", '"', "`")):  # in JSON, which may quote anything
        return text
    if before := _BEFORE_FINAL.match(text) or _NO_FINAL.fullmatch(text):
        text = _blank(text, 0, before.end())
    begin: int | None = None
    for mark in [*_THOUGHTS.finditer(text)]:
        if mark["closing"] is not None:
            text, begin = _blank(text, begin or 0, mark.end()), None
        elif begin is None:
            begin = mark.start()
    return text if begin is None else _blank(text, begin, len(text))


def _without_scales(text: str, scale: Scale) -> str:
    """Blank out where the ends of the scale are said: (1-5), from 1 to 5, on a 5-point scale, out of 10:."""
    if scale.ends is None:
        return text
    low, high = map(re.escape, scale.ends)
    said = rf"""
        (?:\bon\ an?\ )?\b(?:scale|from|between)\ (?:of\ |from\ )?\d+\s*(?:-|\b(?:to|and)\b)\s*\d+(?![\d.])
        | [(\[]\d+\s*(?:-|\bto\b)\s*\d+[)\]]
        | (?<![\d.]){low}\s*(?:-|\b(?:to|bis|à|through)\b)\s*{high}(?![\d.])
        | (?:\bon\ an?\ )?[1-9]\d*[-\ ](?:points?|Punkte)[-\ ](?:\w+[-\ ])?(?:scale|Skala)
        | (?<=[a-z])\ out\ of\ \d+(?=[\s"'*_)\]]*[:=])
        | [(\[]?\b(?:max|min)(?:imum)?(?:[ _](?:score|rating|points|possible))*\s*(?:[:=]|of|is)?\s*\d+[)\]]?
        | (?:满分|滿分)\D?\d+\s*[分点]? | \d+\s*[分点點점]?\s?(?:满分|滿分|満点|만점)"""
    return re.sub(said, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.IGNORECASE | re.VERBOSE)


def _blank(text: str, begin: int, end: int) -> str:
    """Return a text of the same length without a part of it."""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
