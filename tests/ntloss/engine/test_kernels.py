"""The Triton kernels: on a GPU, and on the CPU in Triton's interpreter."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from combined_cases import make_case
from tolerances import GRADIENT_TOLERANCE, TWO_PATHS, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

triton = pytest.importorskip("triton", reason="triton is not installed: it has wheels for Linux only")

INTERPRETED = Path(__file__).with_name("test_interpreted_kernels.py")


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_are_right_in_tritons_interpreter(part):
    """Triton has to be told to interpret before it is imported: in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        part,
        str(INTERPRETED),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wide_case(dtype, vocab_size, positions=7, **options):
    """Make random logits of a wide vocabulary, one of whose positions is ignored, with a loss for each."""
    rng = np.random.default_rng(vocab_size)
    numbers = rng.permutation(vocab_size)[: min(40, vocab_size - 1)].tolist()
    vocabulary = NumberVocabulary.from_mapping({i: str(v) for v, i in enumerate(numbers)}, vocab_size)
    labels = torch.from_numpy(rng.integers(0, vocab_size, positions))
    labels[0], labels[1], labels[-1] = numbers[0], -100, vocab_size - 1
    case = make_case(positions, reduction="none", label_smoothing=0.1, **options)
    logits = torch.from_numpy(4 * rng.standard_normal((positions, vocab_size))).to(dtype)
    return replace(case, labels=labels, vocabulary=vocabulary), logits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGPU:
    @pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}], ids=str)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("vocab_size", [10, 257, 32_000, 50_257, 262_143])
    def test_equals_operators_on_the_cpu(
        self, vocab_size, dtype, options
    ):  # fmt: skip
        case, logits = wide_case(dtype, vocab_size, 37)
        results = []
        for device in ("cuda", "cpu"):
            leaf = logits.to(device).requires_grad_()
            loss_fn = NTLCrossEntropyLoss(case.vocabulary, reduction="sum", **options).to(device)
            loss = loss_fn(leaf, case.labels.to(device))
            loss.backward()
            results.append((loss.cpu(), leaf.grad.cpu()))
        assert_close(results[0][0], results[1][0], TWO_PATHS)
        assert_close(results[0][1], results[1][1], GRADIENT_TOLERANCE)

    def test_a_cuda_graph_replays_a_step(self):
        case, logits = wide_case(torch.bfloat16, 1009, 16)
        leaf, labels = logits.cuda().requires_grad_(), case.labels.cuda()
        loss_fn = NTLCrossEntropyLoss(case.vocabulary).cuda()

        def step():
            (gradient,) = torch.autograd.grad(loss_fn(leaf, labels), leaf)
            return gradient

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step()  # compiles
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gradient = step()
        leaf.data.mul_(0.5)
        graph.replay()
        assert_close(gradient, step())

    def test_a_replayed_cuda_graph_has_the_width_that_was_annealed(self):
        case, logits = wide_case(torch.float32, 1009, 16)
        leaf, labels = logits[None].cuda(), case.labels[None].cuda()
        criterion = HLGauss((4.0, 0.5))
        loss_fn = NTLCrossEntropyLoss(case.vocabulary, criterion).cuda()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            loss_fn(leaf, labels)  # compiles
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = loss_fn(leaf, labels)
        for progress in (0.0, 0.5, 1.0):
            criterion.anneal(progress)
            graph.replay()
            assert_close(loss, loss_fn(leaf, labels))
