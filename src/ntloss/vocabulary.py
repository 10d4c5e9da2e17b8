"""Which tokens of a vocabulary are numbers, and what they are worth.

A number token loss needs nothing of a tokenizer but this: a mapping from token ids to values. It is read
once, from the text that the tokenizer's own decoder gives each token, and never changes the tokenizer.
"""

from __future__ import annotations

import functools
import math
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ntloss.token_texts import as_encoded, count_tokens, texts_of_tokenizer

# ASCII on purpose: Python's float() also reads "1_000", "nan" and other scripts' digits.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGIT = re.compile(r"[0-9]")
_LARGEST = torch.finfo(torch.float32).max  # losses are computed in float32
_DIGITS = "0123456789"
_POINTS = (".",)
# A sign may follow a space (" -3"); a point or a separator inside a number may not.
_SIGNS = {"-": -1, " -": -1, "+": 1, " +": 1}
_SEPARATORS = (",",)
_MARKS = (*_POINTS, *_SIGNS, *_SEPARATORS)
# (digit_level, space_prefixed)
READINGS = ((True, False), (True, True), (False, False), (False, True))


class NumberTokensLeftOut(UserWarning):
    """A vocabulary holds number tokens that the chosen reading does not count as numbers."""


@dataclass(frozen=True)
class NumberToken:
    """One token that is a number.

    Args:
        token_id: its id in the vocabulary.
        text: what it decodes to in the middle of a text, a leading space included (`" 4"`).
        value: the number it stands for.
        digits: how many digit characters it holds, exponents left aside (`" 3.14"` holds 3).
        bare: True where the token's own string is the number; False where it wears a marker of its
            tokenizer (`▁4`, `Ġ4`, `##4`).
        starts_number: True where it cannot continue the number before it: it begins with a space or a sign.
    """

    token_id: int
    text: str
    value: float
    digits: int
    bare: bool
    starts_number: bool

    @property
    def is_digit(self) -> bool:
        """True for one ASCII digit and nothing else, a leading space aside."""
        return self.text.removeprefix(" ") in tuple(_DIGITS)


@dataclass(frozen=True)
class Coverage:
    """How many of the digit characters of a text a number token loss sees.

    Args:
        digits: ASCII digit characters in the text, as the tokenizer normalises it: `４²` may be `42` to it.
        seen: those that lie in tokens which the vocabulary counts as numbers.
        seen_by_reading: the same for each reading of the tokenizer, by `(digit_level, space_prefixed)`.
    """

    digits: int
    seen: int
    seen_by_reading: Mapping[tuple[bool, bool], int]

    @property
    def share(self) -> float:
        """Share of the digits that is seen, from 0 to 1; NaN for a text without digits."""
        return self.seen / self.digits if self.digits else math.nan

    def __str__(self) -> str:
        lines = [f"{self.seen:,} of {self.digits:,} digits are seen by the loss. By reading:"]
        for (digit_level, space_prefixed), seen in self.seen_by_reading.items():
            share = f"{seen / self.digits:7.1%}" if self.digits else "      -"
            lines.append(f"  {share}  digit_level={digit_level}, space_prefixed={space_prefixed}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)  # a vocabulary is itself: tables are kept for each
class NumberVocabulary:
    """The number tokens of a vocabulary; made by `from_tokenizer` or `from_mapping`.

    Args:
        vocab_size: width of the logits that go with it.
        tokens: the number tokens, by ascending id.
        left_out: tokens that are numbers too, but not in the chosen reading.
        point_ids: ids of the decimal point.
        sign_ids: ids of signs, each with its factor, -1 or +1.
        separator_ids: ids of the thousands separator (a comma).

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
    separator_ids: tuple[int, ...] = ()
    _encode: Callable[[list[str]], Sequence[Sequence[int]]] | None = field(default=None, repr=False)
    _normalize: Callable[[str], str] = field(default=str, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.vocab_size, int) or isinstance(self.vocab_size, bool):
            raise TypeError(
                f"vocab_size: expected an int, the width of the model's logits, given {self.vocab_size!r}"
            )
        if not self.tokens:
            raise ValueError(
                f"no number token among {self.vocab_size:,} tokens. Expected at least one token whose text "
                "is an ASCII number, such as '4'. Add the digits to the tokenizer, or name the number tokens "
                "with NumberVocabulary.from_mapping({token_id: value})."
            )
        ids = sorted([*self.token_ids, *self.point_ids, *self.sign_ids, *self.separator_ids])
        if ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise ValueError(
                f"token id {ids[0] if ids[0] < 0 else ids[-1]} lies outside of a vocabulary of "
                f"{self.vocab_size:,} tokens. Pass vocab_size=<width of the model's logits>."
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the number tokens, ascending."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def values(self) -> tuple[float, ...]:
        """Value of each number token, in the order of `token_ids`."""
        return tuple(token.value for token in self.tokens)

    @property
    def digit_counts(self) -> tuple[int, ...]:
        """Count of digits of each number token, in the order of `token_ids`."""
        return tuple(token.digits for token in self.tokens)

    @property
    def starts_number(self) -> tuple[bool, ...]:
        """Whether each number token starts a new number, in the order of `token_ids`."""
        return tuple(token.starts_number for token in self.tokens)

    @functools.cached_property
    def distinct_values(self) -> tuple[float, ...]:
        """The values, ascending, each once: `4`, `▁4` and `04` are one number."""
        return tuple(sorted(set(self.values)))

    def value_tensor(self) -> Tensor:
        """`[values]`, the distinct values in float64 on the CPU."""
        return torch.tensor(self.distinct_values, dtype=torch.float64, device="cpu")

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        digit_level: bool = True,
        space_prefixed: bool = True,
        vocab_size: int | None = None,
    ) -> NumberVocabulary:
        """Read the number tokens of a tokenizer, which stays as it is.

        Args:
            tokenizer: of Hugging Face (anything with `get_vocab()` and `convert_tokens_to_string(tokens)`;
                what can also `tokenize` shows which leading spaces are its decoder's alone, and `coverage`
                calls it on texts), a `tiktoken.Encoding`, a tokenizer of mistral-common, or a
                `sentencepiece.SentencePieceProcessor`.
            digit_level: True keeps the ten ASCII digits; False keeps every token whose text is an ASCII
                number (`42`, `-3`, `3.14`, `3.`, `.5`, `1e3`, `007`).
            space_prefixed: True also keeps numbers that wear a marker of the tokenizer (`▁4`, `Ġ4`; for
                WordPiece `##4`).
            vocab_size: width of the model's logits. Default: the tokenizer's. Models often pad theirs.

        Returns:
            The vocabulary. A `NumberTokensLeftOut` warning tells, once, of number tokens left out.

        Raises:
            TypeError: `tokenizer` is not a tokenizer.
            ValueError: a digit has no token, or a number token's id lies outside of `vocab_size`.
        """
        texts = texts_of_tokenizer(tokenizer)
        size = texts.vocab_size if vocab_size is None else vocab_size
        return cls._read(
            texts.decoded, texts.bare, size, digit_level, space_prefixed, texts.encode, texts.normalize
        )

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[int, float | str],
        vocab_size: int,
        digit_level: bool = False,
        space_prefixed: bool = True,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> NumberVocabulary:
        """Name the number tokens directly; for tokenizers of any make.

        Args:
            mapping: token id to value, or to the token's text as decoded: an ASCII number (`"4"`, `" 4"`,
                `"-3"`), a decimal point, a sign or a comma. Leave the other tokens of a vocabulary out.
            vocab_size: width of the model's logits.
            digit_level: True keeps single digits alone, and then asks for all ten.
            space_prefixed: False leaves out texts that begin with a space.
            encode: text to token ids; only `coverage` needs it.

        Returns:
            The vocabulary.

        Raises:
            TypeError: a token id is not an int, or a value neither a number nor a text.
            ValueError: no number at all, an id outside of `vocab_size`, a text that is no number, or a value
                that is not finite.

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
        batch_encode = None if encode is None else functools.partial(_encode_each, encode)
        return cls._read(decoded, bare, vocab_size, digit_level, space_prefixed, batch_encode)

    @classmethod
    def _read(
        cls,
        decoded: Mapping[int, str],
        bare: Mapping[int, bool],
        vocab_size: int,
        digit_level: bool,
        space_prefixed: bool,
        encode: Callable[[list[str]], Sequence[Sequence[int]]] | None,
        normalize: Callable[[str], str] = str,
    ) -> NumberVocabulary:
        kept, left_out = split_by_reading(number_tokens(decoded, bare), digit_level, space_prefixed)
        if digit_level:
            check_digits(kept, left_out)
        if left_out:
            _warn_once(_describe_left_out(left_out, len(kept), digit_level))
        by_text: dict[str, list[int]] = {}
        for token_id, text in sorted(decoded.items()):
            by_text.setdefault(text, []).append(token_id)
        return cls(
            vocab_size=vocab_size,
            tokens=tuple(kept),
            left_out=tuple(left_out),
            point_ids=tuple(i for point in _POINTS for i in by_text.get(point, ())),
            sign_ids={i: factor for sign, factor in _SIGNS.items() for i in by_text.get(sign, ())},
            separator_ids=tuple(i for comma in _SEPARATORS for i in by_text.get(comma, ())),
            _encode=encode,
            _normalize=normalize,
        )

    def coverage(self, texts: str | Iterable[str]) -> Coverage:
        """Count the digit characters of `texts` that the loss will see; run it before a long training.

        Args:
            texts: a text, or several.

        Returns:
            The counts for this vocabulary and for the four readings of its tokenizer.

        Raises:
            ValueError: the vocabulary was made by `from_mapping` without `encode`.

        Example:
            >>> vocabulary = NumberVocabulary.from_mapping(
            ...     {ord(d): d for d in "0123456789"}, vocab_size=128, encode=lambda s: [ord(c) for c in s]
            ... )
            >>> vocabulary.coverage("3.14 in 2019").share
            1.0
        """
        if self._encode is None:
            raise ValueError(
                "this vocabulary cannot tokenize text: it was made by from_mapping without `encode`. "
                "Pass encode=<text to token ids> to from_mapping."
            )
        texts = [texts] if isinstance(texts, str) else list(texts)
        used = count_tokens(self._encode, texts)
        seen = sum(used[token.token_id] * count_digits(token.text) for token in self.tokens)
        by_reading = {
            reading: sum(
                used[token.token_id] * count_digits(token.text)
                for token in (*self.tokens, *self.left_out)
                if in_reading(token, *reading)
            )
            for reading in READINGS
        }
        digits = sum(map(count_digits, as_encoded(self._normalize, texts)))
        return Coverage(digits, seen, by_reading)


def as_vocabulary(given: Any) -> NumberVocabulary:
    """The vocabulary itself, or the default reading of a tokenizer."""
    return given if isinstance(given, NumberVocabulary) else NumberVocabulary.from_tokenizer(given)


# A function of the module, so that a vocabulary can be pickled.
def _encode_each(encode: Callable[[str], Sequence[int]], texts: list[str]) -> Sequence[Sequence[int]]:
    return [encode(text) for text in texts]


def _value_of(text: str) -> float | None:
    number = text.removeprefix(" ")
    if not _NUMBER.fullmatch(number):
        return None
    value = float(number) + 0.0  # -0.0 and 0.0 are one value
    return value if abs(value) <= _LARGEST else None


def _text_of_value(token_id: int, given: Any) -> str:
    if isinstance(given, str):
        if _value_of(given) is None and given not in _MARKS:
            raise ValueError(
                f"token {token_id}: the text {given!r} is no number. Expected an ASCII number that float32 "
                f"can hold, such as '4', ' 4' or '3.14', or one of {', '.join(map(repr, _MARKS))}. Give the "
                "value instead of the text, or leave the token out of the mapping."
            )
        return given
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(
            f"token {token_id}: expected a number or a text, given {type(given).__name__} {given!r}"
        )
    try:
        value = float(given)
    except OverflowError:
        value = math.inf
    if not abs(value) <= _LARGEST:
        raise ValueError(f"token {token_id}: expected a finite value that float32 can hold, given {given!r}")
    return str(int(value)) if value.is_integer() else repr(value)


def count_digits(text: str) -> int:
    """ASCII digit characters in `text`."""
    return len(_DIGIT.findall(text))


def number_tokens(decoded: Mapping[int, str], bare: Mapping[int, bool]) -> list[NumberToken]:
    """The tokens that are numbers in any reading, by ascending id."""
    tokens = []
    for token_id, text in sorted(decoded.items()):
        if (value := _value_of(text)) is not None:
            stripped = text.removeprefix(" ")
            digits = count_digits(re.split("[eE]", stripped)[0])
            starts = text.startswith(" ") or stripped[0] in _SIGNS
            tokens.append(NumberToken(token_id, text, value, digits, bare[token_id], starts))
    return tokens


def in_reading(token: NumberToken, digit_level: bool, space_prefixed: bool) -> bool:
    """Whether a reading of a tokenizer counts this token."""
    return (token.is_digit or not digit_level) and (token.bare or space_prefixed)


def split_by_reading(
    tokens: Iterable[NumberToken], digit_level: bool, space_prefixed: bool
) -> tuple[list[NumberToken], list[NumberToken]]:
    """The tokens that a reading counts, and those it leaves out."""
    kept: list[NumberToken] = []
    left_out: list[NumberToken] = []
    for token in tokens:
        (kept if in_reading(token, digit_level, space_prefixed) else left_out).append(token)
    return kept, left_out


def check_digits(kept: Sequence[NumberToken], left_out: Sequence[NumberToken]) -> None:
    """Raise a ValueError where a digit-level reading lacks one of the ten digits."""

    def digits_of(tokens: Iterable[NumberToken]) -> set[str]:
        return {token.text.removeprefix(" ") for token in tokens if token.is_digit}

    if missing := sorted(set(_DIGITS) - digits_of(kept)):
        if not set(missing) - digits_of(left_out):
            raise ValueError(
                f"the digits {', '.join(missing)} have tokens only with a space before them. "
                "Pass space_prefixed=True to count those."
            )
        raise ValueError(
            f"the digits {', '.join(missing)} have no token in this vocabulary. Expected all of 0 to 9. Add "
            f"them yourself, tokenizer.add_tokens({missing}), and enlarge the model to match, "
            "model.resize_token_embeddings(len(tokenizer)); or pass digit_level=False to use the numbers "
            "that the vocabulary has."
        )


def _describe_left_out(left_out: Sequence[NumberToken], kept: int, digit_level: bool) -> str:
    parts = []
    multiple = [token for token in left_out if digit_level and not token.is_digit]
    marked = [token for token in left_out if not digit_level or token.is_digit]
    if marked:
        parts.append(
            f"{len(marked):,} with a space before them (such as {marked[0].text!r}): "
            "pass space_prefixed=True to count them"
        )
    if multiple:
        parts.append(
            f"{len(multiple):,} that are no single digit (such as {multiple[0].text!r}): pass "
            "digit_level=False to count them, or tokenize numbers digit by digit"
        )
    return (
        f"{kept:,} tokens are read as numbers; {len(left_out):,} more are left out: {'; '.join(parts)}. "
        "NumberVocabulary.coverage(texts) tells what share of the digits in a text the loss sees."
    )


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, NumberTokensLeftOut, stacklevel=4)
