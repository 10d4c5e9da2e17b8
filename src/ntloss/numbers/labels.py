"""The numbers in rows of labels, found in the text that their tokens write.

A language model writes `2019` as several tokens. Losses on whole numbers, and losses that weight a digit by
its place, need to know where a number starts and ends and where its decimal point is. The tokens of a row are
joined to a text, and the grammar of texts finds its numbers (`ntloss.numbers.grammar`); what it finds belongs
to the tokens whose characters it is. All of this happens on the CPU, where labels are made.

A token that begins with a space and a digit (` 12`) begins a number, because many tokenizers put a space
before each. Without `decimals`, a decimal point or comma ends a number: `12.5` is 12 and 5. A number that is
cut off is the number that its remaining digits form. `docs/numbers.md` has the other rules ("Labels and
tokens").
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.grammar import POINT, match_numbers
from ntloss.numbers.texts import BREAK, Spelling
from ntloss.numbers.vocabulary import VALUE, NumberVocabulary

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
        length: number of digits of the token in its number, 1 for a token that is given by value; 0 for text,
            and for digits of no number.
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

    Example:
        >>> vocabulary = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=12)
        >>> found = find_numbers(torch.tensor([[1, 2, 10, 5, 11, 7]]), vocabulary)
        >>> LabelNumbers.unpack(found).place  # of 12.5 and 7
        tensor([[ 1,  0,  0, -1,  0,  0]])
    """
    shape, seq = labels.shape, labels.shape[-1] if labels.dim() else 1
    spelling = vocabulary.spelling
    try:
        # One more column, which ends the last number of each row.
        ids = F.pad(labels.cpu().long().reshape(shape[:-1].numel(), seq), (0, 1), value=-1)
        outside = (ids == ignore_index) | (ids < 0) | (ids >= vocabulary.vocab_size)
        ids = ids.masked_fill(outside, -1).reshape(-1)
        tokens = ids.tolist()
    except RuntimeError as error:
        raise RuntimeError(
            "the criterion looks at whole numbers, and these labels have no values that could be read: "
            "prepare them before, loss_fn.prepare(labels), and pass what it returns in their place"
        ) from error
    pieces = spelling.pieces(tokens)
    if sequence_ids is not None:
        of_rows = sequence_ids.cpu().reshape(-1, seq)
        begins = F.pad(of_rows[:, 1:] != of_rows[:, :-1], (1, 1), value=False)
        for i in begins.reshape(-1).nonzero()[:, 0].tolist():
            pieces[i] = BREAK + pieces[i]
    text = b"".join([*pieces, BREAK]).decode(errors="surrogateescape")  # parts of characters are surrogates
    found = array("q")
    for match, plain, _ in match_numbers(text, vocabulary.thousands):
        mantissa, _, power = plain.lstrip("-").partition("e")
        whole, _, fraction = mantissa.partition(POINT)
        exponent = int(power[:_LONGEST_POWER]) if power else 0
        found.extend((match.start(), len(whole), len(fraction), exponent))
    packed = ids.new_zeros(*shape, len(LabelNumbers._fields))
    if found:
        token = torch.repeat_interleave(ids.new_tensor([*map(spelling.digits.__getitem__, tokens)]))
        digits = _digits_of(torch.frombuffer(found, dtype=torch.int64).view(-1, 4), text, token, decimals)
        at, numbers = _by_token(digits, ids, spelling, decimals)
        packed.view(-1, packed.shape[-1])[at - at // (seq + 1)] = numbers.pack()
    if spelling.magnitudes is not None:
        at = ((ids >= 0) & (spelling.kinds[ids] == VALUE)).nonzero().squeeze(-1)
        packed.view(-1, packed.shape[-1])[at - at // (seq + 1)] = _values_of(ids[at], spelling.magnitudes)
    return packed


def _values_of(token_ids: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the numbers of tokens that are given by value, packed: one token each, in units."""
    nothing, one = torch.zeros_like(token_ids), torch.ones_like(token_ids)
    half = torch.full(token_ids.shape, 0.5, dtype=torch.float64)
    return LabelNumbers(
        length=one, place=nothing, after=nothing, back=nothing, starts=one, leads=nothing,
        kind=one * VALUE, unit=2 * half, below=half, above=half, magnitude=magnitudes[token_ids],
    ).pack()  # fmt: skip


def first_tokens(numbers: LabelNumbers) -> Tensor:
    """Return the position of the first token of each position's number, `[positions]`; of text, its own."""
    return torch.arange(len(numbers.back), device=numbers.back.device) - numbers.back


def without_float64(packed: Tensor) -> Tensor:
    """Return packed numbers whose floats are float32, for Apple's GPUs, which have no float64."""
    return LabelNumbers.unpack(packed.cpu()).pack(torch.float32) if packed.dtype == torch.int64 else packed


def _digits_of(numbers: Tensor, text: str, token: Tensor, decimals: bool) -> tuple[Tensor, ...]:
    """Return of each digit of the numbers: its token, number, place, digits after it, and value as float64.

    `numbers` are `[numbers, 4]`: where each starts, its digits before and after the point, its power of ten.
    `token` is the index of the token of each digit in the text, whether it belongs to a number or not.
    """
    if text.isascii():
        chars = torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8)
    else:
        chars = torch.frombuffer(bytearray(text, "utf-32-le", "surrogatepass"), dtype=torch.int32)
    at = ((chars >= ord("0")) & (chars <= ord("9"))).nonzero().squeeze(-1)
    start, whole, fraction, power = numbers.t().contiguous()
    # After the digits of a number, those of an exponent may follow, which belong to none.
    total = whole + fraction
    number = torch.repeat_interleave(total)
    rank = torch.arange(len(number), device=number.device) - (total.cumsum(0) - total).index_select(0, number)
    own = torch.searchsorted(at, start).index_select(0, number) + rank
    value = chars.index_select(0, at.index_select(0, own)).double() - ord("0")
    whole, total, power = (each.index_select(0, number) for each in (whole, total, power))
    if not decimals:  # the digits after a point are another number, to which the magnitude belongs
        second = rank >= whole
        number, power = 2 * number + second, torch.where(second | (total == whole), power, 0)
        rank, total = torch.where(second, rank - whole, rank), torch.where(second, total - whole, whole)
        whole = total
    return token.index_select(0, own), number, whole - 1 - rank + power, total - 1 - rank, value


def _by_token(
    digits: tuple[Tensor, ...], ids: Tensor, spelling: Spelling, decimals: bool
) -> tuple[Tensor, LabelNumbers]:
    """Return which of the tokens `ids` are number tokens of numbers, and the numbers of these.

    `digits` are those of `_digits_of`. A token of several numbers (`1/2`) belongs to the last one.
    """
    token, number, place, after, value = digits
    new_token, new_number = token[1:] != token[:-1], number[1:] != number[:-1]
    index, edge = torch.arange(len(token), device=token.device), new_token.new_ones(1)
    # Of each digit, the first one of its number, and the first one of its token in its number.
    head = torch.where(torch.cat([edge, new_number]), index, 0).cummax(0).values
    run = torch.where(torch.cat([edge, new_number | new_token]), index, 0).cummax(0).values
    # What stands after each digit in its number, in units of the digit, and what is missing to nines.
    following = F.pad(value[1:], (0, _DIGITS_AFTER)).unfold(0, _DIGITS_AFTER, 1)
    steps = torch.arange(1, _DIGITS_AFTER + 1, device=token.device)
    shares = _power_of_ten(-steps) * (steps <= after.unsqueeze(-1))
    remainder, complement = (following * shares).sum(-1), ((9 - following) * shares).sum(-1)
    half = _power_of_ten(-after) / 2
    magnitude = value.new_zeros(int(number[-1]) + 1)
    magnitude.index_add_(0, number, value * _power_of_ten(place))

    is_number = spelling.is_number.index_select(0, ids.index_select(0, token))
    hidden = is_number.new_zeros(len(magnitude)).index_fill_(0, number[~is_number], True)
    last = (torch.cat([new_token, edge]) & is_number).nonzero().squeeze(-1)
    head, run, number = (each.index_select(0, last) for each in (head, run, number))
    at = token.index_select(0, last)
    of_token = ids.index_select(0, at)
    # A token's value may have a point or an exponent of its own.
    points, powers = spelling.points.index_select(0, of_token), spelling.powers.index_select(0, of_token)
    unit = place.index_select(0, last) + points * decimals - powers
    starts = (run == head) & ~hidden.index_select(0, number)
    leads = (place.index_select(0, run) > 0) & (value.index_select(0, run) > 0)
    return at, LabelNumbers(
        length=last - run + 1,
        place=unit,
        after=after.index_select(0, last),
        back=at - token.index_select(0, head),
        starts=starts,
        leads=starts & leads,
        kind=spelling.kinds.index_select(0, of_token),
        unit=_power_of_ten(unit),
        below=(remainder + half).index_select(0, last),
        above=(complement + half).index_select(0, last),
        magnitude=magnitude.index_select(0, number).clamp(max=10.0**_LARGEST_POWER),
    )


def _power_of_ten(place: Tensor) -> Tensor:
    return _powers_of_ten().index_select(0, place.clamp(-_LARGEST_POWER, _LARGEST_POWER) + _LARGEST_POWER)


@cache
def _powers_of_ten() -> Tensor:
    """Return those from 1e-300 to 1e300: `torch.pow` takes several times as long, and rounds them."""
    with torch.device("cpu"), torch.inference_mode(False):
        powers = range(-_LARGEST_POWER, _LARGEST_POWER + 1)
        return torch.tensor([float(f"1e{power}") for power in powers], dtype=torch.float64)


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
