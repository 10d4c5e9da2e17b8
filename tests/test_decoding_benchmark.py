"""The decoding benchmark's models are what they stand for, and the search is narrower than sampling."""

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


@pytest.mark.parametrize("goal", [{}, {"rtol": 0.01}], ids=["to the number", "to 1 %"])
def test_where_the_search_ends_its_bracket_is_narrower_than_that_of_samples(decoding, goal):
    torch.manual_seed(0)
    model = decoding.TrueModel(decoding.distributions()["normal, sigma 25"])
    found = decoding.search(model, 16, **goal)
    assert found["median"] == approx(500, 0.01)
    samples = int(found["tokens"] / model.length())
    assert found["width"] < decoding.sampled_width(model.mass, samples, 50)
