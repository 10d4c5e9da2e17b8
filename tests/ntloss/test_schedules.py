"""WeightScheduler: the weight at each step, after a resume and under torch.compile; invalid schedules."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch
from tolerances import approx, assert_close

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, WeightScheduler


def make_loss(**options: Any) -> NTLCrossEntropyLoss:
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    return NTLCrossEntropyLoss(digits, **options)


def warmup(step: int) -> float:
    return min(step / 4, 1.0)


@pytest.mark.parametrize("weight", [0.4, torch.tensor(0.4), torch.nn.Parameter(torch.tensor(0.4))])
def test_the_loss_uses_the_scheduled_weight(weight: Any) -> None:
    loss_fn = make_loss(weight=weight, return_terms=True)
    scheduler = WeightScheduler(loss_fn, warmup)
    logits, labels = torch.randn(5, 12), torch.arange(5)
    for step in (0, 1, 4, 9, 1):  # steps may go back: the scheduler has no state
        assert scheduler.set_step(step) == approx(0.4 * warmup(step))
        total, ce, ntl = loss_fn(logits, labels)
        assert_close(total, ce + 0.4 * warmup(step) * ntl)


def test_a_resumed_run_passes_the_full_weight() -> None:
    loss_fn = make_loss(weight=0.1)  # saved in the middle of the warm-up
    assert WeightScheduler(loss_fn, warmup, weight=0.4).set_step(2) == approx(0.2)


def test_changing_a_tensor_weight_does_not_recompile() -> None:
    torch.compiler.reset()
    frames = []
    loss_fn = make_loss(weight=torch.tensor(0.3))
    scheduler = WeightScheduler(loss_fn, warmup)

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        frames.append(graph)
        return graph.forward

    compiled = torch.compile(loss_fn, backend=backend, fullgraph=True)
    logits, labels = torch.randn(5, 12), torch.arange(5)
    losses = []
    for step in range(4):
        scheduler.set_step(step)
        losses.append(compiled(logits, labels).item())
    assert len(frames) == 1
    assert len(set(losses)) == 4


@pytest.mark.parametrize("weight", [0.0, 0.3, torch.tensor(0.3)])
@pytest.mark.parametrize("factor", [-0.1, math.nan, math.inf])
def test_a_negative_or_infinite_factor_is_an_error(factor: float, weight: Any) -> None:
    loss_fn = make_loss(weight=weight)
    with pytest.raises(ValueError, match=rf"gives {factor} at step 7: expected a finite factor"):
        WeightScheduler(loss_fn, lambda step: factor).set_step(7)
    assert float(loss_fn.weight) == approx(float(weight))


@pytest.mark.parametrize(
    ("schedule", "options", "error", "message"),
    [
        (warmup, {"weight": -0.1}, ValueError, "weight=.*expected a finite number"),
        (warmup, {"weight": math.nan}, ValueError, "weight=.*expected a finite number"),
        (0.5, {}, TypeError, r"schedule=0\.5: expected a function of the step"),
        (warmup, {}, ValueError, "step=-1: expected the number of optimizer steps"),
    ],
)
def test_invalid_arguments_are_errors(schedule: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        WeightScheduler(make_loss(), schedule, **options).set_step(-1)


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(), types.SimpleNamespace(loss=make_loss())])
def test_a_loss_without_a_weight_is_an_error(loss: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a float.*NTLCrossEntropyLoss.*pass handle\.loss"):
        WeightScheduler(loss, warmup)
