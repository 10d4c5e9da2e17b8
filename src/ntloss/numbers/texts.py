"""The text of each token of a tokenizer, from the tokenizer's own decoder.

Supports tokenizers of Hugging Face, tiktoken, mistral-common and SentencePiece. They are recognized by their
methods, so that none of these libraries is imported here.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ntloss.numbers.grammar import (
    DIGITS,
    OTHER_DIGIT,
    POINT,
    characters,
    count_digits,
    is_subword,
    with_ascii_sign,
)

# SentencePiece's byte fallback: "<0x34>" decodes to "4", but "4" is never encoded to it.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Byte-level tokens write printable bytes as characters of Latin-1, and other bytes as characters from 256.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OF_BYTE = {b: chr(b) for b in _PRINTABLE}
_OF_BYTE |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in _PRINTABLE)}
_TO_BYTES = str.maketrans({character: chr(b) for b, character in _OF_BYTE.items()})
# Tokens are decoded only if they hold a digit, consist of marks in either spelling, which a magnitude may
# follow, or may be a part of a word in a number.
_MARKERS = "▁Ġ#- "
_SURROGATES = re.compile("[\udc80-\udcff]+")
ASCII_DIGIT = re.compile(rb"[0-9]")
_A_DIGIT = re.compile(f"[{DIGITS}]")
_MAY_BE_BYTES = re.compile("[^\x00-\x7fĠ▁]|^<0x")
_MARKS = re.compile(rf"[▁\n{re.escape(''.join(characters()))}]*(?:{OTHER_DIGIT}.*)?", re.DOTALL)
_LETTER = "[A-Za-z]"
_BATCH = 1000  # texts; encodings take some fifty times the memory of their texts
Encode = Callable[[list[str]], Sequence[Sequence[int]]]


# At module level, as all encoders here, so that a vocabulary can be pickled.
def cannot_encode(texts: list[str]) -> Sequence[Sequence[int]]:
    """Raise a ValueError: the encoder of a vocabulary that was made without one."""
    raise ValueError(
        "this vocabulary cannot tokenize text: it was made by from_mapping without `encode`. "
        "Pass encode=<text to token ids> to from_mapping."
    )


def encode_each(encode: Callable[[str], Sequence[int]], texts: list[str]) -> Sequence[Sequence[int]]:
    """Encode texts one by one."""
    return [encode(text) for text in texts]


def _may_be_in_number(raw: str) -> bool:
    if _A_DIGIT.search(raw):
        return True
    word = raw.lstrip(_MARKERS)
    if not word.isascii():
        return any(_is_of_number(text) for text in (raw, _of_bytes(raw) or raw))
    # Most tokens are words; with a space of byte-level vocabularies, it alone is not ASCII.
    return is_subword(word) if word[:1].isalpha() else _is_of_number(raw.replace("Ġ", " "))


def _is_of_number(text: str) -> bool:
    return is_subword(text.lstrip(_MARKERS)) or _MARKS.fullmatch(text) is not None


def _of_bytes(raw: str) -> str | None:
    """Return the text of a byte-level token, with surrogates for parts of characters; None if it is none."""
    with suppress(UnicodeEncodeError):  # a character stands for no byte
        return raw.translate(_TO_BYTES).encode("latin-1").decode("utf-8", "surrogateescape")
    return None


def _stands_for_bytes(raw: str) -> bool:
    return _of_bytes(raw) not in (None, raw)


@functools.cache
def _characters() -> frozenset[str]:
    return frozenset(characters())


@functools.cache
def _parts() -> frozenset[bytes]:
    """Return the parts of those characters of numbers that have several bytes."""
    encoded = [c.encode() for c in characters() if not c.isascii()]
    return frozenset(
        each[i:j]
        for each in encoded
        for i in range(len(each))
        for j in range(i + 1, len(each) + 1)
        if j - i < len(each)
    )


def _is_part(text: str) -> bool:
    """Whether a text holds parts of characters of a number, as surrogates, and marks and digits besides."""
    runs = _SURROGATES.findall(text)
    rest = _SURROGATES.sub("", text)
    return (
        bool(runs)
        and all(run.encode("utf-8", "surrogateescape") in _parts() for run in runs)
        and all(c in _characters() for c in rest)
    )


@dataclass(frozen=True)
class TokenTexts:
    """The texts of the tokens that may stand in a number, or beside it."""

    # Token id to its text in the middle of a text. A leading space is included only if it stands for a space
    # in the text, not if the decoder adds it.
    decoded: Mapping[int, str]
    bare: Mapping[int, bool]  # whether the token's own string is that text, without a tokenizer's marker
    vocab_size: int  # the largest id plus 1
    letter_ids: tuple[int, ...] = ()  # of the tokens that begin with an ASCII letter, without a space
    encode: Encode = cannot_encode  # encodes a list of texts to rows of token ids
    normalize: Callable[[str], str] = str  # the tokenizer's own normalization (T5 turns `４²` into `42`)
    spell: Callable[[int], bytes | None] | None = None  # what any token writes, in UTF-8
    # Tokens that are parts of characters of numbers (U+202F is two tokens of bytes), with a surrogate for
    # each byte, as `bytes.decode(errors="surrogateescape")` writes them.
    parts: Mapping[int, str] = field(default_factory=dict)
    # Pairs of kinds of characters between which the tokenizer keeps no space, see `kind_of`.
    unkept: frozenset[tuple[str, str]] = frozenset()

    def without_tokenizer(self) -> TokenTexts:
        """Return the same texts, which do not keep their tokenizer in memory."""
        spell = self.spell
        if isinstance(spell, functools.partial):
            spell = functools.partial(_spell_if_alive, spell.func, weakref.ref(spell.args[0]))
        return replace(self, encode=cannot_encode, normalize=str, spell=spell)

    def within(self, vocab_size: int) -> TokenTexts:
        """Return the texts of the tokens whose ids are below a number."""
        if self.vocab_size <= vocab_size:
            return self
        decoded, parts = (
            {i: text for i, text in known.items() if i < vocab_size} for known in (self.decoded, self.parts)
        )
        letter_ids = tuple(i for i in self.letter_ids if i < vocab_size)
        return replace(self, decoded=decoded, parts=parts, letter_ids=letter_ids, vocab_size=vocab_size)

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return what any token writes, maybe a part of a character; None where it is unknown."""
        text = self.decoded.get(token_id)
        if text is not None and "\ufffd" not in text:  # which a decoder writes for a part of a character
            return text.encode()
        return None if self.spell is None else self.spell(token_id)

    def spelled(self, token_id: int) -> bytes | None:
        """As `bytes_of`, but with x for the digits of special tokens, which are no numbers: `<|12|>`."""
        written = self.bytes_of(token_id)
        return written if written is None or token_id in self.decoded else ASCII_DIGIT.sub(b"x", written)

    def text_of(self, token_id: int) -> str | None:
        """Return the text of any token, for messages; None where it is unknown."""
        spelled = self.bytes_of(token_id)
        return None if spelled is None else spelled.decode(errors="replace")

    def count(self, texts: str | Iterable[str]) -> tuple[Counter[int], int]:
        """Count how often each token occurs in texts; return the counts, and that of the texts' digits."""
        texts = as_texts(texts)
        used: Counter[int] = Counter()
        for start in range(0, len(texts), _BATCH):
            used.update(itertools.chain.from_iterable(self.encode(texts[start : start + _BATCH])))
        # The digits of ASCII texts never change.
        normalized = (text if text.isascii() else self.normalize(text) for text in texts)
        return used, sum(map(count_digits, normalized))


BREAK = b"\0"
"""What stands in no text, in place of labels that are ignored, and between rows."""
# In place of tokens whose text is unknown. A digit of another script is no letter, which would make a word of
# the digits after it, but keeps a point from being the beginning of a number.
_UNKNOWN = BREAK + "\u0660".encode()


class Spelling(dict[int, bytes]):
    """What each token writes, in UTF-8: a token is looked up when it is first asked for.

    Those that are given by value write what stands in no text, so that nothing beside them joins over them.

    Args:
        tokens: the number tokens, of `NumberToken`.
        texts: the texts of all tokens.
        vocab_size: width of the model's logits.

    Attributes:
        is_number: `[vocab]`, bool, whether a token is a number token.
        points: `[vocab]`, digits after the point of a number token's own, 2 for `3.14`.
        powers: `[vocab]`, exponent of a number token's own, 3 for `1e3`.
        kinds: `[vocab]`, `NumberToken.kind`.
        magnitudes: `[vocab]`, float64, absolute values of the tokens that are given by value; None if there
            are none.
    """

    def __init__(self, tokens: Sequence[Any], texts: TokenTexts, vocab_size: int) -> None:
        super().__init__()
        self._texts = texts
        with torch.device("cpu"), torch.inference_mode(False):
            self.is_number = torch.zeros(vocab_size, dtype=torch.bool)
            self.points, self.powers, self.kinds = torch.zeros(3, vocab_size, dtype=torch.int64)
            has_values = any(token.is_value for token in tokens)
            self.magnitudes = torch.zeros(vocab_size, dtype=torch.float64) if has_values else None
        self._unkept = texts.unkept
        self._digits: dict[int, int] = {}  # in what each token writes that was looked up
        for token in tokens:
            if token.is_value and self.magnitudes is not None:
                self._add(token.token_id, BREAK)
                self.kinds[token.token_id] = token.kind
                self.magnitudes[token.token_id] = abs(token.value)
                continue
            self._add(token.token_id, token.text.encode())
            mantissa, _, power = with_ascii_sign(token.text).lower().partition("e")
            self.is_number[token.token_id] = True
            self.points[token.token_id] = len(mantissa.partition(POINT)[2])
            self.powers[token.token_id] = int(power or 0)
            self.kinds[token.token_id] = token.kind

    def __missing__(self, token_id: int) -> bytes:
        return self._add(token_id, BREAK if token_id < 0 else self._texts.spelled(token_id) or _UNKNOWN)

    def _add(self, token_id: int, spelled: bytes) -> bytes:
        self[token_id] = spelled
        self._digits[token_id] = len(ASCII_DIGIT.findall(spelled))
        return spelled

    def digit_counts(self, ids: list[int]) -> Tensor:
        """Count the digits in what each of some tokens writes, `[tokens]`; they have been looked up."""
        return torch.tensor([*map(self._digits.__getitem__, ids)], dtype=torch.int64, device="cpu")

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Return what each token of a row writes, with spaces only where the text had some.

        Some tokenizers write the same tokens with and without a space: T5's for `is 72` and `is72` if digits
        were added to it, BERT's for `3.5` and `3. 5`. There, a letter and a digit stand apart, because they
        would be a name, and a digit and a mark together, because most texts write them so.
        """
        found = [*map(self.__getitem__, ids)]
        if not self._unkept:
            return found
        last, spaces = "", list[int]()  # the last character, and the tokens of spaces after it
        for i, piece in enumerate(found):
            if not (written := piece.strip(b" ")):
                spaces.append(i)
                continue
            if (pair := (last, kind_of(chr(written[0])))) in self._unkept:
                for space in spaces:
                    found[space] = b""
                found[i] = (b" " if pair[0] == "a" else b"") + piece.lstrip(b" ")
            last, spaces = kind_of(chr(written[-1])), []
        return found


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """Return a text, or several, as a list; a TypeError for anything else."""
    items: list[Any] = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"expected a text, or a list of texts, given {type(item).__name__} {item!r:.100}")
    return items


_KINDS = {
    **dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "a"),
    **dict.fromkeys(DIGITS, "7"),
}
_MARKS_BESIDE = ".,-+'/:%$^"  # between which and a digit a space would make another number


def kind_of(character: str) -> str:
    """Return the kind of a character: "a" for letters, "7" for digits, and itself for marks."""
    return _KINDS.get(character, character)


def _find_unkept(encode: Encode) -> frozenset[tuple[str, str]]:
    """Find out between which characters a tokenizer keeps no space: both spellings have the same ids."""
    pairs = {("a", "7"): "is7", **{("7", mark): f"is 7{mark}7" for mark in _MARKS_BESIDE}}
    spaced = {("a", "7"): "is 7", **{("7", mark): f"is 7 {mark}7" for mark in _MARKS_BESIDE}}
    pairs |= {(mark, "7"): f"is 7{mark}7" for mark in _MARKS_BESIDE}
    spaced |= {(mark, "7"): f"is 7{mark} 7" for mark in _MARKS_BESIDE}
    with suppress(ValueError):  # it cannot encode these texts
        rows = [*map(list, encode([*pairs.values(), *spaced.values()]))]
        return frozenset(
            pair for pair, one, two in zip(pairs, rows, rows[len(pairs) :], strict=False) if one == two
        )
    return frozenset()


def texts_of_tokenizer(tokenizer: Any) -> TokenTexts:
    """Find the texts of all tokens that may be part of a number, without changing the tokenizer.

    Raise a TypeError if it is not a tokenizer; see `NumberVocabulary.from_tokenizer`.
    """
    found = _decode(tokenizer)
    return replace(found, unkept=_find_unkept(found.encode))


def _decode(tokenizer: Any) -> TokenTexts:
    """Decode every token that may be part of a number, without changing the tokenizer.

    Raise a TypeError if it is not a tokenizer; see `NumberVocabulary.from_tokenizer`.
    """
    tokenizer = _inner(tokenizer)
    if _has(tokenizer, "get_vocab", "convert_tokens_to_string"):
        return _texts_of_hugging_face(tokenizer)
    normalize: Callable[[str], str] = str
    to_bytes: Callable[[int], bytes] | None = None
    if _has(tokenizer, "decode_single_token_bytes", "encode_ordinary", "n_vocab"):  # tiktoken
        size, is_special = tokenizer.n_vocab, tokenizer.is_special_token
        to_bytes = tokenizer.decode_single_token_bytes
        encode = tokenizer.encode_ordinary  # treats special tokens in a text as text
    elif _has(tokenizer, "id_to_piece", "is_special", "n_words"):  # mistral-common
        size, is_special = tokenizer.n_words, tokenizer.is_special
        if hasattr(tokenizer, "id_to_byte_piece"):  # Tekken; its pieces hide partial characters
            to_bytes = functools.partial(tokenizer.id_to_byte_piece, special_token_policy="ignore")
        encode = functools.partial(tokenizer.encode, bos=False, eos=False)
    elif _has(tokenizer, "id_to_piece", "is_control", "vocab_size"):  # SentencePiece
        size, is_special = tokenizer.vocab_size(), tokenizer.is_control
        encode = functools.partial(tokenizer.encode, add_bos=False, add_eos=False)
        normalize = tokenizer.normalize
    else:
        raise TypeError(
            f"expected a tokenizer or a NumberVocabulary, given {type(tokenizer).__name__}. Pass a tokenizer "
            "from AutoTokenizer.from_pretrained(...), a processor's `.tokenizer`, a tiktoken encoding, a "
            "mistral-common tokenizer or a SentencePieceProcessor, or list the number tokens with "
            "NumberVocabulary.from_mapping({token_id: value or text}, vocab_size)."
        )
    decoded: dict[int, str] = {}
    parts: dict[int, str] = {}
    letter_ids = []
    for token_id in range(size):
        with suppress(KeyError):  # an unused id
            if is_special(token_id):
                continue
            text = tokenizer.id_to_piece(token_id) if to_bytes is None else ""
            if to_bytes or _BYTE_TOKEN.fullmatch(text):
                data = to_bytes(token_id) if to_bytes else bytes([int(text[3:5], 16)])
                found = data.decode("utf-8", "surrogateescape")
                if _SURROGATES.search(found):  # a part of a character
                    parts |= {token_id: found} if _is_part(found) else {}
                    continue
                text = found if to_bytes else text
            if re.match(_LETTER, text):
                letter_ids.append(token_id)
            if _may_be_in_number(text) and not (_BYTE_TOKEN.fullmatch(text) and not to_bytes):
                decoded[token_id] = text if to_bytes else text.replace("▁", " ")
    bare = {token_id: not text.startswith(" ") for token_id, text in decoded.items()}
    encode_all, spell = functools.partial(encode_each, encode), functools.partial(_spell_piece, tokenizer)
    return TokenTexts(decoded, bare, size, tuple(letter_ids), encode_all, normalize, spell, parts)


def _spell_if_alive(
    spell: Callable[[Any, int], bytes | None], tokenizer: Callable[[], Any], token_id: int
) -> bytes | None:
    """Return what a token writes; None if its tokenizer is gone."""
    return None if (alive := tokenizer()) is None else spell(alive, token_id)


def _spell_piece(tokenizer: Any, token_id: int) -> bytes | None:
    """Return what a token of another tokenizer than Hugging Face's writes; None for an id without a token."""
    try:
        if _has(tokenizer, "decode_single_token_bytes"):
            return bytes(tokenizer.decode_single_token_bytes(token_id))
        if _has(tokenizer, "id_to_byte_piece") and not tokenizer.is_special(token_id):
            return bytes(tokenizer.id_to_byte_piece(token_id))
        piece = str(tokenizer.id_to_piece(token_id))
    except (KeyError, IndexError):
        return None
    return _byte_of(piece) or piece.replace("▁", " ").encode()


def _byte_of(piece: str) -> bytes | None:
    """Return the byte of a token of byte fallback, and None of all others."""
    return bytes([int(piece[3:-1], 16)]) if _BYTE_TOKEN.fullmatch(piece) else None


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


def _texts_of_hugging_face(tokenizer: Any) -> TokenTexts:
    vocab: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", ()))
    # Decoders drop the leading space of the first token, but not of a later one.
    anchor = len(tokenizer.convert_tokens_to_string(["a"]))
    decoded, bare = {}, {}
    for raw, token_id in vocab.items():
        if _may_be_in_number(raw) and token_id not in special and not _BYTE_TOKEN.fullmatch(raw):
            text = tokenizer.convert_tokens_to_string(["a", raw])[anchor:]
            if text or not _stands_for_bytes(raw):  # ByT5 leaves out a part of a character
                decoded[token_id], bare[token_id] = text, raw == text.removeprefix(" ")
    parts = {
        token_id: text
        for raw, token_id in vocab.items()
        if _MAY_BE_BYTES.search(raw)
        and token_id not in special
        and (text := _part_of_hugging_face(tokenizer, raw)) is not None
    }
    decoded = _without_spaces_of_decoder(tokenizer, decoded, bare)
    size = 1 + max(vocab.values(), default=-1)
    size = max(len(tokenizer), size) if hasattr(tokenizer, "__len__") else size
    letter_ids: set[int] = set()
    for marker in ("", "##"):  # WordPiece continues words with ##
        begins = re.compile(marker + _LETTER).match
        beginning = {i for raw, i in vocab.items() if begins(raw)}
        if beginning and tokenizer.convert_tokens_to_string(["a", f"{marker}a"])[anchor:] == "a":
            letter_ids |= beginning
    return TokenTexts(
        decoded,
        bare,
        size,
        tuple(sorted(letter_ids - special)),
        functools.partial(encode_with, tokenizer),
        functools.partial(_normalize_with, tokenizer),
        functools.partial(_spell_with, tokenizer),
        parts,
    )


def _part_of_hugging_face(tokenizer: Any, raw: str) -> str | None:
    """Return a token's bytes, as surrogates, if they are a part of a character of a number."""
    if (byte := _byte_of(raw)) is not None:
        text = byte.decode("utf-8", "surrogateescape")
    elif (text := _of_bytes(raw) or "").isascii():
        return None
    if not _is_part(text):
        return None
    # A tokenizer that is not byte-level has the very characters that stand for bytes elsewhere.
    alone = tokenizer.convert_tokens_to_string([raw])
    return text if byte is not None or not alone or "\ufffd" in alone else None


def _spell_with(tokenizer: Any, token_id: int) -> bytes | None:
    """Return what a token of Hugging Face writes in the middle of a text; None for a row of padding."""
    raw = tokenizer.convert_ids_to_tokens(token_id)
    if raw is None:
        return None
    anchor = len(tokenizer.convert_tokens_to_string(["a"]))
    text = str(tokenizer.convert_tokens_to_string(["a", raw])[anchor:])
    if text and "\ufffd" not in text:
        return text.encode()
    # Part of a character.
    spelled = _of_bytes(raw) if _stands_for_bytes(raw) else None
    return _byte_of(raw) or (text if spelled is None else spelled).encode(errors="surrogateescape")


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
    numbers = {text for text in decoded.values() if text.isascii() and text.removeprefix(" ").isdigit()}
    if not any(text.startswith(" ") for text in numbers):
        return decoded
    # From texts in the vocabulary, shortest first; repeated, because one token may hold all digits.
    texts = sorted({text.removeprefix(" ") for text in numbers}, key=lambda text: (len(text), text))
    ids: Sequence[int] = ()
    with suppress(ValueError):  # the text is unknown, and the tokenizer has no unknown token
        (ids,) = encode_with(tokenizer, ["".join(texts[:10]) * 2])
    continuing = [i for i in ids if i in decoded][1:]
    # Only some have a space where an added token splits a word: BERT's "2" then begins a new one.
    if not all(decoded[i].startswith(" ") for i in continuing):
        return decoded
    kinds = {bare[i] for i in continuing}
    return {i: text.removeprefix(" ") if bare[i] in kinds else text for i, text in decoded.items()}


def encode_with(tokenizer: Any, texts: list[str]) -> Sequence[Sequence[int]]:
    """Encode texts without calling the tokenizer: some require a table or boxes in addition to a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        if backend is None:
            return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]
        truncation, padding = backend.truncation, backend.padding
        backend.no_truncation()
        backend.no_padding()
        try:
            return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]
        finally:
            if truncation is not None:
                backend.enable_truncation(**truncation)
            if padding is not None:
                backend.enable_padding(**padding)
    except Exception as error:  # tokenizers raises no type of its own
        raise ValueError(
            f"the tokenizer cannot encode the text: {error}. Pass a text of words that it knows, or give it "
            "an unknown token."
        ) from error


def _normalize_with(tokenizer: Any, text: str) -> str:
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is not None:
        return str(normalizer.normalize_str(text))
    pieces = getattr(tokenizer, "sp_model", None)  # of a slow tokenizer that wraps SentencePiece
    return text if pieces is None else str(pieces.normalize(text))
