"""A combined loss as the function that trainers ask for, and its options from their configuration files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss, NumberVocabulary
from ntloss.criteria.registry import as_criterion

Loss = NTLCrossEntropyLoss | NTLLinearCrossEntropyLoss


def loss_of_outputs(loss: NTLCrossEntropyLoss) -> Callable[..., Tensor]:
    """Make the function that a trainer calls with a model's outputs, the labels and its count of items.

    It is what `Trainer(compute_loss_func=...)` of transformers and trainers derived from it expect. Both
    terms are divided by the trainer's count, so they are exact under gradient accumulation and on several
    ranks. The model is called without labels: an encoder-decoder then needs `decoder_input_ids`, and a
    mixture of experts adds no router loss. `make_trainer_number_aware` has neither limit.

    Args:
        loss: the loss, with `shift=True` for a causal model.

    Returns:
        A function of `outputs` (a model's outputs with `logits`, or the logits `[batch, seq, vocab]`),
        `labels` `[batch, seq]` and `num_items_in_batch`; further keyword arguments are ignored.

    Raises:
        TypeError: `loss` is not an `NTLCrossEntropyLoss`.

    Example:
        >>> import torch
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> compute_loss = loss_of_outputs(NTLCrossEntropyLoss(digits))
        >>> outputs, labels = {"logits": torch.zeros(1, 2, 12)}, torch.tensor([[3, 11]])
        >>> whole = compute_loss(outputs, labels)
        >>> share = compute_loss(outputs, labels, num_items_in_batch=8)  # 2 of the 8 labels of a step
        >>> bool(torch.isclose(share, whole / 4))
        True
    """
    if not isinstance(loss, NTLCrossEntropyLoss):
        raise TypeError(f"expected an NTLCrossEntropyLoss, which takes logits, given {type(loss).__name__}")

    def compute_loss(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | float | None = None, **_: Any
    ) -> Tensor:
        logits = outputs if isinstance(outputs, Tensor) else _logits_of(outputs)
        found = loss(logits, labels.to(logits.device), num_items_in_batch=num_items_in_batch)
        return found.loss if isinstance(found, LossTerms) else found

    return compute_loss


def _logits_of(outputs: Any) -> Tensor:
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
    return logits


_OPTIONS = ("weight", "criterion", "normalize_by", "reweigh", "mode", "label_smoothing", "z_loss")


def options_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the options of a configuration file into those of `NTLCrossEntropyLoss`.

    Args:
        config: any of `weight`, `criterion` (a name of `get_criterion`, or a mapping of `name` and its
            options), `normalize_by`, `reweigh`, `mode`, `label_smoothing` and `z_loss`. None stands for the
            default.

    Returns:
        Keyword arguments of `NTLCrossEntropyLoss`.

    Raises:
        ValueError: an unknown or invalid option; the message lists the valid ones.
        TypeError: a value of the wrong type.

    Example:
        >>> options_from_config({"weight": 0.1, "criterion": {"name": "dist2", "tau": 0.5}})
        {'weight': 0.1, 'criterion': Dist2(tau=0.5, distance='squared')}
    """
    if unknown := sorted(set(config) - set(_OPTIONS)):
        raise ValueError(
            f"unknown option {', '.join(map(repr, unknown))} of the number token loss: expected "
            f"{', '.join(_OPTIONS)}"
        )
    options = {name: config[name] for name in _OPTIONS if config.get(name) is not None}
    if "criterion" in options:
        options["criterion"] = as_criterion(options["criterion"])
    numbers = NumberVocabulary.from_mapping({digit: digit for digit in range(10)}, vocab_size=10)
    NTLCrossEntropyLoss(numbers, **options)  # raises for invalid options, long before training starts
    return options
