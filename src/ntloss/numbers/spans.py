"""The digits of whole numbers in labels: their decimal places, what stands after them, and packed sequences.

`ntloss.numbers.characters` finds the numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.characters import NumberSpans

# A digit further on changes a remainder by less than the rounding of float64.
_DIGITS_AFTER = 20
# A digit is multiplied by at most 10 to this power. Otherwise, an expected digit far below 1 that precedes
# many zeros would have an infinite gradient.
_LARGEST_POWER = 18
_SMALLEST_MANTISSA = 1e-12


class NumberDigits(NamedTuple):
    """The digits of each label in its number, `[positions]`, in units of the token's last digit.

    The 4 of 42.5 counts tens: `remainder` is 0.25, for 2.5, and `complement`, up to the last tenth before 50,
    is 0.74. Both are sums of the digits after the token, so they are precise in numbers of any length.

    Args:
        length: number of digits of the label's token, 0 if the label is not a number token.
        place: decimal place of the token's last digit: 0 for units, 1 for tens, -1 for tenths.
        after: number of digits after this token in its number.
        starts: bool, True at the first token of a number.
        remainder: value of the digits after the token, from 0 to below 1.
        complement: 1 - `remainder` - the unit of the number's last digit.
        magnitude: absolute value of the whole number, in its own units, at most 1e300 (1e38 in float32).
        has_length: `[values, lengths]`, bool: whether a token of 1, 2, ... digits, without a point or an
            exponent of its own, has this value.
    """

    length: Tensor
    place: Tensor
    after: Tensor
    starts: Tensor
    remainder: Tensor
    complement: Tensor
    magnitude: Tensor
    has_length: Tensor

    def select(self, rows: Tensor | slice) -> NumberDigits:
        """The digits of some positions."""
        *columns, has_length = self
        return NumberDigits(*[column[rows] for column in columns], has_length)  # type: ignore[call-arg]


def measure_digits(spans: NumberSpans, values: Tensor, has_length: Tensor) -> NumberDigits:
    """Measure the digits after each token, without a loop or a synchronization with the device.

    Args:
        spans: of all positions of the batch, `[positions]`.
        values: `[positions]`, values of the labels' tokens, 0 where they are text; float64 or float32.
        has_length: see `NumberDigits`.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers.characters import find_numbers, token_kinds
        >>> from ntloss.numbers.spans import measure_digits
        >>> vocabulary = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=12)
        >>> labels, values = torch.tensor([[4, 2, 10, 5]]), torch.tensor([4.0, 2.0, 0.0, 5.0])
        >>> spans = find_numbers(labels, token_kinds(vocabulary), decimals=True).flatten()
        >>> digits = measure_digits(spans, values, has_length=torch.ones(10, 1, dtype=torch.bool))
        >>> digits.remainder, digits.complement
        (tensor([0.2500, 0.5000, 0.0000, 0.0000]), tensor([0.7400, 0.4000, 0.0000, 0.0000]))
    """
    is_number = spans.digits > 0
    digits = spans.value.to(values.dtype)
    place = torch.where(is_number, spans.place, 0)
    nines = torch.pow(10.0, spans.digits.to(values.dtype)) - 1
    nines = nines * torch.pow(10.0, -spans.behind_point.to(values.dtype)) - digits
    # -1 is no number, so that text and the padding at the end belong to none.
    number = torch.where(is_number, spans.number, -1)

    def following(column: Tensor, fill: int = 0) -> Tensor:
        return F.pad(column[1:], (0, _DIGITS_AFTER + 1), value=fill).unfold(0, _DIGITS_AFTER + 1, 1)[
            : len(column)
        ]

    # A point may stand between the digits.
    same = (following(number, -1) == number.unsqueeze(-1)) & is_number.unsqueeze(-1)
    shares = torch.pow(10.0, (following(place) - place.unsqueeze(-1)).clamp(max=0).to(values.dtype))
    shares = torch.where(same, shares, 0)
    remainder, complement = ((shares * following(column)).sum(-1) for column in (digits, nines))

    largest = 38 if values.dtype == torch.float32 else 300
    from_here = (digits + remainder) * torch.pow(10.0, place.clamp(-largest, largest - 1).to(values.dtype))
    of_numbers = torch.zeros_like(from_here).scatter_reduce(0, spans.number, from_here, "amax")
    magnitude = of_numbers[spans.number].clamp(max=10.0**largest)
    return NumberDigits(
        spans.digits,
        spans.place,
        spans.place_from_end,
        spans.starts,
        remainder,
        complement,
        magnitude,
        has_length,
    )


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


def log_ratio(predicted: Tensor, true: Tensor, place: Tensor, spans: NumberSpans, addend: float) -> Tensor:
    r"""Compute $\log(\hat x + a) - \log(x + a)$ of numbers of any length, $x = \sum_t d_t \, 10^{place_t}$.

    Each number is scaled by its own power of ten, so that none overflows. To keep gradients finite, a number
    is underestimated if its leading digit is predicted below 1e-18 and all others as exactly 0. All
    are `[positions]`; the ratio of number i is at index i, and 0 after the last number.
    """
    mantissa, exponent = _log_sum(predicted, place, spans, addend)
    true_mantissa, true_exponent = _log_sum(true, place, spans, addend)
    return (mantissa - true_mantissa) + (exponent - true_exponent) * math.log(10)


def _log_sum(digits: Tensor, place: Tensor, spans: NumberSpans, addend: float) -> tuple[Tensor, Tensor]:
    # log(sum + addend) as a logarithm and an integer power of ten. Positions outside of numbers add 0 to
    # number 0.
    is_number = spans.digits > 0
    places = torch.where(is_number, place, 0).to(digits.dtype)
    magnitude = torch.where(is_number, digits.detach().log10() + places, -math.inf)
    exponent = torch.full_like(digits, math.log10(addend)).detach()
    exponent = exponent.scatter_reduce(0, spans.number, magnitude, "amax").ceil()
    power = (places - exponent[spans.number]).clamp(max=_LARGEST_POWER)
    scaled = digits * torch.pow(10.0, torch.where(is_number, power, -math.inf))
    mantissa = torch.zeros_like(digits).scatter_add(0, spans.number, scaled)
    mantissa = mantissa + addend * torch.pow(10.0, -exponent)
    return mantissa.clamp(min=_SMALLEST_MANTISSA).log(), exponent
