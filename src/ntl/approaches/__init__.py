"""The paper's approaches to answering with numbers, one module each, with a common interface.

An approach combines an encoding of numbers, a model, a loss and a way to decode answers:

    language_model   T5 with digits as tokens, the unchanged tokenizer, or the Regression Transformer's tokens
    decoder_only     Llama, Mamba, ...: question and answer in one sequence, with the loss on the answer only
    xval             T5 with one [NUM] token scaled by the value, and a number head
    regression_head  T5 with a regression head that predicts one number
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ntl.config import Evaluation, LossSettings, ModelArgs, Weights
from ntl.errors import UserError
from ntloss.numbers import NumberFormat
from ntloss.reading import NumberQuantiles

if TYPE_CHECKING:
    from ntl.approaches.frozen_layers import FrozenLayers
    from ntl.approaches.lora import Lora

IGNORE = -100
CHECKPOINT_KEY = "model_args.model_name_or_path"  # the user's name for it

Row = Mapping[str, Any]
Texts = Sequence[str]
Levels = Sequence[float]
Batch = Mapping[str, Tensor]


class ModelSource(NamedTuple):
    """What a model is built from; see `ntl.approaches.pretrained.load_source`."""

    settings: ModelArgs
    tokenizer: PreTrainedTokenizerFast  # splits digits, unless the encoding uses it unchanged
    checkpoint: PreTrainedConfig | None  # None for a model from scratch

    @property
    def decodes_only(self) -> bool:
        """Whether the model is decoder-only."""
        if self.settings.family == "pretrained":
            return not self.checkpoint.is_encoder_decoder  # type: ignore[union-attr]
        return self.settings.family == "decoder_only"


class Share(NamedTuple):
    """A micro-batch's share of the loss; those of all micro-batches and ranks sum to the update's loss."""

    loss: Tensor  # a scalar with a graph
    terms: dict[str, Tensor]  # by name (`ce`, `ntl`, `number`, ...): detached, normalized like the loss


class Approach(Protocol):
    """Interface of a model for training and evaluation.

    `model` is the unwrapped model. Methods that run the model take it as an argument, because data
    parallelism wraps it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    ill_formed: int | None  # malformed numbers that `answer` has decoded so far; None if they cannot occur
    number_format: NumberFormat | None  # of padded answers
    head: nn.Module | None  # that predicts one number
    frozen: FrozenLayers | None
    lora: Lora | None

    def __init__(self, source: ModelSource, loss: LossSettings):
        """Build the model."""

    def fit(self, answers: Iterable[str]) -> None:
        """Compute what depends on the training answers: statistics that standardize, or the number format.

        A model that has them from an earlier run keeps them.
        """

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as columns of token ids (and numbers), without padding, one entry per pair."""

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad encoded rows into a batch of tensors, which includes `labels`."""

    def count(self, batch: Batch) -> Tensor:
        """Count the items that normalize the losses of an update, which sums the counts, `[k]`, float64."""

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute this micro-batch's share of the loss, normalized by the counts of the whole update."""

    def answer(self, model: nn.Module, questions: Sequence[str], generation: Evaluation) -> list[str]:
        """Answer a batch of questions with texts (a regression head formats its number)."""

    def quantiles(self, model: nn.Module, questions: Texts, levels: Levels) -> NumberQuantiles:
        """Read quantiles of the number that answers each question, if the approach writes it in digits."""

    def read(
        self, model: nn.Module, questions: Texts, generation: Evaluation, levels: Levels
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer as `answer` does, and read quantiles as `quantiles` does."""


def build_approach(
    model: ModelArgs, loss: LossSettings, weights: Weights | None = None, seed: int = 42
) -> Approach:
    """Build the approach that the settings describe, with its tokenizer and its model, on the CPU."""
    # Imported here, because these modules import this one, and to load only the approach that is needed.
    from ntl.approaches.pretrained import load_source

    weights = weights or Weights()
    source = load_source(model)
    if model.head == "regression":
        from ntl.approaches.regression_head import RegressionHead as Kind
    elif model.encoding == "xval":
        from ntl.approaches.xval import Xval as Kind
    elif source.decodes_only:
        from ntl.approaches.decoder_only import DecoderOnly as Kind
    else:
        from ntl.approaches.language_model import LanguageModel as Kind
    partial = weights.trained_layers is not None or weights.lora
    if model.head == "regression" and partial and not source.decodes_only:
        raise UserError(
            "weights.trained_layers and weights.lora need a decoder-only model under a regression head. Omit "
            "them, or choose another model."
        )
    torch.manual_seed(seed)
    approach = Kind(source, loss)
    heads = [approach.head] if approach.head is not None else []
    if weights.trained_layers is not None:
        from ntl.approaches.frozen_layers import FrozenLayers

        heads += [approach.model.get_output_embeddings()] if weights.train_head else []
        approach.frozen = FrozenLayers(approach.model, weights.trained_layers, heads)
    if weights.lora:
        from ntl.approaches.lora import Lora

        approach.lora = Lora(approach.model, weights.lora, heads)
    return approach
