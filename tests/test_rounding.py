"""The switch `--rounding` adds noise to every product, and the rules for tests of computed floats hold."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rounding
import torch
import torch.nn.functional as F
from tolerances import ONE_COMPUTATION, TRAINED, TWO_PATHS, approx, assert_close

TESTS = Path(__file__).parent
CALLS = {
    "mm": lambda a, b: a @ b,
    "out=": lambda a, b: torch.addmm(a, a, b, out=torch.empty(40, 40)),
    "in place": lambda a, b: a[None].clone().baddbmm_(a[None], b[None]),
    "linear": lambda a, b: F.linear(a[None], b, a[0]),
    "convolution": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(x[None, None] for x in (a, b, a))),
}


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("noise needs torch.library.get_kernel")
    monkeypatch.setenv("PYTHONPATH", "")
    rounding.install(5)
    yield
    rounding.stop()


@pytest.mark.parametrize("name", CALLS)
def test_products_move_by_one_rounding_at_each_call(name: str, noise: None) -> None:
    left, right = torch.randn(2, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        one, other = (CALLS[name](left, right) for _ in range(2))
    assert not torch.equal(one, other)
    assert_close(one, other, ONE_COMPUTATION)


def test_processes_get_noise(noise: None) -> None:
    code = "import torch; x = torch.ones(40, 40); print(int((x @ x != x @ x).sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


@pytest.mark.parametrize("kind", [ONE_COMPUTATION, TWO_PATHS, TRAINED])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_percent_is_never_close(kind: dict[torch.dtype, float], dtype: torch.dtype) -> None:
    loss = torch.tensor([3.0, 0.5], dtype=dtype)
    for wrong in (1.01 * loss, 1.01 * loss[:1], loss + torch.nan):
        with pytest.raises(AssertionError):
            assert_close(wrong, loss, kind)
    assert approx(1.0, kind, dtype=dtype) != 1.01


def test_all_tolerances_are_in_one_module() -> None:
    own = re.compile(r"testing\.assert_|pytest\.approx|allclose|\b(rtol|atol|rel|abs)=[\d.]|< [\d.]+e-")
    files = [p for p in TESTS.rglob("*.py") if p.name not in ("tolerances.py", "test_rounding.py")]
    assert [
        (path.name, line) for path in files for line in path.read_text().splitlines() if own.search(line)
    ] == []


def test_only_two_tests_run_without_noise() -> None:
    marker = re.compile(r"@pytest\.mark\.exact_rounding\((?:.|\n)*?\n *def (\w+)")
    assert {name for path in TESTS.rglob("test_*.py") for name in marker.findall(path.read_text())} == {
        "test_gradients_are_as_exact_as_those_of_cross_entropy",
        "test_adds_no_dense_gradient_of_the_head_to_the_kernels",
    }
