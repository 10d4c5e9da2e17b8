"""DigitEntropy: binary cross-entropy of each digit."""

from __future__ import annotations

import torch
from criterion_cases import DIGITS
from tolerances import TWO_PATHS, approx

from ntloss import DigitEntropy, NumberTokenLoss


def test_digit_entropy_tends_to_zero_at_the_label_and_for_low_logits() -> None:
    digits = NumberTokenLoss(DIGITS, DigitEntropy())

    def certain(digit: int, level: float, rest: float) -> float:
        logits = torch.full((1, 12), rest, dtype=torch.float64)
        logits[0, digit] = level
        return float(digits(logits, torch.tensor([4])))

    assert certain(4, 40.0, -40.0) < TWO_PATHS[torch.float64]
    assert certain(3, 40.0, -40.0) == approx(0.01 * 40 / 10)
    assert certain(3, -40.0, -1e4) < TWO_PATHS[torch.float64]  # documented
