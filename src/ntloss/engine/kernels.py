"""Triton kernels that read logits, and write their gradient, once per row.

On a GPU, PyTorch's operators compute in copies, piece by piece: about ten launches for each million logits,
and float32 temporaries between them. Here one program handles a row, whatever its width: `read_rows` passes
over it once, `write_rows` reads it once and writes its gradient once. Rows that do not count are not read.

`engine/read.py` decides when these kernels are used. They compute in float32, or float64 for float64
logits.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ntloss.engine.readout import COMPUTED_IN, Grads, Readout, Wanted

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


class Kernels:
    """The backend of GPUs. Logits may have any strides; positions with label -1 are not read."""

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """See `Backend.read`.

        No softmax is kept: reading the logits again takes no longer. The readout of ignored positions is 0.
        """
        rows, vocab_size = logits.shape
        row_max = torch.empty(rows, dtype=COMPUTED_IN[logits.dtype], device=logits.device)
        shifted_lse, label_logit = torch.empty_like(row_max), torch.empty_like(row_max)
        mean_logit = torch.empty_like(row_max) if wanted.mean else None
        number_logits = row_max.new_empty(rows, len(wanted.token_ids))
        if rows:
            with _on(logits.device):
                read_rows[(rows,)](
                    logits, labels.contiguous(), wanted.token_ids, row_max, shifted_lse, label_logit,
                    number_logits, row_max if mean_logit is None else mean_logit, *logits.stride(),
                    vocab_size, len(wanted.token_ids), *wanted.transform, wanted.mean, LANES,
                    *_vectors(logits), _number_block(wanted.token_ids), num_warps=WARPS,
                )  # fmt: skip
        return Readout(row_max, shifted_lse, label_logit, number_logits, mean_logit)

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """See `Backend.write`.

        Where the gradients of a row's log-sum, label logit and mean logit are zero, its logits are not read.
        """
        rows, vocab_size = logits.shape
        if rows:
            given = [each.contiguous() for each in (*grads, *[readout.row_max] * (4 - len(grads)))]
            with _on(logits.device):
                write_rows[(rows,)](
                    grad, logits, labels.contiguous(), wanted.token_ids, readout.row_max, readout.shifted_lse,
                    readout.number_logits.contiguous(), *given, *grad.stride(), *logits.stride(), vocab_size,
                    len(wanted.token_ids), *wanted.transform, wanted.mean, LANES, *_vectors(logits, grad),
                    _number_block(wanted.token_ids), num_warps=WARPS,
                )  # fmt: skip


def _on(device: torch.device) -> AbstractContextManager[Any]:
    # Triton launches on the current device.
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def _vectors(*matrices: Tensor) -> tuple[int, bool, int]:
    """Return how many logits a thread moves together, and where those of a row may be.

    They are those in 16 bytes, at an address that is a multiple of 16. If not all rows begin and end at such
    an address, the logits at their edges are moved alone: then the third number is the first row's distance
    from the address of this kind before it, in logits.
    """
    first = matrices[0]
    vector = 16 // first.element_size()
    offsets = {each.data_ptr() % 16 // each.element_size() for each in matrices}
    strides = {each.stride(0) % vector for each in matrices}
    if any(each.stride(1) != 1 for each in matrices) or len(offsets) > 1 or len(strides) > 1:
        return 1, False, 0
    edges = offsets != {0} or any(each.stride(0) % 16 for each in matrices) or first.shape[1] % 16 != 0
    return vector, edges, offsets.pop()


def _number_block(token_ids: Tensor) -> int:
    # A power of two, as all sizes of blocks.
    return int(min(MOST_NUMBERS, triton.next_power_of_2(max(len(token_ids), 1))))


# Exponentials are computed by `tl.exp2`, which is one instruction where results below 2^-126 may become zero.
# `tl.exp` takes three more on NVIDIA GPUs, to represent them.


@triton.jit
def _columns(logits, lanes: tl.constexpr, vector: tl.constexpr):
    """Columns that a program handles at a time, `[loads, lanes, vector]`: 32 bytes for each lane."""
    return _first_columns(logits, lanes, vector) + tl.arange(0, vector)[None, None, :]


@triton.jit
def _first_columns(logits, lanes: tl.constexpr, vector: tl.constexpr):
    loads: tl.constexpr = 2 * 128 // logits.dtype.element_ty.primitive_bitwidth // vector
    load, lane = tl.arange(0, loads), tl.arange(0, lanes)
    return (load * (lanes * vector))[:, None, None] + (lane * vector)[None, :, None]


@triton.jit
def _inside(logits, end, lanes: tl.constexpr, vector: tl.constexpr, edges: tl.constexpr):
    """Which of the columns come before `end`; with `edges`, it divides none of the vectors."""
    if edges:
        return (
            tl.broadcast_to(_first_columns(logits, lanes, vector), _columns(logits, lanes, vector).shape)
            < end
        )
    else:
        return _columns(logits, lanes, vector) < end


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
def _inner(row, row_stride, first, width, vector: tl.constexpr, edges: tl.constexpr):
    """Return the columns of a row whose logits are moved in vectors: where they begin, and their number."""
    if edges:
        start = tl.minimum((vector - (first + row * row_stride) % vector) % vector, width)
        return start, (width - start) // vector * vector
    else:
        return row * 0, width


@triton.jit
def _edge_columns(start, inner, width, vector: tl.constexpr):
    """Columns before and after the inner ones, `[2 * vector]`, and which of them there are."""
    place = tl.arange(0, 2 * vector)
    columns = tl.where(place < vector, place, start + inner + place - vector)
    return columns, tl.where(place < vector, place < start, columns < width)


@triton.jit
def read_rows(
    logits, labels, token_ids, row_max, shifted_lse, label_logit, number_logits, mean_logit,
    row_stride, column_stride, vocab_size, numbers,
    scale: tl.constexpr, softcap: tl.constexpr, mean: tl.constexpr,
    lanes: tl.constexpr, vector: tl.constexpr, edges: tl.constexpr, first, number_block: tl.constexpr,
):  # fmt: skip
    """Read a row."""
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
    width = tl.where(counts, vocab_size, 0)
    start, inner = _inner(row, row_stride, first, width, vector, edges)
    begin = logits + start * column_stride
    if edges:
        begin = tl.multiple_of(begin, 16)  # bytes
    # Columns that do not fill a block come first: after the loop, their mask would occupy registers in it.
    whole = inner // block * block
    if whole < inner:
        last = whole + columns
        inside = _inside(logits, inner - whole, lanes, vector, edges)
        z = _load(begin + last.to(tl.int64) * column_stride, inside, scale, softcap, dtype)
        if mean:
            plain += _sum_by_lane(z)
        highest, total = _add_exponentials(tl.where(inside, z, -float("inf")), highest, total)
    pointers = begin + columns.to(tl.int64) * column_stride
    for _ in range(0, whole, block):
        z = _load(pointers, None, scale, softcap, dtype)
        if mean:
            plain += _sum_by_lane(z)
        highest, total = _add_exponentials(z, highest, total)
        pointers += tl.full((), block, tl.int64) * column_stride
    highest_of_all = tl.max(highest, 0)
    sum_of_all = tl.sum(plain, 0)
    if edges:
        edge, exists = _edge_columns(start, inner, width, vector)
        at_edges = _load(logits + edge, exists, scale, softcap, dtype)
        sum_of_all += tl.sum(at_edges, 0)
        at_edges = tl.where(exists, at_edges, -float("inf"))
        highest_of_all = tl.maximum(highest_of_all, tl.max(at_edges, 0))
        total_of_all = tl.sum(tl.exp2((at_edges - highest_of_all) * _LOG2_E), 0)
    else:
        total_of_all = tl.full((), 0, dtype)
    total_of_all += tl.sum(total * tl.exp2((highest - highest_of_all) * _LOG2_E), 0)
    tl.store(row_max + row, tl.where(counts, highest_of_all, 0))
    tl.store(shifted_lse + row, tl.log(tl.where(counts, total_of_all, 1)))
    if mean:
        tl.store(mean_logit + row, sum_of_all / vocab_size)

    # A label outside the vocabulary reads as NaN, not as other memory.
    within = counts & (label < width)
    of_label = _load(logits + label * column_stride, within, scale, softcap, dtype)
    tl.store(label_logit + row, tl.where(counts & (label >= width), float("nan"), of_label))
    for start_of_block in range(0, numbers, number_block):
        index = start_of_block + tl.arange(0, number_block)
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
    lanes: tl.constexpr, vector: tl.constexpr, edges: tl.constexpr, first, number_block: tl.constexpr,
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
    start, inner = _inner(row, row_stride, first, vocab_size, vector, edges)
    begin, grad_begin = logits + start * column_stride, grad + start * grad_column_stride
    if edges:
        begin, grad_begin = tl.multiple_of(begin, 16), tl.multiple_of(grad_begin, 16)  # bytes
    grad_pointers = grad_begin + columns.to(tl.int64) * grad_column_stride
    grad_step = tl.full((), block, tl.int64) * grad_column_stride
    if counts:
        has_label = (label >= 0) & (label < vocab_size)
        logit_of_label = _load(logits + label * column_stride, has_label, scale, softcap, dtype)
        at_label = of_sum * _exp_above(logit_of_label, level) + of_mean + of_label
        at_label = _through_cap(at_label, logit_of_label, softcap)
        if edges:
            edge, exists = _edge_columns(start, inner, vocab_size, vector)
            of_edges = _load(logits + edge, exists, scale, softcap, dtype)
            at_edges = _through_cap(of_sum * _exp_above(of_edges, level) + of_mean, of_edges, softcap)
        # All threads have read these logits before one overwrites them with the gradient.
        tl.debug_barrier()
        if edges:
            tl.store(grad + edge, at_edges.to(grad_dtype), mask=exists)
        whole = inner // block * block
        if whole < inner:
            last = whole + columns
            inside = _inside(logits, inner - whole, lanes, vector, edges)
            z = _load(begin + last.to(tl.int64) * column_stride, inside, scale, softcap, dtype)
            slope = _through_cap(of_sum * _exp_above(z, level) + of_mean, z, softcap)
            tl.store(grad_begin + last.to(tl.int64) * grad_column_stride, slope.to(grad_dtype), mask=inside)
        pointers = begin + columns.to(tl.int64) * column_stride
        for _ in range(0, whole, block):
            z = _load(pointers, None, scale, softcap, dtype)
            slope = _through_cap(of_sum * _exp_above(z, level) + of_mean, z, softcap)
            tl.store(grad_pointers, slope.to(grad_dtype))
            pointers += tl.full((), block, tl.int64) * column_stride
            grad_pointers += grad_step
        # Another thread has written the label's column, without the label's term.
        tl.debug_barrier()
        if edges:  # again, so that it occupies no registers in the loop, which has few left
            label = tl.load(labels + row)
            has_label = (label >= 0) & (label < vocab_size)
        tl.store(grad + label * grad_column_stride, at_label.to(grad_dtype), mask=has_label)
    else:
        nothing = tl.full(columns.shape, 0, grad_dtype)
        for done in range(0, inner, block):
            tl.store(grad_pointers, nothing, mask=_inside(logits, inner - done, lanes, vector, edges))
            grad_pointers += grad_step
        if edges:
            edge, exists = _edge_columns(start, inner, vocab_size, vector)
            tl.store(grad + edge, tl.full(edge.shape, 0, grad_dtype), mask=exists)

    # The columns of number tokens come last, with all their terms: the label may be among them.
    tl.debug_barrier()
    for start_of_block in range(0, numbers, number_block):
        index = start_of_block + tl.arange(0, number_block)
        ids = tl.load(token_ids + index, mask=index < numbers, other=-1)
        held = ids >= 0
        z = tl.load(number_logits + row * numbers + index, mask=held, other=0.0)
        slope = of_sum * _exp_above(z, level) + of_mean + tl.where(ids == label, of_label, 0)
        slope = tl.where(counts, slope, 0)
        slope += tl.load(grad_number_logits + row * numbers + index, mask=held, other=0.0) * scale
        slope = tl.where(slope != 0, _through_cap(slope, z, softcap), 0)  # z may be NaN
        tl.store(grad + ids * grad_column_stride, slope.to(grad_dtype), mask=held)
