"""Which tokens are numbers, and how many digits of a text each token set covers.

A token set is a choice of number tokens by two options: `digit_level` keeps single digits only, and
`space_prefixed` includes tokens with a marker of their tokenizer (`▁4`, `Ġ4`, `##4`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ntloss.numbers.grammar import DIGITS, SIGNS
from ntloss.numbers.parsing import parse_number
from ntloss.numbers.texts import TokenTexts

_DIGIT = re.compile(f"[{DIGITS}]")
_BEFORE = "".join([" ", *SIGNS])  # what a number token may begin with
LARGEST = torch.finfo(torch.float32).max  # losses are computed in float32
# (digit_level, space_prefixed)
TOKEN_SETS = ((True, False), (True, True), (False, False), (False, True))


@dataclass(frozen=True)
class NumberToken:
    """A token that is a number.

    Args:
        token_id: its id in the vocabulary.
        text: what it decodes to in the middle of a text, including a leading space (`" 4"`).
        value: the number.
        bare: True if the token's own string is the number; False if it has a marker of its tokenizer (`▁4`,
            `Ġ4`, `##4`).
    """

    token_id: int
    text: str
    value: float
    bare: bool

    @property
    def digits(self) -> int:
        """Number of digit characters, not counting an exponent (3 for `" 3.14"`)."""
        return count_digits(self.text.lower().partition("e")[0])

    @property
    def is_digit(self) -> bool:
        """True for a single ASCII digit, with or without a leading space."""
        return self.text.removeprefix(" ") in tuple(DIGITS)

    @property
    def is_whole(self) -> bool:
        """True without a point or an exponent of its own, which would make the token a number by itself."""
        return self.text.lstrip(_BEFORE).isdigit()

    @property
    def starts_number(self) -> bool:
        """True if it begins with a space or a sign, so that it cannot continue the number before it."""
        return self.text[0] in _BEFORE


@dataclass(frozen=True)
class CoverageRow:
    """A token set, and how many digits of a text it covers.

    Args:
        digit_level: True if the set has single digits only.
        space_prefixed: True if the set includes tokens with a marker (`▁4`, `Ġ4`, `##4`).
        tokens: number tokens in the set.
        values: distinct values among them.
        longer_left_out: number tokens outside of the set because they are not a single digit.
        marked_left_out: number tokens outside of the set only because they have a marker.
        seen: digit characters of the text in tokens of the set.
        problem: why the set cannot be used, or None.
    """

    digit_level: bool
    space_prefixed: bool
    tokens: int
    values: int
    longer_left_out: int
    marked_left_out: int
    seen: int
    problem: str | None


@dataclass(frozen=True)
class Coverage:
    """How many digits of a text are in number tokens, the only ones that a number token loss sees.

    Args:
        digits: ASCII digit characters in the text, after the tokenizer's normalization, which may turn `４²`
            into `42`.
        seen: digits in the number tokens of the vocabulary.
        rows: the same for each of the four token sets.
    """

    digits: int
    seen: int
    rows: tuple[CoverageRow, ...]

    @property
    def share(self) -> float:
        """Share of the digits that are seen, from 0 to 1; NaN for a text without digits."""
        return self.seen / self.digits if self.digits else math.nan

    def row(self, digit_level: bool, space_prefixed: bool) -> CoverageRow:
        """The row of a token set."""
        return self.rows[TOKEN_SETS.index((digit_level, space_prefixed))]

    def __str__(self) -> str:
        lines = [f"{self.seen:,} of {self.digits:,} digits are seen by the loss. By token set:"]
        for row in self.rows:
            share = f"{row.seen / self.digits:7.1%}" if self.digits else "      -"
            lines.append(f"  {share}  digit_level={row.digit_level}, space_prefixed={row.space_prefixed}")
        return "\n".join(lines)


def measure_coverage(
    tokens: Sequence[NumberToken], used: Mapping[int, int], texts: Iterable[str], seen: Sequence[NumberToken]
) -> Coverage:
    """Count the digits of texts in the tokens that are `seen`, and in each token set of all `tokens`.

    `used` and `texts` are those of `TokenTexts.count`.
    """

    def digits_in(tokens: Iterable[NumberToken]) -> int:
        return sum(used.get(token.token_id, 0) * count_digits(token.text) for token in tokens)

    rows = []
    for digit_level, space_prefixed in TOKEN_SETS:
        kept, others = split_tokens(tokens, digit_level, space_prefixed)
        longer = sum(digit_level and not token.is_digit for token in others)
        problem = None if kept else "no token is a number in this token set"
        if digit_level and (missing := describe_missing_digits(kept, others)):
            problem = missing.partition(". ")[0]
        rows.append(
            CoverageRow(
                digit_level=digit_level,
                space_prefixed=space_prefixed,
                tokens=len(kept),
                values=len({token.value for token in kept}),
                longer_left_out=longer,
                marked_left_out=len(others) - longer,
                seen=digits_in(kept),
                problem=problem,
            )
        )
    return Coverage(sum(map(count_digits, texts)), digits_in(seen), tuple(rows))


def count_digits(text: str) -> int:
    """Count the ASCII digit characters in `text`."""
    return len(_DIGIT.findall(text))


def value_of(text: str) -> float | None:
    """The number that a token's text stands for, or None if it is none that float32 can hold."""
    number = text.removeprefix(" ")
    if number != number.strip():
        return None
    value = parse_number(number, "whole", thousands="")
    return None if value is None or abs(value) > LARGEST else value


def find_number_tokens(texts: TokenTexts) -> list[NumberToken]:
    """The tokens whose text is a number, by ascending id."""
    values = ((i, text, value_of(text)) for i, text in sorted(texts.decoded.items()))
    return [NumberToken(i, text, value, texts.bare[i]) for i, text, value in values if value is not None]


def split_tokens(
    tokens: Iterable[NumberToken], digit_level: bool, space_prefixed: bool
) -> tuple[list[NumberToken], list[NumberToken]]:
    """Split number tokens into those in a token set and the others."""
    kept: list[NumberToken] = []
    others: list[NumberToken] = []
    for token in tokens:
        is_in_set = (token.is_digit or not digit_level) and (token.bare or space_prefixed)
        (kept if is_in_set else others).append(token)
    return kept, others


def describe_missing_digits(kept: Iterable[NumberToken], others: Iterable[NumberToken]) -> str:
    """Say which of the ten digits a token set lacks, and what to do; nothing if it has them all."""
    found, elsewhere = ({t.text.removeprefix(" ") for t in tokens if t.is_digit} for tokens in (kept, others))
    missing = sorted(set(DIGITS) - found)
    if not missing:
        return ""
    if elsewhere.issuperset(missing):
        return (
            f"the digits {', '.join(missing)} have tokens only with a marker of the tokenizer, such as "
            "'▁4', 'Ġ4' or '##4'. Pass space_prefixed=True to count those."
        )
    return (
        f"the digits {', '.join(missing)} have no token in this vocabulary. Expected all of 0 to 9. Add them "
        f"yourself, tokenizer.add_tokens({missing}), and resize the model to match, "
        "model.resize_token_embeddings(len(tokenizer)); or pass digit_level=False to use the numbers in the "
        "vocabulary."
    )
