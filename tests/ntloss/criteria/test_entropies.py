"""Smoothed targets where a value is ruled out, and the entropy of each digit."""

import pytest
import torch
from criterion_cases import DIGITS
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import (
    DigitEntropy,
    Dist2,
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
    NumberTokenLoss,
    NumberVocabulary,
)
from ntloss.criteria import WeightedSum


@pytest.mark.parametrize("criterion", [GaussianCrossEntropy(), Dist2()], ids=repr)
def test_a_target_that_is_ruled_out_costs_infinity_as_in_cross_entropy(criterion):
    logits = torch.zeros(1, 12)
    logits[0, 7] = -torch.inf
    logits.requires_grad_()
    loss = NumberTokenLoss(DIGITS, criterion)(logits, torch.tensor([4]))
    loss.backward()
    assert loss.isposinf()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("criterion", "weight"),
    [
        (Dist2(), 0.0),
        (GaussianCrossEntropy(), torch.tensor(0.0)),
        (WeightedSum((Dist2(), GaussianCrossEntropy(0.1)), (0.0, 1.0)), 0.5),
    ],
    ids=repr,
)
def test_an_infinite_loss_with_a_weight_of_0_counts_as_0(criterion, weight):
    logits = torch.zeros(1, 12)
    logits[0, 7] = -torch.inf
    logits.requires_grad_()
    loss, ce, ntl = NTLCrossEntropyLoss(DIGITS, criterion, weight, return_terms=True)(
        logits, torch.tensor([4])
    )
    loss.backward()
    assert_close(loss, ce + (weight * ntl if weight else 0))
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_a_value_far_below_the_targets_rounding_may_be_ruled_out():
    logits = torch.zeros(1, 12)
    logits[0, 9] = -torch.inf
    loss = NumberTokenLoss(DIGITS, GaussianCrossEntropy(sigma=0.1))
    assert loss(logits, torch.tensor([4])).isfinite()


def test_in_place_of_cross_entropy_a_narrow_gaussian_is_cross_entropy_of_the_labels_form():
    forms = {n: str(n) for n in range(10)} | {10 + n: f" {n}" for n in range(10)}
    logits, labels = torch.randn(3, 22, dtype=torch.float64), torch.tensor([4, 14, 21])
    loss = NTLCrossEntropyLoss(
        NumberVocabulary.from_mapping(forms, vocab_size=22), GaussianCrossEntropy(1e-3), mode="replace"
    )
    wanted = torch.nn.functional.cross_entropy(logits, labels)
    assert_close(loss(logits, labels), wanted, TWO_PATHS[torch.float64])


def test_digit_entropy_tends_to_zero_at_the_label_and_for_low_logits():
    digits = NumberTokenLoss(DIGITS, DigitEntropy())

    def certain(digit, level, rest):
        logits = torch.full((1, 12), rest, dtype=torch.float64)
        logits[0, digit] = level
        return float(digits(logits, torch.tensor([4])))

    assert certain(4, 40.0, -40.0) < TWO_PATHS[torch.float64]
    assert certain(3, 40.0, -40.0) == approx(0.01 * 40 / 10)
    assert certain(3, -40.0, -1e4) < TWO_PATHS[torch.float64]  # documented
