"""Write the words for large numbers in the world's large languages to `src/ntloss/numbers/magnitudes.py`.

The words are those of Unicode's CLDR, in the compact forms of decimals: `5 Millionen`, `5 milliards`,
`5 млн`. They are read here, once, from babel, which packages CLDR, so that neither `ntloss` nor its tests
need babel:

    python -m pip install babel==2.19.0
    python tools/magnitudes.py
"""

from __future__ import annotations

import re
import unicodedata
from importlib.metadata import version
from pathlib import Path

from babel import Locale

TABLE = Path(__file__).parents[1] / "src" / "ntloss" / "numbers" / "magnitudes.py"
# Languages of more than some ten million speakers, and the other ones of the European Union.
LOCALES = """
    ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv mr ms nb nl pl pt pt_PT ro ru sk
    sl sr sv ta te th tr uk ur vi zh zh_Hant
"""
# Parts of the patterns that are no words for numbers, and abbreviations that are also other words or units.
NOT_MAGNITUDES = {"de", "bill", "mi", "mr", "nt", "tri", "bio", "mia"}
SHORT_ENOUGH = {"jt", "md", "rb"}  # abbreviations of two letters that stand for nothing else
UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_PATTERN = re.compile(r"[^\W\d_][^\s\d.,'#]*")


def words_of(locale: str) -> set[str]:
    """Return the words and abbreviations of one language for powers of ten from 3 on, in lower case."""
    forms = Locale.parse(locale)._data["compact_decimal_formats"]
    found = set()
    for style, least in (("long", 2), ("short", 3)):
        for sizes in forms.get(style, {}).values():
            for pattern in sizes.values():
                words = (word.lower() for word in _PATTERN.findall(pattern.pattern))
                found |= {word for word in words if len(word) >= least or word in SHORT_ENOUGH}
    return found


def without_accents(word: str) -> str:
    """Return a word as people type it who leave out its accents: `millon`."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


def main() -> None:
    """Write the table."""
    words = set().union(*map(words_of, LOCALES.split())) - NOT_MAGNITUDES
    words = {word for word in words if not UNSPACED.search(word)}
    words |= {without_accents(word) for word in words if len(word) > 3 and "a" <= word[0] <= "z"}
    lines, line = [], ""
    for word in sorted(words):
        if len(line) + len(word) > 100:
            lines.append(line)
            line = ""
        line += f"{word} "
    text = "\n".join([*lines, line]).replace(" \n", "\n").strip()
    TABLE.write_text(
        '"""Words for large numbers in other languages than English. Written by tools/magnitudes.py.\n\n'
        f"Source: the compact forms of decimals of Unicode's CLDR, from babel {version('babel')}.\n"
        '"""\n\n'
        f'_WORDS = """\n{text}\n"""\n'
        "OTHER_MAGNITUDES = frozenset(_WORDS.split())\n"
        '"""In lower case, with and without accents; of scripts that put spaces between words."""\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
