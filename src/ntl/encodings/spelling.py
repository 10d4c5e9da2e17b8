"""Encode numbers with an encoding's own tokens instead of plain digits, and decode them.

A text is first rewritten so that each of the encoding's tokens is represented by one digit (`3.14` as `314`,
or as `0`). A tokenizer that splits digits encodes each digit as one token, in order and in any context. These
tokens are then replaced by the encoding's own.
"""

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from ntl.encodings.digits import TextEncoding
from ntl.errors import UserError

PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits, without its sign."""


class SpelledEncoding(TextEncoding, ABC):
    """Encodes digits as tokens of its own; a subclass says which.

    Args:
        tokenizer: A tokenizer that splits digits, with tokens for the point, the minus sign and the space.
        added: The encoding's own tokens, which are added to the tokenizer unless it has them already.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, added: Sequence[str]):
        super().__init__(tokenizer)
        characters = [*string.digits, ".", "-"]
        ids: Any = tokenizer.convert_tokens_to_ids(characters)
        self._digits = frozenset(ids[:10])
        self._characters: dict[str, Any] = dict(zip(characters, ids, strict=True))
        between = super().encode(["1 1"], special_tokens=False)[0]
        inner = between[between.index(self._characters["1"]) + 1 : -1]
        self._characters[" "] = inner[0] if len(inner) == 1 else None
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
    def mark(self, text: str) -> tuple[str, list[Any]]:
        """Rewrite a text, and list what replaces the token of each of its digits; None keeps it."""

    @abstractmethod
    def spell(self, row: Sequence[Any]) -> Iterator[int | str]:
        """Replace what `mark` lists by texts of digits, points, minus signs and spaces."""

    def encode(self, texts: Sequence[str], special_tokens: bool = True) -> list[list[Any]]:
        """Turn texts into one list of token ids each, by default with special tokens such as the end token.

        Raises:
            UserError: A text contains a token of the encoding.
        """
        # Normalize as the tokenizer does. T5's converts full-width digits to ASCII, which then are numbers.
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        marked = [self.mark(t if normalizer is None else normalizer.normalize_str(t)) for t in texts]
        rows: list[list[Any]] = super().encode([text for text, _ in marked], special_tokens)
        for text, (_, tokens), row in zip(texts, marked, rows, strict=True):
            at = [i for i, token in enumerate(row) if token in self._digits]
            if len(at) != len(tokens) or not set(self.added_ids).isdisjoint(row):
                raise UserError(
                    f"{text[:80]!r} contains digits or words that the tokenizer encodes as special tokens; "
                    "expected plain text. Remove them."
                )
            for i, token in zip(at, tokens, strict=True):
                row[i] = row[i] if token is None else token
        return rows

    def decode(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        """Turn what `encode` returns, or a model writes, into texts, without special tokens."""
        plain: list[list[Any]] = [[] for _ in rows]
        for ids, row in zip(plain, rows, strict=True):
            for part in self.spell(row):
                ids += map(self._characters.get, part) if isinstance(part, str) else [part]
        return super().decode(plain)
