"""The losses as functions.

Each keeps the module that it stands for, by vocabulary, device and options, so nothing is built twice. Inside
`torch.compile` use the modules themselves.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ntloss.criteria import Criterion
from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
from ntloss.engine.objective import LossTerms
from ntloss.losses import NumberTokenLoss
from ntloss.vocabulary import NumberVocabulary


def number_token_loss(
    logits: Tensor,
    labels: Tensor,
    vocabulary: NumberVocabulary,
    criterion: Criterion | None = None,
    *,
    reweigh: bool | None = None,
    loss_weights: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    validate: bool | None = None,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Number token loss alone, to be added to cross-entropy: `ntloss.NumberTokenLoss` as a function.

    Args:
        logits: `[..., vocab]`.
        labels: `[...]`, token ids.
        vocabulary: the number tokens.
        criterion, reweigh, validate: see `NumberTokenLoss`.
        loss_weights, reduction, ignore_index, sequence_ids: see `NumberTokenLoss.forward`.

    Returns:
        A scalar, or `[...]` for `reduction="none"`.

    Raises:
        TypeError, ValueError: see `NumberTokenLoss.forward`.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.functional import number_token_loss
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((1, 12), float("-inf"))
        >>> logits[0, 3] = 0.0  # certain of 3
        >>> number_token_loss(logits, torch.tensor([4]), digits)
        tensor(1.)
    """
    loss = _module(
        NumberTokenLoss,
        vocabulary,
        logits.device,
        criterion=criterion,
        reweigh=reweigh,
        validate=validate,
    )
    result: Tensor = loss(logits, labels, loss_weights, reduction, ignore_index, sequence_ids)
    return result


def cross_entropy_ntl(
    logits: Tensor,
    labels: Tensor,
    vocabulary: NumberVocabulary,
    *,
    loss_weights: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    num_numbers_in_batch: Tensor | float | None = None,
    sequence_ids: Tensor | None = None,
    **options: Any,
) -> Tensor | LossTerms:
    """Cross-entropy plus a number token loss: `ntloss.NTLCrossEntropyLoss` as a function.

    Args:
        logits: `[..., vocab]`.
        labels: `[...]`, token ids.
        vocabulary: the number tokens.
        loss_weights, num_items_in_batch, num_numbers_in_batch, sequence_ids: see
            `NTLCrossEntropyLoss.forward`.
        options: of `NTLCrossEntropyLoss`: criterion, weight, reweigh, mode, ...

    Returns:
        A scalar, or `[...]` for `reduction="none"`; with `return_terms=True` a `LossTerms`.

    Raises:
        TypeError, ValueError: see `NTLCrossEntropyLoss`.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.functional import cross_entropy_ntl
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss = cross_entropy_ntl(torch.zeros(3, 12), torch.tensor([4, 11, 0]), digits, weight=0.0)
        >>> round(loss.item(), 4)  # log(12)
        2.4849
    """
    loss = _module(NTLCrossEntropyLoss, vocabulary, logits.device, **options)
    result: Tensor | LossTerms = loss(
        logits, labels, loss_weights, num_items_in_batch, num_numbers_in_batch, sequence_ids
    )
    return result


def linear_cross_entropy_ntl(
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    labels: Tensor,
    vocabulary: NumberVocabulary,
    bias: Tensor | None = None,
    *,
    loss_weights: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    num_numbers_in_batch: Tensor | float | None = None,
    sequence_ids: Tensor | None = None,
    **options: Any,
) -> Tensor | LossTerms:
    """The same without holding the logits: `ntloss.NTLLinearCrossEntropyLoss` as a function.

    Args:
        hidden_states: `[..., hidden]`.
        lm_head_weight: `[vocab, hidden]`.
        labels: `[...]`, token ids.
        vocabulary: the number tokens.
        bias: `[vocab]`. Default: none.
        loss_weights, num_items_in_batch, num_numbers_in_batch, sequence_ids: see
            `NTLCrossEntropyLoss.forward`.
        options: of `NTLLinearCrossEntropyLoss`: criterion, weight, reweigh, mode, chunk_size, ...

    Returns:
        A scalar, or `[...]` for `reduction="none"`; with `return_terms=True` a `LossTerms`.

    Raises:
        TypeError, ValueError: see `NTLLinearCrossEntropyLoss`.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.functional import linear_cross_entropy_ntl
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> head = torch.zeros(12, 4)
        >>> loss = linear_cross_entropy_ntl(torch.ones(2, 4), head, torch.tensor([11, 10]), digits)
        >>> round(loss.item(), 4)
        2.4849
    """
    loss = _module(NTLLinearCrossEntropyLoss, vocabulary, hidden_states.device, **options)
    result: Tensor | LossTerms = loss(
        hidden_states,
        lm_head_weight,
        labels,
        bias,
        loss_weights,
        num_items_in_batch,
        num_numbers_in_batch,
        sequence_ids,
    )
    return result


def _module(kind: type[Any], vocabulary: NumberVocabulary, device: torch.device, **options: Any) -> Any:
    if all(type(option).__hash__ for option in options.values()):
        return _kept(kind, vocabulary, device, **options)  # type: ignore[arg-type]
    return kind(vocabulary, **options).to(device)


@functools.lru_cache(maxsize=64)
def _kept(kind: type[Any], vocabulary: NumberVocabulary, device: torch.device, **options: Any) -> Any:
    return kind(vocabulary, **options).to(device)
