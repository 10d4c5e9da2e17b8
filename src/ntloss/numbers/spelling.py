"""What the tokens of a vocabulary write, so that rows of labels can be read as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ntloss.numbers.alphabet import POINT, with_ascii_sign
from ntloss.numbers.texts import ASCII_DIGIT, TokenTexts

BREAK = b"\0"
"""What stands in no text, in place of labels that are ignored, and between rows."""
# In place of tokens whose text is unknown. A digit of another script is no letter, which would make a word of
# the digits after it, but keeps a point from being the beginning of a number.
_UNKNOWN = BREAK + "\u0660".encode()


class Spelling(dict[int, bytes]):
    """What each token writes, in UTF-8: a token is looked up when it is first asked for.

    Tokens that begin with a space and a digit begin with a line break instead, because they begin a number.
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
        digit_counts: `[1 + vocab]`, digits in what each token writes that was looked up, after a 0 for labels
            that are ignored, whose id is -1.
    """

    def __init__(self, tokens: Sequence[Any], texts: TokenTexts, vocab_size: int) -> None:
        super().__init__()
        self._texts = texts
        with torch.device("cpu"), torch.inference_mode(False):
            self.is_number = torch.zeros(vocab_size, dtype=torch.bool)
            self.points, self.powers, self.kinds = torch.zeros(3, vocab_size, dtype=torch.int64)
            self.digit_counts = torch.zeros(1 + vocab_size, dtype=torch.int64)
            has_values = any(token.is_value for token in tokens)
            self.magnitudes = torch.zeros(vocab_size, dtype=torch.float64) if has_values else None
        for token in tokens:
            if token.is_value and self.magnitudes is not None:
                self[token.token_id] = BREAK
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
        digits = len(ASCII_DIGIT.findall(spelled))
        if digits and spelled[:1] == b" " and spelled[1:2].isdigit():
            spelled = b"\n" + spelled[1:]
        self[token_id] = spelled
        self.digit_counts[token_id + 1] = digits
        return spelled
