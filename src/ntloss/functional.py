"""Number token losses as functions."""

from __future__ import annotations

from torch import Tensor

from ntloss.criteria import Criterion, Wasserstein
from ntloss.engine.tables import tables_for
from ntloss.engine.token_loss import token_loss, worst_cost
from ntloss.vocabulary import NumberVocabulary

_WASSERSTEIN = Wasserstein()


def number_token_loss(
    logits: Tensor,
    labels: Tensor,
    vocabulary: NumberVocabulary,
    criterion: Criterion = _WASSERSTEIN,
    *,
    reweigh: bool | None = None,
    loss_weights: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    validate: bool | None = None,
) -> Tensor:
    """Number token loss of the positions whose label is a number token.

    Add it to cross-entropy: `F.cross_entropy(...) + 0.3 * number_token_loss(...)`.

    Args:
        logits: `[..., vocab]`, any float dtype. Softmax and sums are in float32 at least.
        labels: `[...]`, token ids.
        vocabulary: the number tokens. Its tables are kept for each device. Inside `torch.compile` use the
            module `ntloss.NumberTokenLoss`, which holds them as buffers.
        criterion: how wrong a number is. Default: `Wasserstein()`.
        reweigh: let probability on text cost more than the worst number (`reweigh_by_mass`). Default: where
            the criterion has a worst cost.
        loss_weights: `[...]`, weight of each position, 0 or more. Default: 1.
        reduction: "mean" over the number labels (divides by the sum of their weights), "sum", or "none".
        ignore_index: label of positions that do not count. Default: -100.
        validate: check the values of labels and weights. Default: on the CPU only, where it costs no
            synchronisation, and not inside `torch.compile`.

    Returns:
        A scalar, or `[...]` for "none" (0 where the label is no number), in float32 at least. Without number
        labels it is a zero that has a graph.

    Raises:
        TypeError: logits that are not floating-point, labels that are not token ids.
        ValueError: shapes, devices, labels, weights or a reduction that do not fit; `reweigh=True` for a
            criterion without a worst cost.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.functional import number_token_loss
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((1, 12), float("-inf"))
        >>> logits[0, 3] = 0.0  # the model is certain of 3
        >>> number_token_loss(logits, torch.tensor([4]), digits)
        tensor(1.)
    """
    return token_loss(
        logits,
        labels,
        tables_for(vocabulary, logits.device),
        criterion,
        worst=worst_cost(criterion, vocabulary, reweigh),
        loss_weights=loss_weights,
        reduction=reduction,
        ignore_index=ignore_index,
        validate=validate,
    )
