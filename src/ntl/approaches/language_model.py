"""T5 as a language model: digits as tokens, the unchanged tokenizer, or tokens of digit and place."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from ntl.approaches import IGNORE, Batch, Row, Share
from ntl.approaches.answer_format import AnswerFormat
from ntl.approaches.batches import generate, pad, pad_questions, read_quantiles
from ntl.approaches.objective import LanguageObjective
from ntl.approaches.pretrained import build_model
from ntl.config.settings import GenerationSettings, LossSettings, ModelSettings
from ntl.encodings.digits import TextEncoding
from ntl.encodings.number_format import NumberFormat
from ntl.encodings.regression_transformer import RegressionTransformerEncoding, numerical_encodings
from ntl.errors import UserError
from ntloss import NumberTokensLeftOut, NumberVocabulary
from ntloss.decoding import NumberQuantiles


class PlacedEmbedding(nn.Embedding):
    """Token embeddings plus fixed numerical encodings of the tokens of digit and place.

    Args:
        num_embeddings: Number of tokens.
        embedding_dim: Width of the embeddings.
        first_id: First id of the 320 consecutive tokens of digit and place.
        log_scale: See `numerical_encodings`.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, first_id: int, log_scale: bool):
        super().__init__(num_embeddings, embedding_dim)
        self.first_id = first_id
        self.log_scale = log_scale
        self.register_buffer("encodings", self.make_encodings(), persistent=False)

    def make_encodings(self) -> Tensor:
        """Make the fixed table `[321, width]`: a row of zeros for other tokens, then one row per token."""
        return F.pad(numerical_encodings(self.embedding_dim, self.log_scale), (0, 0, 1, 0))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed token ids `[...]` as `[..., width]`."""
        row = input_ids - (self.first_id - 1)
        row = torch.where((row > 0) & (row < len(self.encodings)), row, 0)
        embedded = super().forward(input_ids)
        return embedded + F.embedding(row, self.encodings).to(embedded.dtype)


class T5WithPlaces(T5ForConditionalGeneration):
    """T5 that adds numerical encodings to the token embeddings of encoder and decoder.

    Args:
        config: Configuration of the T5, whose `ntl` holds `first_id` and `log_scale`.
    """

    def __init__(self, config: T5Config):
        super().__init__(config)
        self._replace_embeddings()
        self.post_init()

    def set_input_embeddings(self, new_embeddings: nn.Embedding) -> None:
        """Replace the embeddings, which may have another size."""
        self.shared = new_embeddings
        self._replace_embeddings()
        self.tie_weights()

    def _replace_embeddings(self) -> None:
        shape = self.shared.weight.shape
        first_id, log_scale = self.config.ntl["first_id"], self.config.ntl["log_scale"]
        for stack in (self.encoder, self.decoder):
            stack.embed_tokens = PlacedEmbedding(*shape, first_id, log_scale)

    def initialize_weights(self) -> None:
        """Initialize the fixed tables too: checkpoints omit them, and loading leaves them empty."""
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, PlacedEmbedding):
                module.encodings.copy_(module.make_encodings())


class LanguageModel:
    """T5 that reads and writes text; implements `ntl.approaches.Approach`.

    Args:
        model: A model whose embeddings fit the encoding.
        tokenizer: The tokenizer of the encoding.
        encoding: The encoding of numbers.
        vocabulary: The number tokens.
        loss: Loss settings.

    Raises:
        UserError: The criterion or one of its options is invalid.
    """

    pads_left = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        encoding: TextEncoding | RegressionTransformerEncoding,
        vocabulary: NumberVocabulary,
        loss: LossSettings,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.encoding = encoding
        self.vocabulary = vocabulary
        self.objective = LanguageObjective(vocabulary, loss)
        self.answers = AnswerFormat(model, tokenizer)

    @property
    def number_format(self) -> NumberFormat | None:
        """See `Approach.number_format`."""
        return self.answers.number_format

    @property
    def ill_formed(self) -> int | None:
        """See `Approach.ill_formed`."""
        return getattr(self.encoding, "ill_formed", None)

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the number format, if answers are padded; see `Approach.fit`."""
        self.answers.fit(answers)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`; see `Approach.encode`."""
        labels = self.encoding.encode(self.answers.write(answers))
        return {"input_ids": self.prompts(questions), "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows into `input_ids`, `attention_mask` and `labels`; see `Approach.collate`."""
        labels = pad([row["labels"] for row in rows], IGNORE, left=self.pads_left)
        return {**self._pad([row["input_ids"] for row in rows]), "labels": labels}

    def count(self, batch: Batch) -> Tensor:
        """Count labels and number labels; see `Approach.count`."""
        return self.objective.count(batch["labels"])

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute the share, with the terms `ce` and `ntl`; see `Approach.loss`."""
        return self.objective.share(self.logits(model, batch), batch["labels"], counts)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute teacher-forced logits at the positions of `labels`, `[batch, seq, vocab]`."""
        # Without labels, the model skips its own loss, which would cost a pass over the logits.
        return model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(batch["labels"]),
            use_cache=False,
        ).logits

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions as the tokens that precede an answer, or that the encoder reads."""
        return self.encoding.encode(questions)

    def answer(self, model: nn.Module, questions: Sequence[str], generation: GenerationSettings) -> list[str]:
        """Answer the questions with beam search; see `Approach.answer`."""
        if not questions:
            return []
        batch = self._pad(self.prompts(questions))
        tokens = generate(self.model, model, batch, generation, self.answers.mask())
        return self.answers.read(self.encoding.decode(tokens.tolist()))

    def quantiles(
        self, model: nn.Module, questions: Sequence[str], levels: Sequence[float]
    ) -> NumberQuantiles:
        """Walk or search the digits for quantiles; see `Approach.quantiles`."""
        options = self.answers.quantile_options()
        batch = self._pad(self.prompts(questions))
        return read_quantiles(self.model, model, batch, self.vocabulary, levels, **options)

    def _pad(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return pad_questions(rows, self.tokenizer.pad_token_id, self.pads_left)


def build(
    model: ModelSettings,
    loss: LossSettings,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: PreTrainedConfig | None,
) -> LanguageModel:
    """Build the approach from the settings; see `build_approach`."""
    if model.encoding == "rt":
        encoding = RegressionTransformerEncoding(tokenizer)
        t5 = build_model(T5WithPlaces, model, tokenizer, checkpoint, first_id=encoding.first_id)
        vocabulary = NumberVocabulary.from_mapping(encoding.digits_of_ids, t5.config.vocab_size)
        return LanguageModel(t5, tokenizer, encoding, vocabulary, loss)
    t5 = build_model(T5ForConditionalGeneration, model, tokenizer, checkpoint)
    vocabulary = number_tokens(tokenizer, model.encoding == "digits", t5.config.vocab_size)
    return LanguageModel(t5, tokenizer, TextEncoding(tokenizer), vocabulary, loss)


def number_tokens(tokenizer: PreTrainedTokenizerFast, digits: bool, vocab_size: int) -> NumberVocabulary:
    """Find the number tokens that a tokenizer writes.

    Args:
        tokenizer: Any tokenizer.
        digits: Whether it encodes each digit as one token. Otherwise every token that is a number counts.
        vocab_size: Vocabulary size of the model.

    Returns:
        The number tokens.

    Raises:
        UserError: The tokenizer has no number tokens.
    """
    try:
        with warnings.catch_warnings():
            # A tokenizer that splits digits never writes the omitted tokens, such as `▁4` and `42`.
            warnings.simplefilter("ignore", NumberTokensLeftOut)
            return NumberVocabulary.from_tokenizer(
                tokenizer, digit_level=digits, space_prefixed=not digits, vocab_size=vocab_size
            )
    except ValueError as error:
        raise UserError(f"the tokenizer cannot be used with numbers: {error}") from error
