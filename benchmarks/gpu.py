"""Measure the kernels and what a call costs on one GPU: `python benchmarks/gpu.py`, in a few minutes.

    python benchmarks/gpu.py --markdown benchmarks/results/gpu.md    put the tables into that page
    python benchmarks/gpu.py --parts kernels,fixed                   only some of them

The parts, in this order:

    kernels   each Triton kernel, as a share of the bandwidth of a copy
    fixed     what a call costs whatever its size, from 8 x 16 logits
    exact     hidden states against float64 on the CPU, and more than 2^31 logits

Times of kernels are medians of CUDA events over repetitions with a cold cache (`triton.testing.do_bench`).
`python benchmarks/losses.py --device cuda --tables dense,linear,criteria,integrations` measures losses and
training steps beside those of others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

KERNELS = [(8192, 32_000), (8192, 128_256), (4096, 262_144), (2048, 151_936), (8192, 50_257)]
CRITERIA = {"NTL-WAS": lambda: "ntl_was", "CRPS": lambda: "crps", "HL-Gauss": lambda: HLGauss(1.5)}
CE = "F.cross_entropy"


def median_ms(run: Callable[[], object]) -> float:
    """Measure the median time of a call."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=15, rep=50, return_mode="median"))


def digits_of(vocab_size: int) -> NumberVocabulary:
    return NumberVocabulary.from_mapping({100 + d: str(d) for d in range(10)}, vocab_size=vocab_size)


def labels_of(tokens: int, vocab_size: int) -> Tensor:
    """Labels `[1, tokens]` half of which are digits."""
    labels = torch.randint(vocab_size, (1, tokens), device="cuda")
    labels[0, : tokens // 2] = 100 + torch.arange(tokens // 2, device="cuda") % 10
    return labels


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def kernel_rows() -> list[list[str]]:
    """Time each kernel beside a copy."""
    from measure import copy_bandwidth

    bandwidth = copy_bandwidth()
    heading = ["rows x width", "read, share of a copy's bandwidth", "write"]
    return [heading, *(_kernel_row(tokens, vocab_size, bandwidth) for tokens, vocab_size in KERNELS)]


def _kernel_row(tokens: int, vocab_size: int, bandwidth: float) -> list[str]:
    from ntloss.engine.kernels import Kernels
    from ntloss.engine.readout import Wanted

    kernels = Kernels()
    logits = torch.randn(tokens, vocab_size, dtype=torch.bfloat16, device="cuda")
    labels, wanted = labels_of(tokens, vocab_size)[0], Wanted(torch.arange(100, 110, device="cuda"))
    readout, grad = kernels.read(logits, labels, wanted), torch.empty_like(logits)
    ones = torch.ones_like(readout.row_max)
    grads = ones, -ones, torch.zeros_like(readout.number_logits)
    read = median_ms(lambda: kernels.read(logits, labels, wanted))
    write = median_ms(lambda: kernels.write(grad, logits, labels, wanted, readout, grads))
    size = logits.numel() * logits.element_size() / bandwidth * 1e3
    return [f"{tokens:,} x {vocab_size:,}", f"{size / read:.2f}", f"{2 * size / write:.2f}"]


def fixed_rows() -> list[list[str]]:
    """Time small calls, where the host is the limit."""
    logits = torch.randn(1, 8, 16, device="cuda", requires_grad=True)
    labels = torch.randint(12, (1, 8), device="cuda")
    vocabulary = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(10)}, vocab_size=16)
    losses: dict[str, Any] = {CE: cross_entropy}
    losses |= {f"ours, {n}": NTLCrossEntropyLoss(vocabulary, make()).cuda() for n, make in CRITERIA.items()}
    rows = []
    for name, loss in losses.items():
        for _ in range(10):
            torch.autograd.grad(loss(logits, labels), logits)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            torch.autograd.grad(loss(logits, labels), logits)
        torch.cuda.synchronize()
        rows.append([name, f"{(time.perf_counter() - start) * 5:.2f}"])
    return [["8 x 16 logits", "ms"], *rows]


def exact_rows() -> list[list[str]]:
    """Compare with float64 on the CPU, and index beyond 31 bits."""
    tokens, width, vocab_size = 512, 64, 1031
    rows, labels = [], labels_of(tokens, vocab_size)
    exact = [torch.randn(*shape, dtype=torch.float64) for shape in ((1, tokens, width), (vocab_size, width))]
    for name in CRITERIA:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            gradients = []
            for device, used in (("cpu", torch.float64), ("cuda", dtype)):
                leaves = [x.to(dtype).to(device, used).requires_grad_() for x in exact]
                loss = NTLCrossEntropyLoss(digits_of(vocab_size), CRITERIA[name]()).to(device)
                value = loss.from_hidden(*leaves, labels.to(device), chunk_size=100)
                gradients.append([value.detach(), *torch.autograd.grad(value, leaves)])
            errors = [
                float((got.double().cpu() - wanted).norm() / wanted.norm())
                for wanted, got in zip(*gradients, strict=True)
            ]
            rows.append(
                [f"from_hidden, {name}, {dtype}".replace("torch.", ""), *(f"{e:.1e}" for e in errors)]
            )
    if torch.cuda.mem_get_info()[0] > 20 * 2**30:
        logits = torch.zeros(1, 8200, 262_144, dtype=torch.bfloat16, device="cuda")  # 2.15e9 logits
        labels = labels_of(8200, 262_144)
        logits[0, -1, -1] = 20.0
        labels[0, -1] = 262_143
        leaf = logits.requires_grad_()
        value = NTLCrossEntropyLoss(digits_of(262_144), reduction="none").cuda()(leaf, labels)
        value.sum().backward()
        assert leaf.grad is not None
        wanted = torch.tensor([20.0, *[0.0] * 262_143], dtype=torch.float64).log_softmax(0)[0]
        difference = abs(float(value[0, -1]) + float(wanted))
        rows.append(
            ["the last of 2.15e9 logits", f"{difference:.1e}", f"{float(leaf.grad[0, -1].sum()):.1e}", ""]
        )
    return [["relative error", "loss", "gradient of hidden states", "gradient of the head"], *rows]


PARTS = {
    "kernels": kernel_rows,
    "fixed": fixed_rows,
    "exact": exact_rows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts, separated by commas")
    parser.add_argument("--markdown", type=Path, help="page to put the tables into, between its markers")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is unknown; expected some of {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        print("skipped: no CUDA device, or PyTorch without CUDA", file=sys.stderr)
        return 0
    from measure import machine
    from report import insert, markdown

    texts = [", ".join(f"{name} {value}" for name, value in machine("cuda").items())]
    for part in parts:
        heading, *rows = PARTS[part]()
        texts.append(f"### {part}\n\n{markdown(heading, rows)}")
        print(texts[-1], flush=True)
        torch.cuda.empty_cache()
    if options.markdown:
        insert("\n\n".join(texts) + "\n", options.markdown, "gpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
