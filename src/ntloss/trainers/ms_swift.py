"""A number-aware loss in ms-swift 4.6, which a file of your own registers, the plug-in.

    from ntloss.trainers.ms_swift import register_number_loss

    register_number_loss(weight=0.3, criterion="ntl_was")

`swift sft --external_plugins plugin.py --loss_type ntl` uses it.
"""

from __future__ import annotations

from typing import Any

from swift.loss import BaseLoss, loss_map
from torch import Tensor

from ntloss.trainers.first_labels import FirstBatches
from ntloss.trainers.plug_ins import Options


def register_number_loss(name: str = "ntl", **options: Any) -> None:
    """Make cross-entropy + λ · number term a `--loss_type` of ms-swift.

    It takes ms-swift's unshifted labels, trimmed logits (`logits_to_keep`), `loss_scale` (as the weight of a
    position in both terms) and count of labels.

    Args:
        name: the new loss type. Default: "ntl".
        options: see `ntloss.trainers.plug_ins.Options`.

    Raises:
        TypeError, ValueError: an unknown or invalid option; when training starts, Megatron, sequence
            parallelism, or packed rows with a criterion on whole numbers.
    """
    of_loss = Options(**options)

    class NumberLoss(BaseLoss):  # type: ignore[misc]
        def __init__(self, args: Any, trainer: Any) -> None:
            super().__init__(args, trainer)
            if self.is_megatron:
                raise ValueError(
                    f"--loss_type {name} does not work with Megatron, which has no hook for a loss"
                )
            if (size := trainer.template.sequence_parallel_size) > 1:
                raise ValueError(
                    f"sequence_parallel_size={size}: ms-swift replaces logits by its own loss of each token "
                    f"there; expected 1 with --loss_type {name}"
                )
            if trainer.template.padding_free and of_loss.loss().finds_numbers:
                raise ValueError(
                    f"criterion={of_loss.criterion!r} looks at whole numbers, and packed rows join those of "
                    "two texts: expected --packing false --padding_free false, or another criterion"
                )
            self.loss: Any = None
            self.first = FirstBatches()

        def __call__(
            self,
            outputs: Any,
            labels: Tensor,
            *,
            num_items_in_batch: Any = None,
            loss_scale: Any = None,
            **_: Any,
        ) -> Tensor:
            logits, state = outputs.logits, self.trainer.state
            if self.loss is None:
                self.loss = of_loss.loss(self.trainer.template.tokenizer, logits.shape[-1], shift=True)
            if (share := self.first.look(labels, self.loss.vocabulary)) is not None:
                self.trainer.log({"number_share": share})
            self.loss.anneal(state.global_step / max(state.max_steps, 1))
            if num_items_in_batch is None:
                num_items_in_batch = (labels[..., 1:] != self.loss.ignore_index).sum()
            prepared = self.loss.prepare(labels, weights=loss_scale)
            found: Tensor = self.loss(logits, prepared, count=num_items_in_batch)
            return found

    loss_map[name] = NumberLoss
