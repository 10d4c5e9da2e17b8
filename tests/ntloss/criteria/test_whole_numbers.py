"""Criteria on whole numbers."""

import torch
from criterion_cases import DIGITS
from tolerances import TWO_PATHS

from ntloss import NumberTokenLoss, ntil
from ntloss.criteria import Magnitude, RelativeError


def test_relative_error_and_magnitude_are_zero_if_the_most_likely_digits_are_right():
    unsure = torch.zeros(1, 2, 12, dtype=torch.float64)
    unsure[0, 0, 4], unsure[0, 1, 2] = 1.0, 0.1
    for criterion in (RelativeError(), Magnitude()):
        loss = NumberTokenLoss(DIGITS, criterion)
        assert loss(unsure, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
        assert loss(unsure, torch.tensor([[4, 3]])) > 0.01


def test_ntil_is_zero_only_if_all_digits_are_certain_and_right():
    certain = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    certain[0, 0, 4] = certain[0, 1, 2] = 0.0
    loss = NumberTokenLoss(DIGITS, ntil())
    assert loss(certain, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
    assert loss(certain / 2e3, torch.tensor([[4, 2]])) > 0.01
