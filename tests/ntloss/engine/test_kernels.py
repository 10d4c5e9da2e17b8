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

from ntloss import NTLCrossEntropyLoss, NumberVocabulary

pytest.importorskip("triton", reason="triton is not installed: it has wheels for Linux only")

INTERPRETED = Path(__file__).parents[1] / "interpreted_kernels.py"


# Two parts, because two workers of pytest-xdist share tests.
@pytest.mark.parametrize("part", ["oracle", "not oracle"])
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
        "-k",
        part,
        str(INTERPRETED),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["summarize_rows", "write_rows"])
@pytest.mark.parametrize(
    ("dtype", "softcap", "mean", "target"),
    [("bf16", None, False, ("cuda", 90, 32)), ("fp32", 30.0, True, ("cuda", 80, 32)),
     ("fp16", 30.0, True, ("hip", "gfx942", 64))],
)  # fmt: skip
def test_the_kernels_compile_for_gpus_without_one(
    name, dtype, softcap, mean, target, monkeypatch,
    tmp_path
):  # fmt: skip
    # The interpreter accepts programs that the compiler rejects.
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ntloss.engine import kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(kernels, name)
    constants = {"scale": 0.5, "softcap": softcap, "mean": mean, "block": 4096, "number_block": 16}
    constants |= {argument: 1 for argument in kernel.arg_names if argument.endswith("column_stride")}
    types = {"logits": f"*{dtype}", "grad": f"*{dtype}", "labels": "*i64", "token_ids": "*i64"}
    types |= {"vocab_size": "i32", "numbers": "i32", "row_stride": "i64", "grad_row_stride": "i64"}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {argument: types.get(argument, "*fp32") for argument in kernel.arg_names}
    places = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    source = ASTSource(kernel, signature, places)
    try:
        compiled = compile_kernel(source, target=GPUTarget(*target), options={"num_warps": kernels.WARPS})
    except Exception as missing:
        if "linker" not in str(missing):
            raise
        pytest.skip(str(missing))  # older releases of Triton need that of ROCm
    assert compiled.asm["cubin" if target[0] == "cuda" else "hsaco"]


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
