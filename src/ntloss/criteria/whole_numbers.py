r"""Losses on whole numbers: one for each number, at its first token.

All compare $\hat x = \sum_t \hat d_t 10^{place_t}$, read from what the model expects at each token, with the
label's number $x$, on a scale that numbers of any length fit (`number_spans.log_ratio`). A teacher-forced
loss sees as many digits as the *labels* have: that the model would have stopped earlier, or gone on, it
cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput, Needs, check_positive, spans_of
from ntloss.number_spans import NumberSpans, log_ratio

# In the unit of a number's last digit; that of the published package.
_EPSILON = torch.finfo(torch.float32).eps
_PUBLISHED_TEMPERATURE = 0.1


def at_starts(of_numbers: Tensor, spans: NumberSpans) -> Tensor:
    """Put the loss of each number, by ordinal, where the number starts; zero elsewhere: `[positions]`."""
    return torch.where(spans.starts, of_numbers[spans.number], 0)


@dataclass(frozen=True)
class NumberLevel:
    r"""Symmetric relative error between the expected and the true whole number.

    $|\hat x - x| / (\hat x + x + \epsilon)$ with $\hat x = \sum_t E[d_t] \, 10^{place_t}$ and
    $\epsilon = 1.2 \cdot 10^{-7}$ of a unit of the number's last digit. From 0 to 1. Zero wherever the
    expected number is right, not only where the label's digits are certain; in each digit it sees the mean.

    Use it where the size of a number matters more than each digit; `NumberLevelLoss` is the published module
    around it. Where all digits are uncertain its gradient goes to the first.

    Args:
        decimals: a point between two digits belongs to their number. Default: False: `12.34` is 12 and 34.

    Source: the package ntloss since 0.2, `NumberLevelLoss`.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import NumberLevel
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, NumberLevel())
        >>> logits = torch.full((1, 2, 16), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = 0.0  # certain of 12
        >>> round(loss(logits, torch.tensor([[3, 6]])).item(), 4)  # 24 / 48
        0.5
    """

    decimals: bool = False

    @property
    def needs(self) -> Needs:
        """Whole numbers."""
        return Needs(per_number=True, decimals=self.decimals)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each number at its first token, `[positions]`."""
        spans = spans_of(x, self)
        # Half of epsilon on either side: (a - b) / (a + b) = tanh((log a - log b) / 2).
        predicted = (x.probs * x.values.abs()).sum(-1)
        true = x.target_values.abs()
        ratio = log_ratio(predicted, true, spans.place_from_end, spans, _EPSILON / 2)
        return at_starts(torch.tanh(ratio.abs() / 2), spans)

    def worst(self, values: Tensor) -> float:
        """1: the error is relative."""
        return 1.0


def _ratio_of_read_numbers(x: CriterionInput, criterion: RelativeError | Magnitude) -> Tensor:
    spans = spans_of(x, criterion)
    values = x.values.abs()
    soft = torch.softmax(x.log_probs / criterion.temperature, -1)
    read = (soft * values).sum(-1)
    if criterion.hard:
        # The value is that of the most likely digit, the gradient that of the soft reading.
        read = read + (values[x.log_probs.argmax(-1)] - read).detach()
    return log_ratio(read, x.target_values.abs(), spans.place, spans, 1.0)


@dataclass(frozen=True)
class RelativeError:
    r"""Relative error between the number that is read from the digits and the true one (NTIL).

    $|\hat x - x| / (\max(\hat x, x) + 1)$, $\hat x$ of the most likely digits, with the gradient of a softmax
    at low temperature. From 0 to 1. Zero wherever the most likely digits are right, however unsure: use it
    beside a loss on tokens.

    Args:
        temperature: of the softmax that stands in for the argmax; lower is nearer to it, with gradients on
            fewer digits. Default: 0.1, as published.
        hard: the forward value is that of the argmax (straight-through; default), or of the softmax itself.
        decimals: a point between two digits belongs to their number. Default: False.

    Raises:
        ValueError: `temperature` is not above 0.

    Source: NTIL, ACL 2025, sequence-level terms.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import RelativeError
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, RelativeError(), reweigh=False)
        >>> logits = torch.zeros(1, 2, 16)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 1.0  # most likely 19
        >>> round(loss(logits, torch.tensor([[1, 4]])).item(), 4)  # 5 / 20
        0.25
    """

    temperature: float = _PUBLISHED_TEMPERATURE
    hard: bool = True
    decimals: bool = False

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    @property
    def needs(self) -> Needs:
        """Whole numbers."""
        return Needs(per_number=True, decimals=self.decimals)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each number at its first token, `[positions]`."""
        # 1 - (min + 1) / (max + 1)
        error = -torch.expm1(-_ratio_of_read_numbers(x, self).abs())
        return at_starts(error, spans_of(x, self))

    def worst(self, values: Tensor) -> float:
        """1: the error is relative."""
        return 1.0


@dataclass(frozen=True)
class Magnitude:
    r"""Difference in order of magnitude between the number that is read and the true one (NTIL).

    $\log((\max(\hat x, x) + 1) / (\min(\hat x, x) + 1))$. From 0 to about 2.3 for each digit of the number.
    Zero where `RelativeError` is; it goes on growing where that saturates.

    Args:
        temperature: see `RelativeError`.
        hard: see `RelativeError`.
        decimals: see `RelativeError`.

    Raises:
        ValueError: `temperature` is not above 0.

    Source: NTIL, ACL 2025, sequence-level terms.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import Magnitude
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> logits = torch.zeros(1, 2, 16)
        >>> logits[0, 0, 1] = logits[0, 1, 9] = 1.0  # most likely 19
        >>> loss = NumberTokenLoss(digits, Magnitude())
        >>> round(loss(logits, torch.tensor([[0, 1]])).item(), 4)  # log(20 / 2)
        2.3026
    """

    temperature: float = _PUBLISHED_TEMPERATURE
    hard: bool = True
    decimals: bool = False

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    @property
    def needs(self) -> Needs:
        """Whole numbers."""
        return Needs(per_number=True, decimals=self.decimals)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each number at its first token, `[positions]`."""
        return at_starts(_ratio_of_read_numbers(x, self).abs(), spans_of(x, self))

    def worst(self, values: Tensor) -> None:
        """None: numbers may be of any length."""
