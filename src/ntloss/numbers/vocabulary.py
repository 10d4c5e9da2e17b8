"""The number tokens of a vocabulary and their values.

This is all that a number token loss needs from a tokenizer. Each token's text is decoded once, by the
tokenizer's own decoder, and the tokenizer is never changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from ntloss.callers import warn_caller
from ntloss.numbers.grammar import (
    DIGITS,
    LARGEST,
    POINT,
    SIGNS,
    check_thousands,
    count_digits,
    is_piece,
    value_of_token,
)
from ntloss.numbers.parsing import as_float
from ntloss.numbers.texts import Spelling, TokenTexts, texts_of_tokenizer
from ntloss.scores.levels import Levels, Scale

_BEFORE = "".join([" ", *SIGNS])  # what a number token may begin with
LONG_NUMBER = "1234567"  # more digits than a token has
_SHOWN = (LONG_NUMBER, "10", "42", "365", "2019")  # some vocabularies have these, although they split others
TOKENS = ("digits", "numbers")
VALUE = 1  # the `NumberToken.kind` of a token that is given by value


@dataclass(frozen=True)
class NumberToken:
    """A token that is a number.

    Args:
        token_id: its id in the vocabulary.
        text: what it decodes to in the middle of a text, including a leading space (`" 4"`).
        value: the number.
        is_value: whether the token is given by its value, such as a coordinate, a time, a bin or a score. It
            is a number of its own, whatever stands beside it, and its text is none. Default: False, its text
            is a number, or a part of one.
    """

    token_id: int
    text: str
    value: float
    is_value: bool = False

    @property
    def digits(self) -> int:
        """Number of digit characters, not counting an exponent (3 for `" 3.14"`)."""
        return count_digits(self.text.lower().partition("e")[0])

    @property
    def is_digit(self) -> bool:
        """True for a single ASCII digit, with or without a leading space."""
        return not self.is_value and self.text.removeprefix(" ") in tuple(DIGITS)

    @property
    def kind(self) -> int:
        """Length and sign in one number: twice its digits, 1 more below zero.

        It is 1 for a token that is given by its value, and 0 for one with a point or an exponent of its own,
        which make it a number by itself.
        """
        if self.is_value:
            return VALUE
        is_whole = self.text.lstrip(_BEFORE).isdigit()
        return 2 * self.digits + (self.value < 0) if is_whole else 0

    @property
    def starts_number(self) -> bool:
        """True if it begins with a space or a sign, so that it cannot continue the number before it."""
        return self.text[0] in _BEFORE


@dataclass(frozen=True, eq=False, repr=False)  # compared by identity, as a key of cached tables
class NumberVocabulary:
    """The number tokens of a vocabulary, made by `from_tokenizer` or `from_mapping`.

    Args:
        vocab_size: width of the model's logits.
        tokens: the number tokens, by ascending id.
        thousands: the separator of thousands in texts and labels, see `parse_numbers`; None if each text
            decides.

    Raises:
        TypeError: `vocab_size` is not an int.
        ValueError: there is no number token, an id is outside of `vocab_size`, or `thousands` is no
            separator.

    Example:
        >>> from ntloss import NumberVocabulary
        >>> digits = {10 + d: str(d) for d in range(10)}
        >>> vocabulary = NumberVocabulary.from_mapping({**digits, 30: " 4", 31: "."}, vocab_size=32)
        >>> vocabulary
        NumberVocabulary(11 digit tokens of 32, values 0 to 9)
        >>> vocabulary.values[4], vocabulary.values[10], vocabulary.point_ids
        (4.0, 4.0, (31,))
        >>> vocabulary.distinct_values
        (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    """

    vocab_size: int
    tokens: tuple[NumberToken, ...]
    thousands: str | None = None
    _texts: TokenTexts = field(default=TokenTexts({}, {}, 0))

    def __post_init__(self) -> None:
        check_thousands(self.thousands)
        _check_size(self.vocab_size)
        if not self.tokens:
            raise ValueError(
                f"no number token among {self.vocab_size:,} tokens. Expected at least one token whose text "
                "is an ASCII number, such as '4'. Add the digits to the tokenizer and the model, or list "
                "tokens that stand for numbers ('<num_4>') with "
                "NumberVocabulary.from_mapping({token_id: value})."
            )
        ids = {token.token_id for token in self.tokens} | self._texts.decoded.keys()
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self.vocab_size:
                raise _outside(token_id, self.vocab_size)

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

    @functools.cached_property
    def value_tokens(self) -> tuple[NumberToken, ...]:
        """The number tokens that are given by value, each a number of its own."""
        return tuple(token for token in self.tokens if token.is_value)

    @functools.cached_property
    def pieces(self) -> Mapping[int, str]:
        """All tokens that can begin a written number, continue one, or change it from behind, with texts.

        These are numbers, signs, separators, currencies, `e` of exponents, magnitudes. Parts of characters
        have a surrogate for each byte.
        """
        texts = ((i, text or " ") for i, text in sorted(self.texts.items()))
        return {i: text for i, text in texts if is_piece(text)}

    @functools.cached_property
    def point_ids(self) -> tuple[int, ...]:
        """Ids of the decimal point, which follows no space."""
        return tuple(i for i, text in self.pieces.items() if text == POINT)

    @functools.cached_property
    def sign_ids(self) -> Mapping[int, int]:
        """Ids of signs, each with its factor, -1 or +1."""
        texts = ((i, text.removeprefix(" ")) for i, text in self.pieces.items())
        return {i: SIGNS[text] for i, text in texts if text in SIGNS}

    @property
    def letter_ids(self) -> tuple[int, ...]:
        """Ids of tokens that begin with a letter, which no exponent has after it."""
        return self._texts.letter_ids

    @property
    def is_digits(self) -> bool:
        """Whether all number tokens are single digits."""
        return all(token.is_digit for token in self.tokens)

    def __repr__(self) -> str:
        kind = "digit" if self.is_digits else "number"
        kind = "value" if len(self.value_tokens) == len(self.tokens) else kind
        smallest, largest = (f"{self.distinct_values[i]:.15g}" for i in (0, -1))
        thousands = "" if self.thousands is None else f", thousands={self.thousands!r}"
        return (
            f"NumberVocabulary({len(self.tokens):,} {kind} tokens of {self.vocab_size:,}, "
            f"values {smallest} to {largest}{thousands})"
        )

    @property
    def texts(self) -> Mapping[int, str]:
        """The texts of all tokens that hold a digit, or a mark that may stand beside one."""
        return self._texts.decoded

    @functools.cached_property
    def spelling(self) -> Spelling:
        """What each token of labels writes."""
        return Spelling(self.tokens, self._texts, self.vocab_size)

    def text_of(self, token_id: int) -> str | None:
        """The text of any token, or None where it is unknown."""
        return self._texts.text_of(token_id)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        tokens: str | None = None,
        vocab_size: int | None = None,
        *,
        thousands: str | None = None,
    ) -> NumberVocabulary:
        """Find the number tokens of a tokenizer, which is not changed.

        Args:
            tokenizer: a Hugging Face tokenizer (any object with `get_vocab()` and
                `convert_tokens_to_string(tokens)`), a `tiktoken.Encoding`, a mistral-common tokenizer or a
                `sentencepiece.SentencePieceProcessor`. A Hugging Face tokenizer should also be able to
                tokenize text: this shows how it writes numbers, and whether a space is in the text or only
                added by the decoder.
            tokens: "digits" for the ten ASCII digits, "numbers" for every token whose text is a number (`42`,
                `3.14`, `.5`, `1e3`, `007`), both with the tokenizer's markers (`▁4`, `Ġ4`, `##4`). Default:
                "digits" if the tokenizer writes 1234567 digit by digit, otherwise "numbers".
            vocab_size: width of the model's logits, which is often padded. Default: the tokenizer's size.
                Tokens beyond it, such as one that was added to the tokenizer alone, are left out.
            thousands: the separator of thousands in texts and labels, see `parse_numbers`: `""` where commas
                and spaces always separate numbers, as in `[120,340]`. Default: each text decides.

        Returns:
            The vocabulary.

        Raises:
            TypeError: `tokenizer` is not a tokenizer, or `vocab_size` is not an int.
            ValueError: no token is a number, a digit has no token with `tokens="digits"`, `vocab_size` leaves
                no token for a digit, a point or a minus, or `thousands` is no separator.
        """
        if tokens not in (None, *TOKENS):
            raise ValueError(
                f"tokens={tokens!r}: expected 'digits', 'numbers', or None to let the tokenizer decide"
            )
        texts = texts_within(tokenizer, vocab_size)
        values = ((i, text, value_of_token(text)) for i, text in sorted(texts.decoded.items()))
        found = [NumberToken(i, text, value) for i, text, value in values if value is not None]
        if tokens is None:
            tokens = choose_tokens(writings_of(texts), found)
        if tokens == "digits":
            found = [token for token in found if token.is_digit]
            if missing := missing_digits(found):
                raise ValueError(
                    f"tokens='digits': the digits {', '.join(missing)} have no token in this vocabulary. "
                    f"Expected all of 0 to 9. Add them yourself, tokenizer.add_tokens({missing}), and resize "
                    "the model to match, model.resize_token_embeddings(len(tokenizer)); or pass "
                    "tokens='numbers' to use the numbers in the vocabulary."
                )
        return cls(texts.vocab_size, tuple(found), thousands, texts)

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[int, float | str],
        vocab_size: int,
        *,
        thousands: str | None = None,
    ) -> NumberVocabulary:
        """List the number tokens directly, for any tokenizer.

        A token that is given by value is a number of its own, whatever stands beside it: a coordinate, a
        time, an action, a bin. One that is given by text is a part of written numbers: `"4"` and `"2"` side
        by side are 42. The ten values 0 to 9, without others and without texts of digits, are the digits.

        Args:
            mapping: token id to its value, a float or an int; or to its decoded text: a number (`"4"`,
                `" 4"`), a decimal point, a sign, or another of the `pieces` of a number. Omit all other
                tokens.
            vocab_size: width of the model's logits.
            thousands: see `from_tokenizer`.

        Returns:
            The vocabulary.

        Raises:
            TypeError: `mapping` is not a mapping, a token id or `vocab_size` is not an int, or a value is
                neither a number nor a text.
            ValueError: there is no number, an id is outside of `vocab_size`, a text is not a number, a value
                is not finite, or `thousands` is no separator.

        Example:
            >>> NumberVocabulary.from_mapping({7: 0.5, 8: "12"}, vocab_size=10).values
            (0.5, 12.0)
            >>> NumberVocabulary.from_mapping({400 + i: i for i in range(1000)}, vocab_size=1500)
            NumberVocabulary(1,000 value tokens of 1,500, values 0 to 999)
        """
        if not isinstance(mapping, Mapping):
            raise TypeError(f"expected a mapping {{token_id: value or text}}, given {type(mapping).__name__}")
        texts: dict[int, str] = {}
        found: list[NumberToken] = []
        for token_id, given in mapping.items():
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise TypeError(f"token ids are ints; given {token_id!r} as a key of the mapping")
            text, value = _text_and_value(token_id, given)
            by_value = not isinstance(given, str)
            if value is not None:
                found.append(NumberToken(token_id, text, value, by_value))
            if not by_value:
                texts[token_id] = text
        if {t.value for t in found if t.is_value} == {*range(10)} and not any(t.is_digit for t in found):
            found = [replace(token, is_value=False) for token in found]
            texts |= {token.token_id: token.text for token in found}
        known = TokenTexts(texts, dict.fromkeys(texts, True), vocab_size)
        return cls(vocab_size, tuple(sorted(found, key=lambda token: token.token_id)), thousands, known)

    @classmethod
    def from_levels(cls, tokenizer: Any, levels: Levels, vocab_size: int | None = None) -> NumberVocabulary:
        """List the levels of a score as number tokens, to train a judge that answers with one of them.

        Each level is one token, with and without a space before it, and is a number of its own. A digit that
        is no level is no number token. Tokens that stand for values, such as `<loc0123>`, are levels, too.

        Args:
            tokenizer: see `from_tokenizer`.
            levels: the scores, such as `range(1, 6)`; or words with their values, such as
                `{"calm": 0, "annoyed": 1, "angry": 2}`.
            vocab_size: width of the model's logits. Default: the tokenizer's size.

        Returns:
            The vocabulary.

        Raises:
            TypeError: `tokenizer` is not a tokenizer, or a level has no value.
            ValueError: fewer than two levels, one whose value is not finite, or one that has no token of its
                own, such as 10 with most tokenizers.

        Example:
            >>> from tokenizers import Tokenizer, models
            >>> from transformers import PreTrainedTokenizerFast
            >>> digits = Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789")}, "0"))
            >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=digits)
            >>> NumberVocabulary.from_levels(tokenizer, range(1, 6)).values
            (1.0, 2.0, 3.0, 4.0, 5.0)
        """
        scale = Scale(levels)
        names = {text: scale.values[level] + 0.0 for level, text in scale.texts.items()}
        texts = texts_within(tokenizer, vocab_size)
        found: dict[int, NumberToken] = {}
        several = []
        for name, value in names.items():
            ids = {i for spaced in (name, f" {name}") if (i := _one_token(texts, spaced)) is not None}
            several += [] if ids else [name]
            found |= {i: NumberToken(i, texts.text_of(i) or name, value, is_value=True) for i in ids}
        if several:
            raise ValueError(
                f"levels: the tokenizer has no token of its own for {', '.join(map(repr, several))}. "
                "Expected levels of one token each: use 0 to 9, or letters with their values, such as "
                "{'A': 1, 'B': 2}"
            )
        return cls(texts.vocab_size, tuple(found[i] for i in sorted(found)), _texts=texts)

    def without_tokenizer(self) -> NumberVocabulary:
        """Return the same vocabulary, which does not keep its tokenizer in memory.

        It has the texts of tokens as long as somebody else keeps the tokenizer.
        """
        return replace(self, _texts=self._texts.without_tokenizer())


def _one_token(texts: TokenTexts, text: str) -> int | None:
    """Return the token that writes a text, maybe after one of a space; None if there is none."""
    try:
        (ids,) = texts.encode([text])
    except ValueError:  # it cannot encode the text
        return None
    return next((i for i in ids if (texts.text_of(i) or "").strip() == text.strip()), None)


def as_vocabulary(given: Any) -> NumberVocabulary:
    """Return a vocabulary as it is; for a tokenizer, make the vocabulary that it chooses by itself."""
    return given if isinstance(given, NumberVocabulary) else NumberVocabulary.from_tokenizer(given)


def texts_within(tokenizer: Any, vocab_size: int | None) -> TokenTexts:
    """Return the texts of the tokens that a model has; a ValueError if it lacks some that numbers need."""
    texts = texts_of_tokenizer(tokenizer)
    if vocab_size is None:
        return texts
    _check_size(vocab_size)
    known = texts.within(vocab_size)
    missing = {*DIGITS, POINT, "-"} - {text.removeprefix(" ") for text in known.decoded.values()}
    if needed := [i for i, text in texts.decoded.items() if text.removeprefix(" ") in missing]:
        raise _outside(max(needed), vocab_size)
    return known


def _check_size(vocab_size: Any) -> None:
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool):
        raise TypeError(f"vocab_size: expected an int, the width of the model's logits, given {vocab_size!r}")


def _outside(token_id: int, vocab_size: int) -> ValueError:
    return ValueError(
        f"token id {token_id} is outside of a vocabulary of {vocab_size:,} tokens. Pass vocab_size=<width of "
        "the model's logits>."
    )


def missing_digits(tokens: Iterable[NumberToken]) -> list[str]:
    """Return those of the ten digits that have no token."""
    return sorted(set(DIGITS) - {token.text.removeprefix(" ") for token in tokens})


def writings_of(texts: TokenTexts) -> dict[str, list[str]]:
    """Return in which tokens a tokenizer writes some numbers, as far as it can, without their spaces."""
    found: dict[str, list[str]] = {number: [] for number in _SHOWN}
    for number in found:
        with suppress(ValueError):  # it has no token for a digit, and none for unknown ones
            (ids,) = texts.encode([number])
            found[number] = [text for i in ids if (text := texts.decoded.get(i, "").strip())]
    return found


def choose_tokens(written: Mapping[str, list[str]], found: Iterable[NumberToken]) -> str:
    """Return "digits" if a tokenizer writes numbers digit by digit and has all ten, otherwise "numbers"."""
    pieces = {piece for each in written.values() for piece in each}
    return TOKENS[0] if pieces and pieces <= {*DIGITS} and not missing_digits(found) else TOKENS[1]


def _text_and_value(token_id: int, given: Any) -> tuple[str, float | None]:
    """Return the text of a token of a mapping, and its value if it is a number."""
    if isinstance(given, str):
        value = value_of_token(given)
        if value is None and (count_digits(given) or not is_piece(given)):
            raise ValueError(
                f"token {token_id}: the text {given!r} is neither a number in ASCII digits that float32 can "
                "hold, such as '4', ' 4' or '3.14', nor a mark of numbers, such as '.', '-' or ','. Give the "
                "value instead of the text, or omit the token."
            )
        return given, value
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(
            f"token {token_id}: expected a number or a text, given {type(given).__name__} {given!r}"
        )
    value = as_float(given) + 0.0  # one zero
    if not abs(value) <= LARGEST:
        raise ValueError(f"token {token_id}: expected a finite value that float32 can hold, given {given!r}")
    return str(int(value)) if value.is_integer() else repr(value), value


def warn_without_point(vocabulary: NumberVocabulary) -> None:
    """Warn, once in a process, that decimals cannot be found in this vocabulary."""
    if not vocabulary.point_ids:
        warn_once(
            "decimals=True has no effect, because the vocabulary has no decimal point: 3.14 is 3 and 14. "
            "Omit decimals, or add the token of the point, such as from_mapping({..., token_id: '.'})."
        )


@functools.cache
def warn_once(message: str) -> None:
    """Warn once in a process."""
    warn_caller(message, UserWarning)
