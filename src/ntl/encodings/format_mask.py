"""Constrain decoding to a number format: each step allows only tokens that continue a number in it."""

from __future__ import annotations

import math
import string
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ntl.encodings.digits import TextEncoding, digit_ids
from ntl.encodings.number_format import NumberFormat
from ntl.errors import UserError


class FormatMask:
    """The tokens that may follow a part of an answer in a number format.

    A token may follow if its characters continue the number within the format. The end token may follow only
    the complete number.

    Args:
        number_format: Format of the answers.
        tokenizer: A tokenizer with an end token.
        vocab_size: Width of the model's logits.
        digit_tokens: Whether each digit is one token. Otherwise, tokens with several digits may follow too.

    Raises:
        UserError: The tokenizer cannot write numbers in this format.
    """

    def __init__(
        self,
        number_format: NumberFormat,
        tokenizer: PreTrainedTokenizerFast,
        vocab_size: int,
        digit_tokens: bool,
    ):
        self.format = number_format
        self.longest = number_format.length + 2
        """The largest number of tokens of an answer, with the space that T5 starts with and the end token."""
        encoding = TextEncoding(tokenizer)
        first, later = _token_texts(encoding, number_format, digit_tokens)
        # One row for the first token, then one for each number of characters written.
        self.allowed = torch.zeros(number_format.length + 2, vocab_size, dtype=torch.bool)
        self.lengths = torch.zeros(vocab_size, dtype=torch.long)
        self.allowed[-1, tokenizer.eos_token_id] = True
        completable = {number_format.length}  # numbers of characters after which a number can be completed
        for row in reversed(range(number_format.length + 1)):
            written, texts = (row - 1, later) if row else (0, first)
            for token, text in texts.items():
                fits = all(c in number_format.allowed(written + i) for i, c in enumerate(text))
                if fits and written + len(text) in completable:
                    self.allowed[row, token], self.lengths[token] = True, len(text)
            if row and self.allowed[row].any():
                completable.add(written)
        self._check(encoding)

    def rows(self, tokens: Tensor) -> Tensor:
        """Return whether each token may follow each partial answer, `[batch, vocab]`.

        Args:
            tokens: The tokens of each answer so far, `[batch, seq]`.
        """
        if tokens.device != self.allowed.device:  # once, on the first step on an accelerator
            self.allowed, self.lengths = (t.to(tokens.device) for t in (self.allowed, self.lengths))
        if tokens.shape[1] == 0:
            return self.allowed[:1].expand(len(tokens), -1)
        return self.allowed[1 + self.lengths[tokens].sum(-1).clamp(max=self.format.length)]

    def processor(self, prompt_length: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Make the logits processor for `generate`, given the number of tokens in front of the answer."""

        def process(input_ids: Tensor, scores: Tensor) -> Tensor:
            # A model that has diverged gives NaN, which beam search would follow out of the format.
            return scores.nan_to_num().masked_fill(~self.rows(input_ids[:, prompt_length:]), -math.inf)

        return process

    def _check(self, encoding: TextEncoding) -> None:
        """Raise a UserError unless the tokenizer writes and reads numbers in this format."""
        texts = sample_numbers(self.format)
        for text, ids in zip(texts, encoding.encode(texts, special_tokens=False), strict=True):
            rows = [self.rows(torch.tensor([ids[:i]], dtype=torch.long))[0] for i in range(len(ids) + 1)]
            written = all(bool(row[i]) for row, i in zip(rows, ids, strict=False))
            if not written or rows[-1].sum() != 1 or encoding.decode([ids]) != [text]:
                raise UserError(
                    f"the tokenizer encodes {text!r} as {encoding.tokenizer.convert_ids_to_tokens(ids)}, and "
                    "its tokens do not spell it; expected tokens for the digits, the signs and the point. "
                    "Use another tokenizer, or pass model_args.number_format=plain."
                )


def sample_numbers(number_format: NumberFormat) -> list[str]:
    """Return numbers in a format that together have each of its characters at each position."""
    allowed = [number_format.allowed(position) for position in range(number_format.length)]
    return ["".join(c[i % len(c)] for c in allowed) for i in range(10)]


def _token_texts(
    encoding: TextEncoding, number_format: NumberFormat, digit_tokens: bool
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the texts of tokens that a number may contain, at the start of an answer and later in it."""
    tokenizer, characters = encoding.tokenizer, set("0123456789.+-")
    # A first token without text, such as T5's `▁`, may only be one that the tokenizer itself writes.
    starts = {ids[0] for ids in encoding.encode(sample_numbers(number_format), special_tokens=False)}
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    # Decoding is slow: only tokens that could be part of a number are decoded.
    tokens = [i for i, name in enumerate(names) if i in starts or not characters.isdisjoint(name)]
    if digit_tokens:
        single = digit_ids(tokenizer)
        tokens = [i for i in tokens if i in single or set(string.digits).isdisjoint(names[i])]
    one = encoding.encode(["1"], special_tokens=False)[0]
    first = dict(zip(tokens, tokenizer.batch_decode([[i] for i in tokens]), strict=True))
    later = dict(zip(tokens, tokenizer.batch_decode([[*one, i] for i in tokens]), strict=True))
    first = {i: t for i, t in first.items() if set(t) <= characters and (t or i in starts)}
    later = {i: t[1:] for i, t in later.items() if t[:1] == "1" and t[1:] and set(t[1:]) <= characters}
    return first, later
