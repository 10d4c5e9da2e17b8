"""Triton kernels that read logits, and write their gradient, once per row.

On a GPU, PyTorch's operators compute in copies, piece by piece: about ten launches for each million logits,
and float32 temporaries between them. Here one program handles a row, whatever its width: `summarize` passes
over it once, `write` reads it once and writes its gradient once. Rows that do not count are not read.

`engine/readout.py` decides when these kernels are used. They compute in float32, or float64 for float64
logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Warps of a program, which handles a row.
WARPS = 8
# A row is divided among this many lanes, each of which reads 32 bytes at a time: enough loads in flight to
# use the bandwidth, in few enough registers that several programs share a multiprocessor. This is a multiple
# of a program's threads, 256 or 512, so that a lane belongs to one thread.
LANES = 512
# Number tokens that a program handles at a time.
MOST_NUMBERS = 1024

# Level of rows that are -inf everywhere: the lowest finite float32.
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_LOG2_E = tl.constexpr(math.log2(math.e))


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
                LANES, _vector(logits), _number_block(token_ids), num_warps=WARPS,
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
                LANES, _vector(grad, logits), _number_block(token_ids), num_warps=WARPS,
            )  # fmt: skip


def _on(device: torch.device) -> AbstractContextManager[Any]:
    # Triton launches on the current device.
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def _vector(*matrices: Tensor) -> int:
    # Logits that a thread loads together: those in 16 bytes where Triton can tell that all are aligned, which
    # needs row strides that are multiples of 16.
    aligned = all(
        each.stride(1) == 1 and each.stride(0) % 16 == 0 and each.data_ptr() % 16 == 0 for each in matrices
    )
    return 16 // matrices[0].element_size() if aligned else 1


def _number_block(token_ids: Tensor) -> int:
    # A power of two, as all sizes of blocks.
    return int(min(MOST_NUMBERS, triton.next_power_of_2(max(len(token_ids), 1))))


# Exponentials are computed by `tl.exp2`, which is one instruction where results below 2^-126 may become zero.
# `tl.exp` takes three more on NVIDIA GPUs, to represent them.


@triton.jit
def _columns(logits, lanes: tl.constexpr, vector: tl.constexpr):
    """Columns that a program handles at a time, `[loads, lanes, vector]`: 32 bytes for each lane."""
    loads: tl.constexpr = 2 * 128 // logits.dtype.element_ty.primitive_bitwidth // vector
    load, lane, place = tl.arange(0, loads), tl.arange(0, lanes), tl.arange(0, vector)
    return (load * (lanes * vector))[:, None, None] + (lane * vector)[None, :, None] + place[None, None, :]


@triton.jit
def _load(pointers, inside, scale: tl.constexpr, softcap: tl.constexpr, dtype: tl.constexpr):
    """Load logits and transform them. Those outside of a mask, if it is not None, are zero."""
    z = tl.load(pointers) if inside is None else tl.load(pointers, mask=inside, other=0.0)
    z = z.to(dtype) * scale
    if softcap is not None:
        # softcap * tanh(z / softcap), exact to rounding of the softcap
        z = 2 * softcap / (1 + tl.exp2(z * (-2 * _LOG2_E / softcap))) - softcap
    return z


@triton.jit
def _sum_by_lane(z):
    """Sum `[loads, lanes, vector]` for each lane: elements of one thread."""
    return tl.sum(tl.sum(z, 2), 0)


@triton.jit
def _add_exponentials(z, highest, total):
    """Update each lane's largest logit, and its sum of exp(z - highest), by more logits."""
    higher = tl.maximum(highest, tl.max(tl.max(z, 2), 0))
    added = _sum_by_lane(tl.exp2((z - higher[None, :, None]) * _LOG2_E))
    return higher, total * tl.exp2((highest - higher) * _LOG2_E) + added


@triton.jit
def summarize_rows(
    logits, labels, token_ids, row_max, shifted_lse, label_logit, number_logits, mean_logit,
    row_stride, column_stride, vocab_size, numbers,
    scale: tl.constexpr, softcap: tl.constexpr, mean: tl.constexpr,
    lanes: tl.constexpr, vector: tl.constexpr, number_block: tl.constexpr,
):  # fmt: skip
    """Summarize a row."""
    row = tl.program_id(0).to(tl.int64)  # products with strides exceed 2^31
    logits += row * row_stride
    dtype: tl.constexpr = row_max.dtype.element_ty
    label = tl.load(labels + row)
    counts = label >= 0

    # Threads exchange nothing until the loop is over.
    highest = tl.full((lanes,), _LOWEST, dtype)
    total = tl.full((lanes,), 0, dtype)  # of exp(z - highest)
    plain = tl.full((lanes,), 0, dtype)  # of z
    columns = _columns(logits, lanes, vector)
    block: tl.constexpr = columns.numel
    # Columns that do not fill a block come first: after the loop, their mask would occupy registers in it.
    width = tl.where(counts, vocab_size, 0)
    whole = width // block * block
    if whole < width:
        last = whole + columns
        z = _load(logits + last.to(tl.int64) * column_stride, last < width, scale, softcap, dtype)
        if mean:
            plain += _sum_by_lane(z)
        highest, total = _add_exponentials(tl.where(last < width, z, -float("inf")), highest, total)
    pointers = logits + columns.to(tl.int64) * column_stride
    for _ in range(0, whole, block):
        z = _load(pointers, None, scale, softcap, dtype)
        if mean:
            plain += _sum_by_lane(z)
        highest, total = _add_exponentials(z, highest, total)
        pointers += tl.full((), block, tl.int64) * column_stride
    highest_of_all = tl.max(highest, 0)
    total_of_all = tl.sum(total * tl.exp2((highest - highest_of_all) * _LOG2_E), 0)
    tl.store(row_max + row, tl.where(counts, highest_of_all, 0))
    tl.store(shifted_lse + row, tl.log(tl.where(counts, total_of_all, 1)))
    if mean:
        tl.store(mean_logit + row, tl.sum(plain, 0) / vocab_size)

    # A label outside the vocabulary reads as NaN, not as other memory.
    within = counts & (label < width)
    of_label = _load(logits + label * column_stride, within, scale, softcap, dtype)
    tl.store(label_logit + row, tl.where(counts & (label >= width), float("nan"), of_label))
    for start in range(0, numbers, number_block):
        index = start + tl.arange(0, number_block)
        ids = tl.load(token_ids + index, mask=index < numbers, other=vocab_size)
        z = _load(logits + ids * column_stride, ids < width, scale, softcap, dtype)
        tl.store(number_logits + row * numbers + index, z, mask=index < numbers)


@triton.jit
def _exp_above(z, level):
    """Compute 2^(z * log2(e) - level), whose exponent is rounded once."""
    return tl.exp2(tl.fma(z, tl.full((), _LOG2_E, z.dtype), -level))


@triton.jit
def _through_cap(slope, z, softcap: tl.constexpr):
    """Turn the derivative by a capped logit `z` into that by the logit before its soft cap."""
    if softcap is not None:
        slope *= 1 - (z * (1 / softcap)) * (z * (1 / softcap))
    return slope


@triton.jit
def write_rows(
    grad, logits, labels, token_ids, row_max, shifted_lse, number_logits,
    grad_shifted_lse, grad_label_logit, grad_number_logits, grad_mean_logit,
    grad_row_stride, grad_column_stride, row_stride, column_stride, vocab_size, numbers,
    scale: tl.constexpr, softcap: tl.constexpr, mean: tl.constexpr,
    lanes: tl.constexpr, vector: tl.constexpr, number_block: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a row."""
    row = tl.program_id(0).to(tl.int64)  # products with strides exceed 2^31
    logits += row * row_stride
    grad += row * grad_row_stride
    dtype: tl.constexpr = row_max.dtype.element_ty
    grad_dtype: tl.constexpr = grad.dtype.element_ty
    label = tl.load(labels + row)
    of_sum = tl.load(grad_shifted_lse + row) * scale
    of_label = tl.load(grad_label_logit + row) * scale
    of_mean = tl.full((), 0, dtype)
    if mean:
        of_mean = tl.load(grad_mean_logit + row) / vocab_size * scale
    counts = (of_sum != 0) | (of_label != 0) | (of_mean != 0)

    # The softmax is 2^((z - highest - rest) * log2(e)). What all columns have in common is a factor, which
    # includes the rounding error of `level`, so that large logits lose no digits.
    highest = tl.load(row_max + row)
    rest = tl.load(shifted_lse + row)
    level = highest * _LOG2_E
    error = tl.fma(highest, tl.full((), _LOG2_E, dtype), -level)
    of_sum *= tl.exp2(-rest * _LOG2_E - error)

    columns = _columns(logits, lanes, vector)
    block: tl.constexpr = columns.numel
    grad_pointers = grad + columns.to(tl.int64) * grad_column_stride
    grad_step = tl.full((), block, tl.int64) * grad_column_stride
    if counts:
        has_label = (label >= 0) & (label < vocab_size)
        logit_of_label = _load(logits + label * column_stride, has_label, scale, softcap, dtype)
        at_label = of_sum * _exp_above(logit_of_label, level) + of_mean + of_label
        at_label = _through_cap(at_label, logit_of_label, softcap)
        # All threads have read the label's logit before one overwrites it with the gradient.
        tl.debug_barrier()
        whole = vocab_size // block * block
        if whole < vocab_size:
            last = whole + columns
            inside = last < vocab_size
            z = _load(logits + last.to(tl.int64) * column_stride, inside, scale, softcap, dtype)
            slope = _through_cap(of_sum * _exp_above(z, level) + of_mean, z, softcap)
            tl.store(grad + last.to(tl.int64) * grad_column_stride, slope.to(grad_dtype), mask=inside)
        pointers = logits + columns.to(tl.int64) * column_stride
        for _ in range(0, whole, block):
            z = _load(pointers, None, scale, softcap, dtype)
            slope = _through_cap(of_sum * _exp_above(z, level) + of_mean, z, softcap)
            tl.store(grad_pointers, slope.to(grad_dtype))
            pointers += tl.full((), block, tl.int64) * column_stride
            grad_pointers += grad_step
        # Another thread has written the label's column, without the label's term.
        tl.debug_barrier()
        tl.store(grad + label * grad_column_stride, at_label.to(grad_dtype), mask=has_label)
    else:
        nothing = tl.full(columns.shape, 0, grad_dtype)
        for start in range(0, vocab_size, block):
            tl.store(grad_pointers, nothing, mask=columns < vocab_size - start)
            grad_pointers += grad_step

    # The columns of number tokens come last, with all their terms: the label may be among them.
    tl.debug_barrier()
    for start in range(0, numbers, number_block):
        index = start + tl.arange(0, number_block)
        ids = tl.load(token_ids + index, mask=index < numbers, other=-1)
        held = ids >= 0
        z = tl.load(number_logits + row * numbers + index, mask=held, other=0.0)
        slope = of_sum * _exp_above(z, level) + of_mean + tl.where(ids == label, of_label, 0)
        slope = tl.where(counts, slope, 0)
        slope += tl.load(grad_number_logits + row * numbers + index, mask=held, other=0.0) * scale
        slope = tl.where(slope != 0, _through_cap(slope, z, softcap), 0)  # z may be NaN
        tl.store(grad + ids * grad_column_stride, slope.to(grad_dtype), mask=held)
