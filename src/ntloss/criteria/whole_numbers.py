r"""Losses on whole numbers: one for each number, at its first token.

All compare $\hat x = \sum_t \hat d_t 10^{place_t}$, computed from the predicted digits, with the label's
number $x$, on a logarithmic scale that fits numbers of any length (`log_ratio`). Under teacher forcing they
see as many digits as the *labels* have, so they cannot tell if the model would have stopped earlier or gone
on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput, Needs, check_positive, spans_of
from ntloss.numbers.spans import NumberSpans, log_ratio

# In units of a number's last digit, as in the published package.
_EPSILON = torch.finfo(torch.float32).eps


def at_starts(of_numbers: Tensor, spans: NumberSpans) -> Tensor:
    """Put the loss of each number at its first token, and zero elsewhere: `[positions]`."""
    return torch.where(spans.starts, of_numbers[spans.number], 0)


class _OnWholeNumbers:
    decimals: bool

    @property
    def needs(self) -> Needs:
        """Whole numbers, and decimals if requested."""
        return Needs(per_number=True, decimals=self.decimals)


@dataclass(frozen=True)
class NumberLevel(_OnWholeNumbers):
    r"""Symmetric relative error between the expected and the true whole number.

    $|\hat x - x| / (\hat x + x + \epsilon)$ with $\hat x = \sum_t E[d_t] \, 10^{place_t}$ and
    $\epsilon = 1.2 \cdot 10^{-7}$ units of the number's last digit. It ranges from 0 to 1, and is zero
    whenever $\hat x = x$, even if digits are uncertain, because each digit contributes its mean.

    Use it if the size of a number matters more than each digit. If all digits are uncertain, most of the
    gradient goes to the first one. `NumberLevelLoss` is the published class with this criterion.

    Args:
        decimals: a point between two digits belongs to their number. Default: False: `12.34` is 12 and 34.

    Source: the package ntloss since 0.2, `NumberLevelLoss`.

    Example:
        >>> from ntloss import NumberLevel, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, NumberLevel())
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = 0.0  # certain of 12
        >>> round(loss(logits, torch.tensor([[3, 6]])).item(), 4)  # 24 / 48
        0.5
    """

    decimals: bool = False

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each number, at its first token: `[positions]`."""
        spans = spans_of(x, self)
        # Half of epsilon on either side: (a - b) / (a + b) = tanh((log a - log b) / 2).
        predicted = (x.probs * x.values.abs()).sum(-1)
        true = x.target_values.abs()
        ratio = log_ratio(predicted, true, spans.place_from_end, spans, _EPSILON / 2)
        return at_starts(torch.tanh(ratio.abs() / 2), spans)

    def worst(self, values: Tensor) -> float:
        """Return 1, the largest relative error."""
        return 1.0


@dataclass(frozen=True)
class _FromDigits(_OnWholeNumbers):
    """Base class of criteria that read the number from the most likely digits."""

    temperature: float = 0.1
    hard: bool = True
    decimals: bool = False

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def _log_ratio(self, x: CriterionInput) -> Tensor:
        spans, values = spans_of(x, self), x.values.abs()
        read = (torch.softmax(x.log_probs / self.temperature, -1) * values).sum(-1)
        if self.hard:
            # Straight-through: the value of the most likely digit, with the gradient of the softmax.
            read = read + (values[x.log_probs.argmax(-1)] - read).detach()
        return log_ratio(read, x.target_values.abs(), spans.place, spans, 1.0)


@dataclass(frozen=True)
class RelativeError(_FromDigits):
    r"""Relative error between the predicted and the true whole number (NTIL).

    $|\hat x - x| / (\max(\hat x, x) + 1)$ with $\hat x$ made of the most likely digits, and the gradient of a
    softmax at low temperature. It ranges from 0 to 1, and is zero whenever the most likely digits are right,
    however uncertain. So use it beside a loss on tokens.

    Args:
        temperature: temperature of the softmax that replaces the argmax; a lower temperature is closer to the
            argmax and gives fewer digits a gradient. Default: 0.1, as published.
        hard: use the value of the argmax and the gradient of the softmax (straight-through). False uses the
            softmax for both. Default: True, as published.
        decimals: a point between two digits belongs to their number. Default: False.

    Raises:
        ValueError: `temperature` is not above 0.

    Source: NTIL, ACL 2025, sequence-level terms.

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import RelativeError
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, RelativeError())
        >>> logits = torch.zeros(1, 2, 16)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 1.0  # most likely 19
        >>> round(loss(logits, torch.tensor([[1, 4]])).item(), 4)  # 5 / 20
        0.25
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each number, at its first token: `[positions]`."""
        # 1 - (min + 1) / (max + 1)
        error = -torch.expm1(-self._log_ratio(x).abs())
        return at_starts(error, spans_of(x, self))

    def worst(self, values: Tensor) -> float:
        """Return 1, the largest relative error."""
        return 1.0


@dataclass(frozen=True)
class Magnitude(_FromDigits):
    r"""Difference in order of magnitude between the predicted and the true whole number (NTIL).

    $\log((\max(\hat x, x) + 1) / (\min(\hat x, x) + 1))$. It ranges from 0 to about 2.3 per digit of the
    number. It is zero if `RelativeError` is, and keeps growing where that saturates.

    Args:
        temperature, hard, decimals: see `RelativeError`.

    Raises:
        ValueError: `temperature` is not above 0.

    Source: NTIL, ACL 2025, sequence-level terms.

    Example:
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import Magnitude
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> logits = torch.zeros(1, 2, 16)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 1.0  # most likely 19
        >>> loss = NumberTokenLoss(digits, Magnitude())
        >>> round(loss(logits, torch.tensor([[0, 1]])).item(), 4)  # log(20 / 2)
        2.3026
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each number, at its first token: `[positions]`."""
        return at_starts(self._log_ratio(x).abs(), spans_of(x, self))
