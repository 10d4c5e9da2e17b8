"""The number tokens of a vocabulary and their values.

This is all that a number token loss needs from a tokenizer. Each token's text is decoded once, by the
tokenizer's own decoder, and the tokenizer is never changed.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ntloss.callers import warn_caller
from ntloss.numbers.grammar import DIGITS, MARKS, PIECE, POINT, SIGNS, count_digits
from ntloss.numbers.parsing import as_float, parse_number
from ntloss.numbers.texts import TokenTexts, cannot_encode, encode_each, texts_of_tokenizer

_BEFORE = "".join([" ", *SIGNS])  # what a number token may begin with
LARGEST = torch.finfo(torch.float32).max  # losses are computed in float32


class NumberTokensLeftOutWarning(UserWarning):
    """Some number tokens of a vocabulary are not in the chosen token set."""


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
class Coverage:
    """How many digits of a text are in number tokens, the only ones that a number token loss sees.

    Args:
        digits: ASCII digit characters in the text, after the tokenizer's normalization, which may turn `４²`
            into `42`.
        seen: digits in the number tokens.
    """

    digits: int
    seen: int

    @property
    def share(self) -> float:
        """Share of the digits that are seen, from 0 to 1; NaN for a text without digits."""
        return self.seen / self.digits if self.digits else math.nan


@dataclass(frozen=True, eq=False)  # compared by identity, as a key of cached tables
class NumberVocabulary:
    """The number tokens of a vocabulary, made by `from_tokenizer` or `from_mapping`.

    Args:
        vocab_size: width of the model's logits.
        tokens: the number tokens, by ascending id.
        left_out: number tokens that are not in the chosen token set.
        point_ids: ids of the decimal point.
        sign_ids: ids of signs, each with its factor, -1 or +1.
        pieces: ids and texts of all tokens that can begin a written number or continue one: number tokens,
            signs, points, separators of thousands, `e` of exponents, spaces and signs of currencies, and
            digits before other text (`3.`, `3)`).
        letter_ids: ids of tokens that begin with a letter, which no exponent has after it.

    Raises:
        TypeError: `vocab_size` is not an int.
        ValueError: there is no number token, or an id is outside of `vocab_size`.

    Example:
        >>> from ntloss import NumberVocabulary
        >>> digits = {10 + d: str(d) for d in range(10)}
        >>> vocabulary = NumberVocabulary.from_mapping({**digits, 30: " 4", 31: "."}, vocab_size=32)
        >>> vocabulary.values[4], vocabulary.values[10], vocabulary.point_ids
        (4.0, 4.0, (31,))
        >>> vocabulary.distinct_values
        (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    """

    vocab_size: int
    tokens: tuple[NumberToken, ...]
    left_out: tuple[NumberToken, ...] = ()
    point_ids: tuple[int, ...] = ()
    sign_ids: Mapping[int, int] = field(default_factory=dict)
    pieces: Mapping[int, str] = field(default_factory=dict, repr=False)
    letter_ids: tuple[int, ...] = field(default=(), repr=False)
    _texts: TokenTexts = field(default=TokenTexts({}, {}, 0), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.vocab_size, int) or isinstance(self.vocab_size, bool):
            raise TypeError(
                f"vocab_size: expected an int, the width of the model's logits, given {self.vocab_size!r}"
            )
        if not self.tokens:
            raise ValueError(
                f"no number token among {self.vocab_size:,} tokens. Expected at least one token whose text "
                "is an ASCII number, such as '4'. Add the digits to the tokenizer and the model, or list "
                "tokens that stand for numbers ('<num_4>') with "
                "NumberVocabulary.from_mapping({token_id: value})."
            )
        ids = sorted([*self.token_ids, *self.point_ids, *self.sign_ids])
        if ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise ValueError(
                f"token id {ids[0] if ids[0] < 0 else ids[-1]} is outside of a vocabulary of "
                f"{self.vocab_size:,} tokens. Pass vocab_size=<width of the model's logits>."
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the number tokens, in ascending order."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def values(self) -> tuple[float, ...]:
        """Value of each number token, in the order of `token_ids`."""
        return tuple(token.value for token in self.tokens)

    @functools.cached_property
    def distinct_values(self) -> tuple[float, ...]:
        """The distinct values, in ascending order: `4`, `▁4` and `04` have the same value."""
        return tuple(sorted(set(self.values)))

    def value_tensor(self) -> Tensor:
        """The distinct values, `[values]`, float64, on the CPU."""
        return torch.tensor(self.distinct_values, dtype=torch.float64, device="cpu")

    def text_of(self, token_id: int) -> str | None:
        """The text of any token, or None where it is unknown."""
        return self._texts.text_of(token_id)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        digit_level: bool = True,
        space_prefixed: bool = True,
        vocab_size: int | None = None,
    ) -> NumberVocabulary:
        """Find the number tokens of a tokenizer, which is not changed.

        Args:
            tokenizer: a Hugging Face tokenizer (any object with `get_vocab()` and
                `convert_tokens_to_string(tokens)`), a `tiktoken.Encoding`, a mistral-common tokenizer or a
                `sentencepiece.SentencePieceProcessor`. A Hugging Face tokenizer should also be able to
                tokenize text: `coverage` needs this, and it shows whether a space is in the text or only
                added by the decoder.
            digit_level: True keeps the ten ASCII digits; False keeps every token whose text is an ASCII
                number (`42`, `-3`, `3.14`, `3.`, `.5`, `1e3`, `007`).
            space_prefixed: True also keeps tokens with a marker of the tokenizer (`▁4`, `Ġ4`; `##4` for
                WordPiece).
            vocab_size: width of the model's logits, which is often padded. Default: the tokenizer's size.

        Returns:
            The vocabulary. If number tokens are left out, a `NumberTokensLeftOutWarning` says so once.

        Raises:
            TypeError: `tokenizer` is not a tokenizer, or `vocab_size` is not an int.
            ValueError: no token is a number, a digit has no token with `digit_level=True`, or the id of a
                number token is outside of `vocab_size`.
        """
        texts = texts_of_tokenizer(tokenizer)
        size = texts.vocab_size if vocab_size is None else vocab_size
        return cls.from_texts(texts, size, digit_level, space_prefixed)

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[int, float | str],
        vocab_size: int,
        digit_level: bool = False,
        space_prefixed: bool = True,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> NumberVocabulary:
        """List the number tokens directly, for any tokenizer.

        Args:
            mapping: token id to its value, or to its decoded text: a number (`"4"`, `" 4"`, `"-3"`), a
                decimal point, a sign, or another of the `pieces` of a number. Omit all other tokens.
            vocab_size: width of the model's logits.
            digit_level: True keeps single digits only, and requires all ten.
            space_prefixed: False leaves out texts that begin with a space.
            encode: function from a text to its token ids; needed only by `coverage`.

        Returns:
            The vocabulary.

        Raises:
            TypeError: `mapping` is not a mapping, a token id or `vocab_size` is not an int, or a value is
                neither a number nor a text.
            ValueError: there is no number, a digit is missing with `digit_level=True`, an id is outside of
                `vocab_size`, a text is not a number, or a value is not finite.

        Example:
            >>> NumberVocabulary.from_mapping({7: 0.5, 8: "12"}, vocab_size=10).values
            (0.5, 12.0)
        """
        if not isinstance(mapping, Mapping):
            raise TypeError(f"expected a mapping {{token_id: value or text}}, given {type(mapping).__name__}")
        decoded: dict[int, str] = {}
        for token_id, given in mapping.items():
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise TypeError(f"token ids are ints; given {token_id!r} as a key of the mapping")
            decoded[token_id] = _text_of_value(token_id, given)
        bare = {token_id: not text.startswith(" ") for token_id, text in decoded.items()}
        encode_all = cannot_encode if encode is None else functools.partial(encode_each, encode)
        texts = TokenTexts(decoded, bare, vocab_size, encode=encode_all)
        return cls.from_texts(texts, vocab_size, digit_level, space_prefixed)

    @classmethod
    def from_texts(
        cls, texts: TokenTexts, vocab_size: int, digit_level: bool, space_prefixed: bool
    ) -> NumberVocabulary:
        """Make a vocabulary of token texts; see `from_tokenizer`."""
        kept, left_out = split_tokens(find_number_tokens(texts), digit_level, space_prefixed)
        if digit_level and (missing := describe_missing_digits(kept, left_out)):
            raise ValueError(missing)
        if left_out:
            warn_once(_describe_left_out(left_out, len(kept), digit_level))
        marks = sorted(texts.decoded.items())
        signs = {i: text.removeprefix(" ") for i, text in marks}  # a sign may follow a space; a point may not
        return cls(
            vocab_size=vocab_size,
            tokens=tuple(kept),
            left_out=tuple(left_out),
            point_ids=tuple(i for i, text in marks if text == POINT),
            sign_ids={i: SIGNS[text] for i, text in signs.items() if text in SIGNS},
            pieces={i: text or " " for i, text in marks if PIECE.fullmatch(text)},
            letter_ids=texts.letter_ids,
            _texts=texts,
        )

    def coverage(self, texts: str | Iterable[str]) -> Coverage:
        """Count the digits of `texts` that the loss will see; check this before a long training run.

        Args:
            texts: a text, or several.

        Returns:
            The counts; `inspect_tokenizer` compares the token sets of a tokenizer.

        Raises:
            TypeError: `texts` are not texts.
            ValueError: they cannot be encoded, or the vocabulary is of `from_mapping` without `encode`.

        Example:
            >>> vocabulary = NumberVocabulary.from_mapping(
            ...     {ord(d): d for d in "0123456789"}, vocab_size=128, encode=lambda s: [ord(c) for c in s]
            ... )
            >>> vocabulary.coverage("3.14 in 2019").share
            1.0
        """
        used, digits = self._texts.count(texts)
        return Coverage(digits, count_digits_of(self.tokens, used))


def as_vocabulary(given: Any) -> NumberVocabulary:
    """Return a vocabulary as it is; for a tokenizer, make the vocabulary of its default token set."""
    return given if isinstance(given, NumberVocabulary) else NumberVocabulary.from_tokenizer(given)


def count_digits_of(tokens: Iterable[NumberToken], used: Mapping[int, int]) -> int:
    """Count the ASCII digit characters in tokens, given how often each is used."""
    return sum(used.get(token.token_id, 0) * count_digits(token.text) for token in tokens)


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


def _text_of_value(token_id: int, given: Any) -> str:
    if isinstance(given, str):
        if value_of(given) is None and given not in MARKS:
            raise ValueError(
                f"token {token_id}: the text {given!r} is not a number. Expected an ASCII number that "
                f"float32 can hold, such as '4', ' 4' or '3.14', or one of {', '.join(map(repr, MARKS))}. "
                "Give the value instead of the text, or omit the token."
            )
        return given
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(
            f"token {token_id}: expected a number or a text, given {type(given).__name__} {given!r}"
        )
    value = as_float(given)
    if not abs(value) <= LARGEST:
        raise ValueError(f"token {token_id}: expected a finite value that float32 can hold, given {given!r}")
    return str(int(value)) if value.is_integer() else repr(value)


def _describe_left_out(left_out: Sequence[NumberToken], kept: int, digit_level: bool) -> str:
    multiple = [token for token in left_out if digit_level and not token.is_digit]
    marked = [token for token in left_out if token.is_digit or not digit_level]
    parts = []
    if marked:
        parts.append(
            f"{len(marked):,} with a marker of the tokenizer (such as {marked[0].text!r}): "
            "pass space_prefixed=True to count them"
        )
    if multiple:
        parts.append(
            f"{len(multiple):,} that are not a single digit (such as {multiple[0].text!r}): pass "
            "digit_level=False to count them, or tokenize numbers digit by digit"
        )
    return (
        f"{kept:,} tokens count as numbers; {len(left_out):,} more are left out: {'; '.join(parts)}. "
        "NumberVocabulary.coverage(texts) reports what share of the digits in a text the loss sees."
    )


def warn_without_point(vocabulary: NumberVocabulary) -> None:
    """Warn, once in a process, that decimals cannot be found in this vocabulary."""
    if not vocabulary.point_ids:
        warn_once(
            "decimals=True has no effect, because the vocabulary has no decimal point: 3.14 is 3 and 14. "
            "Omit decimals, or add the token of the point, such as from_mapping({..., token_id: '.'}).",
            UserWarning,
        )


@functools.cache
def warn_once(message: str, category: type[Warning] = NumberTokensLeftOutWarning) -> None:
    """Warn once in a process, by default of number tokens that are left out."""
    warn_caller(message, category)
