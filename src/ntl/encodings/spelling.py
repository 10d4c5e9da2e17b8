"""Numbers that are not written with plain digits: from texts to their tokens, and back.

A text is first written with the digits that the encoding wants to have tokens for (`3.14` as `314`, or as
`0`); a tokenizer that splits digits gives each of them a token, in order, whatever stands around them. These
tokens are then replaced.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from ntl.encodings.digits import TextEncoding, digit_ids
from ntl.errors import UserError


class Marked(NamedTuple):
    """A text whose digits stand for other tokens.

    Args:
        text: What to tokenize.
        tokens: One per ASCII digit of it: the id that its token is replaced with, or None to keep it.
    """

    text: str
    tokens: list[int | None]


class Speller:
    """Writes tokens in place of digits, and digits in place of tokens.

    Args:
        tokenizer: One that splits digits; `first_id` and all above are not its own tokens.
        added: Tokens that the encoding adds to it.

    Raises:
        UserError: The tokenizer has no tokens for a decimal point, a sign or a space.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, added: Sequence[str]):
        self.tokenizer = tokenizer
        self.plain = TextEncoding(tokenizer)
        self._digits = frozenset(digit_ids(tokenizer))
        tokens = [*string.digits, ".", "-"]
        self._characters = dict(zip(tokens, tokenizer.convert_tokens_to_ids(tokens), strict=True))
        self._characters[" "] = self._space()
        missing = [c for c, i in self._characters.items() if i in (None, tokenizer.unk_token_id)]
        if missing:
            raise UserError(
                f"the tokenizer has no token for {missing}; expected one for each digit, the point, the "
                "minus sign and the space, as T5's. Use a T5 tokenizer, or leave it out."
            )
        tokenizer.add_tokens(list(added))
        self.added_ids: list[int] = tokenizer.convert_tokens_to_ids(list(added))

    def encode(self, texts: Sequence[str], mark: Callable[[str], Marked]) -> list[list[int]]:
        """Turn texts into token ids.

        Args:
            texts: Any.
            mark: Says what the digits of a text stand for.

        Returns:
            One list of ids per text.

        Raises:
            UserError: A text holds what looks like the encoding's own tokens.
        """
        marked = [mark(self._normalize(text)) for text in texts]
        rows = self.plain.encode([m.text for m in marked])
        for text, (_, tokens), row in zip(texts, marked, rows, strict=True):
            at = [i for i, token in enumerate(row) if token in self._digits]
            if len(at) != len(tokens) or not set(self.added_ids).isdisjoint(row):
                raise UserError(
                    f"{text[:80]!r} holds digits or words that the tokenizer writes as special tokens; "
                    "expected plain text. Remove them."
                )
            for i, token in zip(at, tokens, strict=True):
                if token is not None:
                    row[i] = token
        return rows

    def decode(
        self, rows: Sequence[Sequence[int]], spell: Callable[[Sequence[int]], Iterator[int | str]]
    ) -> list[str]:
        """Turn token ids into texts.

        Args:
            rows: One list of ids per text.
            spell: Gives the ids of a row again, with texts of digits, points, minus signs and spaces in
                place of the encoding's own tokens.

        Returns:
            The texts.
        """
        plain = [
            [i for part in spell(row) for i in (self._spelled(part) if isinstance(part, str) else (part,))]
            for row in rows
        ]
        return self.plain.decode(plain)

    def _spelled(self, number: str) -> list[int]:
        return [self._characters[c] for c in number]

    def _normalize(self, text: str) -> str:
        # As the tokenizer will: full-width digits become ASCII ones in T5's, and are read as such.
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _space(self) -> int | None:
        between = self.plain.encode(["1 1"], special_tokens=False)[0]
        one = self.tokenizer.convert_tokens_to_ids("1")
        inner = between[between.index(one) + 1 : -1]
        return inner[0] if len(inner) == 1 else None
