"""Triton kernels that read logits, and write their gradient, once per row.

On a GPU, PyTorch's operators compute in copies, piece by piece: about ten launches for each million logits,
and float32 temporaries between them. Here one program handles a row, whatever its width: `summarize` passes
over it once, `write` reads it once and writes its gradient once. Rows that do not count are not read.

`engine/readout.py` decides when these kernels are used. They compute in float32, or float64 for float64
logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Bytes of a row that a program loads at a time, and its warps: enough loads in flight to use the bandwidth,
# in few enough registers that several programs share a multiprocessor.
_PIECE = 1 << 14
WARPS = 8
# With fewer elements in a block than threads in a program, elements would be loaded more than once, which is
# wrong when writing in place.
_SMALLEST_PIECE = 1024
_MOST_NUMBERS = 1024

# Level of rows that are -inf everywhere: the lowest finite float32.
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


def summarize(
    logits: Tensor, labels: Tensor, token_ids: Tensor, scale: float, softcap: float | None, mean: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the `readout.Readout` of a selection in one pass; logits may have any strides.

    Positions with label -1 are not read: their readout is zero.
    """
    rows, vocab_size = logits.shape
    row_max = torch.empty(rows, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
    shifted_lse, label_logit = torch.empty_like(row_max), torch.empty_like(row_max)
    mean_logit = torch.empty_like(row_max) if mean else torch.zeros_like(row_max)
    number_logits = row_max.new_empty(rows, len(token_ids))
    if rows:
        with _on(logits.device):
            summarize_rows[(rows,)](
                logits, labels.contiguous(), token_ids, row_max, shifted_lse, label_logit, number_logits,
                mean_logit, *logits.stride(), vocab_size, len(token_ids), scale, softcap, mean,
                *block_sizes(logits, token_ids), num_warps=WARPS,
            )  # fmt: skip
    return row_max, shifted_lse, label_logit, number_logits, mean_logit


def write(
    grad: Tensor, logits: Tensor, labels: Tensor, token_ids: Tensor, scale: float, softcap: float | None,
    mean: bool, readout: Sequence[Tensor], grads: Sequence[Tensor],
) -> None:  # fmt: skip
    """Write the gradient of the logits in one pass; see `readout.write_gradient`.

    Token ids are -1 where they are not among the columns. Where the gradients of a row's log-sum, label logit
    and mean logit are zero, its logits are not read.
    """
    row_max, shifted_lse, number_logits = readout
    rows, vocab_size = logits.shape
    if rows:
        with _on(logits.device):
            write_rows[(rows,)](
                grad, logits, labels.contiguous(), token_ids, row_max, shifted_lse,
                number_logits.contiguous(), *(each.contiguous() for each in grads), *grad.stride(),
                *logits.stride(), vocab_size, len(token_ids), scale, softcap, mean,
                *block_sizes(logits, token_ids), num_warps=WARPS,
            )  # fmt: skip


def _on(device: torch.device) -> AbstractContextManager[Any]:
    # Triton launches on the current device.
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def block_sizes(logits: Tensor, token_ids: Tensor) -> tuple[int, int]:
    """Columns and number tokens that a program handles at a time: powers of two."""
    columns = min(_PIECE // logits.element_size(), triton.next_power_of_2(logits.shape[1]))
    numbers = min(_MOST_NUMBERS, triton.next_power_of_2(max(len(token_ids), 1)))
    return max(columns, _SMALLEST_PIECE), numbers


@triton.jit
def _cap(z, softcap: tl.constexpr):
    # tanh from exp, accurate to one rounding of 1: after scaling, of the largest logit.
    small = tl.exp(-2 * tl.abs(z / softcap))
    return tl.where(z < 0, small - 1, 1 - small) / (1 + small) * softcap


@triton.jit
def summarize_rows(
    logits, labels, token_ids, row_max, shifted_lse, label_logit, number_logits, mean_logit,
    row_stride, column_stride, vocab_size, numbers,
    scale: tl.constexpr, softcap: tl.constexpr, mean: tl.constexpr,
    block: tl.constexpr, number_block: tl.constexpr,
):  # fmt: skip
    """Summarize a row."""
    row = tl.program_id(0).to(tl.int64)  # products with strides exceed 2^31
    logits += row * row_stride
    dtype = row_max.dtype.element_ty
    label = tl.load(labels + row)
    counts = label >= 0

    highest = tl.full((), _LOWEST, dtype)
    total = tl.full((), 0, dtype)  # of exp(z - highest)
    plain = tl.full((), 0, dtype)  # of z
    width = tl.where(counts, vocab_size, 0)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        inside = columns < width
        z = tl.load(logits + columns.to(tl.int64) * column_stride, mask=inside, other=0.0).to(dtype) * scale
        if softcap is not None:
            z = _cap(z, softcap)
        if mean:
            plain += tl.sum(tl.where(inside, z, 0), 0)
        z = tl.where(inside, z, -float("inf"))
        higher = tl.maximum(highest, tl.max(z, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(z - higher), 0)
        highest = higher
    tl.store(row_max + row, tl.where(counts, highest, 0))
    tl.store(shifted_lse + row, tl.log(tl.where(counts, total, 1)))
    if mean:
        tl.store(mean_logit + row, plain / vocab_size)

    # A label outside the vocabulary reads as NaN, not as other memory.
    within = counts & (label < width)
    of_label = tl.load(logits + label * column_stride, mask=within, other=float("nan")).to(dtype) * scale
    if softcap is not None:
        of_label = _cap(of_label, softcap)
    tl.store(label_logit + row, tl.where(counts, of_label, 0))
    for start in range(0, numbers, number_block):
        index = start + tl.arange(0, number_block)
        ids = tl.load(token_ids + index, mask=index < numbers, other=vocab_size)
        z = tl.load(logits + ids * column_stride, mask=ids < width, other=0.0).to(dtype) * scale
        if softcap is not None:
            z = _cap(z, softcap)
        tl.store(number_logits + row * numbers + index, z, mask=index < numbers)


@triton.jit
def write_rows(
    grad, logits, labels, token_ids, row_max, shifted_lse, number_logits,
    grad_shifted_lse, grad_label_logit, grad_number_logits, grad_mean_logit,
    grad_row_stride, grad_column_stride, row_stride, column_stride, vocab_size, numbers,
    scale: tl.constexpr, softcap: tl.constexpr, mean: tl.constexpr,
    block: tl.constexpr, number_block: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a row."""
    row = tl.program_id(0).to(tl.int64)  # products with strides exceed 2^31
    logits += row * row_stride
    grad += row * grad_row_stride
    dtype = row_max.dtype.element_ty
    label = tl.load(labels + row)
    highest = tl.load(row_max + row)
    rest = tl.load(shifted_lse + row)
    of_sum = tl.load(grad_shifted_lse + row)
    of_label = tl.load(grad_label_logit + row)
    of_mean = tl.full((), 0, dtype)
    if mean:
        of_mean = tl.load(grad_mean_logit + row) / vocab_size
    counts = (of_sum != 0) | (of_label != 0) | (of_mean != 0)

    width = tl.where(counts, vocab_size, 0)
    for start in range(0, vocab_size, block):
        columns = start + tl.arange(0, block)
        offsets = columns.to(tl.int64)
        z = tl.load(logits + offsets * column_stride, mask=columns < width, other=0.0).to(dtype) * scale
        if softcap is not None:
            z = _cap(z, softcap)
        slope = of_sum * tl.exp(z - highest - rest) + of_mean + tl.where(columns == label, of_label, 0)
        if softcap is not None:
            slope *= 1 - (z / softcap) * (z / softcap)
        slope = tl.where(counts, slope * scale, 0).to(grad.dtype.element_ty)
        tl.store(grad + offsets * grad_column_stride, slope, mask=columns < vocab_size)

    # Other threads have written these columns, without the number term; their logits may be overwritten.
    tl.debug_barrier()
    for start in range(0, numbers, number_block):
        index = start + tl.arange(0, number_block)
        ids = tl.load(token_ids + index, mask=index < numbers, other=-1)
        held = ids >= 0
        z = tl.load(number_logits + row * numbers + index, mask=held, other=0.0)
        slope = of_sum * tl.exp(z - highest - rest) + of_mean + tl.where(ids == label, of_label, 0)
        slope = tl.where(counts, slope, 0)
        slope += tl.load(grad_number_logits + row * numbers + index, mask=held, other=0.0)
        if softcap is not None:
            slope = tl.where(slope != 0, slope * (1 - (z / softcap) * (z / softcap)), 0)  # z may be NaN
        tl.store(grad + ids * grad_column_stride, (slope * scale).to(grad.dtype.element_ty), mask=held)
