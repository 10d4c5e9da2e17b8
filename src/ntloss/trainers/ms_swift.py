"""A number-aware loss in ms-swift 4.6: `swift sft --external_plugins plugin.py --loss_type ntl`.

`plugin.py` is a file of your own, because ms-swift puts the folder of a plug-in on Python's path:

    from ntloss.trainers.ms_swift import register_number_loss

    register_number_loss(weight=0.3, criterion="ntl_was")
"""

from __future__ import annotations

from typing import Any

from swift.loss import BaseLoss, loss_map
from torch import Tensor

from ntloss import NTLCrossEntropyLoss
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
        TypeError, ValueError: an unknown or invalid option; when training starts, sequence parallelism, or
            packed rows with a criterion on whole numbers.
    """
    of_loss = Options(**options)

    class NumberLoss(BaseLoss):  # type: ignore[misc]
        def __init__(self, args: Any, trainer: Any) -> None:
            super().__init__(args, trainer)
            if self.is_megatron:
                raise ValueError("--loss_type ntl does not work with Megatron, which has no hook for a loss")
            self.loss: NTLCrossEntropyLoss | None = None
            self.first = FirstBatches()

        def __call__(
            self,
            outputs: Any,
            labels: Tensor,
            *,
            num_items_in_batch: Tensor | int | None = None,
            loss_scale: Tensor | None = None,
            **_: Any,
        ) -> Tensor:
            if self.loss is None:
                template = self.trainer.template
                self.loss = of_loss.loss(template.tokenizer, outputs.logits.shape[-1], shift=True)
                _check_template(template, self.loss)
            if (share := self.first.look(labels, self.loss.vocabulary)) is not None:
                self.trainer.log({"number_share": share})
            state = self.trainer.state
            self.loss.anneal(state.global_step / max(state.max_steps, 1))
            if num_items_in_batch is None:
                num_items_in_batch = (labels[..., 1:] != self.loss.ignore_index).sum()
            prepared = self.loss.prepare(labels, weights=loss_scale)
            found: Tensor = self.loss(outputs.logits, prepared, count=num_items_in_batch)
            return found

    loss_map[name] = NumberLoss


def _check_template(template: Any, loss: NTLCrossEntropyLoss) -> None:
    if template.sequence_parallel_size > 1:
        raise ValueError(
            f"sequence_parallel_size={template.sequence_parallel_size}: ms-swift replaces logits by its own "
            "loss of each token there; expected 1 with --loss_type ntl"
        )
    if loss.finds_numbers and template.padding_free:
        raise ValueError(
            "this criterion looks at whole numbers, and packed rows join the last number of a text with the "
            "first of the next: expected --packing false --padding_free false, or another criterion"
        )
