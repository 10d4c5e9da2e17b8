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
_UNITS = "kg|cm|mm|dm|km|nm|mg|mL|ml|dL|Pa|Hz|ha|ms|eV|kJ|yr|mol|bar|min"
# Of a unit: 5 min-1, but not 5 min-1 h, which is a range.
_EXPONENT = rf"(?=[1-4](?!\w|[.,]{D}| ?(?:{_UNITS}|[smhdgtKJWNLMVACg%°])(?![\w\-\u2212])))"
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
        *(rf"(?<=\b{unit}{HYPHEN}){_EXPONENT}" for unit in _UNITS.split("|")),  # kg-1, as physicists write it
        # K-1 after another power: kg-1 K-1, m3 s-1
        *(rf"(?<=[A-Za-z]{sign}[1-4] [A-Za-z]{HYPHEN}){_EXPONENT}" for sign in ("", HYPHEN)),
        rf"(?<={D} [shdmKLMgV]{HYPHEN})(?=1){_EXPONENT}",  # 5 s-1
        rf"(?<=[\w.%)\"\]]\[)(?={D}{{1,3}}\])",  # notes and indices, 42,000[1]
    ]
)
# The grammar's groups `sign` and `money` have matched before it, if they match.
PART = (
    rf"(?<=[\w^{{\[*>\-\u2010\u2011\u2212])(?=[0-9])"
    rf"(?:(?:{_POWERS}){D}+(?:\.{D}+)?|(?(sign)(?!)|(?(money)(?!)|{_IN_WORD})))"
)
