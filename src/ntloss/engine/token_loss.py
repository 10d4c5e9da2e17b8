"""The number token loss on logits: readout, criterion, reduction in a row."""

from __future__ import annotations

from torch import Tensor

from ntloss.criteria import Criterion, NumberRecord, reweigh_by_mass
from ntloss.engine.checks import check_labels, check_logits, check_values
from ntloss.engine.readout import read_logits
from ntloss.engine.record import make_record
from ntloss.engine.reduction import reduce
from ntloss.engine.tables import NumberTables
from ntloss.vocabulary import NumberVocabulary


def worst_cost(criterion: Criterion, vocabulary: NumberVocabulary, reweigh: bool | None) -> float | None:
    """What `reweigh` needs of a criterion, asked once: it may read a tensor's value.

    Args:
        criterion: the criterion.
        vocabulary: the number tokens.
        reweigh: None for "where the criterion has a worst cost".

    Returns:
        The worst cost, or None where nothing is to be reweighed.

    Raises:
        ValueError: `reweigh=True` for a criterion without a worst cost.
    """
    worst = criterion.worst(vocabulary.value_tensor())
    if reweigh and worst is None:
        raise ValueError(
            f"reweigh=True needs a criterion with a worst cost, and {criterion!r} has none: "
            "leave reweigh away, or pass reweigh=False"
        )
    return None if reweigh is False else worst


def token_loss(
    logits: Tensor,
    labels: Tensor,
    tables: NumberTables,
    criterion: Criterion,
    *,
    worst: float | None,
    loss_weights: Tensor | None,
    reduction: str,
    ignore_index: int,
    validate: bool | None,
) -> Tensor:
    """See `ntloss.functional.number_token_loss`; `worst` is `worst_cost`, the tables lie with the logits."""
    vocab_size = tables.vocabulary.vocab_size
    check_logits(logits, vocab_size)
    check_labels(logits.shape[:-1], logits.device, labels, loss_weights, reduction)
    check_values(labels, loss_weights, vocab_size, ignore_index, validate)
    rows, flat_labels = logits.reshape(-1, vocab_size), labels.reshape(-1)
    target, is_number = tables.targets(flat_labels, ignore_index)
    record = read_record(rows, tables, target, flat_labels.where(is_number, 0), normalize=worst is not None)
    loss = criterion(record)
    if worst is not None and record.log_mass is not None:
        loss = reweigh_by_mass(loss, record.log_mass, worst)
    weights = None if loss_weights is None else loss_weights.reshape(-1)
    reduced = reduce(loss, is_number, weights, reduction)
    return reduced.reshape(labels.shape) if reduction == "none" else reduced


def read_record(
    logits: Tensor, tables: NumberTables, target: Tensor, labels: Tensor, normalize: bool
) -> NumberRecord:
    """Read logits for a number term alone.

    Args:
        logits: `[positions, vocab]`, any float dtype.
        tables: the number tokens.
        target: `[positions]`, index of the label's value.
        labels: `[positions]`, token ids, all inside the vocabulary.
        normalize: also read the mass of the number tokens, which takes a pass over the whole vocabulary.

    Returns:
        The record.
    """
    if not normalize:
        return make_record(logits.index_select(-1, tables.token_ids), tables, target, None)
    readout = read_logits(logits, labels, tables.token_ids)
    return make_record(readout.number_logits, tables, target, readout.log_normalizer)
