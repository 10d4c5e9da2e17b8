r"""What a written number is: the one grammar of texts, labels, tokens, and of a text that is being written.

- A word (letters, digits, `_`) is a number if it is digits, or digits and then letters (`5kg`, `3rd`). A
  word that begins with a letter, or has letters between digits, is a name (`x1`, `CO2`, `GPT-3`, `4k7`): its
  digits are no number.
- Signs, currencies, groups of thousands, decimals, exponents and English magnitudes belong to a number.
- A number is *alone* unless a mark ties it to other digits (`1/2`, `3-5`, `12:30`, `10^6`), it is an argument
  (`exp(16)`, `\ln 2`), its sign stands apart, or a word for million in a large language follows, which is not
  read. Words do not tie: `5 to 7 kg` is 5 and 7.

`find_numbers` finds the numbers of a text, and `NumberReader` reads the number that a model is writing.
`docs/numbers.md` has a table of examples, which is the test.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

DIGITS = "0123456789"
POINT = "."
SIGNS = {"-": -1, "+": 1, **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", -1)}
"""Signs with their factors: the minus of typography, and the hyphens and dashes that are written for it."""
THIN = "\u00a0\u2009\u202f"
SPACES = f" {THIN}"
APOSTROPHES = "'\u2019"
CURRENCIES = "$¢£¤¥฿" + "".join(map(chr, range(0x20A0, 0x20C1)))
SEPARATORS = (",", " ", ".", "'", "")
"""Separators of thousands that can be required, and none. With "." the decimal point is a comma."""
POWERS = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7},
    **{"mn": 6, "mln": 6, "mio": 6, "bn": 9, "bln": 9, "mrd": 9, "tn": 12, "trn": 12},
    **{"k": 3, "m": 6, "b": 9, "t": 12},
}
"""English magnitudes with their powers of ten; letters count directly behind digits, or behind money."""
MAGNITUDES = tuple(word for word in POWERS if len(word) > 1)
# In German, French, Spanish, Portuguese, Italian, Dutch, Polish, Russian: a million in one language may be a
# billion in the next, so these are not read.
_ENDINGS = ("lion", "liard", "lón", "lon", "ion", "iard", "jon", "jard", "joen", "hão", "hõe", "ião", "iõe")
UNREAD = (
    *(first + ending for first in ("mil", "bil", "tril", "quadril", "quintil") for ending in _ENDINGS),
    *("tausend", "милл", "милр", "млн", "млрд", "тыс", "трлн"),
)
"""How words for large numbers begin."""
_SHORT = ("mil", "mld", "mds", "mia", "tsd")  # the same, whole
OPERATORS = ("times", "cdot", "div", "over", "pm", "mp")
FACTORS = ("pi", "sqrt", "overline", "bar", "dot")
"""Commands of LaTeX that tie a number to other digits, and that make another number of it."""
LARGEST = 3.4028234663852886e38
"""The largest value of a token: losses are computed in float32."""
_NO_DIGIT = re.compile("[^0-9.]")
SIGNED = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits."""
_FAR = 20  # characters before a number that are looked at

# Of scripts that put no spaces between words, so that a number may follow a letter.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# Digits of other scripts, superscripts, fractions, and what multiplies: no number of ours, nor a part of one.
OTHER_DIGITS = "π√만억천조백" + "".join(c for c in map(chr, range(0x80, 0x10000)) if c.isnumeric())
_TYING = ":\u2236\uff1a\u2026÷\u22c5\u2219(\u00b4\uff0c\uff0e"  # directly between numbers
_OPERATING = "/\u2044\u2215\uff0f^\u00d7·*\u2217±\u2213"  # also between spaces
_DASHES = "\u2014\u2015~\u301c\uff5e" + "".join(sign for sign, factor in SIGNS.items() if factor < 0)
MARKS = "".join(
    dict.fromkeys([*SIGNS, *SPACES, *APOSTROPHES, *CURRENCIES, *_TYING, *_OPERATING, *_DASHES, *".,{}[\\⁺⁻"])
)
"""Characters that may stand in a number, before it, or directly behind it, but digits."""


def _one_of(characters: str) -> str:
    return f"[{re.escape(characters)}]"


def _any(words: tuple[str, ...]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


D = "[0-9]"
SIGN, SPACE, _CURRENCY = _one_of("".join(SIGNS)), _one_of(SPACES), rf"\\?{_one_of(CURRENCIES)}"
OTHER_DIGIT = _one_of(OTHER_DIGITS)
_MINUS = _one_of("".join(sign for sign, factor in SIGNS.items() if factor < 0))
_LETTER = rf"[^\W\d_{_UNSPACED}\u0590-\u06ffªº]"  # in Hebrew and Arabic, short words are joined to numbers
_EXPONENT = rf"[eE]{SIGN}?{D}{{1,3}}(?!\w)"
_POWER = r"(?:\}?\^|\*\*|<su[bp]>)"
_FURTHER = (
    rf"(?:[^\W\d_{_UNSPACED}]+|[\-\u2010\u2011\u2212_]\{{?(?=\w)|{_POWER}[{{(]?{SIGN}?(?={D})"
    rf"|(?<={D})\.(?={D})|[^\W{_UNSPACED}])*"
)
_NAME = (
    rf"(?<![\w\\]){_LETTER}{_FURTHER}"
    rf"|(?<![\w.,])(?:0[xX][0-9a-fA-F]|{D}+(?!{_EXPONENT}|[xX]{D})(?:_\w|{_LETTER}+{D})){_FURTHER}"
    rf"|(?<={D}){_LETTER}+{_POWER}\{{?{SIGN}?{D}+"  # the unit of 750m^2
)
_MONEY = rf"(?:\b[A-Z]{{1,3}})?{_CURRENCY}{SPACE}?"
_SYMBOL = rf"{_CURRENCY}{SPACE}?"
_COMMA = r",|\{,\}|,\\!"
_GROUPS: dict[str | None, str] = {
    None: rf"{_COMMA}|[{THIN}{APOSTROPHES}]|\\[, ]",
    **{",": _COMMA, " ": SPACE, "'": f"[{APOSTROPHES}]", ".": r"\.", "": "(?!)"},
}
_POINTS = {None: r"\.", ",": r"\.", "": r"\.", ".": ",", " ": "[.,]", "'": "[.,]"}
# What ties a number to what follows it.
_EMPHASIS = "[*_`]{0,3}"
_UNIT = rf"(?:[%‰'\"\u2032\u2033]|{_CURRENCY}|°?[^\W\d_{_UNSPACED}]{{1,3}}|°)"
_WORDS = (
    rf"(?i:(?:{_any(UNREAD)}|(?:{_any(MAGNITUDES[:5])})(?!s?(?!\w)))(?!aire)\w*|(?:{_any(_SHORT)})(?!\w))"
)
_ITEM = rf"{SIGN}?(?:{D}+(?:\.{D}+)?|\.{D}+)"
_LIST = re.compile(  # commas separate here, they group nothing
    rf"(?:[(\[]|\\\{{|(?<![\w}}\]^\\])\{{)\s*{_ITEM}(?:\s*[,;]\s*{_ITEM})+\s*(?:(?:\\right)?\\?[)\]}}]|\Z)"
)
_IN_LIST = re.compile(rf"(?:\[|[(\[]\s*{_ITEM}(?:\s*[,;]\s*{_ITEM})*\s*[,;])\s*\Z")
# Commands of LaTeX whose argument is the number itself.
_OF_ITSELF = (
    r"(?:[dn]?fbox|boxed|text\w*|math\w*|quad|qquad|left|big\w*|approx|sim|equiv|[lg]eq?|ne?q?|to|t|r"
    r"|\w*arrow|implies|times|cdot|div)"
)
_ARGUMENT = re.compile(
    rf"(?:\\(?!{_OF_ITSELF}(?![A-Za-z]))[A-Za-z]+\s*[{{(\[]?|\\[dt]?frac\s?{D}\s?|{D}\{{|\}}\s?\{{|[\w)\]}}][(\[]"
    rf"|[/\u2044\u2215^√±\u2213][{{(]?|(?<=[\w}})])_\{{?|[/±^]{SPACE}|<su[bp]>|(?:\A|[\s(]),|[^\D0-9])\Z"
)
_SIGN_APART = re.compile(
    rf"(?:(?<!{D} )\b(?i:minus|negative)\s+|[负負]\s?|(?:[=:{{]|\A)[ \t]*{SIGN}\s+"
    rf"|(?<![\w)\]}}%]){_MINUS}[A-Z]{{2,3}}\.?{SPACE}?)\Z"
)


class Written(NamedTuple):
    """A number in a text."""

    start: int  # where it stands, with its sign, currency and magnitude
    end: int
    plain: str  # as `float` and `decimal.Decimal` read it
    alone: bool  # whether nothing makes it a part of something else, such as a fraction, a range or a date

    @property
    def value(self) -> float:
        """The number; infinite if it is too large for float64, and never minus zero."""
        return as_value(self.plain)


def as_value(number: str) -> float:
    """Return the value of a number that `float` accepts, with one zero."""
    return float(number) + 0.0  # turns -0.0 into 0.0


_TO_MINUS = str.maketrans({sign: "-" for sign, factor in SIGNS.items() if factor < 0})


def with_ascii_sign(text: str) -> str:
    """Write each minus of a text as `-`."""
    return text.translate(_TO_MINUS)


def count_digits(text: str) -> int:
    """Count the digits of a text."""
    return sum(map(text.count, DIGITS))


def check_thousands(thousands: str | None) -> None:
    """Raise a ValueError for what is no separator of thousands."""
    if thousands is not None and thousands not in SEPARATORS:
        raise ValueError(
            f"thousands={thousands!r}: expected ',', ' ', '.', \"'\", '' for none, or None: texts decide"
        )


@functools.cache
def _number(thousands: str | None, money: str = _MONEY, emphasis: str = _EMPHASIS) -> str:
    """Return the pattern of a number with what belongs to it: sign, currency, exponent, magnitude."""
    check_thousands(thousands)
    point = _POINTS[thousands]
    group = rf"(?P=mark){D}{{3}}"
    grouped = rf"(?<![.,])[1-9]{D}{{0,2}}(?P<mark>{_GROUPS[thousands]}){D}{{3}}(?:{group})*(?!(?P=mark)?{D})"
    indian = rf"(?<![.,])[1-9]{D}?(?:,{D}{D})+,{D}{{3}}(?!,?{D})" if thousands is None else "(?!)"
    fraction = rf"(?:{point}{D}+|\.(?=[eE]{SIGN}?{D}))?"
    return (
        rf"(?:(?:(?<![\w)\]}}%°.])(?<!{D}[\"'\u2032\u2033€$])|(?<=[_{_UNSPACED}]))(?P<sign>{SIGN}))?"
        rf"(?:(?P<money>{money})(?:(?<!{D}{_one_of(CURRENCIES)})(?P<inner>{SIGN}))?)?"
        rf"(?P<body>(?:{grouped}|{indian}|{D}+){fraction}|(?<![\w.,]){point}{D}+)"
        rf"(?:(?={_EXPONENT})[eE](?P<power>{SIGN}?{D}+))?"
        rf"(?P<magnitude>(?:{emphasis}(?:{SPACE}|-)?(?i:{_any(MAGNITUDES)})s?(?!\w))+|[kKM](?!\w)"
        rf"|(?(money){SPACE}?[kKmMbBtT](?!\w)|(?!)))?"
    )


def _ties(thousands: str | None, money: str, emphasis: str) -> str:
    """Return the pattern of what ties a number to digits, or makes it a million, from its end on."""
    further = rf"{emphasis}[(\[{{]?{SIGN}?(?:{money})?\.?(?:{D}|{OTHER_DIGIT})"
    operators = rf"{_one_of(_OPERATING)}|\*\*|[xX]|\+/?-|\\(?:{_any(OPERATORS)})"
    ties = [
        rf"{emphasis}(?:{_one_of(_TYING)}|\.{{1,3}}|\{{,\}}|{_one_of(_DASHES)}{{1,2}}|\}}\{{){further}",
        rf"{emphasis}{SPACE}?(?:{operators}){SPACE}?{further}",
        rf"\.?{SPACE}?\\(?:{_any(FACTORS)})(?![a-z])",  # 2\pi, 0.\overline{{3}}
        rf"{SPACE}?[⁺⁻]?{OTHER_DIGIT}|[eE]{SIGN}?{D}",
        rf"{SPACE}[.,]{SPACE}?{D}|{SPACE}{D}+[/\u2044]{D}",  # 1 , 234; 1 1/2
        rf"(?:{SPACE}|-){_WORDS}",
    ]
    if thousands != "":  # then these separate numbers
        ties += [rf"{SPACE}{D}{D}{D}(?!{D})|{emphasis},{{1,2}}{further}"]
    return "|".join(ties)


@functools.cache
def _scanner(thousands: str | None) -> re.Pattern[str]:
    """Return what finds names and numbers."""
    return re.compile(rf"{_NAME}|{_number(thousands)}")


@functools.cache
def _tied(thousands: str | None) -> re.Pattern[str]:
    """Return what ties a number in a finished text: also behind a unit, in HTML, and what ends it."""
    further, dash = rf"{_EMPHASIS}{SIGN}?(?:{_MONEY})?\.?{D}", _one_of(_DASHES)
    ties = [
        rf"{_UNIT}(?:{D}|(?:[:\u2026+]|\.{{1,3}}|{dash}{{1,2}}){further})",  # 5kg-7kg, 10€50
        _ties(thousands, _MONEY, _EMPHASIS),
        rf"{SPACE}{_UNIT}[\u2013\u2014\u2026]{further}|<su[bp]>{further}|{SPACE}@[.,]@{SPACE}{D}",
        rf"(?:,{dash}|[-\u2212])(?![\w-])",  # 100.00-, 1.299,-
        rf"(?:</\w+>|[)\]}}*_`]{{1,3}}|\\text\{{){SPACE}?(?:{_WORDS}|(?i:{_any(MAGNITUDES)})s?(?!\w))",
    ]
    return re.compile("|".join(ties))


def _plain(match: re.Match[str], thousands: str | None) -> str:
    """Write a number as `float` and `decimal.Decimal` read it."""
    body = match["body"]
    if body.isdecimal() and match.end() - match.start() == len(body):  # most numbers
        return body
    body = body.replace(POINT, "") if thousands == POINT else body
    body = body.replace(",", "") if thousands in (None, ",") else body
    digits = _NO_DIGIT.sub("", body.replace(",", POINT))
    sign = "-" if SIGNS[match["sign"] or "+"] * SIGNS[match["inner"] or "+"] < 0 else ""
    power = int(with_ascii_sign(match["power"])) if match["power"] else 0
    for word in re.findall("[a-z]+", (match["magnitude"] or "").lower()):
        power += POWERS[word if word in POWERS else word.removesuffix("s")]
    return f"{sign}{digits}e{power}" if power else f"{sign}{digits}"


def match_numbers(text: str, thousands: str | None) -> Iterator[tuple[re.Match[str], str, bool]]:
    """Yield numbers, each also as in `Written.plain`, and whether it is in a list that could be grouped.

    Labels need no more; `find_numbers` also looks at what stands around a number, which takes as long again.
    """
    lists = [found.span() for found in _LIST.finditer(text)] if thousands is None and "," in text else []
    for match in _scanner(thousands).finditer(text):
        body = match["body"]
        if body is None:  # a name
            continue
        if lists and "," in body and any(first < match.start() < last for first, last in lists):
            for each in _scanner("").finditer(text, *match.span()):
                yield each, _plain(each, ""), True
        else:
            yield match, _plain(match, thousands), False


def find_numbers(text: str, thousands: str | None = None) -> list[Written]:
    """Find all numbers of a text, from left to right, with their places; for `thousands` see `parse_numbers`.

    Example:
        >>> [(n.plain, n.alone) for n in find_numbers("$1,234.5 on 3/4: 67 million")]
        [('1234.5', True), ('3', False), ('4', False), ('67e6', True)]
    """
    if not isinstance(text, str):
        raise TypeError(f"text={text!r}: expected a text, such as 'It is 42.'")
    found: list[Written] = []
    tied_until = 0
    for match, plain, in_list in match_numbers(text, thousands):
        start, end = match.span()
        tied = None if in_list else _tied(thousands).match(text, end)
        alone = not (in_list or tied or start < tied_until)
        if alone:
            first = max(0, start - _FAR)
            alone = not (_ARGUMENT.search(text, first, start) or _SIGN_APART.search(text, first, start))
        if alone and match["money"]:  # $5mm is five million, or five thousand
            alone = not text[end : end + 1].isalpha()
        tied_until = tied.end() if tied else tied_until
        found.append(Written(start, end, plain, alone))
    return found


def value_of_token(text: str) -> float | None:
    """Return the value of a token that is a number, possibly after a space; None for any other.

    A sign is no part of it, because what it means depends on the text before: the number of the token `-2018`
    is 2018, after `x = ` and after `2017`.
    """
    text = re.sub(f"^ ?{SIGN}?", "", text)
    number = re.fullmatch(_number(None), text.removesuffix(POINT) if text.count(POINT) == 1 else text)
    if number is None or number["money"] or number["magnitude"] or number["sign"]:
        return None
    value = float(_plain(number, None))
    return value if value <= LARGEST else None


# ---- a number that a model is writing ----------------------------------------------------------------------


class Reading(NamedTuple):
    """What a text that is still being written says of its number."""

    value: float | None  # that the text begins with, if nothing followed it; None if there is none (yet)
    tied: bool  # whether what follows the number makes it a part of something else: the `1` of `1/2`
    open: bool  # whether further characters may change `value` or `tied`


class NumberReader(NamedTuple):
    """Reads the number that a model is writing, from where it may begin; spaces may stand before it.

    Args:
        thousands: the separator of thousands, see `parse_numbers`. Default: the text decides.
        money: whether the sign of a currency stands before the text: then `5m` is 5 million.

    Example:
        >>> reader = NumberReader()
        >>> for text in ("$", "1", "1,", "1,234", "67 thous", "67 thousand", "3 apples", "1/", "1/2"):
        ...     print(repr(text), *reader.read(text))
        '$' None False True
        '1' 1.0 False True
        '1,' 1.0 False True
        '1,234' 1234.0 False True
        '67 thous' 67.0 False True
        '67 thousand' 67000.0 False True
        '3 apples' 3.0 False False
        '1/' 1.0 False True
        '1/2' 1.0 True False
        >>> reader.state("1,234,567"), reader.state("22,333"), reader.state("1,234,567.89")
        ('111,111', '11,111', '1.1')
    """

    thousands: str | None = None
    money: bool = False

    @classmethod
    def at(cls, text: str, place: int, thousands: str | None = None) -> NumberReader:
        """Return the reader of a number at a place of a text: in a list, no comma groups thousands."""
        before = text[:place]
        in_list = thousands is None and (
            _IN_LIST.search(before) is not None
            or any(found.start() < place < found.end() for found in _LIST.finditer(text))
        )
        return cls("" if in_list else thousands, _MONEY_BEFORE.search(before) is not None)

    def read(self, text: str) -> Reading:
        """Read what has been written so far, which may end in a part of a character (surrogates)."""
        text = _LAST_PART.sub("", _with_characters(text))  # a part is open until it is a character
        number, tied = self._match(text)
        value = None if number is None else as_value(_plain(number, self.thousands))
        return Reading(value, tied, _is_open(self, self.state(text)))

    def length(self, text: str) -> int:
        """Return how many characters of a text its number takes, with what stands before it."""
        number, _ = self._match(text)
        return 0 if number is None else number.end() - self._is_amount(text)

    def state(self, text: str) -> str:
        """Return the shortest text after which the same can follow.

        What may follow a text is asked once for each state, of which there are some hundreds.
        """
        text = _LATER_ZERO.sub("1", simplify(_with_characters(text)))
        if not self.money:  # which ends at a second space
            text = _BEFORE_NUMBER.sub("", text)
        for pattern, short in _shortened(self.thousands):
            text = pattern.sub(short, text)
        return text

    def _match(self, text: str) -> tuple[re.Match[str] | None, bool]:
        """Return the number that a text begins with, and whether it is tied."""
        pattern, ties, *_ = _patterns(self.thousands)
        number = pattern.match("$" + text if self._is_amount(text) else text)
        return number, number is not None and ties.match(number.string, number.end()) is not None

    def _is_amount(self, text: str) -> bool:
        """Return whether the text goes on with an amount of money whose currency stands before it."""
        return self.money and _AMOUNT.match(text) is not None


@functools.cache
def _patterns(thousands: str | None) -> tuple[re.Pattern[str], re.Pattern[str], Any, Any]:
    """Return the patterns of a number and of what ties it, and those of a number that is being written.

    The last two are of the package `regex`, which transformers needs, too: a number, and one that is tied.
    """
    import regex

    number, ties = rf"\s{{0,2}}{_number(thousands, _SYMBOL, '')}", _ties(thousands, _SYMBOL, "")
    begun, begun_ties = regex.compile(number), regex.compile(rf"{number}(?:{ties})?")
    return re.compile(number), re.compile(ties), begun, begun_ties


def _with_characters(text: str) -> str:
    """Join the parts of characters (surrogates) that are complete."""
    return (
        text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    )


@functools.lru_cache(maxsize=2**16)
def _is_open(reader: NumberReader, text: str) -> bool:
    """Return whether characters that follow may change the number of a text, or whether it is tied."""
    _, ties, begun, begun_ties = _patterns(reader.thousands)
    number, tied = reader._match(text)
    text = "$" + text if reader._is_amount(text) else text
    if (begun if tied else begun_ties).fullmatch(text, partial=True) is not None:
        return True
    # Three digits behind a space may tie, which a fourth one unties.
    return tied and number is not None and ties.match(text + "1", number.end()) is None


# For states: what the grammar takes for the same. Only the first digit of a number may not be 0.
_SAME = str.maketrans(
    {
        **dict.fromkeys(OTHER_DIGITS, "½"),
        **dict.fromkeys(CURRENCIES, "$"),
        **dict.fromkeys(_DASHES.replace("-", ""), "\u2013"),
        **dict.fromkeys(_TYING.replace("(", ""), ":"),
        **dict.fromkeys("\u2215\uff0f·\u2217±\u2213", "\u00d7"),
        **dict.fromkeys("23456789", "1"),
    }
)
_WORD = re.compile("[A-Za-z]{2,}")
_BEFORE_NUMBER = re.compile(rf"^\s{{0,2}}{SIGN}?(?=[01]|\.1)")
_LATER_ZERO = re.compile("(?<=[0-9.,])0")
_AMOUNT = re.compile(rf"{SPACE}?(?:{SIGN}|{D}|\.|\Z)")
_PARTS = re.compile("[\udc80-\udcff]+")  # of characters
_LAST_PART = re.compile(rf"{_PARTS.pattern}$")
_MONEY_BEFORE = re.compile(rf"{_MONEY}\Z")


def simplify(text: str) -> str:
    """Write what the grammar takes for the same in one way; of digits, 0 and 1 are left."""
    text = _WORD.sub(lambda word: word[0].lower(), text.translate(_SAME))
    return text if text.isascii() else _LAST_PART.sub("\udce2", text)


@functools.cache
def _shortened(thousands: str | None) -> list[tuple[re.Pattern[str], str]]:
    """Return what states leave out, with what they have in its place."""
    mark, group = rf"(?P<mark>{_GROUPS[thousands]})", "111(?P=mark)"
    whole = rf"(?:^|(?<=\$))(?:1{{1,3}}{mark}(?:{group})*111|[01]1*)"
    found = [
        (rf"{whole}(?=[\-\u2013:/\u00d7^*+~a-zA-Z])", "1"),  # a mark ties numbers of any length
        # Of groups, the last one that is complete.
        (rf"(?:^|(?<=\$))1{{1,3}}{mark}(?:{group})*(?={group})", ""),
        ("(?<=1111)1+", ""),
    ]
    if thousands != POINT:
        found.insert(1, (rf"(?:{whole}\.|^\.(?=1))(?:1*(?=1))?", "1."))  # all decimals go on as the first one
    return [(re.compile(pattern), short) for pattern, short in found]


WORDS = (*(word + "s" for word in POWERS), *UNREAD, *_SHORT, *OPERATORS, *FACTORS, "e", "x")
"""Words that may stand in a number or behind it."""
SUBWORDS = frozenset(
    word[i:j] for word in WORDS for i in range(len(word)) for j in range(i + 1, len(word) + 1)
)
"""What tokens may hold of `WORDS`, in lower case."""
# With further letters, a token may begin with a word of `UNREAD`, or with its end: ` Millionen`, `ionen`.
_ENDS = tuple({word[i:] for word in UNREAD for i in range(len(word) - 2)})
_BEGINNINGS = frozenset(end[:3] for end in _ENDS)
_PIECE = re.compile(
    rf"\s{{1,2}}|{_one_of(MARKS)}{{0,4}}(?:{D}.*|{OTHER_DIGIT}.*|[eE]{SIGN}?(?:{D}.*)?)?", re.DOTALL
)


def is_piece(text: str) -> bool:
    """Return whether a token may begin a written number, continue it, or change it from behind its end.

    A token that is a part of a character has a surrogate for each of its bytes.
    """
    if parts := [] if text.isascii() else _PARTS.findall(text):
        whole, known = _PARTS.sub("", text), _characters()
        return {*whole} <= known and {*parts} <= _parts_of(known)
    word = text.lstrip(" -").lower()  # maybe a part of one of `WORDS`
    if word[:3] in _BEGINNINGS and word.startswith(_ENDS if len(word) == len(text) else UNREAD):
        return True
    return word in SUBWORDS or (text != "" and _PIECE.fullmatch(text) is not None)


@functools.cache
def _characters() -> frozenset[str]:
    """Return the characters that may stand in a number or directly behind it, but ASCII letters."""
    letters = {c for word in WORDS for c in word + word.upper() if not c.isascii()}
    return frozenset([*DIGITS, *MARKS, *OTHER_DIGITS, *letters])


@functools.cache
def _parts_of(characters: frozenset[str]) -> frozenset[str]:
    """Return the parts of characters of several bytes, with a surrogate for each byte."""
    encoded = [character.encode() for character in characters if not character.isascii()]
    return frozenset(
        each[i:j].decode("utf-8", "surrogateescape")
        for each in encoded
        for i in range(len(each))
        for j in range(i + 1, len(each) + (i > 0))
    )
