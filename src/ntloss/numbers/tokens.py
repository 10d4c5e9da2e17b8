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

# ASCII only: Python's float() also accepts "1_000", "nan" and the digits of other scripts.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGIT = re.compile(r"[0-9]")
_DIGITS = "0123456789"
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
        digits: number of digit characters, not counting an exponent (3 for `" 3.14"`).
        bare: True if the token's own string is the number; False if it has a marker of its tokenizer (`▁4`,
            `Ġ4`, `##4`).
        starts_number: True if it begins with a space or a sign, so that it cannot continue the number
            before it.
    """

    token_id: int
    text: str
    value: float
    digits: int
    bare: bool
    starts_number: bool

    @property
    def is_digit(self) -> bool:
        """True for a single ASCII digit, with or without a leading space."""
        return self.text.removeprefix(" ") in tuple(_DIGITS)


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
    tokens: Sequence[NumberToken],
    left_out: Sequence[NumberToken],
    used: Mapping[int, int],
    texts: Iterable[str],
) -> Coverage:
    """Count the digits of texts that are in number tokens.

    Args:
        tokens: the number tokens of the vocabulary.
        left_out: the other number tokens of its tokenizer.
        used: token id to its count in the texts.
        texts: the normalized texts.

    Returns:
        The coverage by `tokens`, and by each token set of `tokens` and `left_out`.
    """
    rows = []
    for digit_level, space_prefixed in TOKEN_SETS:
        kept, others = split_tokens((*tokens, *left_out), digit_level, space_prefixed)
        longer = sum(digit_level and not token.is_digit for token in others)
        problem = None if kept else "no token is a number in this token set"
        if digit_level:
            try:
                check_digits(kept, others)
            except ValueError as error:
                problem = str(error).partition(". ")[0]
        rows.append(
            CoverageRow(
                digit_level=digit_level,
                space_prefixed=space_prefixed,
                tokens=len(kept),
                values=len({token.value for token in kept}),
                longer_left_out=longer,
                marked_left_out=len(others) - longer,
                seen=_count_seen(kept, used),
                problem=problem,
            )
        )
    return Coverage(sum(map(count_digits, texts)), _count_seen(tokens, used), tuple(rows))


def _count_seen(tokens: Iterable[NumberToken], used: Mapping[int, int]) -> int:
    return sum(used.get(token.token_id, 0) * count_digits(token.text) for token in tokens)


def count_digits(text: str) -> int:
    """Count the ASCII digit characters in `text`."""
    return len(_DIGIT.findall(text))


def value_of(text: str) -> float | None:
    """The number that a token's text stands for, or None if it is not a number that float32 can hold."""
    number = text.removeprefix(" ")
    if not _NUMBER.fullmatch(number):
        return None
    value = float(number) + 0.0  # turns -0.0 into 0.0
    return value if abs(value) <= LARGEST else None


def find_number_tokens(decoded: Mapping[int, str], bare: Mapping[int, bool]) -> list[NumberToken]:
    """The tokens whose text is a number, by ascending id; see `TokenTexts` for the arguments."""
    tokens = []
    for token_id, text in sorted(decoded.items()):
        if (value := value_of(text)) is not None:
            digits = count_digits(re.split("[eE]", text)[0])
            starts = text[0] in " +-"
            tokens.append(NumberToken(token_id, text, value, digits, bare[token_id], starts))
    return tokens


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


def check_not_empty(tokens: Sequence[NumberToken], vocab_size: int) -> None:
    """Raise a ValueError if a vocabulary has no number tokens."""
    if not tokens:
        raise ValueError(
            f"no number token among {vocab_size:,} tokens. Expected at least one token whose text is an "
            "ASCII number, such as '4'. Add the digits to the tokenizer and the model, or list tokens that "
            "stand for numbers ('<num_4>') with NumberVocabulary.from_mapping({token_id: value})."
        )


def check_digits(kept: Sequence[NumberToken], others: Sequence[NumberToken]) -> None:
    """Raise a ValueError if a digit-level token set lacks one of the ten digits."""

    def digits_of(tokens: Iterable[NumberToken]) -> set[str]:
        return {token.text.removeprefix(" ") for token in tokens if token.is_digit}

    if missing := sorted(set(_DIGITS) - digits_of(kept)):
        if not set(missing) - digits_of(others):
            raise ValueError(
                f"the digits {', '.join(missing)} have tokens only with a marker of the tokenizer, such as "
                "'▁4', 'Ġ4' or '##4'. Pass space_prefixed=True to count those."
            )
        raise ValueError(
            f"the digits {', '.join(missing)} have no token in this vocabulary. Expected all of 0 to 9. Add "
            f"them yourself, tokenizer.add_tokens({missing}), and resize the model to match, "
            "model.resize_token_embeddings(len(tokenizer)); or pass digit_level=False to use the numbers "
            "in the vocabulary."
        )
