"""A number-aware loss in torchtitan 0.3, by a function of a configuration: see examples/trainers."""

from __future__ import annotations

import dataclasses
from typing import Any

import spmd_types as spmd
from torch import Tensor
from torchtitan.components.loss import BaseLoss, ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.distributed.spmd_types import current_spmd_mesh, spmd_mesh_size
from torchtitan.distributed.utils import get_spmd_backend

from ntloss.tokenizer_loading import load_tokenizer
from ntloss.trainers.plug_ins import Options


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
        if getattr(self.loss.criterion, "schedule", None) is not None:
            raise ValueError(f"{self.loss.criterion}: the loss is not told the step, expected a single sigma")
        self._maybe_compile(compile_config)

    def __call__(
        self, pred: Tensor, labels: Tensor, global_valid_tokens: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and no metrics."""
        if get_spmd_backend() == "spmd_types" and spmd_mesh_size("tp") > 1:  # plain shards
            self.loss.group = current_spmd_mesh().get_group("tp")
        is_checked = spmd.is_type_checking()
        with spmd.no_typecheck():
            loss = self.fn(pred, labels)
            if global_valid_tokens is not None:
                loss = loss / global_valid_tokens
            if is_checked:
                spmd.assert_type(loss, {"dp": spmd.P, "cp": spmd.P, "tp": spmd.I})
        return loss, {}


def with_number_loss(config: Any, **options: Any) -> Any:
    """Replace cross-entropy in a `Trainer.Config` by a `NumberLoss`, and return it.

    `options` are `ntloss.trainers.plug_ins.Options`. Raise a TypeError or ValueError for an invalid option,
    another loss than cross-entropy, or a criterion on whole numbers, which chunks could cut.
    """
    chunked = isinstance(config.loss, ChunkedLossWrapper.Config)
    own, of_loss = config.loss.loss_fn if chunked else config.loss, Options(**options)
    if not isinstance(own, CrossEntropyLoss.Config):
        raise ValueError(f"the loss is {type(own).__qualname__}: expected CrossEntropyLoss.Config")
    if chunked and of_loss.loss().finds_numbers:
        raise ValueError(f"{of_loss.criterion} reads whole numbers: expected no ChunkedLossWrapper")
    size = own.global_vocab_size or config.model_spec.model.vocab_size
    ours = NumberLoss.Config(tokenizer=config.hf_assets_path, global_vocab_size=size, options=of_loss)
    config.loss = dataclasses.replace(config.loss, loss_fn=ours) if chunked else ours
    return config
