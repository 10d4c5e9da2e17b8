"""How many digits of a text a tokenizer's number tokens cover, and which token set to use.

A token set is a choice of number tokens by two options: `digit_level` keeps single digits only, and
`space_prefixed` includes tokens with a marker of their tokenizer (`▁4`, `Ġ4`, `##4`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ntloss.numbers.grammar import THOUSANDS, grammar
from ntloss.numbers.texts import Encode, as_texts, texts_of_tokenizer
from ntloss.numbers.vocabulary import (
    NumberToken,
    NumberVocabulary,
    count_digits_of,
    describe_missing_digits,
    split_tokens,
)

SENTENCE = "The answer is 42, or 3.14 in 2019."

# Single digits are preferred even if they miss a few digits of the text, because they have decimal places and
# only ten values.
_ENOUGH = 0.95


@dataclass(frozen=True)
class TokenSet:
    """A token set, and how many digits of a text it covers.

    Args:
        digit_level: True if the set has single digits only.
        space_prefixed: True if the set includes tokens with a marker (`▁4`, `Ġ4`, `##4`).
        tokens: number tokens in the set.
        values: distinct values among them.
        seen: digit characters of the text in tokens of the set.
        problem: why the set cannot be used, or None.
    """

    digit_level: bool
    space_prefixed: bool
    tokens: int
    values: int
    seen: int
    problem: str | None


@dataclass(frozen=True)
class Inspection:
    """The findings of `inspect_tokenizer`; `str` makes the report of `ntloss inspect`.

    Args:
        tokenizer: name of its class.
        vocab_size: its largest token id plus 1.
        digits: ASCII digit characters in the text, see `Coverage`.
        token_sets: how many of these each token set covers: the narrowest first, and last all number tokens.
        recommended: the recommended one of the token sets; None if none covers any digit.
        notes: why, and further findings, a short text each.
    """

    tokenizer: str
    vocab_size: int
    digits: int
    token_sets: tuple[TokenSet, ...]
    recommended: TokenSet | None
    notes: tuple[str, ...]

    @property
    def code(self) -> str:
        """The line of code that makes the recommended vocabulary; empty if there is none."""
        if self.recommended is None:
            return ""
        options = (
            f"digit_level={self.recommended.digit_level}, space_prefixed={self.recommended.space_prefixed}"
        )
        return f"NumberVocabulary.from_tokenizer(tokenizer, {options})"

    def __str__(self) -> str:
        numbers = self.token_sets[-1]
        lines = [
            f"{self.tokenizer}: {numbers.tokens:,} of {self.vocab_size:,} tokens are numbers, "
            f"{numbers.values:,} different values",
            f"{self.digits:,} digits, covered by each token set:",
        ]
        for row in self.token_sets:
            share = f"{row.seen / self.digits:.1%}" if self.digits else "-"
            about = row.problem or f"{row.tokens:,} tokens, {row.values:,} values"
            lines.append(
                f"  {'unusable' if row.problem else share:>8}  "
                f"digit_level={row.digit_level}, space_prefixed={row.space_prefixed}: {about}"
            )
        return "\n".join([*lines, *([f"Choose: {self.code}"] if self.code else []), *self.notes])


def inspect_tokenizer(tokenizer: Any, texts: str | Iterable[str] = SENTENCE) -> Inspection:
    """Report how a tokenizer represents numbers, without changing it.

    Args:
        tokenizer: see `NumberVocabulary.from_tokenizer`.
        texts: a text, or several. Default: a sentence with nine digits.

    Returns:
        The findings.

    Raises:
        TypeError: `tokenizer` is not a tokenizer, or the texts are not texts.
        ValueError: none of its tokens is a number, or the texts are empty or cannot be encoded.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> vocab = {text: i for i, text in enumerate(["?", *"0123456789"])}
        >>> backend = Tokenizer(models.WordLevel(vocab, "?"))
        >>> backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> inspection = inspect_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?"))
        >>> inspection.token_sets[-1].tokens, inspection.recommended.digit_level
        (10, True)
    """
    texts = as_texts(texts)
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty. Expected a text like the model's training data.")
    found = texts_of_tokenizer(tokenizer)
    vocabulary = NumberVocabulary.from_texts(found, found.vocab_size, False, True)
    tokens = vocabulary.tokens
    used, digits = found.count(texts)
    token_sets = _cover(tokens, used)
    recommended, reasons = _recommend(token_sets, digits)
    if not digits:
        used, of_sentence = found.count(SENTENCE)
        recommended, reasons = _recommend(_cover(tokens, used), of_sentence)
        reasons.append(f"The text has no digit 0 to 9; this is based on {SENTENCE!r} instead.")
    if recommended and not recommended.digit_level:
        reasons += _notes_on_large_values(vocabulary)
    notes = (
        *reasons,
        *_notes_on_text(texts, digits - token_sets[-1].seen),
        *_notes_on_spaces(found.encode, tokens),
    )
    return Inspection(type(tokenizer).__name__, found.vocab_size, digits, token_sets, recommended, notes)


def _cover(tokens: Sequence[NumberToken], used: Mapping[int, int]) -> tuple[TokenSet, ...]:
    rows = []
    for digit_level, space_prefixed in ((True, False), (True, True), (False, False), (False, True)):
        kept, others = split_tokens(tokens, digit_level, space_prefixed)
        problem = None if kept else "no token is a number in this token set"
        if digit_level and (missing := describe_missing_digits(kept, others)):
            problem = missing.partition(". ")[0]
        values, seen = len({token.value for token in kept}), count_digits_of(kept, used)
        rows.append(TokenSet(digit_level, space_prefixed, len(kept), values, seen, problem))
    return tuple(rows)


def _recommend(token_sets: Sequence[TokenSet], digits: int) -> tuple[TokenSet | None, list[str]]:
    """Choose a token set, all with markers, and say why."""
    bare_digits, by_digit, bare_numbers, by_number = token_sets
    if not by_number.seen:
        return None, ["No token set covers a single digit: a number token loss would be zero."]
    digit_level = by_digit.problem is None and by_digit.seen >= _ENOUGH * by_number.seen
    bare = bare_digits if digit_level else bare_numbers
    one, any_length, without = (f"{row.seen / digits:.1%}" for row in (by_digit, by_number, bare))
    reason = (
        f"Single digits cannot be used alone ({by_digit.problem})"
        if by_digit.problem
        else f"Single digits cover {one} of the text's digits, and numbers of any length {any_length}"
    )
    reason += f"; without tokens that have a marker of the tokenizer, the share would be {without}."
    return by_digit if digit_level else by_number, [reason]


def _notes_on_large_values(vocabulary: NumberVocabulary) -> list[str]:
    smallest, *_, largest = vocabulary.distinct_values
    return [
        f"The default criterion is in units of the values, here {smallest:,.0f} to {largest:,.0f}: the loss "
        "would outweigh cross-entropy. Choose a criterion on a scale of its own, such as "
        "criterion='number_level', or split numbers into digits when tokenizing."
    ]


def _notes_on_text(texts: Iterable[str], unseen: int) -> list[str]:
    notes = []
    if unseen:
        notes.append(
            f"No token set covers {unseen:,} of the digits: they are in tokens with other characters, or in "
            "unknown, special or byte tokens."
        )
    found = (match.group() for text in texts for match in grammar().number.finditer(text))
    if separated := [number for number in found if THOUSANDS in number]:
        notes.append(
            f"{len(separated):,} numbers of the text have separators of thousands, such as {separated[0]!r}: "
            "one number for metrics, and several for criteria of whole numbers, such as number_level. Write "
            "them without separators."
        )
    return notes


def _notes_on_spaces(encode: Encode, tokens: Iterable[NumberToken]) -> list[str]:
    texts = {token.token_id: token.text for token in tokens}
    number = "1234567"  # more than one token
    with suppress(ValueError):  # unknown, and the tokenizer has no unknown token
        (ids,) = encode([number])
        pieces = [texts[i] for i in ids if i in texts]
        spaced = " ".join(pieces).removeprefix(" ")
        if "".join(pieces).removeprefix(" ") == number != spaced and list(encode([spaced])[0]) == list(ids):
            return [
                f"The tokenizer cannot tell {number!r} from {spaced!r}: both have the same ids. Adjacent "
                "digits form one number, so separate numbers by more than a space, such as a comma."
            ]
    return []
