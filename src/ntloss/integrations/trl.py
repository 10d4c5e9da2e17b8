"""Number-aware losses in TRL's `SFTTrainer`, in one line: `make_sft_number_aware(trainer)`.

That trainer takes no loss of the model's: it asks for log-probabilities of the labels, computed without
logits, and makes loss and metrics of them. Here it is given ours, computed without logits too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import FusedCausalLMOutput

from ntloss.criteria import Criterion
from ntloss.engine.linear import rows_for
from ntloss.integrations.transformers.head import HeadTensors
from ntloss.integrations.transformers.model import NumberAwareModel, make_handle
from ntloss.integrations.transformers.trainer import count_numbers, tokenizer_of
from ntloss.vocabulary import NumberVocabulary


class _SFTModel(NumberAwareModel):
    """A number-aware model that answers an `SFTTrainer`."""

    metrics = True
    # An SFTTrainer divides by its count of labels itself, and keeps it from the model.
    counts_beside_the_trainers = ("num_items_in_batch", "num_numbers_in_batch")

    def forward(self, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        """The model's forward; with `fused_lm_head` what the trainer makes its loss of."""
        if not (self.active and fused_lm_head):
            if fused_lm_head:
                kwargs["fused_lm_head"] = True
            return super().forward(*args, **kwargs)
        kwargs.update(zip(self._names, args, strict=False))
        num_items = kwargs.get("num_items_in_batch")
        targets, kwargs = self.read(kwargs)
        outputs, loss = self.run(targets, True, kwargs)
        mask = targets.labels != self.loss.objective.ignore_index
        # The trainer takes minus the sum of these, and divides it by the count.
        count = torch.as_tensor(mask.sum() if num_items is None else num_items).clamp(min=1)
        return FusedCausalLMOutput(
            loss=outputs["loss"],
            log_probs=-loss * count.to(loss.device),
            entropy=self._entropy,
            is_top1=self._is_top1,
            label_mask=mask,
            aux_loss=outputs.get("aux_loss"),
        )

    def _compute_of_hidden(self, tensors: HeadTensors) -> None:
        super()._compute_of_hidden(tensors)
        assert self._targets is not None
        if self.metrics:
            self._entropy, self._is_top1 = self._measure(tensors, self._targets.labels)
        else:
            self._entropy = self._is_top1 = torch.full((), torch.nan)

    @torch.no_grad()
    def _measure(self, tensors: HeadTensors, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy, and how often the label is the likeliest token, summed over labels, as it logs them."""
        kept = labels.reshape(-1).to(tensors.hidden.device) != self.loss.objective.ignore_index
        hidden = tensors.hidden.reshape(-1, tensors.hidden.shape[-1])[kept]
        labels = labels.reshape(-1).to(hidden.device)[kept]
        rows = rows_for(len(hidden), len(tensors.weight), hidden.device)
        entropy = torch.zeros((), device=hidden.device)
        is_top1 = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), rows):
            logits = F.linear(hidden[start : start + rows], tensors.weight, tensors.bias).float()
            log_probs = self.loss.objective.transform.apply(logits).log_softmax(-1)
            entropy -= torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
            is_top1 += (log_probs.argmax(-1) == labels[start : start + rows]).sum()
        return entropy, is_top1


def make_sft_number_aware(
    trainer: Any,
    numbers: NumberVocabulary | Any | None = None,
    criterion: Criterion | None = None,
    weight: float | Tensor | None = None,
    reweigh: bool | None = None,
    *,
    metrics: bool = True,
    **options: Any,
) -> NumberAwareModel:
    """Give an `SFTTrainer` a number-aware loss, computed without logits, as its own is.

    Completion-only masks, packing, adapters (TRL itself refuses those around the head), accumulation and
    ranks are as without it. The trainer keeps its metrics.

    Args:
        trainer: an `SFTTrainer` with `loss_type="nll"`, its default, before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        criterion, weight, reweigh: see `NTLCrossEntropyLoss`.
        metrics: also compute the entropy and token accuracy that the trainer logs, at the cost of one more
            product with the head. Default: True; else they are logged as NaN.
        options: of `ntloss.integrations.transformers.make_number_aware`.

    Returns:
        The handle: its `loss`, and `undo`, after which the trainer trains with its own loss.

    Raises:
        TypeError: not an `SFTTrainer`.
        ValueError: another loss type, or an option that puts another loss in its place; the tokenizer is
            another model's.
    """
    if not isinstance(trainer, SFTTrainer):
        raise TypeError(
            f"expected an SFTTrainer, given {type(trainer).__name__}. A Trainer of transformers: "
            "ntloss.integrations.transformers.make_trainer_number_aware(trainer)."
        )
    arguments: Any = trainer.args
    if arguments.loss_type != "nll":
        raise ValueError(
            f"loss_type={arguments.loss_type!r} weighs cross-entropy by a rule of its own: expected 'nll'"
        )
    tokenizer = tokenizer_of(trainer, numbers)
    handle = make_handle(_SFTModel, trainer.model, tokenizer, criterion, weight, reweigh, True, None, options)
    handle.metrics = metrics
    try:
        count_numbers(trainer)
    except ValueError:
        handle.undo()
        raise
    return handle
