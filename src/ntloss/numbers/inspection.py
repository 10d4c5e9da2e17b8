"""Report how a tokenizer represents numbers; `ntloss inspect` prints this report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ntloss.numbers.grammar import THOUSANDS, grammar
from ntloss.numbers.texts import Encode, as_texts, texts_of_tokenizer
from ntloss.numbers.tokens import Coverage, NumberToken, count_digits, measure_coverage
from ntloss.numbers.vocabulary import NumberVocabulary

SENTENCE = "The answer is 42, or 3.14 in 2019."

_SHAPES = ("one digit", "several digits", "decimal", "signed", "exponent")
MARKERS = ("plain", "after a space", "inside a word")
_SAMPLES = 5
# Single digits are preferred even if they miss a few digits of the text, because they have decimal places and
# only ten values.
_ENOUGH = 0.95


@dataclass(frozen=True)
class TokenGroup:
    """Tokens of one kind.

    Args:
        count: number of tokens.
        samples: texts of the first five by token id, without leading spaces that only the decoder adds.
    """

    count: int
    samples: tuple[str, ...]


@dataclass(frozen=True)
class Recommendation:
    """The recommended token set.

    Args:
        digit_level: argument of `NumberVocabulary.from_tokenizer` and `NTLoss`.
        space_prefixed: likewise.
        reason: the reason, in one sentence.
        code: the line of code that makes the vocabulary.
    """

    digit_level: bool
    space_prefixed: bool
    reason: str
    code: str


@dataclass(frozen=True)
class Inspection:
    """The findings of `inspect_tokenizer`.

    Args:
        tokenizer: name of its class.
        vocab_size: its largest token id plus 1.
        number_tokens: number of tokens that are numbers.
        values: number of distinct values among them.
        forms: number tokens by shape ("one digit", "several digits", "decimal", "signed", "exponent") and
            marker ("plain": none; "after a space": `▁4`, `Ġ4`; "inside a word": `##4`), without empty groups.
        other_scripts: tokens that are digits of other scripts; they are in no token set.
        mixed: tokens with ASCII digits and other characters (`"4th"`, `"1,000"`); they are in no token set.
        coverage: digits of the text, and how many of them each token set covers.
        other_digits: digit characters of other scripts in the normalized text.
        unseen: the five tokens outside of all token sets that hold the most digits of the text, each with its
            number of digits.
        recommendation: None if no token set covers any digit.
        notes: further findings, a short text each.
    """

    tokenizer: str
    vocab_size: int
    number_tokens: int
    values: int
    forms: Mapping[str, Mapping[str, TokenGroup]]
    other_scripts: TokenGroup
    mixed: TokenGroup
    coverage: Coverage
    other_digits: int
    unseen: Mapping[str, int]
    recommendation: Recommendation | None
    notes: tuple[str, ...]


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
        >>> inspection.number_tokens, inspection.recommendation.digit_level
        (10, True)
    """
    texts = as_texts(texts)
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty. Expected a text like the model's training data.")
    found = texts_of_tokenizer(tokenizer, every_script=True)
    vocabulary = NumberVocabulary.from_texts(found, found.vocab_size, False, True)
    tokens = vocabulary.tokens
    used, normalized = found.count(texts)
    coverage = measure_coverage(tokens, used, normalized, seen=tokens)
    other_digits = sum(_is_other_digit(character) for text in normalized for character in text)
    numbers = set(vocabulary.token_ids)
    others = [
        (i, _shown(text, found.bare[i])) for i, text in sorted(found.decoded.items()) if i not in numbers
    ]
    unseen = Counter[str]()
    for token_id, text in others:
        unseen[text] += used[token_id] * count_digits(text)
    unseen = +unseen  # those of the text
    notes = _notes_on_text(coverage, other_digits, unseen) + _notes_on_separators(normalized)
    based_on = coverage
    if not coverage.digits:
        used, normalized = found.count(SENTENCE)
        based_on = measure_coverage(tokens, used, normalized, seen=tokens)
    recommendation = _recommend(tokens, based_on, used)
    notes += _notes_on_recommendation(vocabulary, coverage, recommendation)
    return Inspection(
        tokenizer=type(tokenizer).__name__,
        vocab_size=found.vocab_size,
        number_tokens=len(tokens),
        values=len(vocabulary.distinct_values),
        forms=_group_forms(tokens),
        other_scripts=_group(t for _, t in others if t.strip() and all(map(_is_other_digit, t.strip()))),
        mixed=_group(text for _, text in others if count_digits(text)),
        coverage=coverage,
        other_digits=other_digits,
        unseen=dict(unseen.most_common(_SAMPLES)),
        recommendation=recommendation,
        notes=(*notes, *_notes_on_spaces(found.encode, tokens)),
    )


def _shown(text: str, bare: bool) -> str:
    # WordPiece's "4" begins a word and is decoded with a space before it, unlike "##4".
    return text.removeprefix(" ") if bare else text


def _is_other_digit(character: str) -> bool:
    return not character.isascii() and character.isdigit()


def _group(texts: Iterable[str]) -> TokenGroup:
    texts = tuple(texts)
    return TokenGroup(len(texts), texts[:_SAMPLES])


def _group_forms(tokens: Iterable[NumberToken]) -> dict[str, dict[str, TokenGroup]]:
    forms: dict[str, dict[str, list[str]]] = {shape: {m: [] for m in MARKERS} for shape in _SHAPES}
    for token in tokens:
        forms[_shape(token)][_marker(token)].append(_shown(token.text, token.bare))
    grouped = {s: {m: _group(texts) for m, texts in groups.items() if texts} for s, groups in forms.items()}
    return {shape: groups for shape, groups in grouped.items() if groups}


def _shape(token: NumberToken) -> str:
    text = token.text.strip().lower()
    if text[0] in "+-":
        return "signed"
    if "e" in text or "." in text:
        return "exponent" if "e" in text else "decimal"
    return "one digit" if token.is_digit else "several digits"


def _marker(token: NumberToken) -> str:
    if token.bare:
        return "plain"
    return "after a space" if token.text.startswith(" ") else "inside a word"


def _recommend(
    tokens: Sequence[NumberToken], coverage: Coverage, used: Mapping[int, int]
) -> Recommendation | None:
    by_digit, by_number = coverage.row(True, True), coverage.row(False, True)
    if not by_number.seen:
        return None
    digit_level = by_digit.problem is None and by_digit.seen >= _ENOUGH * by_number.seen
    one, any_length = (f"{row.seen / coverage.digits:.1%}" for row in (by_digit, by_number))
    longer = [token for token in tokens if not token.is_digit and token.token_id in used]
    if by_digit.problem:
        reason = f"Single digits cannot be used alone ({by_digit.problem})"
    elif not longer:
        reason = f"No token of the text is a longer number: single digits cover {one} of its digits"
    else:
        most = max(longer, key=lambda token: used[token.token_id] * count_digits(token.text))
        reason = (
            f"Single digits cover {one} of the text's digits, and numbers of any length (such as "
            f"{_shown(most.text, most.bare)!r}) {any_length}"
        )
    if marked := [t for t in tokens if not t.bare and (t.is_digit or not digit_level)]:
        most = max(marked, key=lambda token: used.get(token.token_id, 0))
        bare = coverage.row(digit_level, False).seen / coverage.digits
        where = " or ".join(m for m in MARKERS if m in set(map(_marker, marked)))
        reason += f"; {len(marked):,} of these tokens occur {where} (such as {most.text!r}), "
        reason += f"and without them the share would be {bare:.1%}."
    else:
        reason += "; none of these tokens occurs after a space, so space_prefixed changes nothing."
    code = f"NumberVocabulary.from_tokenizer(tokenizer, digit_level={digit_level}, space_prefixed=True)"
    return Recommendation(digit_level, True, reason, code)


def _notes_on_text(coverage: Coverage, other_digits: int, unseen: Counter[str]) -> list[str]:
    notes = []
    if not coverage.digits:
        notes.append(f"The text has no digit 0 to 9; the recommendation is based on {SENTENCE!r} instead.")
    if missing := coverage.digits - coverage.seen:
        samples = ", ".join(repr(text) for text, _ in unseen.most_common(_SAMPLES))
        where = (
            f"tokens that are not numbers, such as {samples}"
            if samples
            else "unknown, special or byte tokens"
        )
        share = f"{missing / coverage.digits:.1%}"
        notes.append(f"No token set covers {missing:,} of the digits ({share}): they are in {where}.")
    if other_digits:
        notes.append(f"Digits of other scripts in the text, which no token set covers: {other_digits:,}.")
    return notes


def _notes_on_separators(texts: Iterable[str]) -> list[str]:
    found = (match.group() for text in texts for match in grammar().number.finditer(text))
    separated = [number for number in found if THOUSANDS in number]
    if not separated:
        return []
    return [
        f"{len(separated):,} numbers of the text have separators of thousands, such as {separated[0]!r}: one "
        "number for metrics, and several for criteria of whole numbers, such as NumberLevel(). Write them "
        "without separators."
    ]


def _notes_on_recommendation(
    vocabulary: NumberVocabulary, coverage: Coverage, recommendation: Recommendation | None
) -> list[str]:
    if recommendation is None:
        return ["No token set covers a single digit: a number token loss would be zero."]
    if recommendation.digit_level:
        return []
    smallest, *_, largest = vocabulary.distinct_values
    notes = [
        f"The default criterion is in units of the values, here {smallest:,.0f} to {largest:,.0f}: the loss "
        "would outweigh cross-entropy. Choose a criterion on a scale of its own, such as "
        "criterion=NumberLevel()."
    ]
    if coverage.row(True, True).problem is None:
        notes.append("Or split numbers into digits when tokenizing: then digit_level=True covers them all.")
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
