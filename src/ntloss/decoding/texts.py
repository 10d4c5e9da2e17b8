"""Token ids to texts, for metrics that take rows of token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ntloss.vocabulary import NumberVocabulary


def make_decoder(decode: Any) -> Callable[[list[list[int]]], list[str]]:
    """Make a function from rows of token ids to texts.

    Args:
        decode: a tokenizer with `batch_decode`, a function from rows of token ids to texts, or a
            `NumberVocabulary`, for which every other token is a line break.

    Returns:
        The function.

    Raises:
        TypeError: `decode` is none of these.
    """
    if hasattr(decode, "batch_decode"):
        return lambda rows: list(decode.batch_decode(rows, skip_special_tokens=True))
    if isinstance(decode, NumberVocabulary):
        texts = {token.token_id: token.text for token in (*decode.tokens, *decode.left_out)}
        texts |= {i: "-" if factor < 0 else "+" for i, factor in decode.sign_ids.items()}
        texts |= dict.fromkeys(decode.point_ids, ".") | dict.fromkeys(decode.separator_ids, ",")
        return lambda rows: ["".join(texts.get(token, "\n") for token in row) for row in rows]
    if callable(decode):
        return lambda rows: list(decode(rows))
    raise TypeError(
        f"decode: expected a tokenizer with batch_decode, a function from token ids to texts, or a "
        f"NumberVocabulary; given {type(decode).__name__}"
    )
