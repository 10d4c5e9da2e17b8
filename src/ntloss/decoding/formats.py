"""Numbers of one format: the slots that make up a number, and the tokens that can fill them.

A format is a row of slots: a sign (if signed), the digits, and with decimals a point and further digits. A
token fills one or more slots, so the tokens that may follow depend only on the slot reached so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.tokens import NumberToken
from ntloss.numbers.vocabulary import NumberVocabulary

SIGN, DIGIT, POINT = "sign", "digit", "point"
# Codes of a slot's content, below CODES: a digit itself, a sign, or the point.
MINUS, PLUS = 0, 1
CODES = 10
_POINT_CODE = 0
_SIGNS = {"-": MINUS, "+": PLUS}
MOST_DIGITS = 18  # of an int64


class Entries(NamedTuple):
    """The tokens that may begin at a slot.

    Args:
        token_ids: `[allowed]`.
        lengths: `[allowed]`, number of slots that each token fills.
        codes: `[allowed, longest]`, code of each slot that it fills, then -1.
        one_hot: `[longest, allowed, CODES]`, float64, the same codes, one-hot; zeros after the last.
    """

    token_ids: Tensor
    lengths: Tensor
    codes: Tensor
    one_hot: Tensor


@dataclass(frozen=True)
class Format:
    """Numbers of one width, and the tokens that write them.

    Args:
        slots: kind of each slot, from left to right.
        decimals: number of digits after the point.
        entries: for each slot the tokens that may begin there, all of which lead to a complete number; None
            if no token can begin there.
    """

    slots: tuple[str, ...]
    decimals: int
    entries: tuple[Entries | None, ...]

    @property
    def single(self) -> bool:
        """Whether each token is one character."""
        for slot, entries in enumerate(self.entries):
            if entries is None:
                return False
            # A digit without a sign fills the slot of the sign too, as a plus.
            unsigned = (self.slots[slot] == SIGN) & (entries.codes[:, 0] == PLUS)
            if bool((entries.lengths > 1 + unsigned.long()).any()):
                return False
        return True

    def numbers(self, mantissa: Tensor, negative: Tensor) -> Tensor:
        """Return the numbers, float64, given their digits as one integer and whether they are negative."""
        values = mantissa.double() / 10**self.decimals
        return torch.where(negative, -values, values) + 0.0  # -0.0 is 0.0


def number_format(
    vocabulary: NumberVocabulary, digits: int, decimals: int, signed: bool, device: torch.device
) -> Format:
    """Find the tokens of a format.

    Args:
        vocabulary: the number tokens; those that it leaves out are not used.
        digits: number of digits before the point, 1 or more.
        decimals: number of digits after the point.
        signed: whether the number may begin with a sign. A number without one is positive.
        device: of the tables.

    Returns:
        The format.

    Raises:
        ValueError: widths that are not positive or too large, or that the vocabulary cannot write.
    """
    _check_width(digits, decimals)
    slots = (SIGN,) * signed + (DIGIT,) * digits + ((POINT, *(DIGIT,) * decimals) if decimals else ())
    texts = texts_in_numbers(vocabulary, vocabulary.tokens)
    if signed and not any(text.startswith("-") for _, text, _ in texts):
        raise ValueError("signed=True, but the vocabulary has no minus sign. Add one, or pass signed=False.")
    filled = [
        [(token, codes) for token, text, starts in texts if (codes := _fill(text, starts, slots, slot))]
        for slot in range(len(slots))
    ]
    ends = {len(slots)}  # from which a number can be completed
    for slot in reversed(range(len(slots))):
        filled[slot] = [(token, codes) for token, codes in filled[slot] if slot + len(codes) in ends]
        ends |= {slot} if filled[slot] else set()
    if 0 not in ends:
        fraction = f", a point and {decimals} decimals" if decimals else ""
        raise ValueError(
            f"the vocabulary cannot write numbers of {digits} digits{fraction}: no sequence of its "
            f"{len(vocabulary.tokens)} number tokens and {len(vocabulary.point_ids)} points is one. Pass a "
            "vocabulary with the ten digits (and '.' for decimals)."
        )
    return Format(slots, decimals, tuple(_entries(tokens, device) for tokens in filled))


def _check_width(digits: int, decimals: int) -> None:
    if digits < 1 or decimals < 0 or digits + decimals > MOST_DIGITS:
        raise ValueError(
            f"digits={digits}, decimals={decimals}: expected digits of 1 or more, decimals of 0 or more, and "
            f"at most {MOST_DIGITS} in total"
        )


def texts_in_numbers(
    vocabulary: NumberVocabulary, tokens: Iterable[NumberToken]
) -> list[tuple[int, str, bool]]:
    """List the tokens that can be part of a number: number tokens, and the vocabulary's signs and points.

    Args:
        vocabulary: the vocabulary.
        tokens: which of its number tokens to list.

    Returns:
        Id and text of each token, and whether it can only begin a number.
    """
    return [
        *((t.token_id, t.text.removeprefix(" "), t.starts_number) for t in tokens),
        *((i, "-" if factor < 0 else "+", True) for i, factor in vocabulary.sign_ids.items()),
        *((i, ".", False) for i in vocabulary.point_ids),
    ]


def _fill(text: str, starts: bool, slots: tuple[str, ...], first: int) -> tuple[int, ...] | None:
    """Return the codes that `text` writes from slot `first` on; None if it does not fit."""
    if starts and first:
        return None
    if slots[first] == SIGN and text[0] not in _SIGNS:
        # A missing sign counts as a plus.
        rest = _fill(text, False, slots, 1)
        return None if rest is None else (PLUS, *rest)
    codes = []
    for character, slot in zip(text, slots[first:], strict=False):
        if slot == DIGIT and character in "0123456789":
            codes.append(int(character))
        elif slot == SIGN and character in _SIGNS:
            codes.append(_SIGNS[character])
        elif slot == POINT and character == ".":
            codes.append(_POINT_CODE)
    return tuple(codes) if len(codes) == len(text) else None


def _entries(tokens: list[tuple[int, tuple[int, ...]]], device: torch.device) -> Entries | None:
    if not tokens:
        return None
    longest = max(len(codes) for _, codes in tokens)
    codes = torch.tensor([[*codes, *[-1] * (longest - len(codes))] for _, codes in tokens], device=device)
    one_hot = F.one_hot(codes.clamp(min=0), CODES).double() * (codes >= 0)[..., None]
    return Entries(
        torch.tensor([token for token, _ in tokens], device=device),
        torch.tensor([len(codes) for _, codes in tokens], device=device),
        codes,
        one_hot.transpose(0, 1),
    )
