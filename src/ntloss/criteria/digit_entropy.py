"""Losses on the raw logits of digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput

_SCALE = 0.01


@dataclass(frozen=True)
class DigitEntropy:
    r"""Binary cross-entropy of each digit's raw logit, weighted with its probability (DEL).

    $0.01 \, mean_j \; p_j \, (softplus(z_j) - [j = k] z_j)$ penalizes likely digits other than the label's.
    It ranges from 0 to infinity, and tends to zero if all probability is on the label and $z_k$ is large.
    Unlike all other criteria it depends on the level of the logits: it also tends to zero if all probability
    is on a *wrong* digit and all logits are far below zero. So use it beside cross-entropy with weight 1, as
    published. The paper's weights by place are `PlaceWeighted(DigitEntropy(), "decimal")`.

    Source: DEL, 2026.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import DigitEntropy
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, DigitEntropy())
        >>> round(1000 * loss(torch.zeros(1, 16), torch.tensor([4])).item(), 4)  # 0.01 * log(2) / 10
        0.6931
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position, `[positions]`; a ValueError if `number_logsumexp` is missing."""
        if x.number_logsumexp is None:
            raise ValueError(f"number_logsumexp is None, but {self!r} depends on the level of the logits")
        logits = x.log_probs + x.number_logsumexp.unsqueeze(-1)
        # softplus(-z) is softplus(z) - z without the difference of large numbers.
        target = x.target.unsqueeze(-1)
        signed = logits.scatter(-1, target, -logits.gather(-1, target))
        return _SCALE * (x.probs * F.softplus(signed)).mean(-1)

    def worst(self, values: Tensor) -> None:
        """Return None: logits have no bound, so the loss has none."""
