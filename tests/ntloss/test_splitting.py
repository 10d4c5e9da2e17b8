"""The gradient of a batch does not depend on how it is split into micro-batches."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from combined_cases import (
    NUMBERS,
    PATHS,
    assert_gradients,
    make_case,
    numbers_case,
    prepared,
    run,
)
from hypothesis import given
from hypothesis import strategies as st
from tolerances import TWO_PATHS, assert_close

from ntloss import NTLCrossEntropyLoss


def parts_of(case, bounds):
    split = ("hidden", "labels", "loss_weights", "number_weights", "sequence_ids")
    of_rows = {name: getattr(case, name) for name in split if getattr(case, name) is not None}
    return [
        replace(case, **{name: tensor[start:stop] for name, tensor in of_rows.items()})
        for start, stop in itertools.pairwise([0, *sorted(bounds), len(case.labels)])
    ]


def in_parts(case, bounds, path, **changes):
    """Compute the sum of the micro-batches' losses, and the accumulated gradient."""
    parts = parts_of(case, bounds)
    labels = prepared(NTLCrossEntropyLoss(NUMBERS, None, shift=changes.get("shift", False)), case)
    weights = torch.ones(labels.labels.shape) if labels.weights is None else labels.weights
    items = weights[labels.labels >= 0].sum()
    results = [run(replace(part, num_items=items), path, **changes) for part in parts]
    gradients: dict[str, Any] = {}
    for name in results[0].gradients:
        of_parts = [result.gradients[name] for result in results]
        if of_parts[0] is not None:
            gradients[name] = torch.cat(of_parts) if name in ("hidden", "logits") else sum(of_parts)
    return sum(result.loss for result in results), gradients


def assert_splits(case, bounds, path, **changes):
    whole = run(case, path, **changes)
    loss, gradients = in_parts(case, bounds, path, **changes)
    assert_close(loss, whole.loss)
    assert_gradients(gradients, whole.gradients, TWO_PATHS)


@given(seed=st.integers(0, 2**32 - 1), bounds=st.lists(st.integers(0, 8), max_size=4))
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", ["add", "replace"])
def test_any_micro_batches_add_up(mode, path, seed, bounds):
    # Some micro-batches have no numbers, some ignore all labels, some are empty.
    case = make_case(8, seed=seed, weighted=seed % 2 == 0, mode=mode, label_smoothing=0.1)
    assert_splits(case, bounds, path)


@pytest.mark.parametrize("criterion", ["ntl_was", "smmd", "number_level", "ntil"])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_micro_batches_of_sequences_add_up(path, shift, criterion):
    shares = torch.arange(24).reshape(2, 12) % 5 / 4
    case = numbers_case(criterion, weighted=True, number_weights=shares)
    assert_splits(case, [1], path, shift=shift)
