"""Count the launches and bytes of one loss from logits on a GPU: `python benchmarks/traffic.py`.

Nothing runs on a GPU. PyTorch's operators are counted on meta tensors of the full size, by a dispatch mode:
each operator is a launch that reads its inputs and writes its outputs once, the least that it can do. The
kernels are counted load by load and store by store in Triton's interpreter, on two small batches; bytes
grow with the number of positions, and launches do not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import ntloss
from ntloss.engine import readout

# Operators that launch nothing.
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
# Operators that touch only the entries that an index names.
_BY_INDEX = ("gather", "index_select", "scatter_add_")
# Bytes per second of an H100's memory, in its data sheet.
BANDWIDTH = 3.35e12


@dataclass
class Count:
    """What a call moves and launches."""

    launches: int = 0
    read: int = 0
    written: int = 0

    @property
    def milliseconds(self) -> float:
        """The time that moving the bytes takes at least."""
        return (self.read + self.written) / BANDWIDTH * 1e3


class Counter(TorchDispatchMode):
    """Counts operators, those inside the library's custom operators among them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace == "ntloss":
            operators = (made for made in vars(readout).values() if isinstance(made, CustomOpDef))
            with self:
                return next(made for made in operators if made._name == name)._init_fn(*args, **kwargs)
        result = func(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        storages = {x.untyped_storage()._cdata for x in given}
        is_view = not func._schema.is_mutable and all(x.untyped_storage()._cdata in storages for x in made)
        if name in _ALLOCATIONS or is_view:
            return result
        self.count.launches += 1
        if name in _BY_INDEX:
            entries = _bytes(given[-1] if name == "scatter_add_" else made[0])
            indices = sum(_bytes(x) for x in given if not x.is_floating_point())
            self.count.read += entries * (2 if name == "scatter_add_" else 1) + indices
            self.count.written += entries
        else:
            self.count.read += sum(_bytes(x) for x in (given[1:] if name in ("copy_", "fill_") else given))
            self.count.written += sum(map(_bytes, made))
        return result


def _bytes(tensor: Tensor) -> int:
    """Size of the elements of a tensor; those that a stride of 0 repeats count once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return torch.Size(sizes).numel() * tensor.element_size()


def count_operators(positions: int, vocab_size: int, dtype: torch.dtype) -> Count:
    """Count a forward and backward pass of PyTorch's operators."""
    logits = torch.empty(positions, vocab_size, dtype=dtype, device="meta", requires_grad=True)
    return _count(logits, torch.zeros(positions, dtype=torch.int64, device="meta"))


def count_kernels(positions: int, vocab_size: int, dtype: torch.dtype, small: int = 4) -> Count:
    """Count the same with Triton's kernels, from batches of `small` and twice as many positions."""
    from triton.runtime.interpreter import interpreter_builder as builder

    from ntloss.engine import kernels

    counts = []
    for rows in (small, 2 * small):
        moved = Count()

        def load(
            pointers: Any, mask: Any, *rest: Any, to: Any = builder.create_masked_load, n: Any = moved
        ) -> Any:
            n.read += int(mask.data.sum()) * pointers.get_element_ty().primitive_bitwidth // 8
            return to(pointers, mask, *rest)

        def store(
            pointers: Any,
            value: Any,
            mask: Any,
            *rest: Any,
            to: Any = builder.create_masked_store,
            n: Any = moved,
        ) -> Any:
            n.written += int(mask.data.sum()) * pointers.get_element_ty().primitive_bitwidth // 8
            return to(pointers, value, mask, *rest)

        def launch(*given: Any, to: Any, n: Any = moved) -> Any:
            n.launches += 1
            with _disable_current_modes():  # the interpreter copies tensors to and fro
                return to(*given)

        logits = torch.randn(rows, vocab_size).to(dtype).requires_grad_()
        labels = torch.arange(rows) % vocab_size
        with (
            patch.object(builder, "create_masked_load", load),
            patch.object(builder, "create_masked_store", store),
            patch.object(kernels, "summarize", lambda *given, to=kernels.summarize: launch(*given, to=to)),
            patch.object(kernels, "write", lambda *given, to=kernels.write: launch(*given, to=to)),
            patch.object(torch.compiler, "is_compiling", lambda: True),  # static shapes, as on a GPU
        ):
            around = _count(logits, labels)
        counts.append(
            Count(*(a + b for a, b in zip(vars(moved).values(), vars(around).values(), strict=True)))
        )
    few, many = counts
    if few.launches != many.launches:
        raise RuntimeError(f"launches depend on the batch: {few.launches} and {many.launches}")
    each_read, each_written = ((getattr(many, x) - getattr(few, x)) // small for x in ("read", "written"))
    more = positions - small
    return Count(few.launches, few.read + more * each_read, few.written + more * each_written)


def _count(logits: Tensor, labels: Tensor) -> Count:
    digits = ntloss.NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, logits.shape[-1])
    loss_fn = ntloss.NTLCrossEntropyLoss(digits).to(logits.device)
    with Counter() as counter:
        torch.autograd.grad(loss_fn(logits, labels), logits)
    return counter.count


def render(positions: int, vocab_size: int, dtype: torch.dtype, counts: dict[str, Count]) -> str:
    """Render the counts as a table."""
    size = positions * vocab_size * dtype.itemsize
    lines = [
        f"{positions:,} positions, V = {vocab_size:,}, {str(dtype).removeprefix('torch.')}: "
        f"{size / 1e9:.2f} GB of logits.",
        "",
        "| | launches | GB read | GB written | times the logits | ms at 3.35 TB/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, count in counts.items():
        moved = count.read + count.written
        figures = [f"{count.launches:,}", f"{count.read / 1e9:.2f}", f"{count.written / 1e9:.2f}"]
        figures += [f"{moved / size:.2f}", f"{count.milliseconds:.2f}"]
        lines.append(f"| {' | '.join([name, *figures])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=8192, help="positions; default: 8,192")
    parser.add_argument("--vocab", type=int, default=128_256, help="vocabulary size; default: 128,256")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    given = parser.parse_args(arguments)
    size = given.tokens, given.vocab, getattr(torch, given.dtype)
    counts = {"operators, in pieces": count_operators(*size), "kernels": count_kernels(*size)}
    print(render(*size, counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
