"""Number-aware losses in TRL's `SFTTrainer`, in one line: `make_sft_number_aware(trainer)`.

That trainer does not take the model's loss alone. Since TRL 1.15 it asks for log-probabilities of the labels,
computed without logits, and makes loss and metrics of them; before, `loss_type="chunked_nll"` puts a forward
into the model that gives loss and metrics. Both are answered with ours, computed without logits too. Only
`loss_type="nll"` before 1.15 is the model's own loss and its logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import trl.trainer.sft_trainer
import trl.trainer.utils
from torch import Tensor
from trl.trainer.sft_trainer import SFTTrainer

from ntloss.criteria import Criterion
from ntloss.engine.linear import rows_for
from ntloss.integrations.transformers.head import HeadTensors
from ntloss.integrations.transformers.model import NumberAwareModel, make_handle
from ntloss.integrations.transformers.trainer import count_numbers_or_undo, tokenizer_of
from ntloss.vocabulary import NumberVocabulary

_ASKS_FOR_LOG_PROBS = hasattr(trl.trainer.utils, "FusedCausalLMOutput")  # TRL >= 1.15


class _SFTModel(NumberAwareModel):
    """A number-aware model that answers an `SFTTrainer` without logits."""

    metrics = True
    # An SFTTrainer divides by its count of labels itself, and keeps it from the model.
    counts_beside_the_trainers = ("num_items_in_batch", "num_numbers_in_batch")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, or what the trainer makes its loss of."""
        if not (self.active and self._is_asked(kwargs)):
            return super().forward(*args, **kwargs)
        kwargs = self.by_name(args, kwargs)
        num_items = kwargs.get("num_items_in_batch")
        targets, kwargs = self.read(kwargs)
        outputs, loss = self.run(targets, True, kwargs)
        mask = targets.labels != self.loss.ignore_index
        return self._answer(outputs, loss, mask, num_items)

    def _is_asked(self, kwargs: dict[str, Any]) -> bool:
        """Whether the trainer asks for a loss; takes out the keyword that only it knows."""
        return bool(kwargs.pop("fused_lm_head", False))

    def _answer(self, outputs: Any, loss: Tensor, mask: Tensor, num_items: Tensor | float | None) -> Any:
        """What the trainer makes its loss and metrics of."""
        # It takes minus the sum of these log-probabilities, and divides it by the count.
        count = torch.as_tensor(mask.sum() if num_items is None else num_items).clamp(min=1)
        return trl.trainer.utils.FusedCausalLMOutput(
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
        kept = labels.reshape(-1).to(tensors.hidden.device) != self.loss.ignore_index
        hidden = tensors.hidden.reshape(-1, tensors.hidden.shape[-1])[kept]
        labels = labels.reshape(-1).to(hidden.device)[kept]
        rows = rows_for(len(hidden), len(tensors.weight), hidden.device)
        entropy = torch.zeros((), device=hidden.device)
        is_top1 = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), rows):
            logits = F.linear(hidden[start : start + rows], tensors.weight, tensors.bias).float()
            log_probs = self.loss.transform.apply(logits).log_softmax(-1)
            entropy -= torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
            is_top1 += (log_probs.argmax(-1) == labels[start : start + rows]).sum()
        return entropy, is_top1


class _ChunkedSFTModel(_SFTModel):
    """The same for `loss_type="chunked_nll"` of TRL 1.4 to 1.14, which calls the model with labels."""

    def _is_asked(self, kwargs: dict[str, Any]) -> bool:
        return kwargs.get("labels") is not None

    def _call(self, **kwargs: Any) -> Any:
        # The forward that the trainer put into the model does without the head.
        return type(self.model).forward(self.model, **kwargs) if self.active else super()._call(**kwargs)

    def _answer(self, outputs: Any, loss: Tensor, mask: Tensor, num_items: Tensor | float | None) -> Any:
        output: Any = vars(trl.trainer.sft_trainer)["_ChunkedCELMHeadOutput"]
        return output(
            loss=outputs["loss"],
            entropy_sum=self._entropy,
            num_correct_tokens=self._is_top1,
            num_valid_tokens=mask.sum(),
            aux_loss=outputs.get("aux_loss"),
        )


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
    """Give an `SFTTrainer` a number-aware loss, computed without logits where its own is.

    That is by default, and before TRL 1.15 with `loss_type="chunked_nll"`. Completion-only masks, packing,
    adapters (TRL itself refuses those around the head), accumulation and ranks are as without it. The trainer
    keeps its metrics.

    Args:
        trainer: an `SFTTrainer` with `loss_type` "nll" or "chunked_nll", before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        criterion, weight, reweigh: see `NTLCrossEntropyLoss`.
        metrics: also compute the entropy and token accuracy that the trainer logs, at the cost of one more
            product with the head. Default: True; else they are logged as NaN.
        options: of `ntloss.integrations.transformers.make_number_aware`.

    Returns:
        The handle: its `loss`, and `undo`, after which the trainer trains with its own loss.

    Raises:
        TypeError: not an `SFTTrainer`; `chunked`, which is the trainer's choice.
        ValueError: another loss type, or an option that puts another loss in its place; `metrics=False`
            where the trainer has logits; the tokenizer is another model's.
    """
    if not isinstance(trainer, SFTTrainer):
        raise TypeError(
            f"expected an SFTTrainer, given {type(trainer).__name__}. A Trainer of transformers: "
            "ntloss.integrations.transformers.make_trainer_number_aware(trainer)."
        )
    if "chunked" in options:
        raise TypeError(
            f"chunked={options['chunked']!r}: an SFTTrainer computes its loss without logits by itself "
            "(before TRL 1.15 with loss_type='chunked_nll'), and so is ours: leave chunked away"
        )
    kind = _kind_of_handle(trainer.args, metrics)
    tokenizer = tokenizer_of(trainer, numbers)
    without_logits = kind is not NumberAwareModel
    handle = make_handle(
        kind, trainer.model, tokenizer, criterion, weight, reweigh, without_logits, None, options
    )
    if isinstance(handle, _SFTModel):
        handle.metrics = metrics
    count_numbers_or_undo(trainer, handle)
    return handle


def _kind_of_handle(arguments: Any, metrics: bool) -> type[NumberAwareModel]:
    """What answers this trainer: which loss type it has, and which release it is of."""
    loss_type = arguments.loss_type
    if loss_type not in ("nll", "chunked_nll"):
        raise ValueError(f"loss_type={loss_type!r} weighs cross-entropy by a rule of its own: expected 'nll'")
    if _ASKS_FOR_LOG_PROBS:
        return _SFTModel
    if loss_type == "chunked_nll":
        return _ChunkedSFTModel
    if not metrics:
        raise ValueError(
            "metrics=False: before TRL 1.15 loss_type='nll' has logits, of which the trainer makes "
            "its metrics itself. Leave it away, or use 'chunked_nll' (TRL >= 1.4)."
        )
    return NumberAwareModel
