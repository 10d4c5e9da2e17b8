"""Losses on the digits' raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.places import place_weights
from ntloss.criteria.record import Needs, NumberRecord

_SCALE = 0.01


@dataclass(frozen=True)
class DigitEntropy:
    r"""Binary cross-entropy of each digit's raw logit, weighted with its probability (DEL).

    $0.01 \, w \cdot mean_j \; p_j \, (softplus(z_j) - [j = k] z_j)$: a digit that is likely should not be so
    unless it is the label's. From 0 to infinity. It tends to zero where p is on the label and $z_k$ is
    large. Mind that it depends on the logits' level, as no other criterion does: it also tends to zero with
    p on a *wrong* digit whose logit, as all of them, is far below zero. So use it beside cross-entropy, as
    published, with weight 1.

    Args:
        place_weighted: $w = 2 (place + 1)$ for integer digits and $1.02^{place - 1}$ behind the point, where
            places are -1, -2, ...; else $w = 1$. Default: False.

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

    place_weighted: bool = False

    @property
    def needs(self) -> Needs:
        """Places and points, where it weighs with them."""
        return Needs(spans=self.place_weighted, decimals=self.place_weighted)

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`."""
        if record.logits is None:
            raise ValueError(f"record.logits is None, and {self!r} depends on the logits' level")
        # softplus(z) - z = softplus(-z), without a difference of large numbers.
        target = record.target.unsqueeze(-1)
        signed = record.logits.scatter(-1, target, -record.logits.gather(-1, target))
        loss = _SCALE * (record.probs * F.softplus(signed)).mean(-1)
        return loss * place_weights(record, self, "decimal") if self.place_weighted else loss

    def worst(self, values: Tensor) -> None:
        """None: logits, and with them the loss, have no bound."""
