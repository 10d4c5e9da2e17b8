"""The text of each token of a tokenizer, from the tokenizer's own decoder.

Supports tokenizers of Hugging Face, tiktoken, mistral-common and SentencePiece. They are recognized by their
methods, so that none of these libraries is imported here.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ntloss.numbers.grammar import DIGITS, POINT, is_piece, with_ascii_sign

# SentencePiece's byte fallback. "<0x34>" decodes to "4", but "4" is never encoded to it.
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ASCII_BYTE = re.compile("<0x[0-7][0-9A-Fa-f]>")
# Byte-level tokens write printable bytes as characters of Latin-1, and other bytes as characters from 256.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = (b for b in range(256) if b not in _PRINTABLE)
_TO_BYTES = str.maketrans({chr(256 + i): chr(b) for i, b in enumerate(_OTHERS)})
_MARKERS = "▁Ġ#"  # that tokenizers put before a word, or before what continues one
_A_DIGIT = re.compile(f"[{DIGITS}]")
ASCII_DIGIT = re.compile(rb"[0-9]")
_LETTER = "[A-Za-z]"
Encode = Callable[[list[str]], Sequence[Sequence[int]]]


# At module level, as all encoders here, so that a vocabulary can be pickled.
def _cannot_encode(texts: list[str]) -> Sequence[Sequence[int]]:
    """Raise a ValueError: the encoder of a vocabulary that has no tokenizer."""
    raise ValueError("this vocabulary has no tokenizer: make it with NumberVocabulary.from_tokenizer")


def _encode_each(encode: Callable[[str], Sequence[int]], texts: list[str]) -> Sequence[Sequence[int]]:
    """Encode texts one by one."""
    return [encode(text) for text in texts]


@dataclass(frozen=True)
class TokenTexts:
    """The texts of the tokens that hold a digit, or may stand in a number or beside it."""

    # Token id to its text in the middle of a text. A leading space is included only if it stands for a space
    # in the text, not if the decoder adds it. Parts of characters (U+202F may be two tokens of bytes) have a
    # surrogate for each byte, as `bytes.decode(errors="surrogateescape")` writes them.
    decoded: Mapping[int, str]
    bare: Mapping[int, bool]  # whether the token's own string is that text, without a tokenizer's marker
    vocab_size: int  # by default the largest id plus 1
    letter_ids: tuple[int, ...] = ()  # of the tokens that begin with an ASCII letter, without a space
    encode: Encode = _cannot_encode  # encodes a list of texts to rows of token ids
    spell: Callable[[int], bytes | None] | None = None  # what any token writes, in UTF-8
    # Pairs of kinds of characters between which the tokenizer keeps no space, see `kind_of`.
    unkept: frozenset[tuple[str, str]] = frozenset()

    def without_tokenizer(self) -> TokenTexts:
        """Return the same texts, which do not keep their tokenizer in memory."""
        spell = self.spell
        if isinstance(spell, functools.partial):
            spell = functools.partial(_spell_if_alive, spell.func, weakref.ref(spell.args[0]))
        return replace(self, encode=_cannot_encode, spell=spell)

    def within(self, vocab_size: int) -> TokenTexts:
        """Return the texts of the tokens of a vocabulary of another size."""
        decoded = {i: text for i, text in self.decoded.items() if i < vocab_size}
        letter_ids = tuple(i for i in self.letter_ids if i < vocab_size)
        return replace(self, decoded=decoded, letter_ids=letter_ids, vocab_size=vocab_size)

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return what any token writes, maybe a part of a character; None where it is unknown."""
        text = self.decoded.get(token_id)
        if text is not None:
            return text.encode(errors="surrogateescape")
        return None if self.spell is None else self.spell(token_id)

    def text_of(self, token_id: int) -> str | None:
        """Return the text of any token, for messages; None where it is unknown."""
        written = self.bytes_of(token_id)
        return None if written is None else written.decode(errors="replace")


BREAK = b"\0"
"""What stands in no text, in place of labels that are ignored, and between rows."""
# In place of tokens whose text is unknown. A digit of another script is no letter, which would make a word of
# the digits after it, but keeps a point from being the beginning of a number.
_UNKNOWN = BREAK + "\u0660".encode()


class Spelling(dict[int, bytes]):
    """What each token writes, in UTF-8: a token is looked up when it is first asked for.

    Those that are given by value write what stands in no text, so that nothing beside them joins over them.

    Attributes:
        digits: token to the number of digits that it writes, of the tokens that were looked up.
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
        self.digits: dict[int, int] = {}
        for token in tokens:
            self.kinds[token.token_id] = token.kind
            if token.is_value and self.magnitudes is not None:
                self._add(token.token_id, BREAK)
                self.magnitudes[token.token_id] = abs(token.value)
                continue
            self._add(token.token_id, token.text.encode())
            mantissa, _, power = token.text.lower().partition("e")
            self.is_number[token.token_id] = True
            self.points[token.token_id] = len(mantissa.partition(POINT)[2])
            self.powers[token.token_id] = int(with_ascii_sign(power)) if power else 0

    def __missing__(self, token_id: int) -> bytes:
        spelled = BREAK if token_id < 0 else self._texts.bytes_of(token_id) or _UNKNOWN
        if token_id not in self._texts.decoded:  # digits of special tokens are no numbers: `<|12|>`
            spelled = ASCII_DIGIT.sub(b"x", spelled)
        return self._add(token_id, spelled)

    def _add(self, token_id: int, spelled: bytes) -> bytes:
        self[token_id] = spelled
        self.digits[token_id] = len(ASCII_DIGIT.findall(spelled))
        return spelled

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Return what each token of a row writes, with spaces only where the text had some.

        Some tokenizers write the same tokens with and without a space: T5's for `is 72` and `is72` if digits
        were added to it, BERT's for `3.5` and `3. 5`. There, a letter and a digit stand apart, because they
        would be a name, and a digit and a mark together, because most texts write them so.
        """
        found = [*map(self.__getitem__, ids)]
        if not self._texts.unkept:
            return found
        last, spaces = "", list[int]()  # the last character, and the tokens of spaces after it
        for i, piece in enumerate(found):
            if not (written := piece.strip(b" ")):
                spaces.append(i)
                continue
            if (pair := (last, kind_of(chr(written[0])))) in self._texts.unkept:
                for space in spaces:
                    found[space] = b""
                found[i] = (b" " if pair[0] == "a" else b"") + piece.lstrip(b" ")
            last, spaces = kind_of(chr(written[-1])), []
        return found


def kind_of(character: str) -> str:
    """Return the kind of a character: "a" for letters, "7" for digits, and itself for marks."""
    if not character.isascii():
        return character
    return "a" if character.isalpha() else "7" if character.isdigit() else character


# Texts without a space and with one, by the kinds of the characters beside it. Between a digit and these
# marks, a space would make another number.
_SPACED = {("a", "7"): ("is7", "is 7")}
_SPACED |= {("7", mark): (f"is 7{mark}7", f"is 7 {mark}7") for mark in ".,-+'/:%$^"}
_SPACED |= {(mark, "7"): (f"is 7{mark}7", f"is 7{mark} 7") for _, mark in [*_SPACED][1:]}


def _find_unkept(encode: Encode) -> frozenset[tuple[str, str]]:
    """Find out between which characters a tokenizer keeps no space: both spellings have the same ids."""
    with suppress(ValueError):  # it cannot encode these texts
        rows = [list(row) for row in encode([*itertools.chain.from_iterable(_SPACED.values())])]
        return frozenset(
            pair for pair, one, two in zip(_SPACED, rows[::2], rows[1::2], strict=True) if one == two
        )
    return frozenset()


def texts_of_tokenizer(tokenizer: Any) -> TokenTexts:
    """Find the texts of all tokens that may be part of a number, without changing the tokenizer.

    Raise a TypeError if it is not a tokenizer; see `NumberVocabulary.from_tokenizer`.
    """
    tokenizer = _inner(tokenizer)
    is_hugging_face = _has(tokenizer, "get_vocab", "convert_tokens_to_string")
    found = _texts_of_hugging_face(tokenizer) if is_hugging_face else _texts_of_other(tokenizer)
    return replace(found, unkept=_find_unkept(found.encode))


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


def _is_of_number(text: str) -> bool:
    return _A_DIGIT.search(text) is not None or is_piece(text)


# ---- tiktoken, mistral-common, SentencePiece ---------------------------------------------------------------


def _texts_of_other(tokenizer: Any) -> TokenTexts:
    if _has(tokenizer, "decode_single_token_bytes", "encode_ordinary", "n_vocab"):  # tiktoken
        size, is_special = tokenizer.n_vocab, tokenizer.is_special_token
        encode = tokenizer.encode_ordinary  # treats special tokens in a text as text
    elif _has(tokenizer, "id_to_piece", "is_special", "n_words"):  # mistral-common
        size, is_special = tokenizer.n_words, tokenizer.is_special
        encode = functools.partial(tokenizer.encode, bos=False, eos=False)
    elif _has(tokenizer, "id_to_piece", "is_control", "vocab_size"):  # SentencePiece
        size, is_special = tokenizer.vocab_size(), tokenizer.is_control
        encode = functools.partial(tokenizer.encode, add_bos=False, add_eos=False)
    else:
        raise TypeError(
            f"expected a tokenizer or a NumberVocabulary, given {type(tokenizer).__name__}. Pass a tokenizer "
            "from AutoTokenizer.from_pretrained(...), a processor's `.tokenizer`, a tiktoken encoding, a "
            "mistral-common tokenizer or a SentencePieceProcessor, or list the number tokens with "
            "NumberVocabulary.from_mapping({token_id: value or text}, vocab_size)."
        )
    ids = [i for i in range(size) if not is_special(i)]
    if hasattr(tokenizer, "id_to_piece"):
        ids = [i for i in ids if not _ASCII_BYTE.fullmatch(tokenizer.id_to_piece(i))]
    written = ((i, _spell_other(tokenizer, i)) for i in ids)
    texts = {i: each.decode("utf-8", "surrogateescape") for i, each in written if each is not None}
    decoded = {i: text for i, text in texts.items() if _is_of_number(text)}
    return TokenTexts(
        decoded,
        {i: not text.startswith(" ") for i, text in decoded.items()},
        size,
        tuple(i for i, text in texts.items() if re.match(_LETTER, text)),
        functools.partial(_encode_each, encode),
        functools.partial(_spell_other, tokenizer),
    )


def _spell_other(tokenizer: Any, token_id: int) -> bytes | None:
    """Return what a token writes; None for an id without a token."""
    try:
        if _has(tokenizer, "decode_single_token_bytes"):
            return bytes(tokenizer.decode_single_token_bytes(token_id))
        if _has(tokenizer, "id_to_byte_piece") and not tokenizer.is_special(token_id):
            return bytes(tokenizer.id_to_byte_piece(token_id))  # Tekken's pieces hide partial characters
        piece = str(tokenizer.id_to_piece(token_id))
    except (KeyError, IndexError):
        return None
    return _byte_of(piece) or piece.replace("▁", " ").encode()


def _byte_of(piece: str) -> bytes | None:
    """Return the byte of a token of byte fallback, and None of all others."""
    byte = _BYTE.fullmatch(piece)
    return None if byte is None else bytes.fromhex(byte[1])


def _spell_if_alive(
    spell: Callable[[Any, int], bytes | None], tokenizer: Callable[[], Any], token_id: int
) -> bytes | None:
    """Return what a token writes; None if its tokenizer is gone."""
    return None if (alive := tokenizer()) is None else spell(alive, token_id)


# ---- Hugging Face ------------------------------------------------------------------------------------------


def _texts_of_hugging_face(tokenizer: Any) -> TokenTexts:
    vocab: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", ()))
    decoded, bare = {}, {}
    for raw, token_id in vocab.items():
        if not _may_be_in_number(raw) or token_id in special or _ASCII_BYTE.fullmatch(raw):
            continue
        text = _bytes_of_hugging_face(tokenizer, raw).decode("utf-8", "surrogateescape")
        if _is_of_number(text or " "):
            decoded[token_id], bare[token_id] = text, raw == text.removeprefix(" ")
    size = 1 + max(vocab.values(), default=-1)
    letter_ids: set[int] = set()
    for marker in ("", "##"):  # WordPiece continues words with ##
        begins = re.compile(marker + _LETTER).match
        beginning = {i for raw, i in vocab.items() if begins(raw)}
        if beginning and _bytes_of_hugging_face(tokenizer, f"{marker}a") == b"a":
            letter_ids |= beginning
    return TokenTexts(
        _without_spaces_of_decoder(tokenizer, decoded, bare),
        bare,
        max(len(tokenizer), size) if hasattr(tokenizer, "__len__") else size,
        tuple(sorted(letter_ids - special)),
        functools.partial(encode_with, tokenizer),
        functools.partial(_spell_with, tokenizer),
    )


def _may_be_in_number(raw: str) -> bool:
    """Return whether a token has to be decoded: to decode all would take many times as long."""
    if _A_DIGIT.search(raw):
        return True
    word = raw.lstrip(_MARKERS)  # most tokens are words
    return is_piece(word or " ") or (not word.isascii() and is_piece(_of_bytes(raw) or raw))


def _of_bytes(raw: str) -> str | None:
    """Return the text of a byte-level token, with surrogates for parts of characters; None if it is none."""
    with suppress(UnicodeEncodeError):  # a character stands for no byte
        return raw.translate(_TO_BYTES).encode("latin-1").decode("utf-8", "surrogateescape")
    return None


def _spell_with(tokenizer: Any, token_id: int) -> bytes | None:
    """Return what a token writes in the middle of a text; None for a row of padding."""
    raw = tokenizer.convert_ids_to_tokens(token_id)
    return None if raw is None else _bytes_of_hugging_face(tokenizer, raw)


def _bytes_of_hugging_face(tokenizer: Any, raw: str) -> bytes:
    """Return what a token writes in the middle of a text, by its own string."""
    # Decoders drop the leading space of the first token, but not of a later one.
    anchor = len(tokenizer.convert_tokens_to_string(["a"]))
    text = str(tokenizer.convert_tokens_to_string(["a", raw])[anchor:])
    if text and "\ufffd" not in text:
        return text.encode()
    # A part of a character, which ByT5 leaves out.
    of_bytes = text if raw.isascii() else _of_bytes(raw) or text
    return _byte_of(raw) or of_bytes.encode(errors="surrogateescape")


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
    # From texts in the vocabulary, shortest first; repeated, because one token may hold all digits.
    texts = sorted({text.removeprefix(" ") for text in numbers}, key=lambda text: (len(text), text))
    ids: Sequence[int] = ()
    with suppress(ValueError):  # the text is unknown, and the tokenizer has no unknown token
        (ids,) = encode_with(tokenizer, ["".join(texts[:10]) * 2])
    continuing = [i for i in ids if i in decoded][1:]
    # Only some have a space where an added token splits a word: BERT's "2" then begins a new one.
    kinds = {bare[i] for i in continuing if all(decoded[i].startswith(" ") for i in continuing)}
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
