"""A number token loss beside kernels that do not return logits, and the examples of docs/fused_kernels.md."""

import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from combined_cases import (
    CRITERIA,
    NUMBERS,
    REWEIGHED,
    VALUES,
    assert_gradients,
    assert_matches,
    leaves_of,
    make_case,
)
from oracle import Combined, combined, through_head
from pages import snippets
from tolerances import HALF_PRECISION, TF32, TWO_PATHS, approx, assert_close
from torch.profiler import ProfilerActivity, profile

from ntloss import NTLCrossEntropyLoss, NTLoss, NumberTokenLoss, NumberVocabulary, Wasserstein

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fused_kernels.md"
WITH_TRITON = importlib.util.find_spec("triton") is not None and (
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def kernel_library(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if not WITH_TRITON:
        pytest.skip(f"{name} needs triton, and a CUDA device or TRITON_INTERPRET=1")
    return importlib.import_module(name)


class TestFromHidden:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_is_computed_in_float32(self, dtype):
        assert_matches(make_case(12, seed=3), "alone from hidden", dtype)

    def test_works_with_a_frozen_head_or_frozen_hidden_states(self):
        case = make_case(5)
        loss_fn = NTLoss(NUMBERS, reweigh=False)
        for frozen in (0, 1):
            leaves = [case.hidden.clone(), case.weight.clone()]
            leaves[1 - frozen].requires_grad_()
            loss_fn.from_hidden(*leaves, case.labels, sparse_grad=False).backward()
            assert leaves[frozen].grad is None
            assert leaves[1 - frozen].grad.any()

    def test_reweigh_requires_the_log_normalizer(self):
        case = make_case(5)
        for given, said in ((None, "given None"), (torch.zeros(4), r"given \[4\]")):
            with pytest.raises(ValueError, match=rf"log_normalizer: {said}, expected shape \[5\].*Reweighed"):
                NTLoss(NUMBERS).from_hidden(case.hidden, case.weight, case.labels, None, given)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize(("softcap", "logit_scale"), [(None, 1.0), (2.0, 1.5)])
    @pytest.mark.parametrize("criterion", ["wasserstein", "squashed", "huber"])
    def test_the_gradient_of_the_weight_alone_is_sparse_unless_asked_otherwise(
        self, criterion, softcap, logit_scale, reduction
    ):
        transform = {"softcap": softcap, "logit_scale": logit_scale}
        given = {"weighted": True, "reduction": reduction, "criterion": criterion, "reweigh": False}
        case = make_case(3, 4, seed=3, **given, **transform)
        wanted = assert_matches(case, "alone from hidden")
        loss_fn = NumberTokenLoss(NUMBERS, CRITERIA[criterion][0])
        for sparse_grad in (True, False):
            leaves = leaves_of(case, "alone from hidden")
            hidden, weight, bias = leaves.values()
            rest = (case.labels, bias, None, case.loss_weights, reduction)
            loss = loss_fn.from_hidden(hidden, weight, *rest, sparse_grad=sparse_grad, **transform)
            (loss * torch.as_tensor(case.upstream)).sum().backward()
            assert weight.grad.is_sparse == sparse_grad
            gradients = {n: x.grad.to_dense() if x.grad.is_sparse else x.grad for n, x in leaves.items()}
            rows = gradients["weight"].abs().sum(-1).nonzero().squeeze(-1)
            assert set(rows.tolist()) <= set(NUMBERS.token_ids)
            assert_close(loss, wanted.loss)
            assert_gradients(gradients, wanted.gradients, TWO_PATHS)


def label_logits(hidden, weight, bias, labels):
    ids = labels.clamp(min=0)
    logits = (hidden * F.embedding(ids, weight, sparse=True)).sum(-1)
    return logits if bias is None else logits + bias[ids]


def with_log_normalizer(losses_of):
    """Make a kernel of one that returns the loss of each token: mean loss and log-normalizers."""

    def kernel(hidden, weight, bias, labels):
        losses = losses_of(hidden, weight, bias, labels)
        lse = losses + label_logits(hidden, weight, bias, labels)
        return losses.sum() / (labels != -100).sum(), lse

    return kernel


class TestBesideKernels:
    """A kernel's cross-entropy plus 0.3 times the number term equals the combined loss of the oracle."""

    def check(self, kernel, dtype, tolerance, bias=True):
        case = make_case(40, seed=6, bias=bias, hidden_size=16)
        given = (case.hidden, case.weight, case.bias)
        leaves = [None if x is None else x.to(DEVICE, dtype, copy=True).requires_grad_() for x in given]
        hidden, weight, head_bias = leaves
        labels = case.labels.to(DEVICE)
        ntl_fn = NumberTokenLoss(NUMBERS, REWEIGHED).to(DEVICE)
        ce, log_normalizer = kernel(hidden, weight, head_bias, labels)
        loss = ce + 0.3 * ntl_fn.from_hidden(hidden, weight, labels, head_bias, log_normalizer)
        loss.backward()
        wanted = combined(
            case.logits().numpy(), case.labels.numpy(), VALUES, Combined(normalize_by="numbers")
        )
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
    def test_the_number_loss_adds_to_torchs_linear_cross_entropy(self, bias, dtype, chunked):
        options = torch.nn.LinearCrossEntropyOptions() if chunked else None

        def losses_of(hidden, weight, bias, labels):
            return F.linear_cross_entropy(
                hidden, weight, labels, linear_bias=bias, reduction="none", options=options
            )

        self.check(with_log_normalizer(losses_of), dtype, TWO_PATHS, bias)

    @pytest.mark.parametrize("bias", [True, False])
    def test_the_number_loss_adds_to_liger_kernel(self, bias):
        kernel_library("liger_kernel")
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        def losses_of(hidden, weight, bias, labels):
            return LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, labels, bias)

        self.check(
            with_log_normalizer(losses_of), torch.float32, TF32, bias
        )  # CUDA's products may be in TF32

    @pytest.mark.parametrize("returned", ["log-normalizer", "losses"])
    def test_the_number_loss_adds_to_cut_cross_entropy(self, returned):
        cce = kernel_library("cut_cross_entropy").linear_cross_entropy
        if returned == "log-normalizer" and "return_lse" not in inspect.signature(cce).parameters:
            pytest.skip("this cut-cross-entropy has no return_lse: install it from its repository")
        options = {"return_lse": True} if returned == "log-normalizer" else {"reduction": "none"}
        exact = "cce_exact" if returned == "log-normalizer" else "cce"

        def kernel(hidden, weight, bias, labels):
            impl = exact if torch.cuda.is_available() else "torch_compile"
            return cce(hidden, weight, labels, impl=impl, **options)

        with_lse = kernel if returned == "log-normalizer" else with_log_normalizer(kernel)
        self.check(with_lse, torch.float32, HALF_PRECISION, bias=False)

    @pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="needs PyTorch 2.13")
    @pytest.mark.exact_rounding("counts allocations, the noise's among them")
    def test_adds_no_dense_gradient_of_the_head_to_the_kernels(self):
        wide = NumberVocabulary.from_mapping({7 * i: i for i in range(10)}, vocab_size=1009)
        hidden = torch.randn(40, 8, requires_grad=True)
        labels = 7 * (torch.arange(40) % 10)
        ntl_fn = NumberTokenLoss(wide, Wasserstein())

        def head_sized(with_numbers, sparse_grad=True):
            weight = torch.randn(1009, 8, requires_grad=True)

            def step():
                losses = F.linear_cross_entropy(
                    hidden, weight, labels, reduction="none", options=torch.nn.LinearCrossEntropyOptions()
                )
                loss = losses.mean()
                if with_numbers:
                    lse = losses + label_logits(hidden, weight, None, labels)
                    loss = loss + ntl_fn.from_hidden(
                        hidden, weight, labels, None, lse, sparse_grad=sparse_grad
                    )
                loss.backward()

            # Not a dispatch mode: its references would keep autograd from adding in place.
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                step()
            assert not weight.grad.is_sparse
            events = profiler.profiler.kineto_results.events()
            return sum(e.name() == "[memory]" and e.nbytes() >= 1009 * 8 * 4 for e in events)

        alone = head_sized(with_numbers=False)
        assert head_sized(with_numbers=True) == alone
        assert head_sized(with_numbers=True, sparse_grad=False) > alone


def blocks():
    return snippets("docs/fused_kernels.md")


@pytest.fixture
def one_process(tmp_path):
    """A process group of one process, in place of torchrun's."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="the page needs F.linear_cross_entropy")
def test_the_page_runs_as_a_script(one_process):
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
    assert ran >= 5
    assert np.isfinite(losses).all()
    # The sharded losses are those of the whole vocabulary.
    whole = NTLCrossEntropyLoss(names["vocabulary"])(
        names["hidden_states"] @ names["head"].weight.T, names["labels"]
    )
    assert losses[1:3] == approx([whole.item()] * 2)


@pytest.mark.parametrize("library", ["liger_kernel", "cut_cross_entropy"])
def test_the_pages_kernel_examples_run(library, one_process):
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
