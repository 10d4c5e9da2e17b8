"""The text of each token of a tokenizer, from the tokenizer's own decoder.

Supports tokenizers of Hugging Face, tiktoken, mistral-common and SentencePiece. They are recognized by their
methods, so that none of these libraries is imported here.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# SentencePiece's byte fallback: "<0x34>" decodes to "4", but "4" is never encoded to it.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Tokens with none of these characters are skipped without decoding them.
_CANDIDATE = re.compile(r"[0-9.+-]")
# ... and are none of these: what else may stand in or before a number, also as byte-level tokens write it.
_MARKS = frozenset([",", "e", "E", "\u2212", *"$€£¥", "âĪĴ", "âĤ¬", "Â£", "Â¥", "", "Ċ", " ", "\n"])
_DIGITS = re.compile(r" ?([0-9]+)")
_SPACE_MARKERS = "▁Ġ"
_BATCH = 1000  # texts; encodings take some fifty times the memory of their texts
Encode = Callable[[list[str]], Sequence[Sequence[int]]]


def cannot_encode(texts: list[str]) -> Sequence[Sequence[int]]:
    """Raise a ValueError: the encoder of a vocabulary that was made without one."""
    raise ValueError(
        "this vocabulary cannot tokenize text: it was made by from_mapping without `encode`. "
        "Pass encode=<text to token ids> to from_mapping."
    )


# At module level, so that a vocabulary can be pickled.
def encode_each(encode: Callable[[str], Sequence[int]], texts: list[str]) -> Sequence[Sequence[int]]:
    """Encode texts one by one."""
    return [encode(text) for text in texts]


@dataclass(frozen=True)
class TokenTexts:
    """The texts of the tokens that may be numbers, signs or decimal points.

    Args:
        decoded: token id to its text in the middle of a text. A leading space is included only if it stands
            for a space in the text, not if the decoder adds it.
        bare: token id to whether the token's own string is that text, without a marker of the tokenizer.
        vocab_size: the largest id plus 1.
        encode: encodes a list of texts to rows of token ids.
        normalize: applies the tokenizer's normalization to a text (T5 turns `４²` into `42`).
    """

    decoded: Mapping[int, str]
    bare: Mapping[int, bool]
    vocab_size: int
    encode: Encode
    normalize: Callable[[str], str] = str


def texts_of_tokenizer(tokenizer: Any, every_script: bool = False) -> TokenTexts:
    """Decode every token that may be part of a number, without changing the tokenizer.

    Args:
        tokenizer: see `NumberVocabulary.from_tokenizer`.
        every_script: include tokens with digits of other scripts, which are never number tokens.

    Returns:
        The texts.

    Raises:
        TypeError: `tokenizer` is not a tokenizer.
    """
    tokenizer = _inner(tokenizer)
    if _has(tokenizer, "get_vocab", "convert_tokens_to_string"):
        return _texts_of_hugging_face(tokenizer, every_script)
    normalize: Callable[[str], str] = str
    if _has(tokenizer, "decode_single_token_bytes", "encode_ordinary", "n_vocab"):
        size, texts = tokenizer.n_vocab, _texts_of_tiktoken(tokenizer)
        encode_one = tokenizer.encode_ordinary  # treats special tokens in a text as text
    elif _has(tokenizer, "id_to_piece", "is_special", "n_words"):
        size, texts = tokenizer.n_words, _texts_of_mistral(tokenizer)
        encode_one = functools.partial(tokenizer.encode, bos=False, eos=False)
    elif _has(tokenizer, "id_to_piece", "is_control", "vocab_size"):
        size, texts = tokenizer.vocab_size(), _texts_of_pieces(tokenizer)
        encode_one = functools.partial(tokenizer.encode, add_bos=False, add_eos=False)
        normalize = tokenizer.normalize
    else:
        raise TypeError(
            f"expected a tokenizer or a NumberVocabulary, given {type(tokenizer).__name__}. Pass a tokenizer "
            "from AutoTokenizer.from_pretrained(...), a processor's `.tokenizer`, a tiktoken encoding, a "
            "mistral-common tokenizer or a SentencePieceProcessor, or list the number tokens with "
            "NumberVocabulary.from_mapping({token_id: value or text}, vocab_size)."
        )
    decoded = {i: text for i, text in texts if _is_candidate(text, every_script)}
    bare = {i: not text.startswith(" ") for i, text in decoded.items()}
    return TokenTexts(decoded, bare, size, functools.partial(encode_each, encode_one), normalize)


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """Return a text, or several, as a list; a TypeError for anything else."""
    items: list[Any] = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"expected a text, or a list of texts, given {type(item).__name__} {item!r:.100}")
    return items


def count_tokens(
    texts: str | Iterable[str], encode: Encode, normalize: Callable[[str], str]
) -> tuple[Counter[int], list[str]]:
    """Count how often each token occurs in texts.

    Args:
        texts: a text, or several.
        encode: see `TokenTexts`.
        normalize: see `TokenTexts`; ASCII texts are taken as they are, since their digits never change.

    Returns:
        Token id to its count, and the normalized texts.
    """
    texts = as_texts(texts)
    used: Counter[int] = Counter()
    for start in range(0, len(texts), _BATCH):
        used.update(itertools.chain.from_iterable(encode(texts[start : start + _BATCH])))
    return used, [text if text.isascii() else normalize(text) for text in texts]


def _has(tokenizer: Any, *names: str) -> bool:
    return not isinstance(tokenizer, type) and all(hasattr(tokenizer, name) for name in names)


def _inner(tokenizer: Any) -> Any:
    # MistralTokenizer wraps an instruct tokenizer, which wraps the tokenizer; transformers' backend for
    # mistral-common wraps a MistralTokenizer.
    if _has(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer"):
        tokenizer = tokenizer.tokenizer
    if _has(tokenizer, "instruct_tokenizer"):
        tokenizer = tokenizer.instruct_tokenizer
    return tokenizer.tokenizer if _has(tokenizer, "encode_instruct", "tokenizer") else tokenizer


def _is_candidate(text: str, every_script: bool) -> bool:
    if _CANDIDATE.search(text) or text.lstrip(" ") in _MARKS:
        return True
    return every_script and not text.isascii() and any(map(str.isdigit, text))


def _texts_of_hugging_face(tokenizer: Any, every_script: bool) -> TokenTexts:
    vocab: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", ()))
    # Decoders drop the leading space of the first token, but not of a later one.
    anchor = tokenizer.convert_tokens_to_string(["a"])
    decoded, bare = {}, {}
    for raw, token_id in vocab.items():
        # Byte-level vocabularies, too, write other scripts in non-ASCII characters.
        is_mark = raw.lstrip(_SPACE_MARKERS) in _MARKS
        wanted = (
            _CANDIDATE.search(raw) or is_mark or (every_script and not raw.lstrip(_SPACE_MARKERS).isascii())
        )
        if wanted and token_id not in special and not _BYTE_TOKEN.fullmatch(raw):
            text = tokenizer.convert_tokens_to_string(["a", raw])[len(anchor) :]
            if _CANDIDATE.search(raw) or is_mark or _is_candidate(text, every_script):
                decoded[token_id] = text
                bare[token_id] = raw == text.removeprefix(" ")
    size = max(len(tokenizer), 1 + max(vocab.values(), default=-1))
    encode = functools.partial(_encode_with, tokenizer)
    decoded = _without_spaces_of_decoder(tokenizer, decoded, bare)
    normalize = functools.partial(_normalize_with, tokenizer)
    return TokenTexts(decoded, bare, size, encode, normalize)


def _without_spaces_of_decoder(
    tokenizer: Any, decoded: dict[int, str], bare: Mapping[int, bool]
) -> dict[int, str]:
    """Remove leading spaces that only the decoder adds.

    A tokenizer without a decoder joins all tokens with spaces, so that `12` is decoded to `1 2`. To detect
    this, a string of digits is encoded, in which no token after the first follows a space. If all of these
    decode with a leading space, the decoder adds it, and it is removed from all tokens of their kind (with or
    without a marker). BERT's tokens keep it: there, `12` is one token or continues with `##2`, and `2` begins
    a word.
    """
    matches = [match for text in decoded.values() if (match := _DIGITS.fullmatch(text))]
    if not any(match[0].startswith(" ") for match in matches):
        return decoded
    # From texts in the vocabulary, shortest first; repeated, because one token may hold all digits.
    texts = sorted({match[1] for match in matches}, key=lambda text: (len(text), text))
    ids = _encode_alone(tokenizer, "".join(texts[:10]) * 2)
    continuing = [i for i in ids if i in decoded][1:]
    # Only some have a space where an added token splits a word: BERT's "2" then begins a new one.
    if not all(decoded[i].startswith(" ") for i in continuing):
        return decoded
    kinds = {bare[i] for i in continuing}
    return {i: text.removeprefix(" ") if bare[i] in kinds else text for i, text in decoded.items()}


def _encode_alone(tokenizer: Any, text: str) -> Sequence[int]:
    # The tokenizer is not called: some require a table or boxes in addition to a text.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    ids: Sequence[int] = ()
    with suppress(Exception):  # the text is unknown, and the tokenizer has no unknown token
        if backend is not None:
            ids = backend.encode(text, add_special_tokens=False).ids
        elif _has(tokenizer, "tokenize", "convert_tokens_to_ids"):
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    return ids


def _texts_of_tiktoken(encoding: Any) -> Iterator[tuple[int, str]]:
    for token_id in range(encoding.n_vocab):
        if not encoding.is_special_token(token_id):
            with suppress(KeyError, UnicodeDecodeError):  # an unused id; part of a character
                yield token_id, encoding.decode_single_token_bytes(token_id).decode()


def _texts_of_mistral(tokenizer: Any) -> Iterator[tuple[int, str]]:
    for token_id in range(tokenizer.n_words):
        if tokenizer.is_special(token_id):
            continue
        if hasattr(tokenizer, "id_to_byte_piece"):  # Tekken; its pieces hide partial characters
            with suppress(UnicodeDecodeError):
                yield token_id, tokenizer.id_to_byte_piece(token_id, "ignore").decode()
        elif not _BYTE_TOKEN.fullmatch(piece := tokenizer.id_to_piece(token_id)):
            yield token_id, piece.replace("▁", " ")


def _texts_of_pieces(processor: Any) -> Iterator[tuple[int, str]]:
    for token_id in range(processor.vocab_size()):
        if not processor.is_control(token_id) and not processor.is_byte(token_id):
            yield token_id, processor.id_to_piece(token_id).replace("▁", " ")


# At module level, so that a vocabulary can be pickled.
def _encode_with(tokenizer: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    # Calling a fast tokenizer resets its truncation and padding, which are restored here.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    truncation, padding = getattr(backend, "truncation", None), getattr(backend, "padding", None)
    try:
        ids: Sequence[Sequence[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises no type of its own
        raise ValueError(
            f"the tokenizer cannot encode the text: {error}. Pass a text of words that it knows, or give it "
            "an unknown token."
        ) from error
    if backend is not None and truncation is not None:
        backend.enable_truncation(**truncation)
    if backend is not None and padding is not None:
        backend.enable_padding(**padding)
    return ids


def _normalize_with(tokenizer: Any, text: str) -> str:
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is not None:
        return str(normalizer.normalize_str(text))
    pieces = getattr(tokenizer, "sp_model", None)  # of a slow tokenizer that wraps SentencePiece
    return text if pieces is None else str(pieces.normalize(text))
