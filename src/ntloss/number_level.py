"""The published loss on whole numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import NumberLevel, needs_of
from ntloss.engine.readout import LogNormalizer
from ntloss.losses import Targets
from ntloss.numbers import starting_tokens
from ntloss.published import NTLossDotProduct, TokenizerLoss


class NumberLevelLoss(NTLossDotProduct):
    r"""One loss for each whole number: the symmetric relative error of the expected number.

    $|\hat x - x| / (\hat x + x + \epsilon)$ with $\hat x = \sum_t E[d_t] \, 10^{place_t}$, at the number's
    first token, from 0 to 1 (`criteria.NumberLevel`). Drop-in for `ntloss` 0.3.2, and right for numbers of
    any length.

    What it cannot see: trained with teacher forcing, it reads as many digits as the *label* has. A model that
    would stop after `12` where `1234` is right, or write `12345`, is not told so by this loss; cross-entropy
    beside it tells it, or `length_weight`. And as each digit counts by its mean, digits that are wrong but
    cancel cost nothing.

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        float_level: a single point between digits belongs to the number: `12.34` is one number instead of
            two. Default: False.
        reweigh: let probability on text, at the number's first token, cost more than the worst number.
            Default: True.
        max_number_length: of no effect, kept for the published signature: numbers may have any length.
        length_weight: weight of the probability of going on with another digit at the position behind a
            number, a term of its own there. A mean still divides by the count of numbers. Positions that
            do not count, and those behind a row or a packed sequence, have none. Default: 0, as published.
        space_prefixed: see `NTLoss`.
        validate: see `NumberTokenLoss`.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; settings that contradict a given vocabulary; `length_weight` is
            below 0.

    Source: the package ntloss since 0.2; `length_weight` is not in it.

    Example:
        >>> import torch
        >>> from ntloss import NumberLevelLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((1, 3, 12), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = logits[0, 2, 5] = 0.0  # certain of 125
        >>> labels = torch.tensor([[3, 6, 11]])  # 36 and some text
        >>> NumberLevelLoss(digits)(logits, labels, reduction="none")
        tensor([[0.5000, 0.0000, 0.0000]])
        >>> NumberLevelLoss(digits, length_weight=2.0)(logits, labels, reduction="none")
        tensor([[0.5000, 0.0000, 2.0000]])
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int = 20,
        *,
        length_weight: float = 0.0,
        space_prefixed: bool = False,
        validate: bool | None = None,
    ) -> None:
        if not 0 <= length_weight < math.inf:
            raise ValueError(f"length_weight={length_weight!r}: expected a finite number of 0 or more")
        # As published it is an NTLossDotProduct, with its predict_numbers, but of another criterion.
        criterion = NumberLevel(decimals=float_level)
        TokenizerLoss.__init__(
            self, tokenizer, vocab_size, True, reweigh, criterion, space_prefixed, validate
        )
        self.loss_function = F.l1_loss
        self.float_level = float_level
        self.max_number_length = max_number_length
        self.length_weight = length_weight

    @property
    def reads_mass(self) -> bool:
        """Whether the loss looks at the whole vocabulary's probability."""
        # Not `super()`: the compiler of torch 2.7 cannot trace properties of it.
        return self.worst is not None or needs_of(self.criterion).log_normalizer or self.length_weight > 0

    def _reduce(
        self,
        number_logits: Tensor,
        log_normalizer: LogNormalizer | None,
        targets: Targets,
        loss_weights: Tensor | None,
        reduction: str,
        shape: torch.Size,
    ) -> Tensor:
        loss = super()._reduce(number_logits, log_normalizer, targets, loss_weights, reduction, shape)
        if not self.length_weight:
            return loss
        assert log_normalizer is not None
        assert targets.spans is not None
        going_on = self._probability_of_going_on(number_logits, log_normalizer)
        weights = torch.ones_like(going_on) if loss_weights is None else loss_weights.reshape(-1)
        weights = weights.to(going_on.dtype)
        behind = torch.where(targets.spans.after, going_on * weights, 0) * self.length_weight
        if reduction == "none":
            return loss + behind.reshape(shape)
        if reduction == "sum":
            return loss + behind.sum()
        divisor = torch.where(targets.has_term, weights, 0).sum()
        return loss + behind.sum() / torch.where(divisor > 0, divisor, 1)

    def _probability_of_going_on(self, number_logits: Tensor, log_normalizer: LogNormalizer) -> Tensor:
        assert self.tables.kinds is not None
        starts = starting_tokens(self.tables.kinds[self.tables.token_ids])
        log_probs = -log_normalizer.negative_log_prob(number_logits.to(log_normalizer.log_sum.dtype))
        return torch.where(starts, 0, log_probs.exp()).sum(-1)
