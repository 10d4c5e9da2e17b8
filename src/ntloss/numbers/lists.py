"""Lists of numbers in brackets, braces, parentheses or tags: there, a comma separates no thousands."""

from __future__ import annotations

import re

from ntloss.numbers.alphabet import CURRENCIES, SIGN, D

_ITEM = rf"{SIGN}?(?:{D}+(?:\.{D}*)?|\.{D}+)(?:[eE][+-]?{D}+)?"
# Tags of HTML, of answers and of chats, whose text is no list.
_OTHER_TAGS = (
    r"(?:\w*(?:answer|result|response|output|solution|number|value|score|total|amount|price|cost|count|think"
    r"|estimat|predict|forecast|guess|rating|population|year|salary|revenue|quantity|percent"
    r"|reason|assistant|user|human|system|turn|im_|header|message|text|eot|eos|bos|begin_of|end_of|start_of"
    r"|tool|observation|extra_id)\w*"
    "|a|abbr|ans|b|bdi|big|blockquote|body|br|button|caption|center|cite|code|data|dd|del|dfn|div|dt|em|end"
    "|figcaption|final|font|h[1-6]|hr|i|img|ins|kbd|label|li|mark|mask|meter|nobr|option|p|pad|pre|q|s|samp|sep"
    "|small|span|start|strike"
    "|strong|sub|sup|summary|td|th|time|title|tr|tt|u|unk|var)"
)
_TAG = rf"<\|?(?i:(?!{_OTHER_TAGS}\b)[a-z][\w.-]*)(?:\s[^<>]*)?\|?>"
_GROUPS = rf"\(\s*{SIGN}?[1-9]{D}{{0,2}}"
_CENTS = rf"{_GROUPS}(?:(?:,{D}{{3}})+\.{D}{D}|(?:[. ]{D}{{3}})+,{D}{D})\s*\)"
# An amount after its currency, $(1,234), but not the pair $(1,234)$ of LaTeX.
_AMOUNT = rf"(?:(?<=[{CURRENCIES}])|(?<=[{CURRENCIES}] )){_GROUPS}(?:,{D}{{3}})+(?:\.{D}+)?\s*\)(?!\s?\$)"
_BLANK = r"[ \t\r\n]"  # other spaces do not separate numbers
# What may be written of the next number of a list.
_UNFINISHED = re.compile(rf"{_BLANK}*(?:[,;:|]{_BLANK}*)?(?:{SIGN}?\.?|[eE][+-]?|\\[a-z]*)\s*\Z")
# What begins a list, its numbers, which a comma or a space separates, and what ends it.
_LIST = re.compile(
    rf"(?:(?P<open>(?!{_CENTS}|{_AMOUNT})\(|(?<![\w}}\]^])\{{|\[|{_TAG})|[)\]}}\"'],){_BLANK}*"
    rf"(?P<items>{_ITEM}(?:{_BLANK}*[,;:|]{_BLANK}*{_ITEM}|{_BLANK}+{_ITEM})*)"
    rf"(?:{_BLANK}*(?:[,;]{_BLANK}*)?(?:(?:\\right)?\\?(?:[)}}]|\](?!\())|<)"
    rf"|{_BLANK}*,{_BLANK}*[(\[{{\"'.…]|(?(open){_UNFINISHED.pattern}|(?!)))"
)
_LIST_BEGINS = re.compile(r"[(\[{>)\]}\"'](?:(?<=[(\[{>])|(?=,))")
_LONGEST_TAG = 64


class Lists:
    """The lists of numbers in brackets or tags, for one pass over a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self._seen, self._end = text, 0, 0

    def end_of(self, match: re.Match[str]) -> int:
        """Return where the list ends that a number with separators stands in; 0 if it stands in none."""
        begin = -1
        for opening in _LIST_BEGINS.finditer(self.text, self._seen, match.start()):
            begin = opening.start()
        self._seen = match.start()
        if begin >= 0:
            found = _list_from(self.text, begin)
            self._end = 0 if found is None else found.end("items")
        return self._end if self._end >= match.end() else 0


def _list_from(text: str, begin: int) -> re.Match[str] | None:
    """Return the list of numbers that a bracket, or the end of a tag, begins; None if it begins none."""
    if text[begin] == ">":
        begin = text.rfind("<", max(0, begin - _LONGEST_TAG), begin)
    return None if begin < 0 else _LIST.match(text, begin)


def thousands_at(text: str, place: int, thousands: str | None) -> str | None:
    """Return the separator of thousands of a number at a place: none in a list, which may not have ended.

    Args:
        text: any text, to its end or to the place.
        place: index of the number's first character.
        thousands: the separator in the text, see `parse_numbers`; None if the text decides.

    Example:
        >>> thousands_at("[120,", 5, None), thousands_at("(120,340)", 1, None), thousands_at("at ", 3, None)
        ('', '', None)
    """
    begins = [opening.start() for opening in _LIST_BEGINS.finditer(text, 0, place)]
    if thousands is not None or not begins or (place == len(text) and text[begins[-1] :].strip() == "("):
        return thousands  # after a single parenthesis, 1,234 may be followed by a word
    found = _list_from(text if place < len(text) else f"{text}0", begins[-1])
    return "" if found is not None and found.end("items") > place else None
