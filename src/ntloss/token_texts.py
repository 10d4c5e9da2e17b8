"""What text each token of a tokenizer stands for, as its own decoder tells.

Four makes, told apart by what they can do, so that none of their libraries is imported here: Hugging Face,
tiktoken, mistral-common and SentencePiece.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# SentencePiece's byte fallback: "<0x34>" decodes to "4", but no text is ever encoded so.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Tokens that these characters are not part of can be skipped without decoding them.
_CANDIDATE = re.compile(r"[0-9.,+-]")
_DIGITS = re.compile(r" ?([0-9]+)")
_SPACE_MARKERS = "▁Ġ"
_AT_ONCE = 1000  # texts


@dataclass(frozen=True)
class TokenTexts:
    """What a tokenizer says of the tokens that may be numbers, or signs and points of numbers.

    Args:
        decoded: token id to text, in the middle of a text. A leading space is included where it is one of the
            text, and left out where only the decoder puts it there.
        bare: token id to whether the token's own string is that text, without a marker of the tokenizer.
        vocab_size: one more than the largest id.
        encode: texts to rows of token ids.
        normalize: a text to what of it is cut into tokens: to T5's tokenizer `４²` is `42`.
    """

    decoded: Mapping[int, str]
    bare: Mapping[int, bool]
    vocab_size: int
    encode: Callable[[list[str]], Sequence[Sequence[int]]]
    normalize: Callable[[str], str]


def texts_of_tokenizer(tokenizer: Any, every_script: bool = False) -> TokenTexts:
    """Decode every token that may matter; the tokenizer stays as it is.

    Args:
        tokenizer: of Hugging Face (anything with `get_vocab()` and `convert_tokens_to_string(tokens)`; what
            can also `tokenize` shows which leading spaces are its decoder's alone), a `tiktoken.Encoding`,
            one of mistral-common, or a `sentencepiece.SentencePieceProcessor`.
        every_script: also tell the tokens with digits of other scripts, which are no numbers to a loss.

    Returns:
        The texts.

    Raises:
        TypeError: it is no tokenizer.
    """
    tokenizer = _inner(tokenizer)
    if _has(tokenizer, "get_vocab", "convert_tokens_to_string"):
        return _texts_of_hugging_face(tokenizer, every_script)
    normalize: Callable[[str], str] = str  # as it is
    if _has(tokenizer, "decode_single_token_bytes", "encode_ordinary", "n_vocab"):
        size, texts = tokenizer.n_vocab, _texts_of_tiktoken(tokenizer)
        encode = functools.partial(_encode_with_tiktoken, tokenizer)
    elif _has(tokenizer, "id_to_piece", "is_special", "n_words"):
        size, texts = tokenizer.n_words, _texts_of_mistral(tokenizer)
        encode = functools.partial(_encode_with_mistral, tokenizer)
    elif _has(tokenizer, "id_to_piece", "is_control", "vocab_size"):
        size, texts = tokenizer.vocab_size(), _texts_of_pieces(tokenizer)
        encode = functools.partial(_encode_with_pieces, tokenizer)
        normalize = tokenizer.normalize
    else:
        raise TypeError(
            f"expected a tokenizer or a NumberVocabulary, given {type(tokenizer).__name__}. Load one with "
            "AutoTokenizer.from_pretrained(...), take `.tokenizer` of a processor, pass an encoding of "
            "tiktoken or a tokenizer of mistral-common, or name the number tokens with "
            "NumberVocabulary.from_mapping({token_id: value or text}, vocab_size)."
        )
    decoded = {i: text for i, text in texts if _matters(text, every_script)}
    bare = {i: not text.startswith(" ") for i, text in decoded.items()}
    return TokenTexts(decoded, bare, size, encode, normalize)


def count_tokens(encode: Callable[[list[str]], Sequence[Sequence[int]]], texts: list[str]) -> Counter[int]:
    """How often each token occurs in `texts`.

    Args:
        encode: texts to rows of token ids.
        texts: the texts; they are encoded in parts, because encodings take some fifty times their memory.

    Returns:
        Token id to count.
    """
    used: Counter[int] = Counter()
    for start in range(0, len(texts), _AT_ONCE):
        used.update(itertools.chain.from_iterable(encode(texts[start : start + _AT_ONCE])))
    return used


def as_encoded(normalize: Callable[[str], str], texts: Iterable[str]) -> Iterator[str]:
    """The texts as a tokenizer cuts them, in which its tokens' digits can be counted.

    Args:
        normalize: of `TokenTexts`.
        texts: the texts.

    Returns:
        The texts, one by one; those in ASCII as they are, to whose digits nothing is done.
    """
    return (text if text.isascii() else normalize(text) for text in texts)


def _has(tokenizer: Any, *names: str) -> bool:
    return all(hasattr(tokenizer, name) for name in names)


def _inner(tokenizer: Any) -> Any:
    # MistralTokenizer holds an instruct tokenizer, which holds the tokenizer; transformers' backend for
    # mistral-common holds a MistralTokenizer.
    if _has(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer"):
        tokenizer = tokenizer.tokenizer
    if _has(tokenizer, "instruct_tokenizer"):
        tokenizer = tokenizer.instruct_tokenizer
    return tokenizer.tokenizer if _has(tokenizer, "encode_instruct", "tokenizer") else tokenizer


def _matters(text: str, every_script: bool) -> bool:
    if _CANDIDATE.search(text):
        return True
    return every_script and not text.isascii() and any(map(str.isdigit, text))


def _texts_of_hugging_face(tokenizer: Any, every_script: bool) -> TokenTexts:
    vocab: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", ()))
    # Decoders drop the space of a text's first token; behind another token it shows.
    anchor = tokenizer.convert_tokens_to_string(["a"])
    decoded, bare = {}, {}
    for raw, token_id in vocab.items():
        # Byte-level vocabularies write other scripts in letters that are not ASCII either.
        wanted = _CANDIDATE.search(raw) or (every_script and not raw.lstrip(_SPACE_MARKERS).isascii())
        if wanted and token_id not in special and not _BYTE_TOKEN.fullmatch(raw):
            text = tokenizer.convert_tokens_to_string(["a", raw])[len(anchor) :]
            if _CANDIDATE.search(raw) or _matters(text, every_script):
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
    """Drop leading spaces that do not stand for a space in the text.

    A tokenizer without a decoder joins all tokens with spaces, and `12` comes back as `1 2`. The encoder
    knows better: a token behind the first of a string of digits has no space before it. Where all of these
    decode with one, the space is the decoder's, and tokens of their kind, with a marker or without, lose it.
    BERT's keep it: there `12` is one token or continues with `##2`, and `2` begins a word.
    """
    matches = [match for text in decoded.values() if (match := _DIGITS.fullmatch(text))]
    if not any(match[0].startswith(" ") for match in matches):
        return decoded
    # Of texts that the vocabulary has, the shortest first; twice, because one token may hold all digits.
    texts = sorted({match[1] for match in matches}, key=lambda text: (len(text), text))
    ids = _encode_alone(tokenizer, "".join(texts[:10]) * 2)
    behind_first = [i for i in ids if i in decoded][1:]
    # Only some of them: behind an added token, which cuts a word, BERT's "2" begins another one.
    if not all(decoded[i].startswith(" ") for i in behind_first):
        return decoded
    kinds = {bare[i] for i in behind_first}
    return {i: text.removeprefix(" ") if bare[i] in kinds else text for i, text in decoded.items()}


def _encode_alone(tokenizer: Any, text: str) -> Sequence[int]:
    # Without calling the tokenizer: some need a table or boxes beside a text.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    ids: Sequence[int] = ()
    if backend is not None:
        ids = backend.encode(text, add_special_tokens=False).ids
    elif _has(tokenizer, "tokenize", "convert_tokens_to_ids"):
        ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    return ids


def _texts_of_tiktoken(encoding: Any) -> Iterator[tuple[int, str]]:
    for token_id in range(encoding.n_vocab):
        if not encoding.is_special_token(token_id):
            try:
                yield token_id, encoding.decode_single_token_bytes(token_id).decode()
            except (KeyError, UnicodeDecodeError):  # an id that is not in use; part of a character
                continue


def _texts_of_mistral(tokenizer: Any) -> Iterator[tuple[int, str]]:
    in_bytes = getattr(tokenizer, "id_to_byte_piece", None)  # Tekken's; pieces hide parts of characters
    for token_id in range(tokenizer.n_words):
        if tokenizer.is_special(token_id):
            continue
        if in_bytes is None:
            piece = tokenizer.id_to_piece(token_id)
            if not _BYTE_TOKEN.fullmatch(piece):
                yield token_id, piece.replace("▁", " ")
        else:
            try:
                yield token_id, in_bytes(token_id, "ignore").decode()
            except UnicodeDecodeError:
                continue


def _texts_of_pieces(processor: Any) -> Iterator[tuple[int, str]]:
    for token_id in range(processor.vocab_size()):
        if not processor.is_control(token_id) and not processor.is_byte(token_id):
            yield token_id, processor.id_to_piece(token_id).replace("▁", " ")


# Functions of the module, so that a vocabulary can be pickled.
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


def _normalize_with(tokenizer: Any, text: str) -> str:
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is not None:
        return str(normalizer.normalize_str(text))
    pieces = getattr(tokenizer, "sp_model", None)  # of a tokenizer in Python, around SentencePiece
    return text if pieces is None else str(pieces.normalize(text))


def _encode_with_tiktoken(encoding: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    # What looks like a special token in a text is text.
    return [encoding.encode_ordinary(text) for text in texts]


def _encode_with_mistral(tokenizer: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    return [tokenizer.encode(text, bos=False, eos=False) for text in texts]


def _encode_with_pieces(processor: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    ids: Sequence[Sequence[int]] = processor.encode(texts, add_bos=False, add_eos=False)
    return ids
