"""From the number tokens' logits to the record that a criterion gets."""

from __future__ import annotations

from torch import Tensor

from ntloss.criteria import NumberRecord
from ntloss.engine.readout import LogNormalizer, compute_dtype
from ntloss.engine.tables import NumberTables
from ntloss.numbers import NumberSpans

# Stands in for a logit of -inf among the number tokens: its probability is 0 all the same, and no
# difference of two of them is NaN, in value or in gradient.
_MINUS_INFINITY = -1e30


def make_record(
    number_logits: Tensor,
    tables: NumberTables,
    target: Tensor,
    log_normalizer: LogNormalizer | None,
    spans: NumberSpans | None = None,
) -> NumberRecord:
    """Merge the forms of each value and normalise over the values.

    Args:
        number_logits: `[positions, number tokens]`, in the order of `tables.token_ids`.
        tables: the number tokens.
        target: `[positions]`, index of the label's value.
        log_normalizer: over the vocabulary, or None where nobody asks for the mass.
        spans: `[positions]` each, or None where nobody asks for them.

    Returns:
        The record, in float32 at least.
    """
    dtype = compute_dtype(number_logits.dtype)
    number_logits = number_logits.to(dtype).clamp(min=_MINUS_INFINITY)
    # Small numbers have more digits behind the point than large logits do.
    highest = number_logits.detach().amax(-1)
    merged = tables.merge_forms(number_logits - highest.unsqueeze(-1))
    log_sum = merged.exp().sum(-1).log()
    log_mass = None
    if log_normalizer is not None:
        # The sum over a part exceeds the sum over the whole by rounding at most.
        log_mass = (log_sum - log_normalizer.negative_log_prob(highest)).clamp(max=0)
    return NumberRecord(
        log_probs=merged - log_sum.unsqueeze(-1),
        values=tables.values.to(dtype),
        target=target,
        log_mass=log_mass,
        log_normalizer=None if log_normalizer is None else log_normalizer.total,
        logits=merged + highest.unsqueeze(-1),
        spans=spans,
        tables=tables.of_criterion(dtype),
    )
