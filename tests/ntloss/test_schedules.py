"""Schedules: ends, order, resuming, configuration files."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.schedules import (
    After,
    Constant,
    Cosine,
    LinearWarmup,
    WeightScheduler,
    get_schedule,
    register_schedule,
)

factors = st.floats(0, 100)
counts = st.integers(0, 10_000)
ramps = st.sampled_from([LinearWarmup, Cosine])
quick = settings(deadline=None, max_examples=60, derandomize=True)


@quick
@given(ramps, counts, factors, factors)
def test_a_ramp_meets_both_ends_exactly_and_stays_at_the_last(
    ramp: Any, steps: int, start: float, end: float
) -> None:
    schedule = ramp(steps, start, end)
    assert schedule(0) == (start if steps else end)
    assert schedule(steps) == schedule(steps + 12_345) == end


@quick
@given(ramps, counts, factors, factors, counts, counts)
def test_a_ramp_is_monotone_and_between_its_ends(
    ramp: Any, steps: int, start: float, end: float, first: int, second: int
) -> None:
    schedule = ramp(steps, start, end)
    early, late = schedule(min(first, second)), schedule(max(first, second))
    slack = TWO_PATHS[torch.float64] * max(start, end)
    assert (late - early) * (1 if end >= start else -1) >= -slack
    assert min(start, end) - slack <= early <= max(start, end) + slack


@quick
@given(counts, counts, counts)
def test_after_is_zero_and_then_the_schedule_from_its_own_start(steps: int, length: int, step: int) -> None:
    schedule = After(steps, LinearWarmup(length))
    assert schedule(step) == (0 if step < steps else LinearWarmup(length)(step - steps))


def test_cosine_is_slow_at_the_ends() -> None:
    cosine, linear = Cosine(100), LinearWarmup(100)
    assert cosine(10) < linear(10) < linear(90) < cosine(90)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", {"factor": 0.3}, Constant(0.3)),
        ("linear", {"steps": 5}, LinearWarmup(5)),
        ("cosine", {"steps": 5, "start": 1, "end": 0}, Cosine(5, 1, 0)),
        ("after", {"steps": 5}, After(5, Constant())),
        ("after", {"steps": 5, "then": {"name": "cosine", "steps": 2}}, After(5, Cosine(2))),
    ],
)
def test_configuration_files_name_schedules(name: str, options: Any, expected: Any) -> None:
    assert get_schedule(name, **options) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-1),
        lambda: Constant(math.nan),
        lambda: LinearWarmup(-1),
        lambda: LinearWarmup(2.5),  # type: ignore[arg-type]
        lambda: LinearWarmup(1, end=math.inf),
        lambda: Cosine(3, start=-0.1),
        lambda: After(-3),
        lambda: Constant()(-1),
        lambda: LinearWarmup(3)(-1),
        lambda: After(3)(-1),
        lambda: get_schedule("quadratic"),
        lambda: register_schedule("linear", Constant),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|taken"):
        make()


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a schedule"):
        After(3, 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="steps"):
        get_schedule("linear")
    with pytest.raises(TypeError, match="function of the step"):
        WeightScheduler(loss(), 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="NTLCrossEntropyLoss"):
        WeightScheduler(torch.nn.CrossEntropyLoss(), Constant())
    with pytest.raises(TypeError, match=r"such as a handle's \.loss"):
        WeightScheduler(types.SimpleNamespace(loss=loss()), Constant())


def loss(**options: Any) -> NTLCrossEntropyLoss:
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    return NTLCrossEntropyLoss(digits, **options)


@pytest.mark.parametrize("weight", [0.4, torch.tensor(0.4), torch.nn.Parameter(torch.tensor(0.4))])
def test_the_scheduled_weight_is_the_one_the_loss_uses(weight: Any) -> None:
    loss_fn = loss(weight=weight, return_terms=True)
    scheduler = WeightScheduler(loss_fn, LinearWarmup(4))
    logits, labels = torch.randn(5, 12), torch.arange(5)
    for step in (0, 1, 4, 1):  # a step back is as good as any: there is no state
        assert scheduler.set_step(step) == approx(0.4 * min(step / 4, 1))
        total, ce, ntl = loss_fn(logits, labels)
        assert_close(total, ce + 0.4 * min(step / 4, 1) * ntl)


def test_a_resumed_run_gives_its_weight_where_the_loss_was_saved_half_way() -> None:
    loss_fn = loss(weight=0.1)
    assert WeightScheduler(loss_fn, LinearWarmup(4), weight=0.4).set_step(2) == approx(0.2)


def test_a_tensor_weight_recompiles_nothing() -> None:
    torch.compiler.reset()
    frames = []
    loss_fn = loss(weight=torch.tensor(0.3))
    scheduler = WeightScheduler(loss_fn, LinearWarmup(3))

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
