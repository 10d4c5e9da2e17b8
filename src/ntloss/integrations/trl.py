"""Number-aware losses in TRL's `SFTTrainer`: `make_sft_number_aware(trainer)`.

An `SFTTrainer` does not use the model's loss. It asks the model for log-probabilities of the labels, computed
without logits, and derives its loss and metrics from them. A number-aware model answers with its own loss,
also computed without logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import trl.trainer.utils
from torch import Tensor
from trl.trainer.sft_trainer import SFTTrainer

from ntloss import NumberVocabulary
from ntloss.engine.linear import rows_for
from ntloss.integrations.transformers.architecture import HeadTensors
from ntloss.integrations.transformers.model import NumberAwareModel, make_number_aware
from ntloss.integrations.transformers.trainer import check_uses_model_loss, extend, tokenizer_of

if not hasattr(trl.trainer.utils, "FusedCausalLMOutput"):
    raise ImportError(
        f"TRL {trl.__version__} is too old: expected 1.15 or newer, which needs Python 3.11. "
        "pip install 'trl>=1.15,<2'"
    )


class _FusedHead:
    """Answers an `SFTTrainer`, which asks for log-probabilities of the labels."""

    def __init__(self, handle: NumberAwareModel, metrics: bool) -> None:
        self.handle, self.metrics = handle, metrics

    def __call__(self, kwargs: dict[str, Any]) -> Any:
        """Call the model, and return what the trainer computes its loss from."""
        outputs, loss = self.handle.compute(kwargs, from_hidden=True)
        # The trainer sums these log-probabilities, changes the sign, and divides by its count of labels.
        return trl.trainer.utils.FusedCausalLMOutput(
            loss=outputs["loss"],
            log_probs=-loss * self._mask.sum().to(loss.device),
            entropy=self._entropy,
            is_top1=self._is_top1,
            label_mask=self._mask,
            aux_loss=outputs.get("aux_loss"),
        )

    @torch.no_grad()
    def measure(self, tensors: HeadTensors, labels: Tensor) -> None:
        """Sum the entropies, and count the labels that are the most likely token."""
        loss_fn = self.handle.loss
        self._mask = labels != loss_fn.options.ignore_index
        hidden = tensors.hidden_states.reshape(-1, tensors.hidden_states.shape[-1])
        self._entropy, self._is_top1 = hidden.new_full((2,), 0 if self.metrics else torch.nan).float()
        kept = self._mask.reshape(-1).to(hidden.device) & self.metrics
        hidden, labels = hidden[kept], labels.reshape(-1).to(hidden.device)[kept]
        rows = rows_for(len(hidden), len(tensors.lm_head_weight), hidden.device)
        for start in range(0, len(hidden), rows):
            logits = F.linear(hidden[start : start + rows], tensors.lm_head_weight, tensors.bias).float()
            log_probs = loss_fn.transform.apply(logits).log_softmax(-1)
            self._entropy -= torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
            self._is_top1 += (log_probs.argmax(-1) == labels[start : start + rows]).sum()


def make_sft_number_aware(
    trainer: Any,
    numbers: NumberVocabulary | Any | None = None,
    *args: Any,
    metrics: bool = True,
    **options: Any,
) -> NumberAwareModel:
    """Give an `SFTTrainer` a number-aware loss, computed without logits as its own is.

    Completion-only masks, packing, adapters (TRL refuses LoRA around the head), gradient accumulation and
    several ranks work as before, and the trainer keeps its metrics.

    Args:
        trainer: an `SFTTrainer` with the default `loss_type`, before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        metrics: also compute the entropy and token accuracy that the trainer logs, at the cost of one more
            matrix product with the head. Default: True; with False they are logged as NaN.
        args, options: passed to `make_number_aware`: criterion, weight, ...

    Returns:
        The handle: its `loss`, and `undo`, which restores the trainer's own loss.

    Raises:
        TypeError: not an `SFTTrainer`; an unknown option, such as `chunked`, which is always on.
        ValueError: another `loss_type`, or an option that replaces the loss; the tokenizer is another
            model's.
    """
    if not isinstance(trainer, SFTTrainer):
        raise TypeError(
            f"expected an SFTTrainer, given {type(trainer).__name__}. For a Trainer of transformers: "
            "ntloss.integrations.transformers.make_trainer_number_aware(trainer)."
        )
    loss_type = vars(trainer.args)["loss_type"]
    if loss_type not in ("nll", "chunked_nll"):  # two names of one loss
        raise ValueError(f"loss_type={loss_type!r} weights cross-entropy in its own way: expected 'nll'")
    check_uses_model_loss(trainer)
    if "chunked" in options:
        raise TypeError("chunked: the loss of an SFTTrainer is always computed from hidden states: omit it")
    tokenizer = tokenizer_of(trainer, numbers)
    handle = make_number_aware(trainer.model, tokenizer, *args, chunked=True, **options)
    handle.fused = _FusedHead(handle, metrics)
    extend(trainer)
    return handle
