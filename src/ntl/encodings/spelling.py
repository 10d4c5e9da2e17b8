"""Encode numbers with an encoding's own tokens instead of plain digits, and decode them.

A text is first rewritten so that each of the encoding's tokens is represented by one digit (`3.14` as `314`,
or as `0`). A tokenizer that splits digits encodes each digit as one token, in order and in any context. These
tokens are then replaced by the encoding's own.
"""

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from ntl.encodings.digits import TextEncoding
from ntl.errors import UserError

PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits, without its sign."""


class Marked(NamedTuple):
    """A text to tokenize, whose digits stand for other tokens.

    `tokens` holds, for each ASCII digit, the id that replaces its token, or None to keep it; `values` the
    values of its numbers, if they are kept.
    """

    text: str
    tokens: list[int | None]
    values: list[float]


class SpelledEncoding(ABC):
    """Encodes digits as tokens of its own; a subclass says which.

    Args:
        tokenizer: A tokenizer that splits digits, with tokens for the point, the minus sign and the space.
        added: The encoding's own tokens, which are added to the tokenizer unless it has them already.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, added: Sequence[str]):
        self.tokenizer = tokenizer
        self._plain = TextEncoding(tokenizer)
        characters = [*string.digits, ".", "-"]
        ids: Any = tokenizer.convert_tokens_to_ids(characters)
        self._digits = frozenset(ids[:10])
        self._characters: dict[str, Any] = dict(zip(characters, ids, strict=True))
        self._characters[" "] = self._space()
        missing = [c for c, i in self._characters.items() if i in (None, tokenizer.unk_token_id)]
        if missing:
            raise UserError(
                f"the tokenizer has no token for {missing}; expected one for each digit, the point, the "
                "minus sign and the space, as T5's has. Use a T5 tokenizer, or omit "
                "model_args.tokenizer_name_or_path."
            )
        tokenizer.add_tokens(list(added))
        self.added_ids: Any = tokenizer.convert_tokens_to_ids([*added])

    @abstractmethod
    def mark(self, text: str) -> Marked:
        """Rewrite a text and assign tokens to its digits."""

    def encode_marked(
        self, texts: Sequence[str], special_tokens: bool = True
    ) -> tuple[list[list[int]], list[Marked]]:
        """Turn texts, which contain no token of the encoding, into one list of ids each."""
        # Normalize as the tokenizer does. T5's converts full-width digits to ASCII, which then are numbers.
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        marked = [self.mark(t if normalizer is None else normalizer.normalize_str(t)) for t in texts]
        rows = self._plain.encode([m.text for m in marked], special_tokens)
        for text, (_, tokens, _), row in zip(texts, marked, rows, strict=True):
            at = [i for i, token in enumerate(row) if token in self._digits]
            if len(at) != len(tokens) or not set(self.added_ids).isdisjoint(row):
                raise UserError(
                    f"{text[:80]!r} contains digits or words that the tokenizer encodes as special tokens; "
                    "expected plain text. Remove them."
                )
            for i, token in zip(at, tokens, strict=True):
                if token is not None:
                    row[i] = token
        return rows, marked

    def decode_spelled(self, rows: Iterable[Iterable[int | str]]) -> list[str]:
        """Turn lists of token ids into texts.

        The encoding's own tokens are replaced by texts of digits, points, minus signs and spaces.
        """
        plain: list[list[Any]] = [
            [
                i
                for part in row
                for i in (map(self._characters.get, part) if isinstance(part, str) else (part,))
            ]
            for row in rows
        ]
        return self._plain.decode(plain)

    def _space(self) -> int | None:
        between = self._plain.encode(["1 1"], special_tokens=False)[0]
        inner = between[between.index(self._characters["1"]) + 1 : -1]
        return inner[0] if len(inner) == 1 else None
