"""A number-aware loss in ms-swift 4.6, which a plug-in registers: see examples/trainers/ms_swift.py."""

from __future__ import annotations

from typing import Any

from swift.loss import BaseLoss, loss_map
from torch import Tensor

from ntloss.trainers.plug_ins import Options


def register_number_loss(name: str = "ntl", **options: Any) -> None:
    """Make cross-entropy + λ · number term a `--loss_type` of ms-swift, of this name.

    `options` are `ntloss.trainers.plug_ins.Options`. The loss takes ms-swift's unshifted labels, trimmed
    logits (`logits_to_keep`), `loss_scale` (as the weight of a position in both terms) and count of labels.
    An invalid option is an error and, when training starts, so is what docs/train.md lists.
    """
    of_loss = Options(**options)

    class NumberLoss(BaseLoss):  # type: ignore[misc]
        def __init__(self, args: Any, trainer: Any) -> None:
            super().__init__(args, trainer)
            template, given = trainer.template, ""
            if self.is_megatron:
                given = "Megatron"
            elif template.sequence_parallel_size > 1:
                given = f"sequence_parallel_size={template.sequence_parallel_size}"
            if given:
                raise ValueError(f"{given}: ms-swift computes its own loss there, not --loss_type {name}")
            if template.padding_free and of_loss.loss().finds_numbers:
                raise ValueError(f"{of_loss.criterion} reads whole numbers: expected --padding_free false")
            self.loss: Any = None

        def __call__(self, outputs: Any, labels: Tensor, **given: Any) -> Tensor:
            logits, state = outputs.logits, self.trainer.state
            if self.loss is None:
                self.loss = of_loss.loss(self.trainer.template.tokenizer, logits.shape[-1], shift=True)
            self.loss.anneal(state.global_step / max(state.max_steps, 1))
            prepared = self.loss.prepare(labels, weights=given.get("loss_scale"))
            return self.loss(logits, prepared, count=given.get("num_items_in_batch"))  # type: ignore[no-any-return]

    loss_map[name] = NumberLoss
