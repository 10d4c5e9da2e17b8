"""Digits that are no number of their own: parts of words (x1, CO2, bbox_2d, Qwen2.5), powers, notes."""

from __future__ import annotations

from ntloss.numbers.alphabet import ABBREVIATIONS, HYPHEN, SIGN, UNSPACED, D

_LETTER = rf"[^\W\d_{UNSPACED}\u0590-\u06ffªº]"  # in Hebrew and Arabic, short words are joined to numbers
# Commands of LaTeX, abbreviations and signs that stand directly before a number of its own.
_COMMANDS = (
    "times|cdot|div|pm|mp|frac|sqrt|approx|sim|le|leq|ge|geq|ne|neq|to|rightarrow|quad|propto|equiv|n|r|t"
)
_NO_WORD = "".join(
    rf"(?<!{before})"
    for before in (
        *(rf"\\{command}" for command in _COMMANDS.split("|")),
        *(rf"\b{abbreviation}" for abbreviation in ABBREVIATIONS.split("|")),
        rf"{D}[xXhH]",  # 3x4, 12h30
        rf"{D} [xX]",
        r"\b0[bBoO]",
    )
)
# A name in capitals (GPT-3, F-16) or a variable (n-1) before the hyphen or minus, but no unit after digits:
# 20GB-30GB.
_NO_RANGE = "".join(
    rf"(?<!{D}{space}{letters}{HYPHEN})" for space in ("", " ") for letters in ("[A-Za-z]", "[A-Za-z][A-Z]")
)
_IN_WORD = (
    rf"(?:(?<={_LETTER}){_NO_WORD}|(?<={_LETTER}_)|(?<={_LETTER}__)|(?<={_LETTER}_\{{)"
    rf"|(?:(?<=[A-Z]{HYPHEN})|(?<=(?<!\w)[a-z]{HYPHEN})){_NO_RANGE}){D}+(?:[._]{D}+)*"
)
_POWERS = "|".join(
    [
        # m^2, m^{-2}, \mathrm{m}^2, m<sup>2</sup>
        *(
            rf"(?<=[A-Za-z]{ends}{begins}{sign})"
            for ends in ("", r"\}")
            for begins in (r"\^", r"\^\{", "<su[bp]>")
            for sign in ("", SIGN)
        ),
        r"(?<=[A-Za-z]\*\*)",
        rf"(?<=\b(?:kg|cm|mm|km|nm|mL|ml|Pa|Hz){HYPHEN})(?=[1-4](?!\w))",  # kg-1, as physicists write it
        rf"(?<=\bmol{HYPHEN})(?=[1-4](?!\w))",
        rf"(?<=[\w.%)\"\]]\[)(?={D}{{1,3}}\])",  # notes and indices, 42,000[1]
    ]
)
# The grammar's groups `sign` and `money` have matched before it, if they match.
PART = (
    rf"(?<=[\w^{{\[*>\-\u2010\u2011\u2212])(?=[0-9])"
    rf"(?:(?:{_POWERS}){D}+(?:\.{D}+)?|(?(sign)(?!)|(?(money)(?!)|{_IN_WORD})))"
)
