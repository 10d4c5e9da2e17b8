"""Numbers that are written with a fixed number of digits, and the tokens that write them.

A number of fixed width is a row of slots: a sign (if signed), the digits, and with decimals a point and
further digits. A token fills one or more slots, so the tokens that may follow depend only on the slot that is
reached.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.grammar import DIGITS, POINT, SIGNED, with_ascii_sign
from ntloss.numbers.parsing import as_float
from ntloss.numbers.vocabulary import NumberVocabulary

# Characters of a slot of the sign; a character's index in its slot is its code, below CODES.
SIGN = "-+"
MINUS = 0
CODES = 10
PLUS = ("optional", "written")


class SlotTokens(NamedTuple):
    """The tokens that may begin at a slot, all of which lead to a complete number."""

    token_ids: Tensor  # `[allowed]`
    lengths: Tensor  # `[allowed]`, number of slots that each token fills
    codes: Tensor  # `[allowed, longest]`, code of each slot that it fills, then -1
    one_hot: Tensor  # `[longest, allowed, CODES]`, float64, the same codes, one-hot; zeros after the last


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written with one width, padded with zeros.

    Args:
        digits: digits before the point, 1 or more.
        decimals: digits after the point. Default: 0, no point.
        signed: whether numbers begin with a sign. Default: False, no number is negative.
        plus: "optional" (default) if a number without a sign is positive where numbers have signs, or
            "written" for a model that writes each sign.

    Raises:
        TypeError: digits or decimals are not whole numbers.
        ValueError: an option is out of range.

    Example:
        >>> padded = NumberFormat(digits=3, decimals=1, signed=True)
        >>> padded.write("-12.5"), padded.write("7"), padded.read("+007.0")
        ('-012.5', '+007.0', Decimal('7.0'))
    """

    digits: int
    decimals: int = 0
    signed: bool = False
    plus: str = field(default="optional", repr=False)

    def __post_init__(self) -> None:
        for name in ("digits", "decimals"):
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
            except TypeError as error:
                raise TypeError(f"{name}={getattr(self, name)!r}: expected an int") from error
        if self.plus not in PLUS:
            raise ValueError(f"plus={self.plus!r}: expected one of {PLUS}")
        if self.digits < 1 or self.decimals < 0:
            raise ValueError(
                f"digits={self.digits}, decimals={self.decimals}: expected digits of 1 or more, and decimals "
                "of 0 or more"
            )

    @classmethod
    def of(cls, numbers: Iterable[str | float]) -> NumberFormat:
        """Choose the smallest fixed width that fits all numbers, with signs if any is negative.

        Args:
            numbers: numbers, or numbers in plain text, which keeps zeros at the end apart from rounding; at
                least one. A list, an array, a column or a tensor.

        Returns:
            The format.

        Raises:
            TypeError: one is neither a number nor a text, or all are one text.
            ValueError: there are no numbers, or one is not a single finite number.

        Example:
            >>> NumberFormat.of([7, -12.5, "120"]).write(7)
            '+007.0'
        """
        if isinstance(numbers, str) or not isinstance(numbers, Iterable):
            raise TypeError(f"numbers={numbers!r}: expected several, such as ['7', '12.5']")
        parsed = [_parse(text) for text in numbers]
        if not parsed:
            raise ValueError("there are no numbers: expected at least one")
        digits, decimals = map(max, zip(*map(_count_digits, parsed), strict=True))
        return cls(digits, decimals, signed=any(number < 0 for number in parsed))

    @property
    def slots(self) -> tuple[str, ...]:
        """The characters that may be at each position."""
        fraction = (POINT, *(DIGITS,) * self.decimals) if self.decimals else ()
        return (SIGN,) * self.signed + (DIGITS,) * self.digits + fraction

    def write(self, number: str | float) -> str:
        """Write a number, or one in plain text such as `-12.5`, with fixed width; no digit is rounded.

        Raises:
            ValueError: the text is not a single number, or does not fit.
        """
        parsed = _parse(number)
        whole, decimals = _count_digits(parsed)
        if whole > self.digits or decimals > self.decimals or (parsed < 0 and not self.signed):
            raise ValueError(f"{str(number).strip()[:80]!r} does not fit {self}")
        return f"{parsed:{'+' if self.signed else ''}0{len(self.slots)}.{self.decimals}f}"

    def read(self, text: str) -> Decimal:
        """Read a number of fixed width, as `write` returns it.

        Raises:
            ValueError: the text is not in this format.
        """
        slots = self.slots
        if len(text) != len(slots) or any(c not in slot for c, slot in zip(text, slots, strict=True)):
            raise ValueError(f"{text[:80]!r} is not in the number format: expected what {self} writes")
        return _parse(text)

    def tokens(self, vocabulary: NumberVocabulary) -> list[list[tuple[int, tuple[int, ...]]]]:
        """List the tokens that may begin at each slot, and the codes that they write.

        Args:
            vocabulary: the number tokens; those that it leaves out are not used.

        Returns:
            For each slot, pairs of a token id and the index of each of its characters in its slot, such as
            `(3, (1, 2))` for the token 3 that writes `12`. All tokens lead to a complete number.

        Raises:
            ValueError: the vocabulary cannot write such numbers.
        """
        slots = self.slots
        texts = [
            (t.token_id, with_ascii_sign(t.text.removeprefix(" ")), t.starts_number)
            for t in vocabulary.tokens
            if not t.is_value
        ]
        texts += [(i, SIGN[factor > 0], True) for i, factor in vocabulary.sign_ids.items()]
        texts += [(i, POINT, False) for i in vocabulary.point_ids]
        if self.signed and not any(text.startswith("-") for _, text, _ in texts):
            raise ValueError(
                "signed=True, but the vocabulary has no minus sign. Add one, or pass signed=False."
            )
        found: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in slots]
        ends = {len(slots)}  # from which a number can be completed
        for slot in reversed(range(len(slots))):
            for token, text, starts in texts:
                is_implied = self.plus == "optional" and slots[slot] == SIGN and text[0] not in SIGN
                codes = _encode(("+" if is_implied else "") + text, slots[slot:])
                if codes and not (starts and slot) and slot + len(codes) in ends:
                    found[slot].append((token, codes))
            ends |= {slot} if found[slot] else set()
        if 0 not in ends:
            fraction = f", a point and {self.decimals} decimals" if self.decimals else ""
            raise ValueError(
                f"the vocabulary cannot write numbers of {self.digits} digits{fraction}: no sequence of its "
                f"{len(vocabulary.tokens)} number tokens and {len(vocabulary.point_ids)} points is one. Pass "
                "a vocabulary with the ten digits (and '.' for decimals)."
            )
        return found

    def tables(self, vocabulary: NumberVocabulary, device: torch.device) -> list[SlotTokens | None]:
        """Make tables of the tokens that may begin at each slot; see `tokens`. None where none can."""
        return [_table(tokens, device) if tokens else None for tokens in self.tokens(vocabulary)]

    def masks(self, vocabulary: NumberVocabulary) -> tuple[Tensor, Tensor]:
        """Make masks of the tokens that continue a number of fixed width, with all of its signs.

        Args:
            vocabulary: the number tokens; a ValueError if they cannot write such numbers.

        Returns:
            Whether each token may begin at each slot, `[slots, vocab]`, bool; and the number of slots that
            each token fills, `[vocab]`.

        Example:
            >>> digits = NumberVocabulary.from_mapping({1: "1", 2: "2", 3: "12"}, vocab_size=4)
            >>> NumberFormat(digits=2).masks(digits)[0].int()
            tensor([[0, 1, 1, 1],
                    [0, 1, 1, 0]], dtype=torch.int32)
        """
        allowed = torch.zeros(len(self.slots), vocabulary.vocab_size, dtype=torch.bool)
        lengths = torch.zeros(vocabulary.vocab_size, dtype=torch.long)
        typographic = {token for token, text in vocabulary.pieces.items() if not text.isascii()}
        for slot, tokens in enumerate(replace(self, plus="written").tokens(vocabulary)):
            for token, codes in tokens:
                if token not in typographic:  # `write` has ASCII signs
                    allowed[slot, token], lengths[token] = True, len(codes)
        return allowed, lengths


def _encode(text: str, slots: tuple[str, ...]) -> tuple[int, ...]:
    """The index of each character in its slot; nothing if the text does not fit."""
    codes = tuple(slot.find(character) for slot, character in zip(slots, text, strict=False))
    return codes if len(codes) == len(text) and min(codes) >= 0 else ()


def _table(tokens: list[tuple[int, tuple[int, ...]]], device: torch.device) -> SlotTokens:
    longest = max(len(codes) for _, codes in tokens)
    codes = torch.tensor([[*codes, *[-1] * (longest - len(codes))] for _, codes in tokens], device=device)
    one_hot = F.one_hot(codes.clamp(min=0), CODES).double() * (codes >= 0)[..., None]
    return SlotTokens(
        torch.tensor([token for token, _ in tokens], device=device),
        (codes >= 0).sum(-1),
        codes,
        one_hot.transpose(0, 1),
    )


def _parse(number: Any) -> Decimal:
    text = number if isinstance(number, str) else _shortest(number)
    if SIGNED.fullmatch(text.strip()) is None:
        raise ValueError(f"{text.strip()[:80]!r} is not a single number in plain digits, such as -12.5")
    return Decimal(text.strip()) or Decimal(0)  # one zero, without a sign


def _shortest(number: Any) -> str:
    """Write a number, maybe an element of an array or a tensor, in the fewest digits that tell it apart."""
    if isinstance(number, Decimal):
        return f"{number:f}"
    value = as_float(number)
    if value.is_integer():
        return f"{int(number)}"
    if isinstance(number, Tensor) and number.is_floating_point():
        texts = (f"{value:.{digits}g}" for digits in range(1, 18))
        text = next(text for text in texts if torch.tensor(float(text), dtype=number.dtype) == number.cpu())
    else:
        text = repr(value) if isinstance(number, Fraction) else str(number)
    return f"{Decimal(text):f}" if math.isfinite(value) else text


def _count_digits(number: Decimal) -> tuple[int, int]:
    """Return how many digits a number needs before the point, at least one, and after it."""
    whole, _, decimals = f"{number.copy_abs():f}".partition(".")
    return len(whole), len(decimals.rstrip("0"))
