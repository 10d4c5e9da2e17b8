"""The models that answer with numbers, one module each.

    language_model   T5 with digits as tokens, the unchanged tokenizer, or the Regression Transformer's tokens
    decoder_only     Llama, Mamba, ...: question and answer in one sequence, with the loss on the answer only
    xval             T5 with one [NUM] token scaled by the value, and a number head
    regression_head  a model that predicts one number instead of text

`build` makes one. It holds a `model` and a `tokenizer` of transformers, and what turns texts into batches and
back: `encode`, `collate` and `answer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ntl.errors import UserError
from ntl.settings import ModelArgs, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ntloss.writing import Lora, UpperLayers

IGNORE = -100
"""Label of positions without a loss."""
Row = Mapping[str, Any]


class AnsweringModel(Protocol):
    """A model for training and evaluation, with what turns texts into its batches and its output into texts.

    Attributes:
        model: The model itself.
        tokenizer: Its tokenizer.
        number_ids: The tokens that write numbers; empty if it writes none.
        frozen: The layers that are not trained, or None.
        lora: The adapters, or None.
        answer_format: The `WrittenAnswers` of a language model; other models have none.
        head: The layer that predicts the number of a regression head; other models have none.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    number_ids: Sequence[int]
    frozen: UpperLayers | None
    lora: Lora | None
    answer_format: Any
    head: Any

    def fit(self, answers: Iterable[str]) -> None:
        """Compute what depends on the training answers: statistics that standardize, or the number format.

        A model that has them from an earlier run keeps them.
        """

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as columns of token ids (and numbers), without padding, one entry per pair."""

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad encoded rows into a batch, which includes `labels`: the trainer's data collator."""

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer a batch of questions with texts (a regression head formats its number)."""


def build(settings: ModelArgs, weights: Weights | None = None, seed: int = 42) -> AnsweringModel:
    """Build the model that the settings describe, with its tokenizer, on the CPU."""
    import torch

    from ntl.models.source import load_source

    weights = weights or Weights()
    source = load_source(settings)
    if settings.head == "regression":
        kind = import_module("ntl.models.regression_head").RegressionHead
    elif settings.encoding == "xval":
        kind = import_module("ntl.models.xval").Xval
    elif source.decodes_only:
        kind = import_module("ntl.models.decoder_only").DecoderOnly
    else:
        kind = import_module("ntl.models.language_model").LanguageModel
    partial = weights.trained_layers is not None or weights.lora
    if settings.head == "regression" and partial and not source.decodes_only:
        raise UserError(
            "weights.trained_layers and weights.lora need a decoder-only model under a regression head. Omit "
            "them, or choose another model."
        )
    torch.manual_seed(seed)
    built: Any = kind(source)
    heads = [built.head] if settings.head == "regression" else []
    if weights.trained_layers is not None:
        from ntloss.writing import UpperLayers

        try:
            built.frozen = UpperLayers(built.model, weights.trained_layers, heads)
        except ValueError as error:
            raise UserError(
                f"weights.trained_layers={weights.trained_layers}: {error}. Omit it to train all weights."
            ) from error
    if weights.lora:
        from ntloss.writing import Lora

        try:
            built.lora = Lora(built.model, weights.lora, heads)
        except (TypeError, ValueError) as error:
            raise UserError(f"weights.lora={weights.lora} cannot be used: {error}") from error
    return built
