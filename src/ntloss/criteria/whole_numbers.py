"""Criteria with one loss for each whole number, at its first token.

They compare x' = sum_t d'_t 10^place_t, computed from the predicted digits, with the label's number x, on a
logarithmic scale that fits numbers of any length. They see as many digits as the *label* has, so they cannot
tell if the model would have stopped earlier or gone on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ntloss.criteria.targets import facts
from ntloss.criteria.tokens import ntl_was
from ntloss.numbers.labels import LabelNumbers, first_tokens

__all__ = ["number_level", "ntil"]

# In units of a number's last digit, as in the published package.
_EPSILON = torch.finfo(torch.float32).eps
# Base 1.2 reaches this weight after 379 digits. It keeps weights finite.
_LARGEST_WEIGHT = 1e30
# A digit is multiplied by at most 10 to this power. Otherwise, an expected digit far below 1 that precedes
# many zeros would have an infinite gradient.
_LARGEST_POWER = 18
_SMALLEST_MANTISSA = 1e-12


@facts("number-level NTL")
def number_level(
    probs: Tensor, values: Tensor, target: Tensor, numbers: LabelNumbers, decimals: bool = False
) -> Tensor:
    """Symmetric relative error between the expected and the true whole number.

    |x' - x| / (x' + x + e) with x' = sum_t E[d_t] 10^place_t and e = 1.2e-7 units of the number's last digit.
    It is zero whenever x' = x, even if digits are uncertain, because each digit contributes its mean. Use it
    if the size of a number matters more than each digit. `NumberLevelLoss` is the published class with it.

    Args:
        probs, values, target, numbers: see `ntloss.criteria.READABLE`.
        decimals: a point between two digits belongs to their number. Default: False: `12.34` is 12 and 34,
            as published.

    Returns:
        `[positions]`, the loss of each number at its first token, 0 elsewhere.

    Source: the package ntloss since 0.2, `NumberLevelLoss`.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss_fn = NTLCrossEntropyLoss(digits, number_level, reduction="none")
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = 0.0  # certain of 12, and the label is 36
        >>> loss_fn.terms(logits, torch.tensor([[3, 6]])).ntl  # 24 / 48
        tensor([[0.5000, 0.0000]])
    """
    # Half of epsilon on either side: (a - b) / (a + b) = tanh((log a - log b) / 2).
    predicted, true = (probs * values.abs()).sum(-1), values[target].abs()
    ratio = log_ratio(predicted, true, numbers.after, numbers, _EPSILON / 2)
    return torch.where(numbers.starts > 0, torch.tanh(ratio.abs() / 2), 0)


@facts("NTIL", in_units=True)
def ntil(
    probs: Tensor,
    log_probs: Tensor,
    values: Tensor,
    target: Tensor,
    numbers: LabelNumbers,
    base: float = 1.2,
    relative: float = 0.2,
    magnitude: float = 0.2,
    temperature: float = 0.1,
    decimals: bool = False,
) -> Tensor:
    """Numerical Token Integrity Loss (NTIL): digits weighted by place, and the whole number.

    mean_t b^r_t W_t + relative R + magnitude M for each number, where W_t is `ntl_was` of a digit with r_t
    digits after it, R = |x' - x| / (max(x', x) + 1) and M = log((max(x', x) + 1) / (min(x', x) + 1)), with x'
    made of the most likely digits and the gradient of a softmax at a low temperature. It is zero exactly if
    all digits are certain and right.

    The published code differs: it averages over the digits and numbers of each row before it averages over
    rows, adds a little Gumbel noise to the argmax, and multiplies the loss by the detached ratio of the
    batch's cross-entropy to its NTIL. This makes the gradient depend on how a batch is split, so it is left
    out here.

    Args:
        probs, log_probs, values, target, numbers: see `ntloss.criteria.READABLE`.
        base: b, base of the weights by place, 1 or more. Default: 1.2, as published.
        relative, magnitude: weights of R and M. Default: 0.2 and 0.2, as published.
        temperature: temperature of the softmax, above 0. Default: 0.1, as published.
        decimals: a point between two digits belongs to their number. Default: False.

    Returns:
        `[positions]`, the loss of each number at its first token, 0 elsewhere.

    Source: "Advancing Sequential Numerical Prediction in Autoregressive Models", ACL 2025.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss_fn = NTLCrossEntropyLoss(digits, ntil, reduction="sum")
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 0.0  # certain of 19, and the label is 14
        >>> loss_fn.terms(logits, torch.tensor([[1, 4]])).ntl  # 5 / 2 + 0.2 * 5 / 20 + 0.2 * log(20 / 15)
        tensor(2.6075)
    """
    weights = torch.pow(base, numbers.after.to(probs)).clamp(max=_LARGEST_WEIGHT)
    of_digits = _mean_over_digits(ntl_was(probs, values, target) * weights, numbers)
    # Straight-through: the value of the most likely digit, with the gradient of the softmax.
    magnitudes = values.abs()
    soft = (torch.softmax(log_probs / temperature, -1) * magnitudes).sum(-1)
    read = soft + (magnitudes[log_probs.argmax(-1)] - soft).detach()
    ratio = log_ratio(read, magnitudes[target], numbers.place, numbers, 1.0).abs()
    of_numbers = of_digits - relative * torch.expm1(-ratio) + magnitude * ratio
    return torch.where(numbers.starts > 0, of_numbers, 0)


def _mean_over_digits(loss: Tensor, numbers: LabelNumbers) -> Tensor:
    """Average the loss over the tokens of each number; the mean stands at the number's first token."""
    is_digit, first = numbers.length > 0, first_tokens(numbers)
    nothing = torch.zeros_like(loss)
    count = nothing.scatter_add(0, first, is_digit.to(loss))
    return nothing.scatter_add(0, first, torch.where(is_digit, loss, 0)) / count.clamp(min=1)


def log_ratio(predicted: Tensor, true: Tensor, place: Tensor, numbers: LabelNumbers, addend: float) -> Tensor:
    """Compute log(x' + a) - log(x + a) of numbers of any length, x = sum_t d_t 10^place_t.

    Each number is scaled by its own power of ten, so that none overflows. To keep gradients finite, a number
    is underestimated if its leading digit is predicted below 1e-18 and all others as exactly 0. All are
    `[positions]`; the ratio of a number stands at its first token.
    """
    mantissa, exponent = _log_sum(predicted, place, numbers, addend)
    true_mantissa, true_exponent = _log_sum(true, place, numbers, addend)
    return (mantissa - true_mantissa) + (exponent - true_exponent) * math.log(10)


def _log_sum(digits: Tensor, place: Tensor, numbers: LabelNumbers, addend: float) -> tuple[Tensor, Tensor]:
    # log(sum + addend) as a logarithm and an integer power of ten. Positions outside of numbers add 0.
    is_number, first = numbers.length > 0, first_tokens(numbers)
    places = torch.where(is_number, place, 0).to(digits.dtype)
    magnitude = torch.where(is_number, digits.detach().log10() + places, -math.inf)
    exponent = torch.full_like(digits, math.log10(addend)).detach()
    exponent = exponent.scatter_reduce(0, first, magnitude, "amax").ceil()
    power = (places - exponent[first]).clamp(max=_LARGEST_POWER)
    scaled = digits * torch.pow(10.0, torch.where(is_number, power, -math.inf))
    mantissa = torch.zeros_like(digits).scatter_add(0, first, scaled)
    mantissa = mantissa + addend * torch.pow(10.0, -exponent)
    return mantissa.clamp(min=_SMALLEST_MANTISSA).log(), exponent
