"""Teacher-forced metrics of number tokens, from logits and labels."""

import copy
import math

import numpy as np
import pytest
import torch
from tolerances import approx

from ntloss import NumberVocabulary
from ntloss.metrics import TokenMetrics

VOCABULARY = NumberVocabulary.from_mapping(
    {1: "7", 2: " 7", 4: "250", 5: "-3", 7: "0", 9: "3.14"}, vocab_size=12
)
PLACES = range(-1, 3)


def batch(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(*shape, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(12, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.2] = -100
    return logits, labels, torch.randint(-3, 5, shape, generator=generator)


def oracle(logits, labels, keep=lambda i: True):
    """The definitions in NumPy, position by position."""
    rows, flat = logits.reshape(-1, 12).numpy(), labels.reshape(-1).tolist()
    values = dict(zip(VOCABULARY.token_ids, VOCABULARY.values, strict=True))
    numbers: list[tuple[float, ...]] = []
    text: list[tuple[float, ...]] = []
    for i, (z, y) in enumerate(zip(rows, flat, strict=True)):
        if y == -100:
            continue
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        mass = sum(p[j] for j in values)
        if y not in values:
            text.append((mass, -np.log(p[y])))
        elif keep(i):
            by_value = {v: sum(p[j] for j in values if values[j] == v) / mass for v in values.values()}
            best = max(by_value, key=lambda v: by_value[v])
            error = sum(q * abs(v - values[y]) for v, q in by_value.items())
            numbers.append((z.argmax() == y, best == values[y], error, mass, -np.log(p[y])))
    of_numbers = np.mean(numbers, 0) if numbers else [math.nan] * 5
    of_text = np.mean(text, 0) if text else [math.nan] * 2
    names = ("token_accuracy", "value_accuracy", "expected_absolute_error", "mass", "cross_entropy")
    return {
        "number_tokens": len(numbers),
        "text_tokens": len(text),
        **dict(zip(names, of_numbers, strict=True)),
        **dict(zip(("text_mass", "text_cross_entropy"), of_text, strict=True)),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_streamed_metrics_match_their_definitions(dtype):
    logits, labels, _ = batch(0, 6, 15)
    metrics = TokenMetrics(VOCABULARY)
    for start in range(0, 6, 2):
        metrics.update(logits[start : start + 2].to(dtype), labels[start : start + 2])
    assert metrics.compute() == approx(oracle(logits, labels))
    assert metrics.compute() == approx(TokenMetrics(VOCABULARY).update(logits.to(dtype), labels).compute())


def test_metrics_are_reported_for_each_requested_decimal_place():
    logits, labels, places = batch(2, 8, 25)
    metrics = TokenMetrics(VOCABULARY, places=PLACES).update(logits, labels, places)
    flat = places.reshape(-1)
    assert metrics.compute() == approx(oracle(logits, labels))
    by_place = metrics.compute_by_place()
    assert list(by_place) == list(PLACES)
    for place, row in by_place.items():
        expected = oracle(logits, labels, lambda i, place=place: flat[i] == place)
        assert row.pop("count") == expected["number_tokens"]
        assert row == approx({name: expected[name] for name in row})
    assert TokenMetrics(VOCABULARY).compute_by_place() == {}


def test_an_infinite_loss_at_one_place_does_not_affect_others():
    logits = torch.zeros(2, 12)
    logits[0, 4] = -math.inf
    metrics = TokenMetrics(VOCABULARY, places=range(2))
    by_place = metrics.update(logits, torch.tensor([4, 7]), torch.tensor([1, 0])).compute_by_place()
    assert by_place[1]["cross_entropy"] == math.inf
    assert by_place[0]["cross_entropy"] == approx(math.log(12))


def test_means_over_no_positions_are_nan():
    nothing = TokenMetrics(VOCABULARY)
    empty = TokenMetrics(VOCABULARY).update(torch.zeros(0, 12), torch.zeros(0, dtype=torch.int64))
    of_number_zero = NumberVocabulary.from_mapping({0: "7", 1: "8"}, vocab_size=12)
    ignored = TokenMetrics(of_number_zero).update(torch.zeros(3, 12), torch.full((3,), -100))
    for metrics in (nothing, empty, ignored):
        result = metrics.compute()
        assert result.pop("number_tokens") == result.pop("text_tokens") == 0
        assert all(math.isnan(value) for value in result.values())


def test_update_does_not_synchronize_with_the_device():
    # Tensors on "meta" have no values: reading one, also for a shape, raises an error.
    metrics = TokenMetrics(VOCABULARY, places=PLACES)
    logits = torch.empty(2, 5, 12, device="meta")
    labels = torch.empty(2, 5, dtype=torch.int64, device="meta")
    metrics.update(logits, labels, labels).update(logits, labels, labels)
    with pytest.raises(NotImplementedError):
        metrics.compute()


def test_update_keeps_no_autograd_graph():
    metrics = TokenMetrics(VOCABULARY)
    metrics.update(torch.zeros(2, 12, requires_grad=True), torch.tensor([1, 2]))
    copy.deepcopy(metrics)  # an error for a tensor with a graph


@pytest.mark.parametrize(
    ("options", "inputs", "error", "message"),
    [
        ({}, (torch.zeros(3, 11), torch.zeros(3, dtype=torch.int64)), ValueError, "vocabulary's size"),
        ({}, (torch.zeros(3, 12), torch.zeros(2, dtype=torch.int64)), ValueError, "labels of shape"),
        ({}, (torch.zeros(3, 12), torch.full((3,), 12)), ValueError, "label 12"),
        ({}, (torch.zeros(3, 12), torch.zeros(3)), TypeError, "token ids"),
        ({}, (torch.zeros(1, 12), *[torch.zeros(1, dtype=torch.int64)] * 2), ValueError, r"update\(places"),
        (
            {"places": range(2)},
            (torch.zeros(1, 12), torch.zeros(1, dtype=torch.int64)),
            ValueError,
            r"update\(places",
        ),
        ({"places": range(0, 4, 2)}, (), ValueError, "consecutive"),
    ],
)
def test_invalid_arguments_are_errors(options, inputs, error, message):
    with pytest.raises(error, match=message):
        TokenMetrics(VOCABULARY, **options).update(*inputs)
