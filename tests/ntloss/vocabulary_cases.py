"""What the tests of vocabularies share."""

from __future__ import annotations

from typing import Any

from tiny_tokenizers import DIGITS, NUMBERS, NUMBERS_UP_TO_999

from ntloss import (
    NumberVocabulary,
)

VALUES_OF_DIGITS = {d: float(d) for d in DIGITS}


PLAIN = {**VALUES_OF_DIGITS, **NUMBERS}


PLAIN_OF_BYTES = {**VALUES_OF_DIGITS, "42": 42.0}


def marked(marker: str, values: dict[str, float]) -> dict[str, float]:
    return {marker + text: value for text, value in values.items()}


# By the token's own string; the other tokenizers have only the digits.
VALUES_OF_MAKES = {
    "word_level": PLAIN,
    "word_piece": PLAIN | marked("##", PLAIN),
    "sentence_piece": PLAIN | marked("▁", {t: v for t, v in PLAIN.items() if t != "0"}) | {"88": 88.0},
    "byte_level": PLAIN_OF_BYTES | marked("Ġ", PLAIN_OF_BYTES),
    "llama_3_like": VALUES_OF_DIGITS | {text: float(text) for text in NUMBERS_UP_TO_999},
}


def fields(vocabulary: NumberVocabulary, field: str) -> list[Any]:
    return [getattr(token, field) for token in vocabulary.tokens]
