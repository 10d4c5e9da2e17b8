"""Whole numbers in a loss's labels, where its criterion asks for them."""

from __future__ import annotations

from torch import Tensor

from ntloss.criteria import needs_of
from ntloss.engine.tables import NumberTables
from ntloss.numbers import NumberSpans, find_numbers


def spans_of_labels(
    labels: Tensor, tables: NumberTables, sequence_ids: Tensor | None, ignore_index: int
) -> NumberSpans | None:
    """Find the numbers before positions are dropped or cut into blocks.

    Args:
        labels: `[..., seq]`, token ids, shifted already.
        tables: the number tokens and the criterion.
        sequence_ids: `[..., seq]`, or None where each row is one sequence.
        ignore_index: label of positions that do not count.

    Returns:
        The spans, `[positions]` each, or None where the criterion does not ask for them.
    """
    if tables.criterion is None or tables.kinds is None:
        return None
    if sequence_ids is not None:
        sequence_ids = sequence_ids.reshape(labels.shape)
    decimals = needs_of(tables.criterion).decimals
    return find_numbers(labels, tables.kinds, sequence_ids, decimals, ignore_index).flatten()
