"""The number token loss on logits: readout, criterion, reduction in a row."""

from __future__ import annotations

from torch import Tensor

from ntloss.criteria import Criterion, reweigh_by_mass
from ntloss.engine.checks import check_labels, check_logits, check_values
from ntloss.engine.readout import read_logits
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
    check_labels(logits, labels, loss_weights, reduction)
    check_values(labels, loss_weights, vocab_size, ignore_index, validate)
    target, is_number = tables.targets(labels.reshape(-1), ignore_index)
    record = read_logits(logits.reshape(-1, vocab_size), tables, target, normalize=worst is not None)
    loss = criterion(record)
    if worst is not None and record.log_mass is not None:
        loss = reweigh_by_mass(loss, record.log_mass, worst)
    weights = None if loss_weights is None else loss_weights.reshape(-1)
    reduced = reduce(loss, is_number, weights, reduction)
    return reduced.reshape(labels.shape) if reduction == "none" else reduced
