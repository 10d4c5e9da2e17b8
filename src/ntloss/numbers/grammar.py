"""What a written number is: the one grammar of texts, labels, tokens, and of a text that is being written.

- `find_in_text(text)` finds the numbers of a finished text; `parsing` makes values of them.
- `read_prefix(text)` reads a text that a model is still writing: the number so far, whether characters that
  follow can change it, and whether what already follows makes it a part of something else (`1/2`, `3-5`).
- `value_of_token(text)` is the value of a token that is a number.
- `find_digits(text)` finds the numbers of a text without what stands around them, for labels.

The grammar's parts are `alphabet` (characters, words and their patterns), `digits_in_words` (digits that are
no number), `joins` (what makes a number a part of something else), `scales`, `lists`, and `pieces` (which
tokens may be parts of a number).

`docs/numbers.md` has a table of what is read and how, and of what is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ntloss.numbers.alphabet import (
    APOSTROPHES,
    CLOSE,
    CODE,
    CURRENCIES,
    CURRENCY,
    DIGITS,
    MAGNITUDE_WORDS,
    OPEN,
    OTHER_DIGIT,
    POINT,
    POWERS,
    PRIMES,
    QUOTES,
    SIGN,
    SIGNS,
    SPACE,
    SPACES,
    THIN,
    UNSPACED,
    D,
    as_value,
    with_ascii_sign,
)
from ntloss.numbers.digits_in_words import PART
from ntloss.numbers.emphasis import without_emphasis
from ntloss.numbers.joins import (
    JOINED_BEFORE,
    follows_sign,
    is_only_a_minus,
    joined_by_words_until,
    joined_until,
    may_be_joined,
)
from ntloss.numbers.lists import Lists

SEPARATORS = (",", " ", ".", "'", "")
"""Separators of thousands that can be required, and none. With "." the decimal point is a comma."""
_LONGEST_POWER = 18  # characters; with more, the number is 0 or infinite
LARGEST = 3.4028234663852886e38
"""The largest value of a token: losses are computed in float32."""
_NO_CENTS = r",(?:-{1,2}|[\u2212\u2013\u2014])"  # 1.299,- EUR
_MONEY_BEFORE = rf"(?:(?:\b[A-Z]{{1,3}})?{CURRENCY}{SPACE}?|\b{CODE}{SPACE}?)"
# A sign follows no letter, digit, closing bracket, percent or degree sign, except a currency's code, and no
# mark that ends a number before it: 5"-7", 10.-15., 5€-10€.
_ENDED = rf"(?<!{D}[{QUOTES}{PRIMES}.!{CURRENCIES}])(?<!{D}{SPACE}€)"
_SIGN_BEFORE = rf"(?:(?<![^\W_{UNSPACED}])(?<![)\]}}%‰°]){_ENDED}|(?<=\b{CODE}))"
# 1e5, 1.e+05, and Fortran's 1.0D+05.
_EXPONENT = (
    rf"(?:(?:[eE](?={SIGN}?{D})|[dD](?={SIGN}{D}{{2,3}}(?!\.?{D})))(?P<power>{SIGN}?{D}+)"
    r"(?![0-9A-Za-z]))"
)
_WORD = rf"(?:(?:{'|'.join(MAGNITUDE_WORDS)})s?)"
# Plain letters only directly after digits, and only those that are no usual unit; with a currency, all.
_MAGNITUDE = rf"(?:(?:[{SPACES}-]?(?i:{_WORD})(?!\w))+|[kKM](?!\w))"
_MONEY = rf"(?:{SPACE}?(?i:[kmbt])(?!\w))"
_ENDS_IN_CURRENCY = re.compile(rf"{_MONEY_BEFORE}\Z")
_CURRENCY_BEHIND = re.compile(rf"{CURRENCY}{SPACE}?$")
# Where a number may begin, which is found much faster than a number: at most these characters stand before
# its first digit.
_LEAD = 12
_NEAR_DIGIT = rf"(?=[{re.escape(''.join(SIGNS) + CURRENCIES + SPACES)}A-Z\\.,{{}}]{{0,{_LEAD}}}{D})"
_DIGIT = re.compile(D)
_BEFORE_WHOLE = re.compile(r"\s*")
_AFTER_WHOLE = re.compile(rf"(?:{_NO_CENTS})?\s*(?:{CURRENCY}|{CODE}|\\?%|percent)?\.?\s*")
_UNSEPARATED = re.compile("[0-9.]*")  # a body that no comma or space divides
_TOKEN_LEAD = re.compile(f" ?{SIGN}?")
GOES_ON = re.compile(rf"[.,]?{D}|{OTHER_DIGIT}")
"""What makes another number of a level that it stands directly after: `0`, `.5`, `½`."""
POINTS = ".,"
"""What may be a decimal point after a level: a point or a comma."""
PLAIN = re.compile(rf"{D}+(?:\.{D}+)?")
"""A number in plain digits, without its sign."""
SIGNED = re.compile(rf"[+-]?{PLAIN.pattern}")


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
    space = [(SPACE, SPACE), (r"\\[,;: ]", r"\\[,;: ]?")]
    apostrophe = [(f"[{APOSTROPHES}]",) * 2]
    given = {None: [*comma, *space, *apostrophe], ",": comma, " ": space, "'": apostrophe}
    first, fraction = f"[1-9]{D}{{0,2}}", rf"(?:,|\{{,\}}){D}+"
    # 1.5, 1.e+05, and 3.141 592 with spaces that separate nothing else
    point = rf"(?:\.{D}+|\.(?=[eE]{SIGN}?{D}))?"
    if thousands in (None, " "):
        point = rf"(?:\.{D}{{3}}(?:{THIN}{D}{{3}})*{THIN}{D}{{1,3}}(?!{D})|{point[3:]}"
    ends = rf"(?!(?:[.,]|\{{,\}})?{D})"
    grouped, european, begun = [], [], [f"{D}*", rf"{D}*\.{D}*(?:{THIN}{D}*)*"]

    def groups(mark: str, count: str = "+") -> str:
        return rf"(?<!{D}{mark}){first}(?:{mark}{D}{{3}}){count}"

    for mark, part in given.get(thousands, []):
        if mark in dict(comma):
            grouped.append(rf"{groups(mark)}(?!(?:{mark})?{D}){point}")
        else:
            grouped.append(rf"{groups(mark)}(?!(?:{mark})?{D}|,{D}){point}")
            european.append(groups(mark) + fraction + ends)
        begun.append(rf"{first}(?:{mark}{D}{{3}})*(?:{part}|{mark}{D}{{0,3}})?(?:[.,]{D}*)?")
    if by_text:
        # In India, groups of two stand before the last three digits.
        grouped.append(rf"(?<!{D},)[1-9]{D}?(?:,{D}{{2}})+,{D}{{3}}(?!,?{D}){point}")
        begun.append(rf"[1-9]{D}?(?:,{D}{{2}})*(?:,{D}{{0,3}})?(?:\.{D}*)?")
        # One comma that separates no thousands, in no pair such as (3,4), is a decimal comma.
        no_pair = rf"(?!(?:(?<={OPEN})|(?<={OPEN}{SIGN})){D}+,{D}+{CLOSE})"
        no_group = rf"(?!{first}(?:,|\{{,\}}){D}{{3}}(?!{D}))"
        european.append(rf"(?<!{D}[.,]){no_pair}{no_group}{D}+{fraction}{ends}")
        begun.append(rf"{D}+(?:,|\{{,?\}}?){D}*")
    if thousands in (None, "."):
        # One point between digits is a decimal point, unless a decimal comma follows it.
        count = "{2,}" if by_text else "+"
        european += [groups("[.]") + fraction + ends, groups("[.]", count) + rf"(?!\.?{D})"]
        european.append(rf"{groups('[.]')}(?={_NO_CENTS}(?![\w-]))")
        begun.append(rf"{first}(?:\.{D}{{3}})*(?:\.{D}{{0,3}})?(?:{_NO_CENTS}|,{D}*)?")
    plain = rf"{D}+{point}|(?<![^\W_])(?<!\.)\.{D}+"
    if thousands == ".":
        european += [rf"{D}+(?:{fraction})?|(?<![\w,]){fraction}"]
        begun.append(f"{D}*,{D}*")
        plain = "(?!)"
    separated = "|".join([*grouped, f"(?P<european>{'|'.join(european or ['(?!)'])})"])
    if thousands != ".":  # spares most numbers these alternatives: a separator follows the first digits
        separated = rf"(?={D}+(?:[,.{APOSTROPHES}{SPACES}]{D}|,?\\|\{{))(?:{separated})"
    body = f"{separated}|{plain}"

    def number(money: str) -> str:
        inner = rf"(?<!{D}[{CURRENCIES}])(?<!{D}{SPACE}€)(?P<inner>{SIGN})"
        return (
            rf"(?:{_SIGN_BEFORE}(?P<sign>{SIGN}))?(?P<money>{money}(?:{inner})?)?"
            rf"(?:(?P<part>{PART})|(?P<body>{body}){_EXPONENT}?"
            rf"(?P<magnitude>{_MAGNITUDE}|(?(money){_MONEY}|(?!)))?)"
        )

    symbol = f"{CURRENCY}{SPACE}?"
    lead = rf"\s{{0,2}}{SIGN}?(?:{symbol})?{SIGN}?"
    return _Rules(
        number=re.compile(_NEAR_DIGIT + number(_MONEY_BEFORE)),
        leading=re.compile(rf"\s{{0,2}}{number(symbol)}"),
        begun=re.compile(f"{lead}(?:{'|'.join(begun)})"),
    )


def _plain(match: re.Match[str]) -> str:
    """Write a number as `float` and `decimal.Decimal` read it."""
    if match.lastgroup == "body" and (number := match[0]).isdecimal() and number.isascii():
        return number
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


def find_digits(text: str, thousands: str | None) -> Iterator[tuple[int, str]]:
    """Find all numbers of a text; yield the start and `plain` of each, as in `Written`.

    Labels need no more, and what stands around a number takes several times as long to look at.
    """
    for match, _ in _matches(text, thousands):
        if match.lastgroup != "part":
            yield match.start(), _plain(match)


def _matches(text: str, thousands: str | None) -> list[tuple[re.Match[str], bool]]:
    """Find numbers and digits in words, and whether each is in a list that could be grouped otherwise."""
    found: list[tuple[re.Match[str], bool]] = []
    next_digit, next_number, lists, at = _DIGIT.search, _rules(thousands).number.search, None, 0
    while (digit := next_digit(text, at)) and (match := next_number(text, max(at, digit.start() - _LEAD))):
        at = match.end()
        body = match["body"]
        if thousands is None and not (body is None or body.isdecimal() or _UNSEPARATED.fullmatch(body)):
            lists = lists or Lists(text)
            if end := lists.end_of(match):
                start = match.start()
                found += [(each, True) for each in _rules("").number.finditer(text, start, end)]
                at = end
                continue
        found.append((match, False))
    return found


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
    if shown := without_emphasis(text):
        numbers = find_in_text(shown.text, thousands)
        return [each._replace(start=shown.start(each.start), end=shown.end(each.end)) for each in numbers]
    found: list[Written] = []
    joined_to, first, last = 0, len(text) - len(text.lstrip()), len(text.rstrip())
    for match, in_list in _matches(text, thousands):
        start, end = match.span()
        joined = joined_until(text, match, thousands) or joined_by_words_until(text, match)
        if match.lastgroup == "part":
            joined_to = max(joined_to, joined)
            continue
        plain = _plain(match)
        alone = not (in_list or joined or start < joined_to or JOINED_BEFORE.match(text, start))
        joined_to = max(joined_to, joined)
        # Accountants write negative amounts in parentheses. In sentences, only a currency tells them.
        if text[max(0, start - 1) : start] == "(" and text[end : end + 1] == ")":
            currency = _CURRENCY_BEHIND.search(text, max(0, start - 4), start - 1)
            if text[end + 1 : end + 2] == "$":  # $(5)$ of LaTeX
                currency = None
            if match["money"] or currency or (start - 1 == first and end + 1 == last):
                start, end = currency.start() if currency else start - 1, end + 1
                plain = plain if match["sign"] or match["inner"] else f"-{plain}"
        alone = alone and not follows_sign(text, start)
        if not found:
            alone = alone and not is_only_a_minus(text[:start])
        found.append(Written(start, end, plain, alone))
    return found


def find_whole(text: str, thousands: str | None) -> str | None:
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
        thousands: the separator of thousands, see `parse_numbers`. Default: the text decides. After a text
            that may have begun a list, it is `thousands_at` the end of that text.

    Returns:
        The number so far, and what may become of it.

    Example:
        >>> for text in ("$", "1", "1,", "1,234", "67 thous", "67 thousand", "3 apples", "1/", "1/2"):
        ...     print(repr(text), *read_prefix(text))
        '$' None False True
        '1' 1.0 False True
        '1,' 1.0 False True
        '1,234' 1234.0 False True
        '67 thous' 67.0 False True
        '67 thousand' 67000.0 False True
        '3 apples' 3.0 False False
        '1/' 1.0 False True
        '1/2' 1.0 True False
    """
    rules = _rules(thousands)
    match = rules.leading.match(text)
    begun = rules.begun.fullmatch(text) is not None
    if match is None or match["part"] is not None:
        return Prefix(None, False, begun)
    joined = joined_until(text, match, thousands) > 0
    return Prefix(as_value(_plain(match)), joined, begun or may_be_joined(text, match))


def ends_in_currency(text: str) -> bool:
    """Return whether a number that continues a text is an amount of money: `$5m` is 5 million, `5m` is not.

    Example:
        >>> ends_in_currency("It costs $"), ends_in_currency("It costs USD "), ends_in_currency("It costs ")
        (True, True, False)
    """
    tail = text[-_LEAD:]
    return _ENDS_IN_CURRENCY.search(tail) is not None


def length_of_prefix(text: str, thousands: str | None = None) -> int:
    """Return how many characters the number of `read_prefix` takes, with what stands before it."""
    match = _rules(thousands).leading.match(text)
    return 0 if match is None else match.end()


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
