"""Weights of the number term alone: for numbers that are names, and for ratings weighted by class."""

import math

import pytest
import torch
from combined_cases import DIGITS
from tolerances import assert_close, assert_identical

from ntloss import NTLCrossEntropyLoss
from ntloss.engine import targets


@pytest.fixture
def unchecked(monkeypatch):
    """Let losses read no values of labels and weights, as on an accelerator."""
    monkeypatch.setattr(targets, "values_are_hidden", lambda *_: True)


def loss_and_gradient(loss, logits, labels):
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, labels)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


@pytest.mark.usefixtures("unchecked")
def test_a_weight_above_one_never_subtracts_cross_entropy_where_values_are_not_checked():
    loss, logits = NTLCrossEntropyLoss(DIGITS, mode="replace"), torch.zeros(1, 2, 12)
    labels = torch.tensor([[3, 4]])
    heavy = loss.terms(logits, loss.prepare(labels, number_weights=torch.tensor([[3.0, 3.0]])))
    assert heavy.ce == 0
    assert_close(heavy.ntl, 3 * loss.terms(logits, labels).ntl)


@pytest.mark.usefixtures("unchecked")
def test_weights_of_text_and_of_ignored_positions_are_not_read():
    labels, logits = torch.tensor([[3, 11, -100]]), torch.randn(1, 3, 12, generator=torch.manual_seed(0))
    loss = NTLCrossEntropyLoss(DIGITS)
    anything = torch.tensor([[0.5, math.nan, math.nan]])
    ones = torch.tensor([[0.5, 1.0, 1.0]])
    given = loss_and_gradient(loss, logits, loss.prepare(labels, number_weights=anything))
    assert_identical(given, loss_and_gradient(loss, logits, loss.prepare(labels, number_weights=ones)))


@pytest.mark.parametrize(
    ("weights", "mode"),
    [
        (torch.ones(3), "add"),
        (torch.tensor([[1.0, -0.5, 1.0]]), "add"),
        (torch.tensor([[1.0, math.nan, 1.0]]), "add"),
        (torch.tensor([[1.0, math.inf, 1.0]]), "add"),
        (torch.tensor([[1.0, 1.5, 1.0]]), "replace"),
        ([[1.0, 1.0, 1.0]], "add"),
    ],
)
def test_weights_that_do_not_fit_raise(weights, mode):
    loss = NTLCrossEntropyLoss(DIGITS, mode=mode)
    error = TypeError if isinstance(weights, list) else ValueError
    with pytest.raises(error, match="number_weights"):
        loss.prepare(torch.tensor([[3, 4, 11]]), number_weights=weights)
