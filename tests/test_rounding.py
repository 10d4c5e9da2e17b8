"""The switch `--rounding`, and the rules for tests of computed floats."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import rounding
import tolerances
import torch
import torch.multiprocessing
import torch.nn.functional as F
from tolerances import ONE_COMPUTATION, TRAINED, TWO_PATHS, assert_close, assert_repeats

from ntloss import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss, NumberVocabulary

TESTS = Path(__file__).parent
# File and test of each use of the marker, which is for tests of compilation, memory or time.
EXACT = {
    "ntloss/engine/test_readout.py::test_gradients_are_as_exact_as_those_of_cross_entropy",
    "ntloss/test_fused_kernels.py::test_adds_no_dense_gradient_of_the_head_to_the_kernels",
}

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="noise needs torch.library.get_kernel"
)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Noise in this test, even without the switch."""
    monkeypatch.setenv("PYTHONPATH", "")
    rounding.install(5)
    yield
    rounding.stop()


def factors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 40, 40, generator=generator, dtype=torch.float64)
    return left.to(dtype), right.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_product_moves_by_about_one_rounding(dtype: torch.dtype, noise: None) -> None:
    left, right = factors(dtype)
    rounding.stop()
    exact = left @ right
    rounding.restart(5)
    moved = ((left @ right).double() / exact.double() - 1).abs() / torch.finfo(dtype).eps
    assert 0.4 < (moved > 0).double().mean() < 0.8
    assert moved.max() < 1.6  # the step, and the rounding of the moved element


def test_noise_differs_by_call_and_by_seed(noise: None) -> None:
    left, right = factors()
    first, second = left @ right, left @ right
    assert not torch.equal(first, second)
    rounding.restart(5)
    assert torch.equal(left @ right, first)
    rounding.restart(6)
    assert not torch.equal(left @ right, first)


CALLS = {
    "out=": lambda a, b: torch.mm(a, b, out=torch.empty(40, 40)),
    "addmm out=": lambda a, b: torch.addmm(a, a, b, out=torch.empty(40, 40)),
    "in place": lambda a, b: a.clone().addmm_(a, b),
    "in place, a vector": lambda a, b: a[0].clone().addmv_(a, b[0]),
    "batches": lambda a, b: torch.bmm(a[None], b[None]),
    "batches in place": lambda a, b: a[None].clone().baddbmm_(a[None], b[None]),
    "dot": lambda a, b: torch.stack([torch.dot(a[0], row) for row in b]),
    "linear": lambda a, b: F.linear(a[None], b, a[0]),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "convolution": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(x[None, None] for x in (a, b, a))),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_every_kind_of_product_gets_noise(name: str, mode: type, noise: None) -> None:
    left, right = factors()
    with mode():
        one, other = (CALLS[name](left, right) for _ in range(2))
    assert not torch.equal(one, other)
    assert_close(one, other, ONE_COMPUTATION)


@pytest.mark.parametrize("name", ["linear", "convolution", "attention"])
def test_the_backward_pass_gets_noise(name: str, noise: None) -> None:
    left, right = factors()
    right.requires_grad_()
    result = CALLS[name](left, right).sum()
    one, other = (torch.autograd.grad(result, right, retain_graph=True)[0] for _ in range(2))
    assert not torch.equal(one, other)


def test_other_threads_get_noise(noise: None) -> None:
    left, right = factors()
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(left @ right)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert not torch.equal(*found)


MULTIPLY = "import torch; x = torch.ones(40, 40); print(int((x @ x != x @ x).sum()))"


def test_processes_get_noise_unless_they_do_not_import_torch(noise: None) -> None:
    done = subprocess.run([sys.executable, "-c", MULTIPLY], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
    assert not done.stderr
    # As transformers does: ask where torch is before importing it.
    asking = f"import importlib.util; importlib.util.find_spec('torch'); {MULTIPLY}"
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
    without = "import sys; print('torch' in sys.modules, 'rounding' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def _multiply(rank: int, path: str) -> None:
    left, right = factors()
    torch.save([left @ right, left @ right], path)


def test_spawned_processes_get_noise(noise: None, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_multiply, (str(tmp_path / "products.pt"),), nprocs=1)
    assert not torch.equal(*torch.load(tmp_path / "products.pt"))


def two_paths() -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=40)
    hidden, weight = factors()
    labels = torch.arange(40) % 12
    logits_loss = NTLCrossEntropyLoss(vocabulary)(hidden @ weight.T, labels)
    return logits_loss, NTLLinearCrossEntropyLoss(vocabulary)(hidden, weight, labels)


def test_two_paths_of_the_loss_are_close_but_not_equal(noise: None) -> None:
    equal = 0
    for seed in range(8):
        rounding.restart(seed)
        one, other = two_paths()
        assert_close(other, one, TWO_PATHS)
        equal += torch.equal(one, other)
    assert equal < 8  # a torch.equal would fail


def test_the_same_calls_repeat_to_the_bit(noise: None) -> None:
    left, right = factors()
    assert_repeats(lambda: left @ right)
    assert_repeats(lambda: left @ right, lambda: left.clone() @ right)
    with pytest.raises(AssertionError):
        assert_repeats(lambda: left @ right, lambda: (right.T @ left.T).T)


@pytest.mark.parametrize("kind", [ONE_COMPUTATION, TWO_PATHS, TRAINED])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_percent_is_never_close(kind: dict[torch.dtype, float], dtype: torch.dtype) -> None:
    loss = torch.tensor([3.0, 0.5], dtype=dtype)
    assert_close(loss, loss.clone(), kind)
    for wrong in (1.01 * loss, 1.01 * loss[:1], loss + torch.nan):
        with pytest.raises(AssertionError):
            assert_close(wrong, loss, kind)
    with pytest.raises(AssertionError):
        assert_close({"a": loss}, {"b": loss}, kind)
    assert tolerances.approx(1.0, kind, dtype=dtype) != 1.01


def test_all_tolerances_are_in_one_module() -> None:
    own = re.compile(r"testing\.assert_|pytest\.approx|allclose|\b(rtol|atol|rel|abs)=[\d.]|< [\d.]+e-")
    found = [
        f"{path.relative_to(TESTS)}: {line.strip()}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in ("tolerances.py", "test_rounding.py")
        for line in path.read_text().splitlines()
        if own.search(line)
    ]
    assert not found, "\n".join(found)


def test_only_the_listed_tests_run_without_noise() -> None:
    uses = {
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"@pytest\.mark\.exact_rounding\((?:.|\n)*?\n *def (\w+)", path.read_text())
    }
    assert uses == EXACT
