"""The snippets of docs/own_criterion.md run in turn, and each loss has a gradient."""

from typing import Any

import pytest
import torch
from pages import snippets
from tolerances import assert_close

import ntloss.criteria.registry as registry
from ntloss import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss

SNIPPETS = snippets("docs/own_criterion.md")


@pytest.fixture
def names(digits, batch, monkeypatch):
    monkeypatch.setattr(registry, "CRITERIA", dict(registry.CRITERIA))
    logits, labels = batch(12, 2, 5)
    labels[0, :2] = torch.tensor([3, 7])
    names: dict[str, Any] = {"vocabulary": digits, "logits": logits, "labels": labels}
    for snippet in SNIPPETS:
        names.pop("loss", None)
        exec(snippet, names)
        (gradient,) = torch.autograd.grad(names["loss"], logits)
        assert gradient.isfinite().all()
        assert gradient.any()
    return names


def test_the_page_shows_every_way_to_write_a_criterion(names):
    assert len(SNIPPETS) == 4
    assert {"log_distance", "DigitsBehind", "Costs", "register_criterion"} <= set(names)


@pytest.mark.parametrize("name", ["log_distance", "DigitsBehind", "Costs"])
def test_each_criterion_serves_hidden_states_and_compiles(name, names, digits):
    logits, labels = names["logits"].detach(), names["labels"]
    criterion = names[name]() if isinstance(names[name], type) else names[name]
    loss_fn = NTLCrossEntropyLoss(digits, criterion)
    head = torch.eye(12, dtype=logits.dtype)
    linear = NTLLinearCrossEntropyLoss(digits, criterion)(logits, head, labels)
    assert_close(linear, loss_fn(logits, labels))
    torch._dynamo.reset()
    compiled = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    assert_close(compiled(logits, labels), loss_fn(logits, labels))
