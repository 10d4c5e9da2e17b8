"""What a written number is: the one grammar of texts, labels, tokens, and of a text that is being written.

- `find_in_text(text)` finds the numbers of a finished text; `parsing` makes values of them.
- `read_prefix(text)` reads a text that a model is still writing: the number so far, whether characters that
  follow can change it, and whether what already follows makes it a part of something else (`1/2`, `3-5`).
- `value_of_token(text)` is the value of a token that is a number.
- `find_digits(text)` finds the numbers of a text without what stands around them, for labels.

`docs/numbers.md` has a table of what is read and how, and of what is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ntloss.numbers.magnitudes import OTHER_MAGNITUDES

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
_THIN = "[\u00a0\u2009\u202f]"  # spaces that stand in numbers, but separate no numbers
_CURRENCY = rf"(?:\\?[{CURRENCIES}])"
# Of the currencies that are traded most (Bank for International Settlements, Triennial Survey 2022), but for
# codes that are words or names, too (COP, PEN, PHP, RON, TRY).
_CODES = (
    "USD|EUR|GBP|JPY|CHF|CNY|INR|AUD|CAD|HKD|SGD|SEK|KRW|NOK|NZD|MXN|TWD|ZAR|BRL|DKK|PLN|THB|ILS|IDR|CZK|AED"
    "|HUF|CLP|SAR|MYR|RUB|BHD|BGN"
)
_CODE = f"(?:{_CODES})"
_MONEY_BEFORE = rf"(?:(?:\b[A-Z]{{1,3}})?{_CURRENCY}{_SPACE}?|\b{_CODE}{_SPACE}?)"
_ABBREVIATIONS = "Rs|Rp|RM|Tk|kr|zł|Kč|Ft|Fr"  # of currencies, before a number
# Of scripts that put no space between words: there, a sign or a number may follow a letter.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u312f\u3400-\u9fff\uac00-\ud7af"
_HIDDEN = "\u200b\u2060"  # white space without width
_PRIMES, _QUOTES = "\u2032\u2033", "\"'\u2019\u201d"
# A sign follows no letter, digit, closing bracket, percent or degree sign, except a currency's code, and no
# mark that ends a number before it: 5"-7", 10.-15., 5€-10€.
_ENDED = rf"(?<!{_D}[{_QUOTES}{_PRIMES}.!{CURRENCIES}])(?<!{_D}{_SPACE}€)"
_SIGN_BEFORE = rf"(?:(?<![^\W_{_UNSPACED}])(?<![)\]}}%‰°]){_ENDED}|(?<=\b{_CODE}))"
# 1e5, 1.e+05, and Fortran's 1.0D+05.
_EXPONENT = (
    rf"(?:(?:[eE](?={_SIGN}?{_D})|[dD](?={_SIGN}{_D}{{2,3}}(?!\.?{_D})))(?P<power>{_SIGN}?{_D}+)"
    r"(?![0-9A-Za-z]))"
)
_WORD = rf"(?:(?:{'|'.join(_WORDS)})s?)"
# Plain letters only directly after digits, and only those that are no usual unit; with a currency, all.
_MAGNITUDE = rf"(?:(?:[{SPACES}-]?(?i:{_WORD})(?!\w))+|[kKM](?!\w))"
_MONEY = rf"(?:{_SPACE}?(?i:[kmbt])(?!\w))"
# Digits of other scripts, superscripts, subscripts and fractions: no number of ours, nor a part of one.
_OTHER_DIGIT = (
    r"(?:(?![0-9])\d|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f])"
)
_POWERS_OF_CJK = "万萬億亿兆千百만억천조십백"
_OPEN, _CLOSE = r"[(\[{]", r"[)\]}]"
_HYPHEN = "[-\u2010\u2011]"
_DASH = "[-\u2010-\u2014\u2212~\u301c\uff5e]"
_AGAIN = rf"{_SIGN}?(?:{_CURRENCY}{_SPACE}?)?[.]?{_D}"  # another number begins
_MORE = rf"{_SIGN}?(?:{_CURRENCY}{_SPACE}?)?\.?"  # what of it may be written so far
_OPERATOR = "[/\u2044\u2215\uff0f\u00d7÷·⋅∙±]"
_UNIT = rf"(?:{_SPACE}?[%‰]|{_SPACE}?€|{_CURRENCY}|[°.{_PRIMES}{_QUOTES}]{{1,2}})"
_MIDDLE = f":\u2236\uff1a_hH{APOSTROPHES}\u00b4`{_PRIMES}"  # between the parts of a time, a length, or code
_MONEY_WORDS = "dollar|euro|pounds|rupees|yen|yuan|won|franc|peso"
_COUNTED = "hundred|thousand|million|billion|trillion|lakh|crore"
_AFTER_COUNTED = "|".join(f"(?<=(?i:{word}{s}))" for word in _COUNTED.split("|") for s in ("", "s"))

# Digits that are no number of their own, because they are a part of a word (x1, CO2, bbox_2d, Qwen2.5).
_LETTER = rf"[^\W\d_{_UNSPACED}\u0590-\u06ffªº]"  # in Hebrew and Arabic, short words are joined to numbers
_COMMANDS = "times|cdot|div|pm|mp|frac|sqrt|approx|sim|leq?|geq?|neq?|to|rightarrow|quad|propto|equiv|n|r|t"
_NO_WORD = "".join(
    rf"(?<!{before})"
    for before in (
        *(
            rf"\\{command}"
            for each in _COMMANDS.split("|")
            for command in {each.replace("?", ""), each.replace("q?", "")}
        ),
        *(rf"\b{abbreviation}" for abbreviation in _ABBREVIATIONS.split("|")),
        rf"{_D}[xXhH]",  # 3x4, 12h30
        rf"{_D} [xX]",
        r"\b0[bBoO]",
    )
)
# A name in capitals (GPT-3, F-16) or a variable (n-1) before the hyphen, but no unit after digits: 20GB-30GB.
_NO_RANGE = "".join(
    rf"(?<!{_D}{space}{letters}{_HYPHEN})" for space in ("", " ") for letters in ("[A-Za-z]", "[A-Za-z][A-Z]")
)
_PARTS = (
    rf"(?:(?<={_LETTER}){_NO_WORD}|(?<={_LETTER}_)|(?<={_LETTER}__)|(?<={_LETTER}_\{{)"
    rf"|(?:(?<=[A-Z]{_HYPHEN})|(?<=(?<!\w)[a-z]{_HYPHEN})){_NO_RANGE}){_D}+(?:[._]{_D}+)*"
)
_POWERS = "|".join(
    [
        *(rf"(?<=[A-Za-z]{begins})" for begins in (r"\^", rf"\^{_SIGN}", r"\^\{", rf"\^\{{{_SIGN}", r"\*\*")),
        r"(?<=\b(?:kg|cm|mm|km|nm|mL|ml|Pa|Hz)-)(?=[1-4](?!\w))",  # kg-1, as physicists write it
        r"(?<=\bmol-)(?=[1-4](?!\w))",
        rf"(?<=[\w.%)\"\]]\[)(?={_D}{{1,3}}\])",  # notes and indices, 42,000[1]
    ]
)
_PART = (
    rf"(?<=[\w^{{\[*\-\u2010\u2011\u2212])(?=[0-9])"
    rf"(?:(?:{_POWERS}){_D}+|(?(sign)(?!)|(?(money)(?!)|{_PARTS})))"
)
# A list of numbers in brackets, braces, parentheses or between tags, of which a comma or a space separates
# the numbers: what begins it, its numbers, and what ends it.
_ITEM = rf"{_SIGN}?(?:{_D}+(?:\.{_D}*)?|\.{_D}+)(?:[eE][+-]?{_D}+)?"
# Tags of HTML, of answers and of chats, whose text is no list.
_OTHER_TAGS = (
    r"(?:\w*(?:answer|result|response|output|solution|number|value|score|total|amount|price|cost|count|think"
    r"|reason|assistant|user|human|system|turn|im_|header|message|text|eot|eos|bos|begin_of|end_of|start_of)\w*"
    "|a|abbr|ans|b|bdi|big|blockquote|body|button|caption|center|cite|code|data|dd|del|dfn|div|dt|em|figcaption"
    "|final|font|h[1-6]|i|ins|kbd|label|li|mark|meter|nobr|option|p|pad|pre|q|s|samp|sep|small|span|strike"
    "|strong|sub|sup|summary|td|th|time|title|tr|tt|u|unk|var)"
)
_TAG = rf"<\|?(?i:(?!{_OTHER_TAGS}\b)[a-z][\w.-]*)(?:\s[^<>]*)?\|?>"
_CENTS = rf"\(\s*{_SIGN}?[1-9]{_D}{{0,2}}(?:(?:,{_D}{{3}})+\.{_D}{_D}|(?:[. ]{_D}{{3}})+,{_D}{_D})\s*\)"
_BLANK = r"[ \t\r\n]"  # other spaces do not separate numbers
_UNFINISHED = re.compile(rf"{_BLANK}*(?:[,;:|]{_BLANK}*)?(?:{_SIGN}?\.?|[eE][+-]?|\\[a-z]*)\s*\Z")
_LIST = re.compile(
    rf"(?:(?P<open>(?!{_CENTS})\(|(?<![\w}}\]^])\{{|\[|{_TAG})|[)\]}}\"'],){_BLANK}*"
    rf"(?P<items>{_ITEM}(?:{_BLANK}*[,;:|]{_BLANK}*{_ITEM}|{_BLANK}+{_ITEM})*)"
    rf"(?:{_BLANK}*(?:[,;]{_BLANK}*)?(?:(?:\\right)?\\?(?:[)}}]|\](?!\())|<)"
    rf"|{_BLANK}*,{_BLANK}*[(\[{{\"'.…]|(?(open){_UNFINISHED.pattern}|(?!)))"
)
_LIST_BEGINS = re.compile(r"[(\[{>)\]}\"'](?:(?<=[(\[{>])|(?=,))")
_LONGEST_TAG = 64


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
    # 12:30, 12h30, 1.2.3, 5..10, 5…10, \frac{1}{2}, and groups that nobody writes
    (
        rf"(?:[{_MIDDLE}{_HIDDEN}]|(?:[.,]{{1,3}}|…)[{_HIDDEN}]?|\}}\{{|\{{,\}}|,\\!|\\[!,;: ]){_D}",
        rf"[{_MIDDLE}{_HIDDEN}]|(?:[.,]{{1,3}}|…)[{_HIDDEN}]?|\}}\{{?|\{{,?\}}?|,(?:\\!?)?|\\[!,;: ]?",
    ),
    # 90° 30', 10€50
    (
        rf"°{_SPACE}?{_D}{_D}?(?:\.{_D}+)?{_SPACE}?[{_PRIMES}{_QUOTES}]",
        rf"°{_SPACE}?(?:{_D}{_D}?(?:\.{_D}*)?{_SPACE}?)?",
    ),
    (rf"€{_D}{_D}(?!{_D})", f"€{_D}{{0,2}}"),
    # exponents of another form, 1e5kg, 1.5 e5, 1.5d0
    (rf"(?:{_SPACE}?[eE]|[dD]){_SIGN}?{_D}", rf"\.?{_SPACE}?[eEdD]{_SIGN}?{_D}*"),
    (
        rf"(?<=\.{_D}{_D}{_D})(?:{_SPACE}{_D}{_D}{_D}(?!{_D}))*{_SPACE}{_D}{{1,3}}(?![.,]?{_D})",
        rf"{_SPACE}{_D}{{0,3}}",
    ),  # 0.000 001, 3.141 59
    (
        rf"[\uff0c\u066c]{_D}{_D}{_D}(?!{_D})|[\u066b\uff0e]{_D}",
        rf"[\uff0c\u066b\u066c\uff0e]{_D}{{0,3}}",
    ),  # with separators and points of full width or of Arabic
    (rf"{_SPACE}:{_SPACE}{_D}", rf"{_SPACE}(?::{_SPACE}?)?"),  # 3 : 2
    # 5- and 100.00-, as accountants write negative numbers, and 100.00 CR
    (rf"[-\u2212](?=[\s,;:.)\]|]|\Z)|{_SPACE}?(?:CR|DR)(?!\w)", rf"[-\u2212]|{_SPACE}?[CD]R?"),
    (
        rf"{_SPACE}?[到至~]{_SPACE}?{_D}|{_SPACE}?(?:から|부터|에서){_SPACE}?{_D}",
        rf"{_SPACE}?(?:[到至~か부에]|から|부터|에서)?{_SPACE}?",
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
    # but not kilograms and kilometers (千克, 千米)
    (
        rf"{_SPACE}?(?:[万萬億亿兆만억천조]|[십백](?=[만억])|[千百](?![克米瓦卡赫帕焦伏字分])|พัน|หมื่น|แสน|ล้าน)",
        rf"{_SPACE}?(?:[千百십백]|{_begins('พัน|หมื่น|แสน|ล้าน')})?",
    ),
    (
        rf"{_SPACE}?[kKmMbBtT]{_SPACE}?(?:{_CODE}|{_CURRENCY}|(?:{_MONEY_WORDS})s?\b)",
        rf"{_SPACE}?[kKmMbBtT]{_SPACE}?(?:\\|{_begins(_CODES)}|(?:{_begins(_MONEY_WORDS)})s?)?",
    ),
]
# What ends most numbers, before all else is tried: the end of a line, a clause or a sentence.
_ENDS = re.compile(r"[.,;!?]?(?:\n|\Z)|[,.;] [^0-9]")
_SEPARATED = re.compile(rf",{_SIGN}?\.?{_D}")  # where commas do nothing else
_JOINED = re.compile("|".join(full for full, _ in _JOINS))
# What words join is seen in finished texts alone; a reading of what a model writes ends at the first letter
# of a word or a unit.
_QUANTITIES = (  # from large to small units, of which two make one quantity: 1 hour 30 minutes
    ("years?|yrs?|y", "months?|mos?", "weeks?|wks?|w", "days?|d", "hours?|hrs?|h|Stunden?|heures?|horas?",
     "minutes?|mins?|m|Minuten?|minutos?", "seconds?|secs?|s"),
    ("miles?|mi", "yards?|yds?", "feet|foot|ft", r"inch(?:es)?|ins?"),
    ("kilomet(?:er|re)s?|km", "met(?:er|re)s?|m", "centimet(?:er|re)s?|cm", "millimet(?:er|re)s?|mm"),
    ("tons?|tonnes?|t", "stones?|st", "pounds?|lbs?", "ounces?|oz", "kilograms?|kg", "grams?|g"),
    ("dollars?|euros?|pounds?|rupees?|francs?", "cents?|pence|paise|centimes?"),
    ("degrees?|deg|°", "minutes?|arcminutes?", "seconds?"),
    ("gallons?|gal", "quarts?|qt", "pints?|pt", "cups?", "tablespoons?|tbsp", "teaspoons?|tsp"),
)  # fmt: skip
_SMALLER_UNIT = "|".join(
    rf"(?:{large})(?:\.?(?:(?<=[a-z]{{3}}),)?{_SPACE}(?:and{_SPACE})?)?{_D}+(?:[.,]{_D}+)?"
    rf"{_SPACE}?(?:{'|'.join(units[i + 1 :])})\b"
    for units in _QUANTITIES
    for i, large in enumerate(units[:-1])
)
_ALL = rf"every|each|the|all|a{_SPACE}(?:possible|(?:total|maximum){_SPACE}of)"
_FRACTION = r"half|third|quarter|fourth|fifth|two[ -]thirds|three[ -]quarters"
_JOINED_BY_WORDS = re.compile(
    rf"°?[A-Za-z]{{1,3}}{_DASH}{_CURRENCY}?{_D}"  # 3kg-5kg
    rf"|(?:{_UNIT}|-)?{_SPACE}(?i:to|or|bis|à|до){_SPACE}{_AGAIN}"  # 18 to 25 percent
    # 18 percent to 25 percent, 5 kg or 6 kg
    rf"|{_SPACE}?(?P<unit>[^\W\d_]+|%|°[CF]?){_SPACE}(?i:to|or|bis|à|oder|ou){_SPACE}{_AGAIN}[{DIGITS}.,]*"
    rf"{_SPACE}?(?P=unit)(?!\w)"
    rf"|{_SPACE}(?i:(?:(?:\w{{1,12}}{_SPACE})?out{_SPACE})?of(?:{_SPACE}(?:{_ALL}))?|on{_SPACE}a{_SPACE}scale"
    rf"{_SPACE}(?:of|to)|over|through|thru|till?|until|versus|vs\.?|per|point){_SPACE}{_AGAIN}"
    rf"|(?:{_SPACE}?%|{_SPACE}percent){_SPACE}of{_SPACE}(?:the{_SPACE})?{_AGAIN}"
    rf"|(?<=(?<![\d.,])[1-9]){_SPACE}in{_SPACE}(?:every{_SPACE})?(?!(?:19|20){_D}{_D}\b){_D}"
    rf"|{_SPACE}point{_SPACE}(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)\b"
    rf"|{_SPACE}and{_SPACE}(?:(?:(?:an?|one){_SPACE})?(?:{_FRACTION})|{_D}+(?:/{_D}|{_SPACE}(?:cents|pence|(?:ten|hundred|thousand)ths)))\b"
    rf"|{_SPACE}?-?(?:{_SMALLER_UNIT})"
    rf"|(?:{_SPACE}?(?:hours?|hrs?|h|feet|foot|ft)|m){_SPACE}{_D}{_D}?(?!\d|[.,]{_D}|{_SPACE}?[A-Za-z%])"
    rf"|(?:min|m|ft){_D}{_D}(?!{_D})"  # 1m80
    rf"|[{_PRIMES}{_QUOTES}]{_SPACE}{_D}{_D}?{_SPACE}?[{_PRIMES}{_QUOTES}]"  # 5' 7"
    rf"|{_SPACE}(?:squared|cubed|to{_SPACE}the{_SPACE}(?:power(?:{_SPACE}of)?(?:{_SPACE}{_AGAIN})?|\w+(?:th|rd|nd|st))|(?:degrees{_SPACE})?below{_SPACE}zero)\b"
)
_JOINED_BY_AND = re.compile(rf"(?:{_UNIT}|{_SPACE}?[^\W\d]{{1,12}})?{_SPACE}(?:and|und|et|y){_SPACE}{_AGAIN}")
_BETWEEN = re.compile(rf"(?i:between|zwischen|entre){_SPACE}{_CURRENCY}?$")
_WORD_AFTER = re.compile(rf"(?:{_UNIT}|-)?{_SPACE}?[^\W\d]|{_SPACE}?[°%]|[{_PRIMES}{_QUOTES}]{_SPACE}")
_WORD_BEHIND = re.compile(rf"[{SPACES}-]?([^\W\d_][^\s0-9,.;:!?)\]}}\"'/{CURRENCIES}-]*)")
# Magnitudes that are not in the table of those that are read.
_UNREAD = OTHER_MAGNITUDES | {
    f"{word}{end}"
    for word in (
        *(f"{number}illion" for number in ("quadr", "quint", "sext", "sept", "oct", "non", "dec", "z")),
        *(
            "billiard",
            "trilliard",
            "lac",
            "tsd",
            "mia",
            "tenth",
            "dozen",
            "score",
            "gross",
            "trillione",
            "quadrillione",
            "billiarde",
        ),
    )
    for end in ("", "s", "n", "en")
}
_UNREAD_BEGUN = frozenset(word[:i] for word in _UNREAD for i in range(1, len(word) + 1))
_TRADERS = "mm|mil|mill|bil|tril|thou|grand"  # $5mm, $5 mil
_UNREAD_MONEY = re.compile(rf"{_SPACE}?(?i:{_TRADERS})(?!\w)")
_UNREAD_MONEY_BEGUN = re.compile(rf"{_SPACE}?(?i:{_begins(_TRADERS)})")
_TAIL = re.compile("|".join(begun for _, begun in _JOINS))
# What stands before a number and makes it a part of something else: a fraction, a power, a root.
_JOINED_BEFORE = re.compile(
    rf"(?<={_OTHER_DIGIT})|(?<=[√π±^/\u2044\u2215\uff0f])|(?<=/{_SPACE})|(?<=[\^\}}\]]\{{)|(?<=frac)"
    r"|(?<=\\sqrt)|(?<=\\sqrt[ {\[])|(?<=\\pm)|(?<=\\pm\s)|(?<=\bout of )|(?<=\(of )|(?<=[\s($€£],)|(?<=\A,)"
)
_CURRENCY_BEHIND = re.compile(rf"{_CURRENCY}{_SPACE}?$")
_MINUSES = "".join(c for c, factor in SIGNS.items() if factor < 0)
_FAR = 16  # characters before a number in which a sign can stand apart
# `minus 5`, `= - 5`, `-AUD 5`, but not the operator of `7 minus 5`.
_SIGN_APART = re.compile(
    rf"(?:(?<![0-9)\]}}%]{_SPACE})(?<![\w-])(?i:minus|negative|минус|eksi)\s+"
    rf"|(?:[负負]|零下|氷点下|マイナス|마이너스|영하){_SPACE}?"
    rf"|[=:{CURRENCIES}]{_SPACE}?[{re.escape(_MINUSES)}]{_SPACE}"
    rf"|(?<![\w)\]}}%])[{re.escape(_MINUSES)}](?:[A-Z]{{2,3}}|{_ABBREVIATIONS})\.?{_SPACE}?)$"
)
# Where a number may begin, which is found much faster than a number: at most these characters stand before
# its first digit.
_LEAD = 12
_NEAR_DIGIT = rf"(?=[{re.escape(''.join(SIGNS) + CURRENCIES + SPACES)}A-Z\\.,{{}}]{{0,{_LEAD}}}{_D})"
_DIGIT = re.compile(_D)
# The last characters of all that `_SIGN_APART` finds.
_ENDS_OF_SIGNS = frozenset(f"{_MINUSES}.ABCDEFGHIJKLMNOPQRSTUVWXYZeiskrptzł\u0441\u0421č负負下点スス스하m")
_BEFORE_WHOLE = re.compile(r"\s*")
_AFTER_WHOLE = re.compile(rf"\s*(?:{_CURRENCY}|{_CODE}|\\?%|percent)?\.?\s*")
_TOKEN_LEAD = re.compile(f" ?{_SIGN}?")
SUBWORDS = frozenset(
    word[i:j]
    for word in [
        *(word + "s" for word in POWERS),
        *_UNREAD,
        "times",
        "cdot",
        "div",
        "pm",
        "sqrt",
        "pi",
        "x",
        "e",
        "h",
    ]
    for i in range(len(word))
    for j in range(i + 1, len(word) + 1)
)
"""What tokens may hold of magnitudes and of other words in a number, in lower case."""
MARKS = tuple(
    dict.fromkeys(
        f"{CURRENCIES}{APOSTROPHES}{''.join(SIGNS)}.,:/\u00d7÷·⋅±*^_~\\{{}}()[]{SPACES}%"
        f"\u2044\u2215\uff0f∙\u2217\u2022\u2236\uff1a{_PRIMES}°‰√π!\u2014\u301c\uff5e⁺⁻₊₋\ufe0f\u20e3…{_HIDDEN}{_POWERS_OF_CJK}"
    )
)
"""Characters that may stand in a number, before it, or directly after it."""
_PIECE = re.compile(
    rf"[{re.escape(''.join(MARKS))}]*(?:{_D}.*|{_OTHER_DIGIT}.*|[eE]{_SIGN}?(?:{_D}.*)?)?", re.DOTALL
)
GOES_ON = re.compile(rf"[.,]?{_D}|{_OTHER_DIGIT}")
"""What makes another number of a level that it stands directly after: `0`, `.5`, `½`."""
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
    first, fraction = f"[1-9]{_D}{{0,2}}", rf"(?:,|\{{,\}}){_D}+"
    # 1.5, 1.e+05, and 3.141 592 with spaces that separate nothing else
    point = rf"(?:\.{_D}+|\.(?=[eE]{_SIGN}?{_D}))?"
    if thousands in (None, " "):
        point = rf"(?:\.{_D}{{3}}(?:{_THIN}{_D}{{3}})*{_THIN}{_D}{{1,3}}(?!{_D})|{point[3:]}"
    ends = rf"(?!(?:[.,]|\{{,\}})?{_D})"
    grouped, european, begun = [], [], [f"{_D}*", rf"{_D}*\.{_D}*(?:{_THIN}{_D}*)*"]

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
    separated = "|".join([*grouped, f"(?P<european>{'|'.join(european or ['(?!)'])})"])
    if thousands != ".":  # spares most numbers these alternatives: a separator follows the first digits
        separated = rf"(?={_D}+(?:[,.{APOSTROPHES}{SPACES}]{_D}|,?\\|\{{))(?:{separated})"
    body = f"{separated}|{plain}"

    def number(money: str) -> str:
        inner = rf"(?<!{_D}[{CURRENCIES}])(?<!{_D}{_SPACE}€)(?P<inner>{_SIGN})"
        return (
            rf"(?:{_SIGN_BEFORE}(?P<sign>{_SIGN}))?(?P<money>{money}(?:{inner})?)?"
            rf"(?:(?P<part>{_PART})|(?P<body>{body}){_EXPONENT}?"
            rf"(?P<magnitude>{_MAGNITUDE}|(?(money){_MONEY}|(?!)))?)"
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


def with_ascii_sign(text: str) -> str:
    """Write each minus of a text as `-`."""
    return "".join("-" if SIGNS.get(c) == -1 else c for c in text)


def find_digits(text: str, thousands: str | None = None) -> Iterator[tuple[int, int, str, re.Match[str]]]:
    """Find all numbers of a text; yield start, end and `plain` of each, as in `Written`, and its match.

    Labels need no more, and what stands around a number takes several times as long to look at.
    """
    for match, _ in _matches(text, thousands):
        if match.lastgroup != "part":
            yield match.start(), match.end(), _plain(match), match


def _matches(text: str, thousands: str | None) -> list[tuple[re.Match[str], bool]]:
    """Find numbers and digits in words, and whether each is in a list that could be grouped otherwise."""
    found: list[tuple[re.Match[str], bool]] = []
    next_digit, next_number, lists, at = _DIGIT.search, _rules(thousands).number.search, None, 0
    while (digit := next_digit(text, at)) and (match := next_number(text, max(at, digit.start() - _LEAD))):
        at = match.end()
        body = match["body"]
        if thousands is None and not (body is None or body.isdecimal() or PLAIN.fullmatch(body)):
            lists = lists or _Lists(text)
            if end := lists.end_of(match):
                start = match.start()
                found += [(each, True) for each in _rules("").number.finditer(text, start, end)]
                at = end
                continue
        found.append((match, False))
    return found


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


class _Lists:
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
    for match, in_list in _matches(text, thousands):
        start, end = match.span()
        joined = _joined_until(text, match, thousands) or _joined_by_words_until(text, match)
        if match.lastgroup == "part":
            joined_until = max(joined_until, joined)
            continue
        plain = _plain(match)
        alone = not (in_list or joined or start < joined_until or _JOINED_BEFORE.match(text, start))
        joined_until = max(joined_until, joined)
        # Accountants write negative amounts in parentheses. In sentences, only a currency tells them.
        if text[max(0, start - 1) : start] == "(" and text[end : end + 1] == ")":
            currency = _CURRENCY_BEHIND.search(text, max(0, start - 4), start - 1)
            if match["money"] or currency or (start - 1 == first and end + 1 == last):
                start, end = currency.start() if currency else start - 1, end + 1
                plain = plain if plain.startswith("-") else f"-{plain}"
        alone = alone and not _follows_sign(text, start)
        if not found:
            alone = alone and not _is_only_a_minus(text[:start])
        found.append(Written(start, end, plain, alone))
    return found


def _joined_until(text: str, match: re.Match[str], thousands: str | None) -> int:
    """Return where what follows a number joins it to something else, but for words; 0 if nothing does."""
    end = match.end()
    if _ENDS.match(text, end) or (thousands == "" and _SEPARATED.match(text, end)):
        return 0
    joined = _JOINED.match(text, end)
    if joined is None and match["money"]:
        joined = _UNREAD_MONEY.match(text, end)
    if joined is None and (word := _WORD_BEHIND.match(text, end)) and word[1].lower() in _UNREAD:
        joined = word
    return 0 if joined is None else joined.end()


def _joined_by_words_until(text: str, match: re.Match[str]) -> int:
    """Return where words join a number to something else; 0 if they do not."""
    end = match.end()
    if _WORD_AFTER.match(text, end) is None:
        return 0
    joined = _JOINED_BY_WORDS.match(text, end)
    if joined is None and (among := _JOINED_BY_AND.match(text, end)):
        joined = among if _BETWEEN.search(text, max(0, match.start() - _FAR), match.start()) else None
    return 0 if joined is None else joined.end()


def _may_be_joined(text: str, match: re.Match[str]) -> bool:
    """Return whether what follows a number is the beginning of what joins it to something else."""
    end = match.end()
    if _TAIL.fullmatch(text, end) or (match["money"] and _UNREAD_MONEY_BEGUN.fullmatch(text, end)):
        return True
    word = _WORD_BEHIND.fullmatch(text, end)
    return word is not None and word[1].lower() in _UNREAD_BEGUN


def _follows_sign(text: str, start: int) -> bool:
    """Return whether a sign stands apart before a number, or a word for one."""
    before = text[max(0, start - _FAR) : start].rstrip()
    return before[-1:] in _ENDS_OF_SIGNS and _SIGN_APART.search(text, max(0, start - _FAR), start) is not None


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


def read_prefix(text: str, thousands: str | None = None, before: str = "") -> Prefix:
    """Read the beginning of a text that is still being written.

    Spaces and a sign of a currency may stand before the number. What a token would change is seen from
    `read_prefix(text + token)`: if it is not open, and has the value and `joined` of `read_prefix(text)`, the
    number has ended before the token.

    Args:
        text: what has been written so far, from where the number may begin.
        thousands: the separator of thousands, see `parse_numbers`. Default: the text decides.
        before: what stands before the number: `1` is no number after `x`, and in a list in `[1,234]`.

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
    rules, whole, at = _rules(thousands), before + text, len(before)
    match = rules.leading.match(whole, at)
    begun = rules.begun.fullmatch(whole, at) is not None
    if match is None or match["part"] is not None:
        return Prefix(None, False, begun)
    number, joined = match, _joined_until(whole, match, thousands) > 0
    open_ = begun or _may_be_joined(whole, match)
    if thousands is None and not PLAIN.fullmatch(match["body"]) and (end := _Lists(whole).end_of(match)):
        number = _rules("").leading.match(whole, at, end) or match
        open_ = open_ or _UNFINISHED.fullmatch(whole, end) is not None
        joined = True
    return Prefix(as_value(_plain(number)), joined, open_)


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


def is_piece(text: str) -> bool:
    """Return whether a token may begin a written number, continue it, or change it from after its end."""
    return text != "" and (_PIECE.fullmatch(text) is not None or text.lstrip(" -").lower() in SUBWORDS)


@functools.cache
def characters() -> tuple[str, ...]:
    """Return all characters that may stand in a number or directly beside it, but ASCII letters."""
    digits = re.findall(_OTHER_DIGIT, "".join(map(chr, [*range(0x80, 0xD800), *range(0xE000, 0x20000)])))
    letters = sorted({c for word in SUBWORDS for c in (*word, *word.upper()) if not c.isascii()})
    return tuple(dict.fromkeys([*DIGITS, *MARKS, *digits, *letters]))


def count_digits(text: str) -> int:
    """Count the digits of a text."""
    return sum(map(text.count, DIGITS))


def as_value(number: str) -> float:
    """Return the value of a number that `float` accepts, with one zero."""
    return float(number) + 0.0  # turns -0.0 into 0.0
