"""Count what a call of the loss launches and enters, without a GPU: `python benchmarks/launches.py`.

On the CPU these are the operators that PyTorch dispatches, but for views. Those of an accelerator in eager
mode are counted on the device "meta", whose tensors have no values, with the two Triton kernels as one launch
each; there, `torch.compile` fuses those of the number term into a few.

The functions are those of the library that a forward pass enters, which a reader follows, without
comprehensions.

    python benchmarks/launches.py                                               print the table
    python benchmarks/launches.py --markdown benchmarks/results/traffic.md      put it into that page
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ntloss
from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.engine import read
from ntloss.engine.read import Operators
from ntloss.engine.readout import COMPUTED_IN, Readout, Wanted

# Operators that make no tensor of their own but another view of one, or read one number of the CPU.
VIEWS = {
    "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "t", "transpose", "slice", "select", "detach",
    "unbind", "unfold", "_local_scalar_dense",
}  # fmt: skip
CRITERIA: dict[str, Any] = {
    "cross-entropy alone": None,
    "NTL-WAS": "ntl_was",
    "HL-Gauss": {"name": "hl_gauss", "sigma": 2.0},
}
POSITIONS, VOCAB, HIDDEN = 40, 1009, 8
DIGITS = NumberVocabulary.from_mapping({7 * digit: digit for digit in range(10)}, vocab_size=VOCAB)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def launches(call: Callable[[], object]) -> list[str]:
    """Return the operators that a call dispatches, but for views; a custom operator counts as one."""
    with _Recorder() as recorder:
        call()
    return [name for name in recorder.names if name not in VIEWS]


class _KernelsElsewhere(Operators):
    """Triton's kernels on a device without values: one operator each."""

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """Make the readout, without its values."""
        like = torch.empty(len(logits), dtype=COMPUTED_IN[logits.dtype], device=logits.device)
        return Readout(like, like[:], like[:], like.new_empty(len(logits), len(wanted.token_ids)))

    def write(self, grad: Tensor, *_: Any) -> None:
        """Launch one operator."""
        grad.zero_()


def batch(device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Make hidden states `[1, 40, 8]`, a head, and labels of which half are digits, and a quarter ignored."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, POSITIONS, HIDDEN, generator=generator)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    labels = torch.randint(VOCAB, (1, POSITIONS), generator=generator)
    labels[:, ::2] = 7 * (labels[:, ::2] % 10)
    labels[:, ::4] = -100
    return hidden.to(device).requires_grad_(), weight.to(device).requires_grad_(), labels.to(device)


def of_logits(criterion: Any, device: str = "cpu") -> tuple[int, int]:
    """Count the launches of a forward and a backward pass."""
    hidden, weight, labels = batch(device)
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion)
    if loss_fn.finds_numbers:
        labels = loss_fn.prepare(batch()[2]).to(device)
    loss_fn.to(device)
    logits = (hidden @ weight.T).detach().requires_grad_()
    losses: list[Any] = []
    forward = launches(lambda: losses.append(loss_fn(logits, labels)))
    return len(forward), len(launches(losses[0].backward))


def of_further_chunk(criterion: Any) -> float:
    """Count the launches of each further chunk of `from_hidden`, forward and backward."""
    loss_fn, counts = NTLCrossEntropyLoss(DIGITS, criterion), []
    for chunks in (3, 6):
        hidden, weight, labels = batch()
        labels, size = loss_fn.prepare(labels), 30 // chunks  # 30 labels count

        def step() -> None:
            loss_fn.from_hidden(hidden, weight, labels, chunk_size=size).backward()  # noqa: B023

        counts.append(len(launches(step)))
    return (counts[1] - counts[0]) / 3


def entered(call: Callable[[], object]) -> int:
    """Count the functions of the library that a call enters, without comprehensions."""
    found, home, before = set(), str(Path(ntloss.__file__).parent), sys.getprofile()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(found)


def functions_of(criterion: Any) -> tuple[int, int]:
    """Count the functions that a forward pass of logits and one of hidden states enter."""
    loss_fn, (hidden, weight, labels) = NTLCrossEntropyLoss(DIGITS, criterion), batch()
    logits = (hidden @ weight.T).detach().requires_grad_()
    given = loss_fn.prepare(labels) if loss_fn.finds_numbers else labels
    return (
        entered(lambda: loss_fn(logits, given)),
        entered(lambda: loss_fn.from_hidden(hidden, weight, given)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or put it into a page."""
    from report import insert, markdown  # which imports all that is measured

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--markdown", type=Path, help="page with markers of `benchmark launches`")
    options = parser.parse_args(arguments)
    rows = []
    for name, criterion in CRITERIA.items():
        on_cpu = of_logits(criterion)
        with patch.object(read, "backend_of", lambda *_: _KernelsElsewhere()):
            elsewhere = of_logits(criterion, "meta")
        counts = [f"{forward} + {backward}" for forward, backward in (on_cpu, elsewhere)]
        functions = "; ".join(map(str, functions_of(criterion)))
        rows.append([name, *counts, f"{of_further_chunk(criterion):.1f}", functions])
    each = "CPU, each further chunk of `from_hidden`"
    headings = ["loss", "CPU", "accelerator", each, "functions: logits; hidden states"]
    text = markdown(headings, rows) + "\n"
    print(text)
    if options.markdown:
        insert(text, options.markdown, "launches")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
