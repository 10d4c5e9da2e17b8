"""What written numbers are made of: digits, signs, spaces, currencies and magnitudes.

First the characters and words themselves, then patterns of them (`re`), which the other modules join.
"""

from __future__ import annotations

import re

DIGITS = "0123456789"
SIGNS = {"-": -1, "+": 1, **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", -1)}
"""Signs with their factors: the minus of typography, and the hyphens and dashes that are written for it."""
POINT = "."
SPACES = " \u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
"""White space that may stand between thousands."""
APOSTROPHES = "'\u2019"
CURRENCIES = "$€£¥₹₩₽₺₪₫₱₦₴₡₲₵₸₮₼₾₿฿"
POWERS = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7},
    **{"mn": 6, "mln": 6, "mio": 6, "bn": 9, "bln": 9, "mrd": 9, "tn": 12, "trn": 12},
    **{"k": 3, "m": 6, "b": 9, "t": 12},
}
"""Magnitudes, with their powers of ten. Letters are read only after digits or with a currency (`grammar`)."""
MAGNITUDE_WORDS = [word for word in POWERS if len(word) > 1]
POWERS_OF_CJK = "万萬億亿兆千百만억천조십백"
MINUSES = "".join(c for c, factor in SIGNS.items() if factor < 0)
PRIMES, QUOTES = "\u2032\u2033", "\"'\u2019\u201d"
HIDDEN = "\u200b\u2060"
"""White space without width."""

D = "[0-9]"
SIGN = f"[{re.escape(''.join(SIGNS))}]"
SPACE = f"[{SPACES}]"
THIN = "[\u00a0\u2009\u202f]"  # spaces that stand in numbers, but separate no numbers
CURRENCY = rf"(?:\\?[{CURRENCIES}])"
# Of the currencies that are traded most (Bank for International Settlements, Triennial Survey 2022), but for
# codes that are words or names, too (COP, PEN, PHP, RON, TRY).
CODES = (
    "USD|EUR|GBP|JPY|CHF|CNY|INR|AUD|CAD|HKD|SGD|SEK|KRW|NOK|NZD|MXN|TWD|ZAR|BRL|DKK|PLN|THB|ILS|IDR|CZK|AED"
    "|HUF|CLP|SAR|MYR|RUB|BHD|BGN"
)
CODE = f"(?:{CODES})"
ABBREVIATIONS = "Rs|Rp|RM|Tk|kr|zł|Kč|Ft|Fr"  # of currencies, before a number
# Of scripts that put no space between words: there, a sign or a number may follow a letter.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u312f\u3400-\u9fff\uac00-\ud7af"
# Digits of other scripts, superscripts, subscripts and fractions: no number of ours, nor a part of one.
OTHER_DIGIT = (
    r"(?:(?![0-9])\d|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f])"
)
OPEN, CLOSE = r"[(\[{]", r"[)\]}]"
HYPHEN = "[-\u2010\u2011\u2212]"
DASH = "[-\u2010-\u2014\u2212~\u301c\uff5e]"


def with_ascii_sign(text: str) -> str:
    """Write each minus of a text as `-`."""
    return "".join("-" if SIGNS.get(c) == -1 else c for c in text)


def count_digits(text: str) -> int:
    """Count the digits of a text."""
    return sum(map(text.count, DIGITS))


def as_value(number: str) -> float:
    """Return the value of a number that `float` accepts, with one zero."""
    return float(number) + 0.0  # turns -0.0 into 0.0
