"""What a tokenizer does to numbers: what `ntloss inspect` prints, as a value.

Which of its tokens are numbers and in how many forms, what each reading of them sees of a text, and which
reading to choose.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ntloss.token_texts import TokenTexts, as_encoded, count_tokens, texts_of_tokenizer
from ntloss.vocabulary import (
    READINGS,
    NumberToken,
    check_digits,
    count_digits,
    number_tokens,
    split_by_reading,
)

SENTENCE = "The answer is 42, or 3.14 in 2019."

SHAPES = ("one digit", "several digits", "decimal", "signed", "exponent")
MARKERS = ("plain", "after a space", "inside a word")
_SAMPLES = 5
# Single digits have places and ten values, which is worth a few digits of a text.
_ENOUGH = 0.95


@dataclass(frozen=True)
class TokenGroup:
    """Tokens of one kind.

    Args:
        count: how many there are.
        samples: texts of the first five, by token id; with a leading space only where it is the token's own.
    """

    count: int
    samples: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """One way to say which tokens are numbers, and what it sees of the text.

    Args:
        digit_level: True for single digits alone, False for every number.
        space_prefixed: True where tokens that begin with a space count too.
        tokens: number tokens that it counts.
        values: distinct values among them.
        longer_left_out: number tokens that it leaves out because they are no single digit.
        marked_left_out: number tokens that it leaves out only because they wear a marker (`▁4`, `Ġ4`).
        seen: digit characters of the text that it sees.
        problem: why it cannot be used, or None.
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
class Recommendation:
    """The reading to choose.

    Args:
        digit_level: for `NumberVocabulary.from_tokenizer` and `NTLoss`.
        space_prefixed: likewise.
        reason: one sentence.
        code: the line to type.
    """

    digit_level: bool
    space_prefixed: bool
    reason: str
    code: str


@dataclass(frozen=True)
class Inspection:
    """What `inspect_tokenizer` found.

    Args:
        tokenizer: its class.
        vocab_size: one more than its largest token id.
        number_tokens: tokens that are numbers in the widest reading.
        values: distinct values among them.
        forms: number tokens by shape ("one digit", "several digits", "decimal", "signed", "exponent") and
            marker ("plain": none; "after a space": `▁4`, `Ġ4`; "inside a word": `##4`); pairs that occur.
        other_scripts: tokens that are digits of other scripts, by script; no reading counts them.
        mixed: tokens that hold ASCII digits and something else (`"4th"`, `"1,000"`); no reading counts them.
        digits: ASCII digit characters in the text, as the tokenizer normalises it: `４²` may be `42` to it.
        other_digits: digit characters of other scripts in the same.
        readings: the four readings.
        unseen: text of a token to the digits of the text that no reading sees because they lie in it, the
            most first, at most five.
        recommendation: None where no reading sees a single digit.
        notes: what else to know, a sentence each.
    """

    tokenizer: str
    vocab_size: int
    number_tokens: int
    values: int
    forms: Mapping[str, Mapping[str, TokenGroup]]
    other_scripts: Mapping[str, TokenGroup]
    mixed: TokenGroup
    digits: int
    other_digits: int
    readings: tuple[Reading, ...]
    unseen: Mapping[str, int]
    recommendation: Recommendation | None
    notes: tuple[str, ...]


def inspect_tokenizer(tokenizer: Any, texts: str | Iterable[str] = SENTENCE) -> Inspection:
    """Look at a tokenizer with the eyes of a number token loss; it stays as it is.

    Args:
        tokenizer: whatever `NumberVocabulary.from_tokenizer` takes.
        texts: a text, or several; default: a sentence with nine digits.

    Returns:
        The inspection.

    Raises:
        TypeError: `tokenizer` is not a tokenizer.
        ValueError: none of its tokens is a number, or the texts are empty.

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
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty. Expected a text like those that the model is trained on.")
    found = texts_of_tokenizer(tokenizer, every_script=True)
    tokens = number_tokens(found.decoded, found.bare)
    if not tokens:
        raise ValueError(
            f"no number token among the {found.vocab_size:,} tokens of this {type(tokenizer).__name__}. "
            "Expected at least one token whose text is an ASCII number, such as '4'. Add the digits to the "
            "tokenizer and the model, or name tokens that stand for numbers ('<num_4>') with "
            "NumberVocabulary.from_mapping."
        )
    used = count_tokens(found.encode, texts)
    normalized = list(as_encoded(found.normalize, texts))
    digits = sum(map(count_digits, normalized))
    readings = _readings(tokens, used)
    unseen = _unseen(found, tokens, used)
    other_digits = sum(_is_other_digit(character) for text in normalized for character in text)
    if digits:
        recommendation = _recommend(tokens, used, digits)
    else:
        recommendation = _recommend(tokens, count_tokens(found.encode, [SENTENCE]), count_digits(SENTENCE))
    others, mixed = _never_counted(found, tokens)
    return Inspection(
        tokenizer=type(tokenizer).__name__,
        vocab_size=found.vocab_size,
        number_tokens=len(tokens),
        values=len({token.value for token in tokens}),
        forms=_forms(tokens),
        other_scripts=others,
        mixed=mixed,
        digits=digits,
        other_digits=other_digits,
        readings=readings,
        unseen=dict(unseen.most_common(_SAMPLES)),
        recommendation=recommendation,
        notes=(
            *_notes(tokens, readings, digits, other_digits, unseen, recommendation),
            *_notes_on_spaces(found, tokens),
        ),
    )


def _shown(text: str, bare: bool) -> str:
    # WordPiece's "4" begins a word, and is decoded with the space that its "##4" goes without.
    return text.removeprefix(" ") if bare else text


def _group(texts: Sequence[str]) -> TokenGroup:
    return TokenGroup(len(texts), tuple(texts[:_SAMPLES]))


def _forms(tokens: Iterable[NumberToken]) -> dict[str, dict[str, TokenGroup]]:
    texts: dict[tuple[str, str], list[str]] = {}
    for token in tokens:
        texts.setdefault((_shape(token), _marker(token)), []).append(_shown(token.text, token.bare))
    return {
        shape: {marker: _group(texts[shape, marker]) for marker in MARKERS if (shape, marker) in texts}
        for shape in SHAPES
        if any(shape == found for found, _ in texts)
    }


def _shape(token: NumberToken) -> str:
    text = token.text.strip().lower()
    if text[0] in "+-":
        return "signed"
    if "e" in text:
        return "exponent"
    if "." in text:
        return "decimal"
    return "one digit" if token.is_digit else "several digits"


def _marker(token: NumberToken) -> str:
    if token.bare:
        return "plain"
    return "after a space" if token.text.startswith(" ") else "inside a word"


def _is_other_digit(character: str) -> bool:
    return not character.isascii() and character.isdigit()


def _never_counted(
    found: TokenTexts, tokens: Iterable[NumberToken]
) -> tuple[dict[str, TokenGroup], TokenGroup]:
    numbers = {token.token_id for token in tokens}
    scripts: dict[str, list[str]] = {}
    mixed: list[str] = []
    for token_id, text in sorted(found.decoded.items()):
        if token_id in numbers:
            continue
        shown = _shown(text, found.bare[token_id])
        if count_digits(text):
            mixed.append(shown)
        elif text.strip() and all(map(_is_other_digit, text.strip())):
            scripts.setdefault(_script(text.strip()[0]), []).append(shown)
    return {script: _group(texts) for script, texts in sorted(scripts.items())}, _group(mixed)


def _script(digit: str) -> str:
    # "ARABIC-INDIC DIGIT FOUR", "SUPERSCRIPT TWO", "FULLWIDTH DIGIT ONE"
    name = unicodedata.name(digit, "unnamed digit").lower()
    if name.startswith("digit "):  # "DIGIT ONE FULL STOP" is one character
        return "punctuated"
    return name.partition(" digit ")[0] if " digit " in name else name.partition(" ")[0]


def _readings(tokens: Sequence[NumberToken], used: Mapping[int, int]) -> tuple[Reading, ...]:
    return tuple(_reading(tokens, used, *reading) for reading in READINGS)


def _reading(
    tokens: Sequence[NumberToken], used: Mapping[int, int], digit_level: bool, space_prefixed: bool
) -> Reading:
    kept, left_out = split_by_reading(tokens, digit_level, space_prefixed)
    longer = sum(digit_level and not token.is_digit for token in left_out)
    problem = None if kept else "no token is a number in this reading"
    if digit_level:
        try:
            check_digits(kept, left_out)
        except ValueError as error:
            problem = str(error).partition(". ")[0]
    return Reading(
        digit_level=digit_level,
        space_prefixed=space_prefixed,
        tokens=len(kept),
        values=len({token.value for token in kept}),
        longer_left_out=longer,
        marked_left_out=len(left_out) - longer,
        seen=sum(used[token.token_id] * count_digits(token.text) for token in kept),
        problem=problem,
    )


def _unseen(found: TokenTexts, tokens: Iterable[NumberToken], used: Mapping[int, int]) -> Counter[str]:
    numbers = {token.token_id for token in tokens}
    unseen: Counter[str] = Counter()
    for token_id, times in used.items():
        text = found.decoded.get(token_id, "")
        if token_id not in numbers and count_digits(text):
            unseen[_shown(text, found.bare[token_id])] += times * count_digits(text)
    return unseen


def _recommend(tokens: Sequence[NumberToken], used: Mapping[int, int], digits: int) -> Recommendation | None:
    readings = _readings(tokens, used)
    by_digit, by_number = readings[READINGS.index((True, True))], readings[READINGS.index((False, True))]
    if not by_number.seen:
        return None
    digit_level = by_digit.problem is None and by_digit.seen >= _ENOUGH * by_number.seen
    one, any_length = f"{by_digit.seen / digits:.1%}", f"{by_number.seen / digits:.1%}"
    longer = [token for token in tokens if not token.is_digit and used[token.token_id]]
    if by_digit.problem:
        reason = f"Single digits cannot be read alone ({by_digit.problem})"
    elif not longer:
        reason = f"No token of the text is a longer number: single digits hold {one} of its digits"
    else:
        most = max(longer, key=lambda token: used[token.token_id] * count_digits(token.text))
        reason = (
            f"Single digits hold {one} of the text's digits, numbers of any length (such as "
            f"{_shown(most.text, most.bare)!r}) {any_length}"
        )
    chosen = [token for token in tokens if token.is_digit or not digit_level]
    if marked := [token for token in chosen if not token.bare]:
        most = max(marked, key=lambda token: used[token.token_id])
        bare = readings[READINGS.index((digit_level, False))].seen
        where = " or ".join(m for m in MARKERS if m in set(map(_marker, marked)))
        reason += f"; {len(marked):,} of these tokens stand {where} (such as {most.text!r}), "
        reason += f"without which it would be {bare / digits:.1%}."
    else:
        reason += "; none of these tokens stands after a space, so space_prefixed changes nothing."
    code = f"NumberVocabulary.from_tokenizer(tokenizer, digit_level={digit_level}, space_prefixed=True)"
    return Recommendation(digit_level, True, reason, code)


def _notes(
    tokens: Sequence[NumberToken],
    readings: Sequence[Reading],
    digits: int,
    other_digits: int,
    unseen: Counter[str],
    recommendation: Recommendation | None,
) -> list[str]:
    notes = []
    if not digits:
        notes.append(f"The text holds no digit 0 to 9; the recommendation rests on {SENTENCE!r} instead.")
    by_digit, by_number = readings[READINGS.index((True, True))], readings[READINGS.index((False, True))]
    if missing := digits - by_number.seen:
        samples = ", ".join(repr(text) for text, _ in unseen.most_common(_SAMPLES))
        where = (
            f"in tokens that are no numbers, such as {samples}"
            if unseen
            else "in unknown or special tokens, or in bytes"
        )
        notes.append(f"No reading sees {missing:,} of the digits ({missing / digits:.1%}): they lie {where}.")
    if other_digits:
        notes.append(f"Digits of other scripts in the text, which no reading counts: {other_digits:,}.")
    if recommendation is None:
        notes.append("No reading sees a single digit: a number token loss would be zero.")
    elif not recommendation.digit_level:
        values = [token.value for token in tokens]
        notes.append(
            f"The default criterion is in units of the values, here {min(values):,.0f} to "
            f"{max(values):,.0f}, and as large: it would outweigh cross-entropy. Give one on a "
            "scale of its own, such as criterion=NumberLevel()."
        )
        if by_digit.problem is None:
            notes.append("Or split numbers into digits when tokenizing: then digit_level=True sees them all.")
    return notes


def _notes_on_spaces(found: TokenTexts, tokens: Iterable[NumberToken]) -> list[str]:
    texts = {token.token_id: token.text for token in tokens}
    for length in range(2, 11):  # short ones may be single tokens
        number = "1234567890"[:length]
        (ids,) = found.encode([number])
        pieces = [texts[i] for i in ids if i in texts]
        spaced = " ".join(pieces).removeprefix(" ")
        is_one = len(pieces) > 1 and "".join(pieces).removeprefix(" ") == number
        if is_one and list(found.encode([spaced])[0]) == list(ids):
            return [
                f"The tokenizer cannot tell {number!r} from {spaced!r}: both have the same ids. Digits side "
                "by side are read as one number, so separate numbers by more than a space, such as a comma."
            ]
    return []
