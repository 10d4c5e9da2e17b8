"""What a written number is: the one grammar of texts, labels, tokens, and of a text that is being written.

- `find_in_text(text)` finds the numbers of a finished text; `parsing` makes values of them.
- `read_prefix(text)` reads a text that a model is still writing: the number so far, whether characters that
  follow can change it, and whether what already follows makes it a part of something else (`1/2`, `3-5`).
- `value_of_token(text)` is the value of a token that is a number.
- `spans` reads rows of labels by the same rules, in tensors.

`docs/numbers.md` has a table of what is read and how, and of what is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

DIGITS = "0123456789"
SIGNS = {"-": -1, "+": 1, **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", -1)}
"""Signs with their factors: the minus of typography, and the hyphens and dashes that are written for it."""
POINT = "."
SPACES = " \u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
"""White space that may stand between thousands."""
APOSTROPHES = "'\u2019"
SEPARATORS = (",", " ", ".", "'", "")
"""Separators of thousands that can be required, and none. With "." the decimal point is a comma."""
CURRENCIES = "$€£¥₹₩₽₺₪₫₱₦₴₡₲₵₸₮₼₾₿฿"
POWERS = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7},
    **{"mn": 6, "mln": 6, "mio": 6, "bn": 9, "bln": 9, "mrd": 9, "tn": 12, "trn": 12},
    **{"k": 3, "m": 6, "b": 9, "t": 12},
}
"""Magnitudes, with their powers of ten. Letters are read only where `_LETTER` and `_MONEY` say."""
_LONGEST_POWER = 18  # characters; with more, the number is 0 or infinite
LARGEST = 3.4028234663852886e38
"""The largest value of a token: losses are computed in float32."""

_WORDS = [word for word in POWERS if len(word) > 1]
_D = "[0-9]"
_SIGN = f"[{re.escape(''.join(SIGNS))}]"
_SPACE = f"[{SPACES}]"
_CURRENCY = rf"(?:\\?[{CURRENCIES}])"
_CODES = "USD|EUR|GBP|JPY|CHF|CNY|INR"
_CODE = f"(?:{_CODES})"
_MONEY_BEFORE = rf"(?:(?:\b[A-Z]{{1,3}})?{_CURRENCY}{_SPACE}?|\b{_CODE}{_SPACE}?)"
# Of scripts that put no space between words: there, a sign may follow a letter.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_PRIMES, _QUOTES = "\u2032\u2033", "\"'\u2019\u201d"
# A sign follows no letter, digit, closing bracket, percent or degree sign, except a currency's code, and no
# mark that ends a number before it: 5"-7", 10.-15., 5€-10€.
_ENDED = rf"(?<!{_D}[{_QUOTES}{_PRIMES}.!{CURRENCIES}])(?<!{_D}{_SPACE}€)"
_SIGN_BEFORE = rf"(?:(?<![^\W_{_UNSPACED}])(?<![)\]}}%‰°]){_ENDED}|(?<=\b{_CODE}))"
_EXPONENT = rf"(?:[eE](?P<power>{_SIGN}?{_D}+)(?![0-9A-Za-z]))"
_WORD = rf"(?:(?:{'|'.join(_WORDS)})s?)"
# Plain letters only directly after digits, and only those that are no usual unit; with a currency, all.
_MAGNITUDE = rf"(?:(?:[{SPACES}-]?(?i:{_WORD})(?!\w))+|[kKM](?!\w))"
_MONEY = rf"(?:{_SPACE}?(?i:[kmbt])(?!\w))"
# Digits of other scripts, superscripts, subscripts and fractions: no number of ours, nor a part of one.
_OTHER_DIGIT = (
    r"(?:(?![0-9])\d|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f])"
)
_OPEN, _CLOSE = r"[(\[{]", r"[)\]}]"
_DASH = "[-\u2010-\u2014\u2212~\u301c\uff5e]"
_AGAIN = rf"{_SIGN}?(?:{_CURRENCY}{_SPACE}?)?[.]?{_D}"  # another number begins
_MORE = rf"{_SIGN}?(?:{_CURRENCY}{_SPACE}?)?\.?"  # what of it may be written so far
_OPERATOR = "[/\u2044\u2215\uff0f\u00d7÷·⋅∙±]"
_UNIT = rf"(?:[%‰]|{_SPACE}?€|{_CURRENCY}|[°.{_PRIMES}{_QUOTES}]{{1,2}})"
_MIDDLE = f":\u2236\uff1a_hH{APOSTROPHES}{_PRIMES}"  # between the parts of a time, a length, or code
_COUNTED = "hundred|thousand|million|billion|trillion|lakh|crore"
_AFTER_COUNTED = "|".join(f"(?<=(?i:{word}{s}))" for word in _COUNTED.split("|") for s in ("", "s"))


def _begins(words: str) -> str:
    """Make a pattern of the beginnings of words, which `|` separates."""
    return "|".join(sorted({word[:i] for word in words.split("|") for i in range(1, len(word) + 1)}))


# What follows a number and makes it a part of something else, up to the first digit of that; and what of it
# may be written so far.
_JOINS = [
    # 1/2, 3 · 10, 5 ± 1
    (
        rf"{_SPACE}?(?:{_OPERATOR}|\+/-|\\(?:times|cdot|div|pm)\b){_SPACE}?{_OPEN}?{_AGAIN}",
        rf"{_SPACE}?(?:{_OPERATOR}|\+(?:/-?)?|\\(?:{_begins('times|cdot|div|pm')})?){_SPACE}?{_OPEN}?{_MORE}",
    ),
    # 2*3, 10^5, 3 x 4
    (
        rf"(?:\*\*?|[\u2217\u2022]|{_SPACE}\*{_SPACE}|\^\{{?|{_SPACE}?[xX]{_SPACE}?){_AGAIN}",
        rf"(?:\*\*?|[\u2217\u2022]|{_SPACE}\*{_SPACE}?|\^\{{?|{_SPACE}?[xX]{_SPACE}?){_MORE}",
    ),
    (rf"{_SPACE}{_D}+/{_D}", rf"{_SPACE}{_D}+/?"),  # 1 1/2
    # 12:30, 12h30, 1.2.3, 5..10, \frac{1}{2}, and groups that nobody writes
    (
        rf"(?:[{_MIDDLE},eE]|\.{{1,3}}|\}}\{{|\{{,\}}|,\\!|\\[,;: ]){_D}",
        rf"[{_MIDDLE}]|\.{{1,3}}|\}}\{{?|\{{,?\}}?|,(?:\\!?)?|\\[,;: ]?|[eE]{_SIGN}?{_D}*",
    ),
    # 3-5, 3%-5%, $3-$5, 20°-25°
    (rf"{_UNIT}?{_DASH}{_CURRENCY}?{_D}", rf"{_UNIT}?(?:{_DASH}(?:\\|{_CURRENCY})?)?"),
    (rf"{_SPACE}?[⁺⁻₊₋]?{_OTHER_DIGIT}", rf"{_SPACE}?[⁺⁻₊₋]?"),  # 2½, 10²
    ("\ufe0f?\u20e3", "\ufe0f?"),  # keycaps
    (rf"{_SPACE}?(?:[√π]|\\(?:sqrt|pi)(?![A-Za-z]))", rf"{_SPACE}?\\(?:{_begins('sqrt|pi')})?"),  # 2π
    ("(?<=0)(?:[xX][0-9A-Fa-f]|[bBoO][0-7])", "[xXbBoO]"),  # 0xFF
    # 5 thousand 200; 3 thousandths
    (rf"(?:{_AFTER_COUNTED}){_SPACE}(?:and{_SPACE})?{_D}", rf"{_SPACE}(?:an?|and{_SPACE}?)?"),
    (
        rf"[{SPACES}-]?(?i:hundred|thousand|million|billion|trillion)ths?(?!\w)",
        rf"[{SPACES}-]?(?i:{_begins('|'.join(word + end for word in _WORDS for end in ('s', 'ths')))})?",
    ),
    # Billions or bytes, and magnitudes of other languages and traders.
    (r"(?:[BT]|MM)(?!\w)", "[BT]|MM?"),
    (rf"{_SPACE}(?:cr|mil)(?!\w)", rf"{_SPACE}(?:{_begins('cr|mil')})"),
    (rf"{_SPACE}?[万萬億亿千百만억천]", rf"{_SPACE}?"),
    (
        rf"{_SPACE}?[kKmMbB](?:{_CODE}|{_CURRENCY})",
        rf"{_SPACE}?[kKmMbB](?:\\|{_begins(_CODES)})?",
    ),
]
_JOINED = re.compile("|".join(full for full, _ in _JOINS))
# 3kg-5kg: in finished texts alone; a reading of what a model writes ends at the first letter of a unit.
_RANGE_OF_UNITS = re.compile(rf"°?[A-Za-z]{{1,3}}{_DASH}{_CURRENCY}?{_D}")
_TAIL = re.compile("|".join(begun for _, begun in _JOINS))
# What stands before a number and makes it a part of something else: a fraction, a power, a root.
_JOINED_BEFORE = re.compile(
    rf"(?<={_OTHER_DIGIT})|(?<=[√π±^/\u2044\u2215\uff0f])|(?<=/{_SPACE})|(?<=[\^\}}\]]\{{)|(?<=frac)"
    r"|(?<=\\sqrt)|(?<=\\sqrt[ {\[])|(?<=\\pm)|(?<=\\pm\s)"
)
_CURRENCY_BEHIND = re.compile(rf"{_CURRENCY}{_SPACE}?$")
_MINUSES = "".join(c for c, factor in SIGNS.items() if factor < 0)
_FAR = 16  # characters before a number in which a sign can stand apart
# `minus 5`, `= - 5`, `-AUD 5`, but not the operator of `7 minus 5`.
_SIGN_APART = re.compile(
    rf"(?:(?<![0-9)\]}}%]{_SPACE})(?<![\w-])(?i:minus|negative)\s+"
    rf"|[=:{CURRENCIES}]{_SPACE}?[{re.escape(_MINUSES)}]{_SPACE}"
    rf"|(?<![\w)\]}}%])[{re.escape(_MINUSES)}](?:[A-Z]{{2,3}}|kr|Rs|zł|Kč|Ft)\.?{_SPACE}?)$"
)
# Where a number may begin, which is found much faster than a number: at most these characters stand before
# its first digit.
_NEAR_DIGIT = rf"(?=[{re.escape(''.join(SIGNS) + CURRENCIES + SPACES)}A-Z\\.,{{}}]{{0,12}}{_D})"
_BEFORE_WHOLE = re.compile(r"\s*")
_AFTER_WHOLE = re.compile(rf"\s*(?:{_CURRENCY}|{_CODE}|\\?%|percent)?\.?\s*")
_TOKEN_LEAD = re.compile(f" ?{_SIGN}?")
SUBWORDS = frozenset(
    word[i:j]
    for word in [*(word + "s" for word in POWERS), "times", "cdot", "div", "pm", "sqrt", "pi", "x", "e", "h"]
    for i in range(len(word))
    for j in range(i + 1, len(word) + 1)
)
"""What tokens may hold of magnitudes and of other words in a number, in lower case."""
MARKS = tuple(
    f"{CURRENCIES}{APOSTROPHES}{''.join(SIGNS)}.,:/\u00d7÷·⋅±*^_~\\{{}}()[] \u00a0\u2009\u202f%"
    f"\u2044\u2215\uff0f∙\u2217\u2022\u2236\uff1a{_PRIMES}°‰√π!\u301c\uff5e"
)
"""Characters that may stand in a number, before it, or directly after it."""
_PIECE = re.compile(
    rf"[{re.escape(''.join(MARKS))}]*(?:{_D}.*|{_OTHER_DIGIT}.*|[eE]{_SIGN}?(?:{_D}.*)?)?", re.DOTALL
)
PLAIN = re.compile(rf"{_D}+(?:\.{_D}+)?")
"""A number in plain digits, without its sign."""
SIGNED = re.compile(rf"[+-]?{PLAIN.pattern}")
"""A number in plain digits, as `float` reads it."""


class Written(NamedTuple):
    """A number in a text.

    Args:
        start, end: where it stands, with its sign, currency and magnitude.
        plain: the number as `float` and `decimal.Decimal` read it.
        alone: False if what stands directly beside it makes it a part of something else, such as a fraction,
            a range, a date or a power, or if nothing stands before it but a minus that may be its sign.
    """

    start: int
    end: int
    plain: str
    alone: bool

    @property
    def value(self) -> float:
        """The number; infinite if it is too large for float64, and never minus zero."""
        return as_value(self.plain)


class Prefix(NamedTuple):
    """What a text that is still being written begins with.

    Args:
        value: the number that the text begins with, if nothing followed it; None if there is none (yet).
        joined: whether what follows the number makes it a part of something else: the `1` of `1/2`.
        open: whether further characters may change `value` or `joined`.
    """

    value: float | None
    joined: bool
    open: bool


class _Rules(NamedTuple):
    number: re.Pattern[str]
    leading: re.Pattern[str]  # the same, after spaces
    begun: re.Pattern[str]  # digits and separators of which more characters can make another number


def check_thousands(thousands: str | None) -> None:
    """Raise a ValueError for what is no separator of thousands."""
    if thousands is not None and thousands not in SEPARATORS:
        raise ValueError(
            f"thousands={thousands!r}: expected ',', ' ', '.', \"'\", '' for none, or None: texts decide"
        )


@functools.cache
def _rules(thousands: str | None) -> _Rules:
    """Make the patterns for one separator of thousands, or, for None, for all that the text can decide."""
    check_thousands(thousands)
    by_text = thousands is None
    # Each separator, and what may be written of it so far.
    comma = [(",", ","), (r"\{,\}", r"\{,?\}?"), (r",\\!", r",(?:\\!?)?")]
    space = [(_SPACE, _SPACE), (r"\\[,;: ]", r"\\[,;: ]?")]
    apostrophe = [(f"[{APOSTROPHES}]",) * 2]
    given = {None: [*comma, *space, *apostrophe], ",": comma, " ": space, "'": apostrophe}
    first, point, fraction = f"[1-9]{_D}{{0,2}}", rf"(?:\.{_D}+)?", rf"(?:,|\{{,\}}){_D}+"
    ends = rf"(?!(?:[.,]|\{{,\}})?{_D})"
    grouped, european, begun = [], [], [f"{_D}*", rf"{_D}*\.{_D}*"]

    def groups(mark: str, count: str = "+") -> str:
        return rf"(?<!{_D}{mark}){first}(?:{mark}{_D}{{3}}){count}"

    for mark, part in given.get(thousands, []):
        if mark in dict(comma):
            grouped.append(rf"{groups(mark)}(?!(?:{mark})?{_D}){point}")
        else:
            grouped.append(rf"{groups(mark)}(?!(?:{mark})?{_D}|,{_D}){point}")
            european.append(groups(mark) + fraction + ends)
        begun.append(rf"{first}(?:{mark}{_D}{{3}})*(?:{part}|{mark}{_D}{{0,3}})?(?:[.,]{_D}*)?")
    if by_text:
        # In India, groups of two stand before the last three digits.
        grouped.append(rf"(?<!{_D},)[1-9]{_D}?(?:,{_D}{{2}})+,{_D}{{3}}(?!,?{_D}){point}")
        begun.append(rf"[1-9]{_D}?(?:,{_D}{{2}})*(?:,{_D}{{0,3}})?(?:\.{_D}*)?")
        # One comma that separates no thousands, in no pair such as (3,4), is a decimal comma.
        no_pair = rf"(?!(?:(?<={_OPEN})|(?<={_OPEN}{_SIGN})){_D}+,{_D}+{_CLOSE})"
        no_group = rf"(?!{first}(?:,|\{{,\}}){_D}{{3}}(?!{_D}))"
        european.append(rf"(?<!{_D}[.,]){no_pair}{no_group}{_D}+{fraction}{ends}")
        begun.append(rf"{_D}+(?:,|\{{,?\}}?){_D}*")
    if thousands in (None, "."):
        # One point between digits is a decimal point, unless a decimal comma follows it.
        count = "{2,}" if by_text else "+"
        european += [groups("[.]") + fraction + ends, groups("[.]", count) + rf"(?!\.?{_D})"]
        begun.append(rf"{first}(?:\.{_D}{{3}})*(?:\.{_D}{{0,3}})?(?:,{_D}*)?")
    plain = rf"{_D}+{point}|(?<![^\W_])(?<!\.)\.{_D}+"
    if thousands == ".":
        european += [rf"{_D}+(?:{fraction})?|(?<![\w,]){fraction}"]
        begun.append(f"{_D}*,{_D}*")
        plain = "(?!)"
    body = "|".join([*grouped, f"(?P<european>{'|'.join(european or ['(?!)'])})", plain])

    def number(money: str) -> str:
        inner = rf"(?<!{_D}[{CURRENCIES}])(?<!{_D}{_SPACE}€)(?P<inner>{_SIGN})"
        return (
            rf"(?:{_SIGN_BEFORE}(?P<sign>{_SIGN}))?(?P<money>{money}(?:{inner})?)?(?P<body>{body})"
            rf"{_EXPONENT}?(?P<magnitude>{_MAGNITUDE}|(?(money){_MONEY}|(?!)))?"
        )

    symbol = f"{_CURRENCY}{_SPACE}?"
    lead = rf"\s{{0,2}}{_SIGN}?(?:{symbol})?{_SIGN}?"
    return _Rules(
        number=re.compile(_NEAR_DIGIT + number(_MONEY_BEFORE)),
        leading=re.compile(rf"\s{{0,2}}{number(symbol)}"),
        begun=re.compile(f"{lead}(?:{'|'.join(begun)})"),
    )


def _plain(match: re.Match[str]) -> str:
    """Write a number as `float` and `decimal.Decimal` read it."""
    body = match["body"]
    if body.isdecimal() and match.end() - match.start() == len(body):  # most numbers
        return body
    body = body.replace(r"\,", "")
    if match["european"]:
        body = body.replace("{,}", ",").replace(POINT, "").replace(",", POINT)
    digits = "".join(c for c in body if c in DIGITS or c == POINT)
    sign = "-" if SIGNS[match["sign"] or "+"] * SIGNS[match["inner"] or "+"] < 0 else ""
    power = with_ascii_sign(match["power"] or "")
    if match["magnitude"] and len(power) < _LONGEST_POWER:
        power = str(int(power or "0") + sum(POWERS[word] for word in _words_of(match["magnitude"])))
    return f"{sign}{digits}e{power}" if power else f"{sign}{digits}"


def _words_of(magnitude: str) -> list[str]:
    words = re.findall("[a-z]+", magnitude.lower())
    return [word if word in POWERS else word.removesuffix("s") for word in words]


def with_ascii_sign(text: str) -> str:
    """Write each minus of a text as `-`."""
    return "".join("-" if SIGNS.get(c) == -1 else c for c in text)


def find_digits(text: str, thousands: str | None = None) -> Iterator[tuple[int, int, str, re.Match[str]]]:
    """Find all numbers of a text; yield start, end and `plain` of each, as in `Written`, and its match.

    Labels need no more, and what stands around a number takes several times as long to look at.
    """
    for match in _rules(thousands).number.finditer(text):
        yield match.start(), match.end(), _plain(match), match


def find_in_text(text: str, thousands: str | None = None) -> list[Written]:
    """Find all numbers of a text, from left to right.

    Args:
        text: any text.
        thousands: the separator of thousands, see `parse_numbers`. Default: the text decides.

    Returns:
        The numbers with their places.

    Raises:
        ValueError: an unknown separator.

    Example:
        >>> [(n.plain, n.alone) for n in find_in_text("$1,234.5 on 3/4: 67 million")]
        [('1234.5', True), ('3', False), ('4', False), ('67e6', True)]
    """
    if not isinstance(text, str):
        raise TypeError(f"text={text!r}: expected a text, such as 'It is 42.'")
    found: list[Written] = []
    joined_until, first, last = 0, len(text) - len(text.lstrip()), len(text.rstrip())
    for start, end, plain, match in find_digits(text, thousands):
        joined = _JOINED.match(text, end) or _RANGE_OF_UNITS.match(text, end)
        alone = joined is None and start >= joined_until and _JOINED_BEFORE.match(text, start) is None
        joined_until = joined_until if joined is None else joined.end()
        opened, closed = text[max(0, start - 1) : start], text[end : end + 1]
        # Accountants write negative amounts in parentheses. In sentences, only a currency tells them.
        if opened == "(" and closed == ")":
            currency = _CURRENCY_BEHIND.search(text, max(0, start - 4), start - 1)
            if match["money"] or currency or (start - 1 == first and end + 1 == last):
                start, end = currency.start() if currency else start - 1, end + 1
                plain = plain if plain.startswith("-") else f"-{plain}"
        # A list in square brackets has no spaces in JSON: [123,456]
        if opened == "[" and closed == "]" and "," in match["body"] and POINT not in match["body"]:
            alone = False
        alone = alone and _SIGN_APART.search(text, max(0, start - _FAR), start) is None
        if not found:
            alone = alone and not _is_only_a_minus(text[:start])
        found.append(Written(start, end, plain, alone))
    return found


def _is_only_a_minus(before: str) -> bool:
    """Whether nothing stands before the first number of a text but a minus: its sign, or a bullet."""
    line = before.lstrip()
    return "\n" not in line and any(c in _MINUSES for c in line) and re.search(r"\w", line) is None


def find_whole(text: str, thousands: str | None = None) -> str | None:
    """Return the number that a text is, as `float` reads it; None if it is anything else.

    White space, a currency, a percent sign and a point may stand around it.
    """
    numbers = find_in_text(text, thousands)
    if len(numbers) != 1 or not numbers[0].alone:
        return None
    ((start, end, plain, _),) = numbers
    around = _BEFORE_WHOLE.fullmatch(text[:start]) and _AFTER_WHOLE.fullmatch(text[end:])
    return plain if around else None


def read_prefix(text: str, thousands: str | None = None) -> Prefix:
    """Read the beginning of a text that is still being written.

    Spaces and a sign of a currency may stand before the number. What a token would change is seen from
    `read_prefix(text + token)`: if it is not open, and has the value and `joined` of `read_prefix(text)`, the
    number has ended before the token.

    Args:
        text: what has been written so far, from where the number may begin.
        thousands: the separator of thousands, see `parse_numbers`. Default: the text decides.

    Returns:
        The number so far, and what may become of it.

    Example:
        >>> for text in ("$", "1", "1,", "1,234", "67 mill", "67 million", "3 apples", "1/", "1/2"):
        ...     print(repr(text), *read_prefix(text))
        '$' None False True
        '1' 1.0 False True
        '1,' 1.0 False True
        '1,234' 1234.0 False True
        '67 mill' 67.0 False True
        '67 million' 67000000.0 False True
        '3 apples' 3.0 False False
        '1/' 1.0 False True
        '1/2' 1.0 True False
    """
    rules = _rules(thousands)
    match = rules.leading.match(text)
    begun = rules.begun.fullmatch(text) is not None
    if match is None:
        return Prefix(None, False, begun)
    joined = _JOINED.match(text, match.end()) is not None
    return Prefix(as_value(_plain(match)), joined, begun or _TAIL.fullmatch(text, match.end()) is not None)


def value_of_token(text: str) -> float | None:
    """Return the value of a token that is a number, possibly after a space; None for any other.

    A sign is no part of it, because what it means depends on the text before: the number of the token `-2018`
    is 2018, after `x = ` and after `2017`.
    """
    text = _TOKEN_LEAD.sub("", text, count=1)
    number = _rules(None).number.fullmatch(text.removesuffix(POINT) if text.count(POINT) == 1 else text)
    if (
        number is None
        or number["money"]
        or number["magnitude"]
        or number["sign"]
        or "," in (number["european"] or "")
    ):
        return None
    value = as_value(_plain(number))
    return value if value <= LARGEST else None


def is_piece(text: str) -> bool:
    """Return whether a token may begin a written number, continue it, or change it from after its end."""
    return text != "" and (_PIECE.fullmatch(text) is not None or text.lstrip(" -").lower() in SUBWORDS)


def count_digits(text: str) -> int:
    """Count the digits of a text."""
    return sum(map(text.count, DIGITS))


def as_value(number: str) -> float:
    """Return the value of a number that `float` accepts, with one zero."""
    return float(number) + 0.0  # turns -0.0 into 0.0
