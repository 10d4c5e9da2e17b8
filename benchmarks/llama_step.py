"""Time a training step of a two-layer Llama with each loss: `python benchmarks/llama_step.py`.

A step is a forward pass, the loss with the search for numbers in the labels, a backward pass and SGD, on one
thread. Steps are timed alternately by the thread's own time, and the fastest one counts, so that other
programs on the machine matter less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

VOCAB, WIDTH, ROWS, LENGTH = 4096, 256, 8, 128
SHARE = 0.3  # of the labels that are digits


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the time of the fastest step with each loss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=4, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    digits = NumberVocabulary.from_mapping({10 + digit: str(digit) for digit in range(10)}, vocab_size=VOCAB)
    ids = torch.randint(20, VOCAB, (ROWS, LENGTH))
    ids = torch.where(torch.rand(ROWS, LENGTH) < SHARE, torch.randint(10, 20, ids.shape), ids)
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)

    def plain(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    losses: dict[str, Any] = {
        "F.cross_entropy": plain,
        "NTL-WAS": NTLCrossEntropyLoss(digits),
        "HL-Gauss": NTLCrossEntropyLoss(digits, HLGauss(2.0)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(options.steps):
        for name, loss in losses.items():
            begin = time.thread_time()
            loss(model(ids).logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds[name].append(time.thread_time() - begin)
    fastest = {name: min(times) for name, times in seconds.items()}
    for name, least in fastest.items():
        print(f"{name}: {1000 * least:.0f} ms, {least / fastest['F.cross_entropy']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
