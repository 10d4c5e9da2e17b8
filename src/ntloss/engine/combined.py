"""Cross-entropy and number term together, from what the caller has: logits, or hidden states and a head."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.engine.checks import (
    check_head,
    check_labels,
    check_logits,
    check_normalizers,
    check_sequence_ids,
    check_values,
)
from ntloss.engine.linear import Head, read_hidden, rows_for, sum_of_blocks
from ntloss.engine.parallel import Shard, check_same_labels, local_columns, read_sharded_logits, replicated
from ntloss.engine.readout import compute_dtype, read_logits
from ntloss.engine.spans import spans_of_labels
from ntloss.engine.tables import NumberTables
from ntloss.engine.terms import (
    LossTerms,
    Objective,
    Positions,
    position_terms,
    read_labels,
    reduce_terms,
    shift_left,
)
from ntloss.numbers import NumberSpans


@dataclass(frozen=True)
class Batch:
    """What the labels' side of a call gives; see `ntloss.functional.cross_entropy_ntl`."""

    labels: Tensor
    loss_weights: Tensor | None = None
    num_items_in_batch: Tensor | float | None = None
    num_numbers_in_batch: Tensor | float | None = None
    shift: bool = False
    validate: bool | None = None
    sequence_ids: Tensor | None = None
    spans: NumberSpans | None = None

    def flatten(
        self, leading: torch.Size, device: torch.device, tables: NumberTables, objective: Objective
    ) -> Batch:
        """Check against inputs of shape `[*leading, ...]`, shift, find numbers, flatten to `[positions]`."""
        check_labels(leading, device, self.labels, self.loss_weights, objective.reduction)
        check_normalizers(
            self.num_items_in_batch, self.num_numbers_in_batch, objective.mode, objective.reduction
        )
        labels, loss_weights, sequence_ids = self.labels, self.loss_weights, self.sequence_ids
        check_sequence_ids(labels, sequence_ids, objective.criterion)
        check_values(
            labels, loss_weights, tables.vocabulary.vocab_size, objective.ignore_index, self.validate
        )
        if self.shift:
            labels, loss_weights = shift_left(labels, loss_weights, objective.ignore_index)
            if sequence_ids is not None:
                # A position belongs to the sequence of the label that it is compared with.
                sequence_ids, _ = shift_left(sequence_ids, None, ignore_index=-1)
        return replace(
            self,
            labels=labels.reshape(-1).long(),  # gather takes int32 since torch 2.8 only
            loss_weights=None if loss_weights is None else loss_weights.reshape(-1),
            spans=spans_of_labels(labels, tables, sequence_ids, objective.ignore_index),
        )

    def positions(self, tables: NumberTables, objective: Objective, dtype: torch.dtype) -> Positions:
        """What the flattened labels say of each position."""
        return read_labels(
            self.labels,
            tables,
            objective,
            self.loss_weights,
            self.num_items_in_batch,
            self.num_numbers_in_batch,
            dtype,
            self.spans,
        )

    def normalizers(self, tables: NumberTables, objective: Objective) -> tuple[Tensor, Tensor]:
        """Sums of the flattened weights, of all positions that count and of the number labels."""
        counts = replace(objective, reduction="sum", mode="add")
        positions = self.positions(tables, counts, torch.float32)
        return positions.ce.sum(), positions.ntl.sum()


def loss_from_logits(
    logits: Tensor,
    batch: Batch,
    tables: NumberTables,
    objective: Objective,
    weight: float | Tensor,
    inplace: bool = False,
    group: dist.ProcessGroup | None = None,
) -> LossTerms:
    """Combined loss from logits `[..., vocab]`; sharded ones are a DTensor, or come with their `group`."""
    vocab_size = tables.vocabulary.vocab_size
    logits, group = local_columns(logits, -1, group)
    shard = None if group is None else Shard.of(logits.shape[-1], vocab_size, group)
    check_logits(logits, vocab_size if shard is None else shard.size)
    shape = logits.shape[:-1]
    if group is not None:
        check_same_labels(batch.labels, group)
    flat = batch.flatten(shape, logits.device, tables, objective)
    rows = logits.reshape(-1, logits.shape[-1])
    positions = flat.positions(tables, objective, compute_dtype(logits.dtype))
    mean = objective.label_smoothing > 0
    if shard is not None and inplace:
        raise ValueError("inplace_backward=True is for whole logits; these are sharded. Leave it away.")
    if shard is None:
        readout = read_logits(rows, positions.labels, tables.token_ids, objective.transform, mean, inplace)
    else:
        readout = read_sharded_logits(
            rows, positions.labels, tables.token_ids, shard, objective.transform, mean
        )
    terms = position_terms(readout, positions, tables, objective, weight)
    return reduce_terms(terms, objective.reduction, shape)


def loss_from_hidden(
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    bias: Tensor | None,
    batch: Batch,
    tables: NumberTables,
    objective: Objective,
    weight: float | Tensor,
    chunk_size: int | None = None,
    drop_ignored: bool = True,
    group: dist.ProcessGroup | None = None,
) -> LossTerms:
    """Combined loss from hidden states `[..., hidden]` and the head `[vocab, hidden]`, whole or sharded."""
    vocab_size = tables.vocabulary.vocab_size
    hidden_states = replicated(hidden_states)
    lm_head_weight, group_of_head = local_columns(lm_head_weight, 0, group)
    bias = None if bias is None else local_columns(bias, 0, group)[0]
    shard = None if group_of_head is None else Shard.of(len(lm_head_weight), vocab_size, group_of_head)
    check_head(hidden_states, lm_head_weight, bias, vocab_size if shard is None else shard.size)
    shape = hidden_states.shape[:-1]
    if group_of_head is not None:
        check_same_labels(batch.labels, group_of_head)
    flat = batch.flatten(shape, hidden_states.device, tables, objective)
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    positions = flat.positions(tables, objective, compute_dtype(hidden.dtype))
    kept = None
    if drop_ignored:
        kept = (flat.labels != objective.ignore_index).nonzero().squeeze(-1)
        if len(kept) == len(hidden):
            kept = None  # a copy of all hidden states would be for nothing
        else:
            hidden, positions = hidden.index_select(0, kept), positions.select(kept)
    rows = chunk_size or rows_for(len(hidden), len(lm_head_weight), hidden.device)
    head = Head(lm_head_weight, bias, objective.transform, shard)
    if objective.reduction != "none" and not objective.needs.across_positions:
        return sum_of_blocks(hidden, head, positions, tables, objective, weight, rows)
    mean = objective.label_smoothing > 0
    readout = read_hidden(hidden, head, positions.labels, tables.token_ids, mean, rows)
    terms = position_terms(readout, positions, tables, objective, weight)
    if kept is not None:
        count = shape.numel()
        terms = LossTerms(*(term.new_zeros(count).index_copy(0, kept, term) for term in terms))
    return reduce_terms(terms, objective.reduction, shape)


@functools.cache
def keep_out_of_graphs() -> None:
    """Make `loss_from_hidden` one graph break under `torch.compile`, which could not trace it.

    Called where a module is made, not where this file is imported: importing the compiler takes as long as
    importing torch.
    """
    global loss_from_hidden
    loss_from_hidden = torch.compiler.disable(loss_from_hidden)  # type: ignore[no-untyped-call]
