"""What stands beside a number and makes it a part of something else: a range, a fraction, a date, a quantity.

`_JOINS` are marks and magnitudes directly after a number; of each, a model may have written a part
(`may_be_joined`). Words (`_JOINED_BY_WORDS`) are looked at in finished texts alone, because a reading of what
a model writes ends at the first letter of a word or a unit.
"""

from __future__ import annotations

import re

from ntloss.numbers.alphabet import (
    ABBREVIATIONS,
    APOSTROPHES,
    CODE,
    CODES,
    CURRENCIES,
    CURRENCY,
    DASH,
    DIGITS,
    HIDDEN,
    HYPHEN,
    MAGNITUDE_WORDS,
    MINUSES,
    OPEN,
    OTHER_DIGIT,
    PRIMES,
    QUOTES,
    SIGN,
    SPACE,
    SPACES,
    UNSPACED,
    D,
)
from ntloss.numbers.magnitudes import OTHER_MAGNITUDES
from ntloss.numbers.scales import IN_ENGLISH, IN_OTHERS, POINT_SCALE

_AGAIN = rf"{SIGN}?(?:{CURRENCY}{SPACE}?)?[.]?{D}"  # another number begins
_MORE = rf"{SIGN}?(?:{CURRENCY}{SPACE}?)?\.?"  # what of it may be written so far
_MONEY = rf"(?:[A-Z]{{1,3}}(?=\\?[{CURRENCIES}])|{CODE}{SPACE}?|(?:{ABBREVIATIONS})\.?{SPACE}?)"
_AMOUNT = rf"(?:{_MONEY})?{_AGAIN}"  # also US$5, USD 5, Rs. 5
_POWER = rf"{SPACE}?\^{SPACE}?(?:[({{]{SPACE}?)?"
_TIMES = rf"{SPACE}?[*\u00d7·⋅]{SPACE}?"
_OPERATOR = "[/\u2044\u2215\uff0f\u00d7÷·⋅∙±\u2213]"
_UNIT = rf"(?:{SPACE}?[%‰]|{SPACE}?€|{CURRENCY}|[°.{PRIMES}{QUOTES}]{{1,2}})"
# Between the parts of a time, a length, or code.
_MIDDLE = f":\u2236\uff1a_hH{APOSTROPHES}\u00b4`{PRIMES}"
_MONEY_WORDS = "dollar|euro|pounds|rupees|yen|yuan|won|franc|peso"
_TRADERS = "mm|mil|mill|bil|tril|thou|grand|crs?|l"  # $5mm, $5 mil, ₹5 Cr, ₹5 L
_ACCOUNTS = "CR|DR"
_UNTIL, _UNTIL_WORDS = "到至", "から|부터|에서"
THAI = "พัน|หมื่น|แสน|ล้าน"  # thousand, ten thousand, hundred thousand, million
_OF_THOUSAND = "克米瓦卡赫帕焦伏字分"  # after 千, a unit: kilogram, kilometer
_FULL_WIDTH = "\uff0c\u066c\u066b\uff0e"  # separators and points, also of Arabic
_PRODUCTS, _ROOTS = "times|cdot|div|pm", "sqrt|pi"  # of LaTeX
_REPEATED = "overline|bar|dot|widehat"  # over digits that repeat, in LaTeX
_COUNTED = "hundred|thousand|million|billion|trillion|lakh|crore"
_ORDINALS = "|".join(word + end for word in MAGNITUDE_WORDS for end in ("s", "ths"))  # and plurals
_AFTER_COUNTED = "|".join(f"(?<=(?i:{word}{s}))" for word in _COUNTED.split("|") for s in ("", "s"))


def _begins(words: str) -> str:
    """Make a pattern of the beginnings of words, which `|` separates."""
    return "|".join(sorted({word[:i] for word in words.split("|") for i in range(1, len(word) + 1)}))


# What follows a number and makes it a part of something else, up to the first digit of that; and what of it
# may be written so far.
_JOINS = [
    # 1/2, 3 · 10, 5 ± 1, 5 +/- 1, 5 (+- 1)
    (
        rf"{SPACE}?{OPEN}?(?:{_OPERATOR}|\+/?-|\\(?:{_PRODUCTS})\b){SPACE}?{OPEN}?{_AGAIN}",
        rf"{SPACE}?{OPEN}?(?:{_OPERATOR}|\+/?-?|\\(?:{_begins(_PRODUCTS)})?){SPACE}?{OPEN}?{_MORE}",
    ),
    # 2*3, 10 ** 5, 10^5, 10^(-3), 3 x 4
    (
        rf"(?:\*\*?|[\u2217\u2022]|{SPACE}\*\*?{SPACE}|{_POWER}|{SPACE}?[xX]{SPACE}?){_AGAIN}",
        rf"(?:\*\*?|[\u2217\u2022]|{SPACE}\*\*?{SPACE}?|{_POWER}|{SPACE}?[xX]{SPACE}?){_MORE}",
    ),
    (rf"{SPACE}{D}+/{D}", rf"{SPACE}{D}+/?"),  # 1 1/2
    # 1.234(5), which is 1.234 ± 0.005, and 5(2); 0.(3), 0.\overline{3} and 0.\bar 3, whose decimals go on
    (
        rf"\.?\({D}+\)|\.?\\(?:{_REPEATED}){SPACE}?\{{?{D}",
        rf"\.?\({D}*|\.?\\(?:{_begins(_REPEATED)})?{SPACE}?\{{?",
    ),
    # 12:30, 12h30, 1.2.3, 5..10, 5…10, \frac{1}{2}, and groups that nobody writes
    (
        rf"(?:[{_MIDDLE}{HIDDEN}]|(?:[.,]{{1,3}}|…)[{HIDDEN}]?|\}}\{{|\{{,\}}|,\\!|\\[!,;: ]){D}",
        rf"[{_MIDDLE}{HIDDEN}]|(?:[.,]{{1,3}}|…)[{HIDDEN}]?|\}}\{{?|\{{,?\}}?|,(?:\\!?)?|\\[!,;: ]?",
    ),
    # -5…-3, -5...-3, -5:-3
    (rf"(?:[:\u2236\uff1a…]|\.{{2,3}}){SIGN}{D}", rf"(?:[:\u2236\uff1a…]|\.{{1,3}}){SIGN}?"),
    # 90° 30'
    (
        rf"°{SPACE}?{D}{D}?(?:\.{D}+)?{SPACE}?[{PRIMES}{QUOTES}]",
        rf"°{SPACE}?(?:{D}{D}?(?:\.{D}*)?{SPACE}?)?",
    ),
    (rf"€{D}{D}(?!{D})", f"€{D}{{0,2}}"),  # 10€50
    # exponents of another form, 1e5kg, 1.5 e5, 1.5d0
    (rf"(?:{SPACE}?[eE]|[dD]){SIGN}?{D}", rf"\.?{SPACE}?[eEdD]{SIGN}?{D}*"),
    # 0.000 001, 3.141 59
    (
        rf"(?<=\.{D}{D}{D})(?:{SPACE}{D}{D}{D}(?!{D}))*{SPACE}{D}{{1,3}}(?![.,]?{D})",
        rf"{SPACE}{D}{{0,3}}",
    ),
    # separators and points of full width or of Arabic
    (
        rf"[{_FULL_WIDTH[:2]}]{D}{D}{D}(?!{D})|[{_FULL_WIDTH[2:]}]{D}",
        rf"[{_FULL_WIDTH}]{D}{{0,3}}",
    ),
    (rf"{SPACE}:{SPACE}{D}", rf"{SPACE}(?::{SPACE}?)?"),  # 3 : 2
    # 5- and 100.00-, as accountants write negative numbers, and 100.00 CR
    (rf"[-\u2212](?=[\s,;:.)\]|]|\Z)|{SPACE}?(?:{_ACCOUNTS})(?!\w)", rf"[-\u2212]|{SPACE}?[CD]R?"),
    # 3到5, 3から5
    (
        rf"{SPACE}?[{_UNTIL}~]{SPACE}?{D}|{SPACE}?(?:{_UNTIL_WORDS}){SPACE}?{D}",
        rf"{SPACE}?(?:[{_UNTIL}~]|{_begins(_UNTIL_WORDS)})?{SPACE}?",
    ),
    # 3-5, 3%-5%, $3-$5, 20°-25°, -5--3
    (rf"{_UNIT}?{DASH}{SIGN}?{CURRENCY}?{D}", rf"{_UNIT}?(?:{DASH}{SIGN}?(?:\\|{CURRENCY})?)?"),
    (rf"{SPACE}?[⁺⁻₊₋]?{OTHER_DIGIT}", rf"{SPACE}?[⁺⁻₊₋]?"),  # 2½, 10²
    ("\ufe0f?\u20e3", "\ufe0f?"),  # keycaps
    (rf"{SPACE}?(?:[√π]|\\(?:{_ROOTS})(?![A-Za-z]))", rf"{SPACE}?\\(?:{_begins(_ROOTS)})?"),  # 2π
    ("(?<=0)(?:[xX][0-9A-Fa-f]|[bBoO][0-7])", "[xXbBoO]"),  # 0xFF
    # 5 thousand 200; 3 thousandths
    (rf"(?:{_AFTER_COUNTED}){SPACE}(?:and{SPACE})?{D}", rf"{SPACE}(?:an?|and{SPACE}?)?"),
    (
        rf"[{SPACES}-]?(?i:hundred|thousand|million|billion|trillion)ths?(?!\w)",
        rf"[{SPACES}-]?(?i:{_begins(_ORDINALS)})?",
    ),
    (r"(?:[BT]|MM)(?!\w)", "[BT]|MM?"),  # billions or bytes
    # magnitudes of Asian languages, but not kilograms and kilometers (千克, 千米)
    (
        rf"{SPACE}?(?:[万萬億亿兆만억천조]|[십백](?=[만억])|[千百](?![{_OF_THOUSAND}])|{THAI})",
        rf"{SPACE}?(?:[千百십백]|{_begins(THAI)})?",
    ),
    # 5k USD, 5 m dollars
    (
        rf"{SPACE}?[kKmMbBtT]{SPACE}?(?:{CODE}|{CURRENCY}|(?:{_MONEY_WORDS})s?\b)",
        rf"{SPACE}?[kKmMbBtT]{SPACE}?(?:\\|{_begins(CODES)}|(?:{_begins(_MONEY_WORDS)})s?)?",
    ),
]
# What ends most numbers, before all else is tried: the end of a line, a clause or a sentence.
_ENDS = re.compile(r"[.,;!?]?(?:\n|\Z)|[,.;] [^0-9]")
_SEPARATED = re.compile(rf",{SIGN}?\.?{D}")  # where commas do nothing else
_JOINED = re.compile("|".join(full for full, _ in _JOINS))
_TAIL = re.compile("|".join(begun for _, begun in _JOINS))

_ANDS = "and|und|et|y|e|och|og|en|и"
# From large to small units, of which two make one quantity: 1 hour 30 minutes.
_QUANTITIES = (
    ("years?|yrs?|y|Jahre?n?|ans|años|anni|anos|лет|года?",
     "months?|mos?|Monate?n?|mois|meses|mesi|месяц(?:\u0430|ев)?",
     "weeks?|wks?|w|Wochen?|semaines?|semanas?|settimane?|недел[иья]",
     "days?|d|Tage?n?|jours?|días?|dias?|giorn[io]|дн(?:я|ей)|день",
     "hours?|hrs?|h|Stunden?|Std|heures?|horas?|or[ae]|час(?:\u0430|ов)?",
     "minutes?|mins?|m|Min|Minuten?|minutos?|minut[io]|минут[аы]?",
     "seconds?|secs?|s|Sek|Sekunden?|secondes?|segundos?"),
    ("miles?|mi", "yards?|yds?", "feet|foot|ft", r"inch(?:es)?|ins?"),
    ("kilomet(?:er|re)s?|km", "met(?:er|re)s?|m", "centimet(?:er|re)s?|cm", "millimet(?:er|re)s?|mm"),
    ("tons?|tonnes?|t", "stones?|st", "pounds?|lbs?", "ounces?|oz", "kilograms?|kg", "grams?|g"),
    ("dollars?|[eE]uros?|pounds?|rupees?|francs?|zł|złot(?:y|ych|e)|\u0440\u0443\u0431(?:л(?:\u044c|я|ей))?",
     "[cC]ents?|pence|paise|centimes?|céntimos?|centavos?|centesim[io]|gr|grosz[ye]?|коп|копе(?:ек|йк[аи])"),
    ("degrees?|deg|°", "minutes?|arcminutes?", "seconds?"),
    ("gallons?|gal", "quarts?|qt", "pints?|pt", "cups?", "tablespoons?|tbsp", "teaspoons?|tsp"),
    ("年|년", "[个個箇ヶケヵカか개]?(?:月|월)", "[日天일]|[号號](?![楼樓线線店门門院])",
     "[个個]?小?[时時]間?|[点點]|시간?", "分[钟鐘]?|분", "秒|초"),
)  # fmt: skip
_SMALLER_UNIT = "|".join(
    rf"(?:{large})(?:\.?(?:(?<=[a-z]{{3}}),)?{SPACE}(?:(?:{_ANDS}){SPACE})?)?{D}+(?:[.,]{D}+)?"
    rf"{SPACE}?(?:{'|'.join(units[i + 1 :])})(?![^\W\d{UNSPACED}]|{HYPHEN}[1-4](?!\w))"
    for units in _QUANTITIES
    for i, large in enumerate(units[:-1])
)
_TO = "to|or|bis|à|до|a|tot|till?"
_RATIO = (
    rf"(?:\w{{1,12}}{SPACE}(?=out))?(?:{IN_ENGLISH})|(?:out{SPACE})?of{SPACE}(?:every|each|all)"
    rf"|(?:{IN_OTHERS})(?!{SPACE}(?:19|20){D}{D}\b)|over|through|thru|until|versus|vs\.?|per|point"
    rf"|give{SPACE}or{SPACE}take"
)
# Units after which a bare number counts smaller ones: 1 hour 30, 5 Euro 50, 5 ft 7.
_LARGE_UNITS = "hours?|hrs?|h|heures?|horas?|Stunden?|Std\\.?|час(?:\u0430|ов)?|[eE]uros?|feet|foot|ft|Uhr"
_FRACTION = r"half|third|quarter|fourth|fifth|(?:two|three|four)[ -](?:third|quarter|fourth|fifth)s"
_AND = (
    rf"(?:(?:an?|one)[{SPACES}-])?(?:{_FRACTION})"
    rf"|{D}+(?:/{D}|{SPACE}(?:cents|pence|(?:ten|hundred|thousand)ths))"
)
# 2 hours and a half, 2 heures et demie; 2時間半.
_HALF = rf"an?{SPACE}half|demie?|medi[ao]|mezz[ao]|meia|meio"
_UNSPACED_HALF = (
    "(?:[个個]?(?:年|月|周|週|小?[时時]間?|[点點日天])|[か个個ヶケヵカ]月|週間|[个個]|분|시간?|년) ?(?:半|반)"
    "(?![径徑島岛球])"
)
_CLOSED = rf"[)}}\]$*_`{QUOTES}»]{{1,3}}"  # a bracket or a mark that ends with the number
_THIN = rf"(?:{SPACE}|~|\\[,;: ])?"  # a space of LaTeX
_BELOW_ZERO = (
    rf"below{SPACE}(?:zero|freezing)|unter{SPACE}null|sous{SPACE}zéro|bajo{SPACE}cero"
    rf"|sotto{SPACE}(?:lo{SPACE})?zero"
)
_THE_POWER = rf"power(?:{SPACE}of)?(?:{SPACE}{_AGAIN})?|\w+(?:th|rd|nd|st)"
_JOINED_BY_WORDS = re.compile(
    "|".join(
        (
            rf"°?[A-Za-z]{{1,3}}{DASH}{CURRENCY}?{D}",  # 3kg-5kg
            rf"{_UNIT}?{DASH}{_MONEY}{_AGAIN}",  # US$5-US$10
            # 5 kg-7 kg
            rf"{SPACE}(?P<same>[^\W\d_]+?|%|°[CF]?)s?{DASH}{_AGAIN}[{DIGITS}.,]*{SPACE}?(?P=same)s?(?!\w)",
            rf"(?:{_UNIT}|-)?{SPACE}(?i:{_TO}){SPACE}{_AMOUNT}",  # 18 to 25 percent
            rf"{DASH}(?i:to|or){DASH}{D}",  # 5-to-10
            # 5 \text{ to } 10
            rf"{SPACE}?\\text\{{{SPACE}?(?i:{_TO}|and|{IN_ENGLISH}){SPACE}?\}}{SPACE}?{_AGAIN}",
            # 18 percent to 25 percent, 5 kg or 6 kg
            rf"{SPACE}?(?P<unit>[^\W\d_]+|%|°[CF]?){SPACE}(?i:to|or|bis|à|oder|ou){SPACE}{_AGAIN}[{DIGITS}.,]*"
            rf"{SPACE}?(?P=unit)(?!\w)",
            # 3 out of 5, 7 on a scale of 10, 3 vs. 4
            rf"\*{{0,2}}[{SPACES}-](?i:{_RATIO})\*{{0,2}}[{SPACES}-]{_AGAIN}",
            rf"{SPACE}on{SPACE}an?{SPACE}{D}+(?i:{POINT_SCALE})",  # 4 on a 5-point scale
            rf"(?:{SPACE}?%|{SPACE}percent){SPACE}of{SPACE}(?:the{SPACE})?{_AGAIN}",  # 20% of 50
            # 1 in 5, but not 1 in 2020
            rf"(?<=(?<![\d.,])[1-9]){SPACE}in{SPACE}(?:every{SPACE})?(?!(?:19|20){D}{D}\b){D}",
            rf"(?:{_TIMES}|{SPACE}?)sqrt\(",  # 2 * sqrt(3)
            rf"{SPACE}point{SPACE}(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)\b",
            rf"[{SPACES}-]and[{SPACES}-](?:{_AND})\b",  # 3 and a half, 5 and 20 cents
            rf"{SPACE}?{_UNSPACED_HALF}",
            rf"{SPACE}?-?(?:{_SMALLER_UNIT})",
            # 1 hour 30, 1m 80
            rf"(?:{SPACE}?(?:{_LARGE_UNITS})|m){SPACE}{D}{D}?(?!\d|[.,]{D}|{SPACE}?[A-Za-z%])",
            rf"(?:min|m|ft){D}{D}(?!{D})",  # 1m80
            rf"[{PRIMES}{QUOTES}]{SPACE}{D}{D}?{SPACE}?[{PRIMES}{QUOTES}]",  # 5' 7"
            # 10 to the 6
            rf"(?<=(?<!{D})10){SPACE}to{SPACE}the{SPACE}(?:(?:minus|negative){SPACE})?{SIGN}?{D}",
            rf"{SPACE}?\\(?:over|choose)\b{SPACE}?\{{?{_AGAIN}",  # {1 \over 2}
            rf"{_CLOSED}{SPACE}?(?:\\text\{{{SPACE}?)?(?i:{_COUNTED})s?\b",  # (5) million
            rf"{_THIN}\\(?:text|mathrm)\{{{SPACE}?(?i:{_COUNTED})s?\b",  # 5\text{ million}
            # 5 \text{ hours } 30 \text{ minutes}
            rf"{_THIN}\\text\{{[^{{}}]{{1,20}}\}}{_THIN}{D}+{_THIN}\\text\{{",
            # 5 squared, 2 to the 3rd
            rf"{SPACE}(?:squared|cubed|to{SPACE}the{SPACE}(?:{_THE_POWER}))\b",
            rf"{SPACE}?(?:°?[CF]?|degrees(?:{SPACE}\w+)?){SPACE}(?:{_BELOW_ZERO})\b",  # 5 °C below zero
            rf"<su[bp]>{SIGN}?{D}|_\{{{D}",  # 10<sup>3</sup>, 1010_{{2}}
        )
    )
)
_JOINED_BY_AND = re.compile(
    rf"(?:{_UNIT}|{SPACE}?[^\W\d]{{1,12}})?{SPACE}"
    rf"(?:(?:{_ANDS}){SPACE}(?:{_AMOUNT}|(?P<half>{_HALF})\b)|(?P<halves>\u0441{SPACE}половиной))"
)
_BETWEEN = re.compile(
    rf"(?i:between|zwischen|entre|tra|fra|mellan|mellem|mellom|tussen|между){SPACE}(?:{_MONEY})?{CURRENCY}?$"
)
_WORD_AFTER = re.compile(
    rf"(?:{_UNIT}|{DASH})?{SPACE}?[^\W\d]|{_TIMES}sqrt|{SPACE}?[°%]|[{PRIMES}{QUOTES}]{SPACE}"
    rf"|{_THIN}\\(?:text|mathrm|over|choose)|<su|_\{{|\*+{SPACE}|-and-|{DASH}?{CURRENCY}"
    rf"|{_CLOSED}{SPACE}?(?:[^\W\d]|\\text)"
)
_WORD_BEHIND = re.compile(rf"[{SPACES}-]?([^\W\d_][^\s0-9,.;:!?)\]}}\"'/{CURRENCIES}-]*)")
# Magnitudes that are not in the table of those that are read.
UNREAD = OTHER_MAGNITUDES | {
    f"{word}{end}"
    for word in (
        *(f"{number}illion" for number in ("quadr", "quint", "sext", "sept", "oct", "non", "dec", "z")),
        *("billiard", "billiarde", "trilliard", "trillione", "quadrillione", "lac", "tsd", "mia"),
        *("tenth", "dozen", "score", "gross", "mds"),
    )
    for end in ("", "s", "n", "en")
}
_AFTER = (CODES, _TRADERS, _ACCOUNTS, _UNTIL_WORDS, THAI, _PRODUCTS, _ROOTS, _REPEATED, "x|e|h")
WORDS = frozenset(
    [
        *UNREAD,
        *(f"{word}s" for word in _MONEY_WORDS.split("|")),
        *(f"{word}ths" for word in _COUNTED.split("|")),
        *"|".join(_AFTER).lower().split("|"),
    ]
)
"""The words after a number that a model may be writing, in lower case."""
MARKS_AFTER = f"{_UNTIL}{_OF_THOUSAND}{_FULL_WIDTH}\u00b4`;\u2213"
"""Marks after a number that stand nowhere else in numbers."""
_UNREAD_BEGUN = frozenset(word[:i] for word in UNREAD for i in range(1, len(word) + 1))
_UNREAD_MONEY = re.compile(rf"{SPACE}?(?i:{_TRADERS})(?!\w)")
_UNREAD_MONEY_BEGUN = re.compile(rf"{SPACE}?(?i:{_begins(_TRADERS)})")
_ABBREVIATED = re.compile(rf"\b(?:{ABBREVIATIONS})\.?{SPACE}?$")

# What stands before a number and makes it a part of something else: a fraction, a power, a root.
JOINED_BEFORE = re.compile(
    rf"(?<={OTHER_DIGIT})|(?<=[√π±\u2213^/\u2044\u2215\uff0f])|(?<=[/±\u2213]{SPACE})|(?<=[\^\}}\]_]\{{)"
    rf"|(?<=\^\()|(?<=frac)|(?<=<su[bp]>)|(?<=\+/-)|(?<=\+/-{SPACE})|(?<=\+-{SPACE})|(?<=\+)(?=-)"
    r"|(?<=frac\{)|(?<=frac )|(?<=frac[0-9]\{)|(?<=frac\{[0-9]\})|(?<=frac [0-9] )"
    r"|(?<=sqrt)|(?<=sqrt[ ({\[])|(?<=sqrt[({\[] )|(?<=\^[({] )"
    r"|(?<=\\pm)|(?<=\\pm\s)|(?<=\bout of )|(?<=\(of )|(?<=[\s($€£],)|(?<=\A,)"
)
_FAR = 16  # characters before a number in which a sign can stand apart
# `minus 5`, `= - 5`, `-AUD 5`, but not the operator of `7 minus 5`.
_SIGN_APART = re.compile(
    rf"(?:(?<![0-9)\]}}%]{SPACE})(?<![\w-])(?i:minus|negative|минус|eksi)\s+"
    rf"|(?:[负負]|零下|氷点下|マイナス|마이너스|영하){SPACE}?"
    rf"|(?:[=:{{{CURRENCIES}]|\b{CODE}){SPACE}?[{re.escape(MINUSES)}]{SPACE}"
    rf"|(?<![\w)\]}}%])[{re.escape(MINUSES)}](?:[A-Z]{{2,3}}|{ABBREVIATIONS})\.?{SPACE}?)$"
)
_ARROW = re.compile(f"[={re.escape(MINUSES)}]+>")
# The last characters of all that `_SIGN_APART` finds.
_ENDS_OF_SIGNS = frozenset(f"{MINUSES}.ABCDEFGHIJKLMNOPQRSTUVWXYZeiskrptzł\u0441\u0421č负負下点スス스하m")


def joined_until(text: str, match: re.Match[str], thousands: str | None) -> int:
    """Return where what follows a number joins it to something else, but for words; 0 if nothing does."""
    end = match.end()
    if _ENDS.match(text, end) or (thousands == "" and _SEPARATED.match(text, end)):
        return 0
    joined = _JOINED.match(text, end)
    if joined is None and match["money"]:
        joined = _UNREAD_MONEY.match(text, end)
    if joined is None and (word := _WORD_BEHIND.match(text, end)) and word[1].lower() in UNREAD:
        joined = word
    return 0 if joined is None else joined.end()


def joined_by_words_until(text: str, match: re.Match[str]) -> int:
    """Return where words join a number to something else; 0 if they do not."""
    end = match.end()
    if _WORD_AFTER.match(text, end) is None:
        return 0
    joined = _JOINED_BY_WORDS.match(text, end)
    if joined is None and (money := _UNREAD_MONEY.match(text, end)):
        joined = money if _ABBREVIATED.search(text, max(0, match.start() - _FAR), match.start()) else None
    if joined is None and (among := _JOINED_BY_AND.match(text, end)):
        joined = (
            among
            if among.lastgroup or _BETWEEN.search(text, max(0, match.start() - _FAR), match.start())
            else None
        )
    return 0 if joined is None else joined.end()


def may_be_joined(text: str, match: re.Match[str]) -> bool:
    """Return whether what follows a number is the beginning of what joins it to something else."""
    end = match.end()
    if _TAIL.fullmatch(text, end) or (match["money"] and _UNREAD_MONEY_BEGUN.fullmatch(text, end)):
        return True
    word = _WORD_BEHIND.fullmatch(text, end)
    return word is not None and word[1].lower() in _UNREAD_BEGUN


def follows_sign(text: str, start: int) -> bool:
    """Return whether a sign stands apart before a number, or a word for one."""
    before = text[max(0, start - _FAR) : start].rstrip()
    return before[-1:] in _ENDS_OF_SIGNS and _SIGN_APART.search(text, max(0, start - _FAR), start) is not None


def is_only_a_minus(before: str) -> bool:
    """Whether nothing stands before the first number of a text but a minus: its sign, or a bullet."""
    line = _ARROW.sub("", before.lstrip())
    return "\n" not in line and any(c in MINUSES for c in line) and re.search(r"\w", line) is None
