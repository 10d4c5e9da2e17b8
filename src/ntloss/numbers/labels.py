"""The numbers in rows of labels, found in the text that their tokens write.

A language model writes `2019` as several tokens. Losses on whole numbers, and losses that weight a digit by
its place, need to know where a number starts and ends and where its decimal point is. The tokens of a row are
joined to a text, and the grammar of texts finds its numbers (`ntloss.numbers.grammar`); what it finds belongs
to the tokens whose characters it is. All of this happens on the CPU, where labels are made.

- A token that begins with a space and a digit (` 12`) begins a number, because many tokenizers put a space
  before each.
- A number ends at labels that are ignored, at the end of a row, and at the end of a packed sequence. A
  truncated number is the number that its remaining digits form.
- A sign is no part of a number here: the number of `-3` is 3, and the sign is a token, or a part of one.
- Without `decimals`, a decimal point or comma ends a number: `12.5` is 12 and 5.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.grammar import POINT, find_digits
from ntloss.numbers.spelling import BREAK, Spelling
from ntloss.numbers.vocabulary import NumberVocabulary

# A digit further on changes a sum by less than the rounding of float64.
_DIGITS_AFTER = 20
_LARGEST_POWER = 300  # of ten; larger places have the unit and the magnitude of this one
_LONGEST_POWER = 18  # characters of an exponent; further ones are left out


class LabelNumbers(NamedTuple):
    """The number that each label belongs to: tensors in the labels' shape, `[..., seq]`.

    `below` and `above` are in units of the token's last digit: the 4 of 42.5 stands for the numbers from
    39.95 to 49.95, so `below` is 0.255 tens and `above` 0.745 tens. Both are sums of the digits after the
    token, so they are precise in numbers of any length.

    Args:
        length: number of digits of the token in its number; 0 for text, and for digits of no number.
        place: power of ten that the token's value counts, 0 for units, 1 for tens, -1 for tenths: a number is
            the sum of `value * 10**place` over its tokens.
        after: number of digits of the number after this token.
        back: number of positions since the number's first token, 0 at that token.
        starts: 1 at the first token of a number, unless it has digits in tokens that are no numbers; else 0.
        leads: 1 at the first token of a number of several digits before the point that begins with no 0,
            else 0.
        kind: `NumberToken.kind` of the label.
        unit: `10**place`, float64 as all that follow, from 1e-300 to 1e300.
        below: distance from the lower end of the numbers that begin as this one up to this token, to this
            number.
        above: distance from this number to their upper end.
        magnitude: absolute value of the whole number, at most 1e300.
    """

    length: Tensor
    place: Tensor
    after: Tensor
    back: Tensor
    starts: Tensor
    leads: Tensor
    kind: Tensor
    unit: Tensor
    below: Tensor
    above: Tensor
    magnitude: Tensor

    def pack(self, floats: torch.dtype = torch.float64) -> Tensor:
        """Write the columns into one tensor of integers, `[..., seq, columns]`, and floats as their bits.

        `floats` is float32 for devices without float64, and the integers then are int32.
        """
        bits = torch.int64 if floats == torch.float64 else torch.int32
        columns = [c.to(floats).view(bits) if c.is_floating_point() else c.to(bits) for c in self]
        return torch.stack(columns, -1)

    @classmethod
    def unpack(cls, packed: Tensor) -> LabelNumbers:
        """Read what `pack` wrote, as views."""
        floats = torch.float64 if packed.dtype == torch.int64 else torch.float32
        *integers, unit, below, above, magnitude = packed.unbind(-1)
        units = unit.view(floats), below.view(floats), above.view(floats), magnitude.view(floats)
        return cls(*integers, *units)  # type: ignore[call-arg]


@torch.no_grad()
def find_numbers(
    labels: Tensor,
    vocabulary: NumberVocabulary,
    sequence_ids: Tensor | None = None,
    *,
    decimals: bool = True,
    ignore_index: int = -100,
) -> Tensor:
    """Find the numbers of labels, on the CPU; labels on another device are copied, which synchronizes.

    Args:
        labels: `[..., seq]`, token ids.
        vocabulary: the number tokens.
        sequence_ids: `[..., seq]`, integers; adjacent positions with the same id belong to one sequence.
            Default: each row is one sequence.
        decimals: whether a decimal point belongs to its number. Default: True.
        ignore_index: label of positions to ignore. Default: -100.

    Returns:
        `[..., seq, columns]`, int64, on the CPU: `LabelNumbers` in one tensor. So it is split, gathered and
        moved as the labels are, and unlike floats it is never cast to half precision.

    Raises:
        RuntimeError: the labels have no values here, as on the device "meta" or in `torch.func.vmap`.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers.labels import LabelNumbers, find_numbers
        >>> vocabulary = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=12)
        >>> found = find_numbers(torch.tensor([[1, 2, 10, 5, 11, 7]]), vocabulary)
        >>> numbers = LabelNumbers.unpack(found)
        >>> numbers.place  # of 12.5 and 7
        tensor([[ 1,  0,  0, -1,  0,  0]])
        >>> numbers.starts
        tensor([[1, 0, 0, 0, 0, 1]])
    """
    if labels.device.type == "meta" or torch._C._functorch.is_batchedtensor(labels):
        raise RuntimeError(
            "the criterion looks at whole numbers, and these labels have no values that could be read: find "
            "their numbers before, numbers = loss_fn.find_numbers(labels), and pass numbers=numbers"
        )
    shape, seq = labels.shape, labels.shape[-1] if labels.dim() else 1
    # One more column, which ends the last number of each row.
    ids = F.pad(labels.cpu().long().reshape(shape[:-1].numel(), seq), (0, 1), value=-1)
    ids = ids.masked_fill(ids == ignore_index, -1)
    pieces = [*map(vocabulary.spelling.__getitem__, ids.reshape(-1).tolist())]
    if sequence_ids is not None:
        of_rows = sequence_ids.cpu().reshape(-1, seq)
        begins = F.pad(of_rows[:, 1:] != of_rows[:, :-1], (1, 1), value=False)
        for i in begins.reshape(-1).nonzero()[:, 0].tolist():
            pieces[i] = BREAK + pieces[i]
    text, chars, byte_of = _decode(b"".join([*pieces, BREAK]))
    found = [_measure(start, end, plain) for start, end, plain, _ in find_digits(text, vocabulary.thousands)]
    packed = torch.zeros(*shape, len(LabelNumbers._fields), dtype=torch.int64)
    if found:
        digits = _digits_of(torch.tensor(found), chars, decimals)
        ends = torch.frombuffer(array("q", map(len, pieces)), dtype=torch.int64).cumsum(0)
        token = torch.searchsorted(ends, byte_of[digits.at], right=True)
        at, numbers = _by_token(digits, token, ids.reshape(-1), vocabulary.spelling, decimals)
        packed.view(-1, packed.shape[-1])[at - at // (seq + 1)] = numbers.pack()
    return packed


def without_float64(packed: Tensor) -> Tensor:
    """Return packed numbers whose floats are float32, for Apple's GPUs, which have no float64."""
    return LabelNumbers.unpack(packed.cpu()).pack(torch.float32) if packed.dtype == torch.int64 else packed


def _decode(spelled: bytes) -> tuple[str, Tensor, Tensor]:
    """Return a text, its characters as integers, and the byte at which each of them begins."""
    if spelled.isascii():
        chars = torch.frombuffer(bytearray(spelled), dtype=torch.uint8)
        return spelled.decode("ascii"), chars, torch.arange(len(chars))
    text = spelled.decode(errors="surrogateescape")  # parts of characters are single surrogates
    chars = torch.frombuffer(bytearray(text.encode("utf-32-le", "surrogatepass")), dtype=torch.int32)
    size = 1 + (chars >= 0x80).long() + (chars >= 0x800) + (chars >= 0x10000)
    size = torch.where((chars >= 0xD800) & (chars < 0xE000), 1, size)
    return text, chars, size.cumsum(0) - size


def _measure(start: int, end: int, plain: str) -> tuple[int, int, int, int, int]:
    """Return where a number stands, its digits before and after the point, and its power of ten."""
    mantissa, _, power = plain.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(POINT)
    return start, end, len(whole), len(fraction), int(power[:_LONGEST_POWER] or 0)


class _Digits(NamedTuple):
    """The digits of numbers in a text, from left to right, `[digits]`."""

    at: Tensor  # index of the character
    number: Tensor  # index of its number
    rank: Tensor  # digits of the number before it
    place: Tensor
    after: Tensor  # digits of the number after it
    value: Tensor  # 0 to 9, float64


def _digits_of(numbers: Tensor, chars: Tensor, decimals: bool) -> _Digits:
    """Find the digits of numbers `[numbers, 5]`, as `_measure` returns them, and their places."""
    start, end, whole, fraction, power = numbers.t().contiguous()
    at = ((chars >= ord("0")) & (chars <= ord("9"))).nonzero()[:, 0]
    number = torch.searchsorted(start, at, right=True) - 1
    rank = torch.arange(len(at)) - torch.searchsorted(at, start)[number]
    total = whole + fraction
    # Digits that stand before all numbers, after the last one, or in an exponent belong to none.
    inside = ((number >= 0) & (at < end[number]) & (rank < total[number])).nonzero()[:, 0]
    at, number, rank = at[inside], number[inside], rank[inside]
    whole, total, power = whole[number], total[number], power[number]
    if not decimals:  # the digits after a point are another number, to which the magnitude belongs
        second = rank >= whole
        number, power = 2 * number + second, torch.where(second | (total == whole), power, 0)
        rank, total = torch.where(second, rank - whole, rank), torch.where(second, total - whole, whole)
        whole = total
    place, after = whole - 1 - rank + power, total - 1 - rank
    return _Digits(at, number, rank, place, after, (chars[at] - ord("0")).double())


def _by_token(
    digits: _Digits, token: Tensor, ids: Tensor, spelling: Spelling, decimals: bool
) -> tuple[Tensor, LabelNumbers]:
    """Return which of the tokens `ids` are number tokens of numbers, and the numbers of these.

    `token` is the index of each digit's token. A token may hold digits of several numbers (`1/2`), and
    belongs to the last one.
    """
    count = int(digits.number[-1]) + 1
    # What stands after each digit in its number, in units of the digit, and what is missing to nines.
    same = _following(digits.number, -1) == digits.number.unsqueeze(-1)
    shares = same * torch.pow(10.0, -torch.arange(1.0, _DIGITS_AFTER + 1, dtype=torch.float64))
    both = _following(torch.stack([digits.value, 9 - digits.value]), 0)
    remainder, complement = (shares * both).sum(-1)
    half = torch.pow(10.0, -digits.after.double()) / 2
    magnitude = torch.zeros(count, dtype=torch.float64)
    magnitude.index_add_(0, digits.number, digits.value * _power_of_ten(digits.place))

    is_number = spelling.is_number[ids[token]]
    hidden = torch.zeros(count, dtype=torch.bool).index_fill_(0, digits.number[~is_number], True)
    begin = torch.full((count,), len(ids)).scatter_reduce_(0, digits.number, token, "amin")
    changes = (token[1:] != token[:-1]) | (digits.number[1:] != digits.number[:-1])
    run = torch.where(F.pad(changes, (1, 0), value=True), torch.arange(len(token)), 0).cummax(0).values

    last = (F.pad(token[1:] != token[:-1], (0, 1), value=True) & is_number).nonzero()[:, 0]
    at, number, run = token[last], digits.number[last], run[last]
    length, of_token = last - run + 1, ids[at]
    # A token's value may have a point or an exponent of its own.
    place = digits.place[last] + spelling.points[of_token] * decimals - spelling.powers[of_token]
    starts = (digits.rank[run] == 0) & ~hidden[number]
    return at, LabelNumbers(
        length,
        place,
        after=digits.after[last],
        back=at - begin[number],
        starts=starts,
        leads=starts & (digits.place[run] > 0) & (digits.value[run] > 0),
        kind=spelling.kinds[of_token],
        unit=_power_of_ten(place),
        below=(remainder + half)[last],
        above=(complement + half)[last],
        magnitude=magnitude[number].clamp(max=10.0**_LARGEST_POWER),
    )


def _power_of_ten(place: Tensor) -> Tensor:
    return torch.pow(10.0, place.clamp(-_LARGEST_POWER, _LARGEST_POWER).double())


def _following(column: Tensor, fill: int) -> Tensor:
    """Return the entries after each one in the last dimension, `[..., entries, _DIGITS_AFTER]`."""
    return F.pad(column[..., 1:], (0, _DIGITS_AFTER), value=fill).unfold(-1, _DIGITS_AFTER, 1)


def sequence_ids_of(position_ids: Tensor) -> Tensor:
    """Number the packed sequences of each row; position ids restart at each sequence.

    Args:
        position_ids: `[..., seq]`, 0, 1, 2, ... in each sequence.

    Returns:
        The index of each position's sequence in its row, `[..., seq]`.

    Example:
        >>> import torch
        >>> sequence_ids_of(torch.tensor([[0, 1, 2, 0, 1]]))
        tensor([[0, 0, 0, 1, 1]])
    """
    begins = F.pad(position_ids[..., 1:] != position_ids[..., :-1] + 1, (1, 0), value=False)
    return begins.cumsum(-1)
