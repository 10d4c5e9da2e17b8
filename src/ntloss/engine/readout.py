"""First stage: the few figures that a number token loss needs of logits of width V."""

from __future__ import annotations

import torch
from torch import Tensor

from ntloss.criteria import NumberRecord
from ntloss.engine.tables import NumberTables

# Stands in for a logit of -inf among the number tokens: its probability is 0 all the same, and no
# difference of two of them is NaN, in value or in gradient.
_MINUS_INFINITY = -1e30


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of softmax and sums for inputs of `dtype`: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def read_logits(logits: Tensor, tables: NumberTables, target: Tensor, normalize: bool) -> NumberRecord:
    """Read the record of each position out of the logits, differentiably.

    Args:
        logits: `[positions, vocab]`, any float dtype.
        tables: the number tokens.
        target: `[positions]`, index of the label's value.
        normalize: also read the log-normalizer, which takes a pass over the whole vocabulary.

    Returns:
        The record, in float32 at least.
    """
    number_logits = logits.index_select(-1, tables.token_ids)
    log_normalizer = None
    if normalize:
        log_normalizer = torch.logsumexp(logits.to(compute_dtype(logits.dtype)), -1)
    return make_record(number_logits, tables, target, log_normalizer)


def make_record(
    number_logits: Tensor, tables: NumberTables, target: Tensor, log_normalizer: Tensor | None
) -> NumberRecord:
    """Assemble the record from the number tokens' logits.

    Args:
        number_logits: `[positions, number tokens]`, in the order of `tables.token_ids`.
        tables: the number tokens.
        target: `[positions]`, index of the label's value.
        log_normalizer: `[positions]`, or None.

    Returns:
        The record.
    """
    dtype = compute_dtype(number_logits.dtype)
    merged = tables.merge_forms(number_logits.to(dtype).clamp(min=_MINUS_INFINITY))
    log_mass = None
    if log_normalizer is not None:
        # The sum over a part exceeds the sum over the whole by rounding at most.
        log_mass = (torch.logsumexp(merged, -1) - log_normalizer).clamp(max=0)
    return NumberRecord(
        log_probs=torch.log_softmax(merged, -1),
        values=tables.values.to(dtype),
        target=target,
        log_mass=log_mass,
        log_normalizer=log_normalizer,
    )
