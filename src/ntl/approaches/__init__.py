"""The paper's approaches to answering with numbers, one module each, with a common interface.

An approach combines an encoding of numbers, a model, a loss and a way to decode answers:

    language_model   T5 with digits as tokens, the unchanged tokenizer, or the Regression Transformer's tokens
    decoder_only     Llama, Mamba, ...: question and answer in one row, with the loss on the answer only
    xval             T5 with one [NUM] token scaled by the value, and a number head
    regression_head  T5 with one output
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ntl.config.settings import (
    FAMILIES,
    NUMBER_FORMATS,
    GenerationSettings,
    LossSettings,
    ModelSettings,
)
from ntl.encodings.number_format import NumberFormat
from ntl.errors import UserError
from ntloss import NumberVocabulary
from ntloss.decoding import NumberQuantiles

IGNORE = -100
CHECKPOINT_KEY = "model_args.model_name_or_path"  # the user's name for ModelSettings.checkpoint

Row = Mapping[str, Any]
Batch = Mapping[str, Tensor]


class Share(NamedTuple):
    """A micro-batch's share of the loss; the shares of all micro-batches and ranks sum to the update's loss.

    Args:
        loss: Scalar with a graph.
        terms: Terms of the loss by name (`ce`, `ntl`, `number`, ...): detached scalars, normalised like the
            loss.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class Approach(Protocol):
    """Interface of a model for training and evaluation.

    `model` is the unwrapped model. Methods that run the model take it as an argument, because data
    parallelism wraps it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: NumberVocabulary | None
    """The number tokens in the labels, or None without number tokens (xVal, regression head)."""

    ill_formed: int | None
    """Number of malformed numbers that `answer` has decoded so far, or None if they cannot occur."""

    number_format: NumberFormat | None
    """Format of padded answers, or None for plain ones."""

    def fit(self, answers: Iterable[str]) -> None:
        """Compute what depends on the training answers: statistics that standardise, or the number format.

        This is called once before training. It computes nothing for approaches that need neither, and for
        models that already have it from an earlier run.

        Raises:
            UserError: An answer does not fit the approach.
        """

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as columns of token ids (and numbers), without padding, one entry per pair.

        Answers that do not fit `number_format` are encoded as they are.

        Raises:
            UserError: A text cannot be encoded (a regression head needs numeric answers).
        """

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad encoded rows into a batch of tensors, which includes `labels`."""

    def count(self, batch: Batch) -> Tensor:
        """Count the items that normalise the losses of this batch, `[k]`, float64.

        Training sums the counts over the micro-batches and ranks of one update.
        """

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute this micro-batch's share of the loss, normalised by the counts of the whole update."""

    def answer(self, model: nn.Module, questions: Sequence[str], generation: GenerationSettings) -> list[str]:
        """Answer a batch of questions with texts (a regression head formats its number)."""

    def quantiles(
        self, model: nn.Module, questions: Sequence[str], levels: Sequence[float]
    ) -> NumberQuantiles:
        """Read quantiles of the number that answers each question out of the model, without decoding.

        Raises:
            UserError: The approach has no quantiles, or they cannot be read from this model.
        """


def build_approach(model: ModelSettings, loss: LossSettings) -> Approach:
    """Build the approach that the settings describe, with its tokenizer and its model, on the CPU.

    Args:
        model: Model settings.
        loss: Loss settings.

    Returns:
        The approach.

    Raises:
        UserError: A checkpoint or a tokenizer cannot be loaded or does not fit, or the approach does not
            support the loss.
    """
    check_number_format(model)
    # Imported here, because these modules import this one, and to load only the approach that is needed.
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


def no_quantiles(name: str) -> UserError:
    """Make the error of an approach that does not write numbers in digits.

    Args:
        name: The approach, for the message.
    """
    return UserError(
        f"evaluation.read=[median] or [mean] needs the distribution of a number that a model writes in "
        f"digits, and {name} has none; expected a language model with number_encoding=none. Pass "
        "evaluation.read=[greedy]."
    )


def check_number_format(model: ModelSettings) -> None:
    """Check that the number format is known, and that the approach writes numbers as text.

    Raises:
        UserError: The format is unknown, or the approach cannot use it.
    """
    if model.number_format not in NUMBER_FORMATS:
        raise UserError(
            f"model_args.number_format is {model.number_format!r}; expected one of: "
            f"{', '.join(NUMBER_FORMATS)}. Correct it."
        )
    if model.number_format == "plain":
        return
    if model.head != "language" or model.encoding not in ("digits", "auto"):
        name = "a regression head" if model.head != "language" else f"number_encoding={model.encoding}"
        raise UserError(
            f"model_args.number_format={model.number_format} needs a model that writes numbers as text, and "
            f"{name} does not; expected number_encoding=none. Omit model_args.number_format."
        )
