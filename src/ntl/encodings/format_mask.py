"""Decode answers within a number format: at each step, only the tokens that the format allows."""

from __future__ import annotations

import math
import string
from collections.abc import Set

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

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
        first, later = _token_texts(encoding, number_format)
        if digit_tokens:
            single = set(digit_ids(tokenizer))
            first, later = (
                {i: t for i, t in texts.items() if i in single or not set(t) & set(string.digits)}
                for texts in (first, later)
            )
        # One row for the first token, then one for each number of characters written.
        self.allowed = torch.zeros(number_format.length + 2, vocab_size, dtype=torch.bool)
        self.lengths = torch.zeros(2, vocab_size, dtype=torch.long)  # of a first token, and of a later one
        self.allowed[-1, tokenizer.eos_token_id] = True
        completable = {number_format.length}  # numbers of characters after which a number can be completed
        for written in reversed(range(number_format.length)):
            for token, text in later.items():
                if self._continues(text, written, completable):
                    self.allowed[1 + written, token], self.lengths[1, token] = True, len(text)
            if self.allowed[1 + written].any():
                completable.add(written)
        for token, text in first.items():
            if self._continues(text, 0, completable):
                self.allowed[0, token], self.lengths[0, token] = True, len(text)
        self._check(encoding)

    def rows(self, tokens: Tensor) -> Tensor:
        """Return the tokens that may follow.

        Args:
            tokens: The tokens of each answer so far, `[batch, seq]`.

        Returns:
            Whether each token may follow, `[batch, vocab]`.
        """
        if tokens.device != self.allowed.device:  # once, on the first step on an accelerator
            self.allowed, self.lengths = (t.to(tokens.device) for t in (self.allowed, self.lengths))
        if tokens.shape[1] == 0:
            return self.allowed[:1].expand(len(tokens), -1)
        written = self.lengths[0][tokens[:, 0]] + self.lengths[1][tokens[:, 1:]].sum(-1)
        return self.allowed[1 + written.clamp(max=self.format.length)]

    def processor(self, prompt_length: int) -> LogitsProcessor:
        """Make the logits processor for `generate`.

        Args:
            prompt_length: Number of tokens in front of the answer.
        """
        return _FormatProcessor(self, prompt_length)

    def _continues(self, text: str, written: int, completable: Set[int]) -> bool:
        """Return whether a text may follow a number of characters."""
        if written + len(text) not in completable:
            return False
        return all(c in self.format.allowed(written + i) for i, c in enumerate(text))

    def _check(self, encoding: TextEncoding) -> None:
        """Check that the tokenizer writes and reads numbers in this format."""
        for text, ids in zip(
            sample_numbers(self.format), _encode_samples(encoding, self.format), strict=True
        ):
            rows = [self.rows(torch.tensor([ids[:i]], dtype=torch.long))[0] for i in range(len(ids) + 1)]
            written = all(bool(row[i]) for row, i in zip(rows, ids, strict=False))
            if not written or rows[-1].sum() != 1 or encoding.decode([ids]) != [text]:
                raise UserError(
                    f"the tokenizer encodes {text!r} as {encoding.tokenizer.convert_ids_to_tokens(ids)}, and "
                    "its tokens do not spell it; expected tokens for the digits, the signs and the point. "
                    "Use another tokenizer, or pass model_args.number_format=plain."
                )


class _FormatProcessor(LogitsProcessor):
    def __init__(self, mask: FormatMask, prompt_length: int):
        self.mask = mask
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # A model that has diverged gives NaN, which beam search would follow out of the format.
        scores = scores.nan_to_num()
        return scores.masked_fill(~self.mask.rows(input_ids[:, self.prompt_length :]), -math.inf)


def sample_numbers(number_format: NumberFormat) -> list[str]:
    """Return numbers in a format that together have each of its characters at each position."""
    allowed = [number_format.allowed(position) for position in range(number_format.length)]
    return ["".join(c[i % len(c)] for c in allowed) for i in range(10)]


def _encode_samples(encoding: TextEncoding, number_format: NumberFormat) -> list[list[int]]:
    return encoding.encode(sample_numbers(number_format), special_tokens=False)


def _token_texts(
    encoding: TextEncoding, number_format: NumberFormat
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the texts of the tokens at the start of an answer and after it, if a number may contain them."""
    tokenizer = encoding.tokenizer
    characters = set("0123456789.+-")
    # A first token without text, such as T5's `▁`, may only be one that the tokenizer itself writes.
    starts = {ids[0] for ids in _encode_samples(encoding, number_format)}
    names = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    # Decoding is slow: only tokens that could be part of a number are decoded.
    tokens = [i for i, name in names if i in starts or not characters.isdisjoint(name)]
    one = encoding.encode(["1"], special_tokens=False)[0]
    first = dict(zip(tokens, tokenizer.batch_decode([[i] for i in tokens]), strict=True))
    later = dict(zip(tokens, tokenizer.batch_decode([[*one, i] for i in tokens]), strict=True))
    first = {i: t for i, t in first.items() if set(t) <= characters and (t or i in starts)}
    later = {i: t[1:] for i, t in later.items() if t[:1] == "1" and t[1:] and set(t[1:]) <= characters}
    return first, later
