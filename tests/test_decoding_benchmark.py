"""The decoding benchmark's models are what they stand for, and walks are more precise than samples."""

import math
import sys
from pathlib import Path

import pytest
import torch
from tolerances import approx

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def decoding(monkeypatch):
    """The benchmark's module; it lies in a folder of scripts, not in a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import decoding

    yield decoding
    for name in ("decoding", "measure"):
        sys.modules.pop(name, None)


def test_benchmark_models_write_each_number_with_its_probability(decoding):
    mass = torch.zeros(200, dtype=torch.float64)
    mass[[0, 7, 70, 71, 130]] = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    model = decoding.TrueModel(mass)
    for number, probability in ((0, 0.1), (7, 0.2), (70, 0.3), (71, 0.15), (130, 0.25)):
        tokens = [*map(int, str(number)), decoding.END]
        texts = [(model.behind(tuple(tokens[:i])), token) for i, token in enumerate(tokens)]
        written = math.prod(masses[token] / sum(masses) for masses, token in texts)
        assert written == approx(probability, dtype=torch.float64)


def test_walks_are_more_precise_than_samples_where_numbers_have_one_length(decoding):
    torch.manual_seed(0)
    found = decoding.compare_with_samples(decoding.distributions()["normal, sigma 25"], 10)
    assert found["median"] == 500
    assert found["walks"]["error"] < 0.5 * found["samples"]["error"]
    assert found["walks"]["at 0.95"][0] == approx(0.95, 0.02)
    assert found["bounds hold"] == 1
