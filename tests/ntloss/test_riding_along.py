"""A number token loss beside kernels that never show the logits, and docs/riding_along.md, which shows it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from combined_cases import NUMBERS, VALUES, Case, make_case
from oracle import Combined, combined, through_head
from tolerances import HALF_PRECISION, TF32, TWO_PATHS, Tolerance, approx, assert_close
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ntloss import ExpectedValue, NTLoss, NTLossDotProduct, NumberTokenLoss, NumberVocabulary, Wasserstein

PAGE = Path(__file__).resolve().parents[2] / "docs" / "riding_along.md"
WITH_TRITON = importlib.util.find_spec("triton") is not None and (
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def kernel_library(name: str) -> Any:
    """The library, or a skip that says what is missing."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if not WITH_TRITON:
        pytest.skip(f"{name} needs triton, and a CUDA device or TRITON_INTERPRET=1")
    return importlib.import_module(name)


def leaves_of(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    given = (case.hidden, case.weight, case.bias)
    return [None if x is None else x.to(dtype, copy=True).requires_grad_() for x in given]


def grad_of(leaf: Tensor) -> Tensor:
    return leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad


LOSSES = {
    "NTLoss": NTLoss(NUMBERS),
    "NTLoss, squashed, plain": NTLoss(NUMBERS, squash_factor=3.0, reweigh=False),
    "NTLossDotProduct": NTLossDotProduct(NUMBERS),
    "huber, plain": NumberTokenLoss(NUMBERS, ExpectedValue("huber"), reweigh=False),
}


class TestFromHidden:
    @pytest.mark.parametrize("sparse_grad", [True, False])
    @pytest.mark.parametrize("transform", [(None, 1.0), (2.0, 1.5)])
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("name", LOSSES)
    def test_equals_forward_on_the_logits(
        self, name: str, reduction: str, transform: tuple[float | None, float], sparse_grad: bool
    ) -> None:
        softcap, scale = transform
        case = make_case(3, 4, weighted=True, reduction=reduction, ignore_index=5, seed=3)
        loss_fn = LOSSES[name]
        rest = (case.loss_weights, reduction, 5)
        upstream = torch.as_tensor(case.upstream)

        def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            logits = F.linear(hidden, weight, bias) * scale
            return logits if softcap is None else softcap * torch.tanh(logits / softcap)

        wanted_leaves, leaves = leaves_of(case), leaves_of(case)
        wanted = loss_fn(logits_of(*wanted_leaves), case.labels, *rest)
        (wanted * upstream).sum().backward()
        hidden, weight, bias = leaves
        lse = torch.logsumexp(logits_of(*leaves), -1) if loss_fn.reweigh else None
        loss = loss_fn.from_hidden(
            hidden, weight, case.labels, bias, lse, *rest,
            softcap=softcap, logit_scale=scale, sparse_grad=sparse_grad,
        )  # fmt: skip
        (loss * upstream).sum().backward()
        assert_close(loss, wanted)
        for leaf, other in zip(leaves, wanted_leaves, strict=True):
            assert_close(grad_of(leaf), other.grad)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_is_computed_in_float32(self, dtype: torch.dtype) -> None:
        case = make_case(12, seed=3)
        hidden, weight, bias = leaves_of(case, dtype)
        lse = torch.logsumexp(case.logits(torch.float32), -1)
        loss = NTLoss(NUMBERS).from_hidden(hidden, weight, case.labels, bias, lse)
        loss.backward()
        assert loss.dtype == torch.float32
        assert_close(loss, NTLoss(NUMBERS)(case.logits(dtype), case.labels), HALF_PRECISION)
        assert hidden.grad.dtype == weight.grad.dtype == dtype

    @pytest.mark.parametrize("shape", [(1,), (0,), (2, 0), (2, 1, 3)])
    def test_any_leading_shape(self, shape: tuple[int, ...]) -> None:
        case = make_case(*shape)
        hidden, weight, bias = leaves_of(case)
        lse = torch.logsumexp(F.linear(hidden, weight, bias), -1)
        loss = NTLoss(NUMBERS).from_hidden(hidden, weight, case.labels, bias, lse, reduction="none")
        assert loss.shape == shape
        loss.sum().backward()
        assert_close(loss, NTLoss(NUMBERS)(case.logits(), case.labels, reduction="none"))

    def test_a_frozen_head_or_frozen_hidden_states(self) -> None:
        case = make_case(5)
        for frozen in (0, 1):
            leaves = leaves_of(make_case(5, bias=False))
            leaves[frozen].requires_grad_(False)
            NTLoss(NUMBERS, reweigh=False).from_hidden(leaves[0], leaves[1], case.labels).backward()
            assert leaves[frozen].grad is None
            assert grad_of(leaves[1 - frozen]).any()

    def test_reweigh_asks_for_the_log_normalizer(self) -> None:
        case = make_case(5)
        for given, said in ((None, "given None"), (torch.zeros(4), r"given \[4\]")):
            with pytest.raises(
                ValueError, match=rf"log_normalizer: {said}, expected shape \[5\].*reweigh=False"
            ):
                NTLoss(NUMBERS).from_hidden(case.hidden, case.weight, case.labels, None, given)

    def test_the_gradient_of_the_weight_alone_is_sparse_unless_asked_otherwise(self) -> None:
        case = make_case(5, bias=False)
        for sparse_grad in (True, False):
            hidden, weight, _ = leaves_of(case)
            loss_fn = NumberTokenLoss(NUMBERS, reweigh=False)
            loss_fn.from_hidden(hidden, weight, case.labels, sparse_grad=sparse_grad).backward()
            assert weight.grad.is_sparse == sparse_grad
            rows = grad_of(weight).abs().sum(-1).nonzero().squeeze(-1)
            assert set(rows.tolist()) <= set(NUMBERS.token_ids)


def label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    ids = labels.clamp(min=0)
    logits = (hidden * F.embedding(ids, weight, sparse=True)).sum(-1)
    return logits if bias is None else logits + bias[ids]


class TestRides:
    """Cross-entropy of a kernel and 0.3 times the number term equal the combined loss of the oracle."""

    def check(self, kernel: Any, dtype: torch.dtype, tolerance: Tolerance, bias: bool = True) -> None:
        case = make_case(40, seed=6, bias=bias, hidden_size=16)
        leaves = [None if x is None else x.to(DEVICE, dtype).requires_grad_() for x in leaves_of(case)]
        leaves = [None if x is None else x.detach().requires_grad_() for x in leaves]
        hidden, weight, head_bias = leaves
        labels = case.labels.to(DEVICE)
        ntl_fn = NumberTokenLoss(NUMBERS).to(DEVICE)
        ce, log_normalizer = kernel(hidden, weight, head_bias, labels)
        loss = ce + 0.3 * ntl_fn.from_hidden(hidden, weight, labels, head_bias, log_normalizer)
        loss.backward()
        wanted = combined(case.logits().numpy(), case.labels.numpy(), VALUES, Combined())
        assert_close(loss.cpu(), wanted.loss, tolerance)
        gradients = through_head(case.hidden.numpy(), case.weight.numpy(), wanted.gradient)
        for leaf, of_oracle in zip(leaves, gradients, strict=True):
            if leaf is not None:
                assert not leaf.grad.is_sparse
                assert_close(leaf.grad.cpu(), of_oracle, tolerance)

    @pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="needs PyTorch 2.13")
    @pytest.mark.parametrize("chunked", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("bias", [True, False])
    def test_linear_cross_entropy_of_torch(self, bias: bool, dtype: torch.dtype, chunked: bool) -> None:
        options = torch.nn.LinearCrossEntropyOptions() if chunked else None

        def kernel(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Any:
            losses = F.linear_cross_entropy(
                hidden, weight, labels, linear_bias=bias, reduction="none", options=options
            )
            lse = losses + label_logits(hidden, weight, bias, labels)
            return losses.sum() / (labels != -100).sum(), lse

        self.check(kernel, dtype, TWO_PATHS, bias)

    @pytest.mark.parametrize("bias", [True, False])
    def test_liger_kernel(self, bias: bool) -> None:
        kernel_library("liger_kernel")
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        def kernel(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Any:
            losses = LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, labels, bias)
            lse = losses + label_logits(hidden, weight, bias, labels)
            return losses.sum() / (labels != -100).sum(), lse

        self.check(kernel, torch.float32, TF32, bias)  # CUDA's products may be in TF32

    def test_cut_cross_entropy_gives_the_log_normalizer(self) -> None:
        cce = kernel_library("cut_cross_entropy").linear_cross_entropy
        if "return_lse" not in inspect.signature(cce).parameters:
            pytest.skip("this cut-cross-entropy has no return_lse: install it from its repository")

        def kernel(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Any:
            impl = "cce_exact" if torch.cuda.is_available() else "torch_compile"
            return cce(hidden, weight, labels, return_lse=True, impl=impl)

        self.check(kernel, torch.float32, HALF_PRECISION, bias=False)

    def test_cut_cross_entropy_of_each_token(self) -> None:
        cce = kernel_library("cut_cross_entropy").linear_cross_entropy

        def kernel(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Any:
            impl = "cce" if torch.cuda.is_available() else "torch_compile"
            losses = cce(hidden, weight, labels, reduction="none", impl=impl)
            lse = losses + label_logits(hidden, weight, None, labels)
            return losses.sum() / (labels != -100).sum(), lse

        self.check(kernel, torch.float32, HALF_PRECISION, bias=False)

    @pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="needs PyTorch 2.13")
    @pytest.mark.exact_rounding("counts allocations, the noise's among them")
    def test_makes_no_dense_gradient_of_the_head_beside_the_kernels(self) -> None:
        wide = NumberVocabulary.from_mapping({7 * i: i for i in range(10)}, vocab_size=1009)
        hidden = torch.randn(40, 8, requires_grad=True)
        labels = 7 * (torch.arange(40) % 10)
        ntl_fn = NumberTokenLoss(wide, Wasserstein(), validate=False)

        def head_sized(ride: bool, sparse_grad: bool = True) -> int:
            weight = torch.randn(1009, 8, requires_grad=True)

            def step() -> None:
                losses = F.linear_cross_entropy(
                    hidden, weight, labels, reduction="none", options=torch.nn.LinearCrossEntropyOptions()
                )
                loss = losses.mean()
                if ride:
                    lse = losses + label_logits(hidden, weight, None, labels)
                    loss = loss + ntl_fn.from_hidden(
                        hidden, weight, labels, None, lse, sparse_grad=sparse_grad
                    )
                loss.backward()

            # The profiler, and no dispatch mode, whose references keep autograd from adding in place.
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                step()
            assert not weight.grad.is_sparse
            events = profiler.profiler.kineto_results.events()
            return sum(e.name() == "[memory]" and e.nbytes() >= 1009 * 8 * 4 for e in events)

        alone = head_sized(ride=False)
        assert head_sized(ride=True) == alone
        assert head_sized(ride=True, sparse_grad=False) > alone


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of one, which stands in for torchrun's."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="the page needs F.linear_cross_entropy")
def test_the_page_runs_as_a_script(one_process: None) -> None:
    names: dict[str, Any] = {}
    ran = 0
    losses = []
    for block in blocks():
        if block.startswith("# CUDA"):
            continue
        exec(compile(block, str(PAGE), "exec"), names)
        ran += 1
        if "loss" in names:
            losses.append(names["loss"].item())
    assert ran >= 6
    assert np.isfinite(losses).all()
    # All of them compute one loss, of one batch; micro-batches are the last, and add up to it.
    assert losses[:3] == approx(losses[:1] * 3)


def test_the_pages_micro_batches_add_up_to_the_whole(one_process: None) -> None:
    names: dict[str, Any] = {}
    chosen = [b for b in blocks() if "import torch\n" in b or "micro_batches" in b or "group = " in b]
    for block in chosen[:2]:
        exec(compile(block, str(PAGE), "exec"), names)
    names["head"].weight.grad = names["hidden_states"].grad = None
    exec(compile(chosen[2], str(PAGE), "exec"), names)
    accumulated = names["head"].weight.grad.clone()
    names["head"].weight.grad = None
    names["loss_fn"](names["hidden_states"], names["head"].weight, names["labels"]).backward()
    assert_close(accumulated, names["head"].weight.grad)


@pytest.mark.parametrize("library", ["liger_kernel", "cut_cross_entropy"])
def test_the_pages_kernels_run(library: str, one_process: None) -> None:
    module = kernel_library(library)
    names: dict[str, Any] = {}
    setup, *rest = blocks()
    exec(compile(setup, str(PAGE), "exec"), names)
    ran = 0
    for block in rest:
        if not block.startswith("# CUDA") or f"from {library}" not in block:
            continue
        if library == "cut_cross_entropy":
            if not torch.cuda.is_available():
                pytest.skip("cut-cross-entropy's own kernel needs a CUDA device")
            if (
                "return_lse" in block
                and "return_lse" not in inspect.signature(module.linear_cross_entropy).parameters
            ):
                continue
        exec(compile(block, str(PAGE), "exec"), names)
        ran += 1
    assert ran
    assert names["loss"].isfinite()


def test_blocks_that_need_a_gpu_say_so() -> None:
    for block in blocks():
        assert block.startswith("# CUDA") == any(
            f"from {library}" in block for library in ("liger_kernel", "cut_cross_entropy")
        )
