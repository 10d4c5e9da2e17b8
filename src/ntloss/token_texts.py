"""What text each token of a tokenizer stands for, as its own decoder tells."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# SentencePiece's byte fallback: "<0x34>" decodes to "4", but no text is ever encoded so.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Tokens that these characters are not part of can be skipped without decoding them.
_CANDIDATE = re.compile(r"[0-9.,+-]")


@dataclass(frozen=True)
class TokenTexts:
    """What a tokenizer says of the tokens that may be numbers, or signs and points of numbers.

    Args:
        decoded: token id to text, in the middle of a text, a leading space included.
        bare: token id to whether the token's own string is that text, without a marker of the tokenizer.
        ids: all ids of the vocabulary.
        encode: texts to rows of token ids.
    """

    decoded: Mapping[int, str]
    bare: Mapping[int, bool]
    ids: Iterable[int]
    encode: Callable[[list[str]], Sequence[Sequence[int]]]


def texts_of_tokenizer(tokenizer: Any) -> TokenTexts:
    """Decode every token that may matter; the tokenizer stays as it is.

    Args:
        tokenizer: anything with `get_vocab()` and `convert_tokens_to_string(tokens)`.

    Returns:
        The texts.

    Raises:
        TypeError: it is no tokenizer.
    """
    if not hasattr(tokenizer, "get_vocab") or not hasattr(tokenizer, "convert_tokens_to_string"):
        raise TypeError(
            f"expected a Hugging Face tokenizer or a NumberVocabulary, given {type(tokenizer).__name__}. "
            "Load one with AutoTokenizer.from_pretrained(...), take `.tokenizer` of a processor, or name "
            "the number tokens with NumberVocabulary.from_mapping({token_id: value or text}, vocab_size)."
        )
    vocab: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", ()))
    # Decoders drop the space of a text's first token; behind another token it shows.
    anchor = tokenizer.convert_tokens_to_string(["a"])
    decoded, bare = {}, {}
    for raw, token_id in vocab.items():
        if _CANDIDATE.search(raw) and token_id not in special and not _BYTE_TOKEN.fullmatch(raw):
            text = tokenizer.convert_tokens_to_string(["a", raw])[len(anchor) :]
            decoded[token_id] = text
            bare[token_id] = raw == text.removeprefix(" ")
    return TokenTexts(decoded, bare, vocab.values(), functools.partial(_encode_with, tokenizer))


# A function of the module, so that a vocabulary can be pickled.
def _encode_with(tokenizer: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    # Calling a fast tokenizer resets the truncation and padding that it may carry.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    truncation, padding = getattr(backend, "truncation", None), getattr(backend, "padding", None)
    ids: Sequence[Sequence[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    if backend is not None and truncation is not None:
        backend.enable_truncation(**truncation)
    if backend is not None and padding is not None:
        backend.enable_padding(**padding)
    return ids
