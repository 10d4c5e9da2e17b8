"""A number-aware loss in torchtitan 0.3: `--module my_runs --config llama3_8b_ntl`, with `my_runs.py`:

from ntloss.trainers.torchtitan import with_number_loss
from torchtitan.models.llama3.config_registry import llama3_8b

def llama3_8b_ntl():
    return with_number_loss(llama3_8b(), weight=0.3, criterion="dist2")
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import spmd_types as spmd
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.components.loss import BaseLoss, ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.distributed.spmd_types import current_spmd_mesh, spmd_mesh_size
from torchtitan.distributed.utils import get_spmd_backend

from ntloss.criteria import HLGauss
from ntloss.tokenizer_loading import load_tokenizer
from ntloss.trainers.first_labels import FirstBatches
from ntloss.trainers.plug_ins import Options

_log = logging.getLogger(__name__)


class NumberLoss(BaseLoss):  # type: ignore[misc]
    """Cross-entropy + λ · number term, of logits that are whole or sharded along the vocabulary."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):  # type: ignore[misc]
        """Folder of the tokenizer, width of the logits, and the options of the loss."""

        tokenizer: str
        global_vocab_size: int | None = None
        options: Options = dataclasses.field(default_factory=Options)

    def __init__(self, config: Config, *, compile_config: Any = None) -> None:
        tokenizer, size = load_tokenizer(config.tokenizer), config.global_vocab_size
        self.fn = self.loss = config.options.loss(tokenizer, size, reduction="sum")
        criterion = self.loss.criterion
        if isinstance(criterion, HLGauss) and criterion.schedule is not None:
            raise ValueError(
                f"criterion={criterion!r} changes over training, and the loss is not told the step: "
                "expected a single sigma"
            )
        self.first = FirstBatches()
        self._maybe_compile(compile_config)

    def __call__(
        self, pred: Tensor, labels: Tensor, global_valid_tokens: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and no metrics."""
        if isinstance(pred, DTensor) and all(placement.is_replicate() for placement in pred.placements):
            pred = pred.to_local()
        if get_spmd_backend() == "spmd_types" and spmd_mesh_size("tp") > 1:  # plain shards
            self.loss.group = current_spmd_mesh().get_group("tp")
        is_checked = spmd.is_type_checking()
        with spmd.no_typecheck():
            own = labels.to_local() if isinstance(labels, DTensor) else labels
            if (share := self.first.look(own, self.loss.vocabulary)) is not None:
                _log.info("number_share: %.3f of the labels of a batch are number tokens", share)
            loss = self.fn(pred, labels)
            if global_valid_tokens is not None:
                loss = loss / global_valid_tokens
            if is_checked:
                spmd.assert_type(loss, {"dp": spmd.P, "cp": spmd.P, "tp": spmd.I})
        return loss, {}


def with_number_loss(config: Any, **options: Any) -> Any:
    """Replace cross-entropy in a `Trainer.Config` by a `NumberLoss` with these options, and return it.

    Args:
        config: the configuration of a run, whose loss is cross-entropy.
        options: see `ntloss.trainers.plug_ins.Options`.

    Raises:
        TypeError: an unknown option.
        ValueError: its loss is not cross-entropy; a criterion on whole numbers, which chunks could cut.
    """
    chunked = isinstance(config.loss, ChunkedLossWrapper.Config)
    own = config.loss.loss_fn if chunked else config.loss
    if not isinstance(own, CrossEntropyLoss.Config):
        raise ValueError(f"the loss is {type(own).__qualname__}: expected CrossEntropyLoss.Config")
    size, of_loss = own.global_vocab_size or config.model_spec.model.vocab_size, Options(**options)
    ours = NumberLoss.Config(tokenizer=config.hf_assets_path, global_vocab_size=size, options=of_loss)
    if chunked and of_loss.loss().finds_numbers:
        raise ValueError(
            f"criterion={of_loss.criterion!r} looks at whole numbers, and chunks may cut them: expected "
            "another criterion, or a configuration without ChunkedLossWrapper"
        )
    config.loss = dataclasses.replace(config.loss, loss_fn=ours) if chunked else ours
    return config
