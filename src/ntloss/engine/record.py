"""From the number tokens' logits to the record that a criterion gets."""

from __future__ import annotations

import torch
from torch import Tensor

from ntloss.criteria import NumberRecord
from ntloss.engine.readout import compute_dtype
from ntloss.engine.tables import NumberTables
from ntloss.numbers import NumberSpans

# Stands in for a logit of -inf among the number tokens: its probability is 0 all the same, and no
# difference of two of them is NaN, in value or in gradient.
_MINUS_INFINITY = -1e30


def make_record(
    number_logits: Tensor,
    tables: NumberTables,
    target: Tensor,
    log_normalizer: Tensor | None,
    spans: NumberSpans | None = None,
) -> NumberRecord:
    """Merge the forms of each value and normalise over the values.

    Args:
        number_logits: `[positions, number tokens]`, in the order of `tables.token_ids`.
        tables: the number tokens.
        target: `[positions]`, index of the label's value.
        log_normalizer: `[positions]`, logsumexp over the vocabulary, or None where nobody asks for the mass.
        spans: `[positions]` each, or None where nobody asks for them.

    Returns:
        The record, in float32 at least.
    """
    dtype = compute_dtype(number_logits.dtype)
    merged = tables.merge_forms(number_logits.to(dtype).clamp(min=_MINUS_INFINITY))
    log_sum = torch.logsumexp(merged, -1)
    log_mass = None
    if log_normalizer is not None:
        # The sum over a part exceeds the sum over the whole by rounding at most.
        log_mass = (log_sum - log_normalizer).clamp(max=0)
    return NumberRecord(
        log_probs=merged - log_sum.unsqueeze(-1),
        values=tables.values.to(dtype),
        target=target,
        log_mass=log_mass,
        log_normalizer=log_normalizer,
        logits=merged,
        spans=spans,
        tables=tables.of_criterion(dtype),
    )
