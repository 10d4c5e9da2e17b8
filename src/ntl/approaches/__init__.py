"""The paper's ways to answer with numbers: one file each, all with the same interface.

An approach is an encoding of numbers, a model, what it minimises, and how it answers:

    language_model   T5, digits as tokens, or the Regression Transformer's tokens
    decoder_only     Llama, Mamba, ...: question and answer in one row, the loss on the answer alone
    xval             T5 with one [NUM] token scaled by the value, and a number head
    regression_head  T5 with one output
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ntl.errors import UserError
from ntl.settings import FAMILIES, GenerationSettings, LossSettings, ModelSettings
from ntloss import NumberVocabulary

IGNORE = -100
CHECKPOINT_KEY = "model_args.model_name_or_path"  # what users call ModelSettings.checkpoint

Row = Mapping[str, Any]
Batch = Mapping[str, Tensor]


class Share(NamedTuple):
    """A micro-batch's share of the loss: over the micro-batches and ranks of an update, shares add up.

    Args:
        loss: Scalar, with a graph.
        terms: Its parts by name (`ce`, `ntl`, `number`, ...), detached scalars, normalised like the loss.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class Approach(Protocol):
    """What training and evaluation need to know; they know nothing else of a model.

    `model` is the unwrapped model. Methods that compute take it again, because under data parallelism it is
    wrapped.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: NumberVocabulary | None
    """The number tokens that labels hold; None where there are none (xVal, regression head)."""

    ill_formed: int | None
    """Numbers that `answer` has read on a best-effort basis so far; None where it cannot happen."""

    def fit(self, answers: Iterable[str]) -> None:
        """Take the statistics of the training answers that predictions are standardised with.

        Called once, before a training. Approaches that need none, and models that have theirs from a finished
        run, do nothing.
        """

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Turn pairs into columns of token ids (and numbers), without padding, one entry per pair.

        Raises:
            UserError: An answer that this approach cannot take (a regression head needs a number).
        """

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad encoded rows into one batch, with `labels`; no text."""

    def count(self, batch: Batch) -> Tensor:
        """Count what sums of this batch are to be divided by, `[k]`, float64.

        Training adds the counts of the micro-batches and ranks of one update.
        """

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute this micro-batch's share of the loss, divided by the counts of the whole update."""

    def answer(self, model: nn.Module, questions: Sequence[str], generation: GenerationSettings) -> list[str]:
        """Answer one batch of questions with text (a regression head writes its number)."""


def build_approach(model: ModelSettings, loss: LossSettings) -> Approach:
    """Make the approach that the settings name, with its tokenizer and its model, on the CPU.

    Args:
        model: Which model.
        loss: What it minimises.

    Returns:
        The approach.

    Raises:
        UserError: A checkpoint or tokenizer cannot be had or does not fit; a loss that this approach has not.
    """
    # Here, not above: they import this module; and one approach does not load the others.
    if model.head == "regression":
        from ntl.approaches.regression_head import build
    elif model.encoding == "xval":
        from ntl.approaches.xval import build
    elif model.family == "decoder_only":
        from ntl.approaches.decoder_only import build
    elif model.family == "t5":
        from ntl.approaches.language_model import build
    else:
        raise UserError(f"family={model.family!r} is unknown; expected one of {', '.join(FAMILIES)}.")
    return build(model, loss)
