"""T5 as a language model: digits as tokens, the unchanged tokenizer, or tokens of digit and place."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from ntl.encodings.digits import TextEncoding
from ntl.encodings.regression_transformer import RegressionTransformerEncoding, numerical_encodings
from ntl.errors import UserError
from ntl.models import IGNORE, Row
from ntl.models.answer_format import WrittenAnswers
from ntl.models.batches import cache_name, evaluation_mode, pad, pad_questions
from ntl.models.prompts import Prompts
from ntl.models.source import ModelSource, build_model
from ntl.own import load_own
from ntloss import NumberVocabulary
from ntloss.reading import NumberQuantiles, UnlikelyNumberWarning, number_quantiles

ENCODING_KEY = "model_args.number_encoding"
Past = DynamicCache | None
Texts = Sequence[str]


class PlacedEmbedding(nn.Embedding):
    """Token embeddings plus `numerical_encodings` of the 320 tokens of digit and place, from `first_id`."""

    encodings: Tensor

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

    The `ntl` of its configuration holds `first_id` and `log_scale`.
    """

    def __init__(self, config: T5Config):
        super().__init__(config)
        self._replace_embeddings()
        self.post_init()

    def set_input_embeddings(self, new_embeddings: Any) -> None:
        """Replace the embeddings, whose size may differ."""
        self.shared = new_embeddings
        self._replace_embeddings()
        self.tie_weights()

    def _replace_embeddings(self) -> None:
        size, width = self.shared.weight.shape
        first_id, log_scale = self.config.ntl["first_id"], self.config.ntl["log_scale"]
        for stack in (self.encoder, self.decoder):
            stack.embed_tokens = PlacedEmbedding(size, width, first_id, log_scale)

    def initialize_weights(self) -> None:
        """Initialize the fixed tables too: checkpoints omit them, and loading leaves them empty."""
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, PlacedEmbedding):
                module.encodings.copy_(module.make_encodings())


class LanguageModel:
    """T5 that reads and writes text; implements `ntl.models.AnsweringModel`.

    Attributes:
        encoding: What turns texts into tokens and back; one that is not the tokenizer's own says in `numbers`
            which tokens write which digits or numbers.
        vocabulary: The number tokens.
        answer_format: How answers are written.
        cache_name: What the model calls its cache; empty without one.
        prompts: Encodes questions as the tokens that precede an answer, or that the encoder reads.
    """

    frozen = lora = None
    pads_left = False
    model_class: Any = AutoModelForSeq2SeqLM

    def __init__(self, source: ModelSource):
        self.tokenizer, kind = source.tokenizer, source.settings.encoding
        model_class, described = self.model_class, dict[str, Any]()
        if kind in ("digits", "auto"):
            self.encoding: Any = TextEncoding(self.tokenizer)
        elif kind == "rt":
            self.encoding = RegressionTransformerEncoding(self.tokenizer)
            model_class, described = T5WithPlaces, {"first_id": self.encoding.first_id}
        else:
            self.encoding = load_own(ENCODING_KEY, kind)(self.tokenizer)
        self.model = build_model(model_class, source, **described)
        size = self.model.config.vocab_size
        if (numbers := getattr(self.encoding, "numbers", None)) is not None:
            self.vocabulary = NumberVocabulary.from_mapping(numbers, size)
        else:
            self.vocabulary = number_tokens(self.tokenizer, kind == "digits", size)
        self.number_ids = self.vocabulary.token_ids
        self.cache_name = cache_name(self.model)
        self.answer_format = WrittenAnswers(self.model, self.tokenizer, self.vocabulary)
        self.prompts: Prompts = self.encoding.encode

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the number format, if answers are padded; see `AnsweringModel.fit`."""
        self.answer_format.fit(answers)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`; see `AnsweringModel.encode`."""
        labels = self.encoding.encode(self.answer_format.write(answers))
        return {"input_ids": self.encoding.encode(questions), "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows into `input_ids`, `attention_mask` and `labels`; see `AnsweringModel.collate`."""
        labels = pad([row["labels"] for row in rows], IGNORE, left=self.pads_left)
        return {**self._pad([row["input_ids"] for row in rows]), "labels": labels}

    def read(
        self, questions: Texts, beams: int, max_new_tokens: int, levels: Sequence[float]
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer the questions as `answer` does, and find quantiles as `quantiles` does."""
        answers = self.answer(questions, beams, max_new_tokens)
        return answers, self.quantiles(questions, levels)

    def answer(self, questions: Texts, beams: int, max_new_tokens: int, past: Past = None) -> list[str]:
        """Answer the questions with beam search; see `AnsweringModel.answer`."""
        if not questions:
            return []
        batch = self._pad(self.prompts(questions))
        prompt = 1 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
        if (mask := self.answer_format.processor(prompt)) is not None:  # such answers end by themselves
            options = {"max_new_tokens": mask.longest, "logits_processor": [mask]}
        if past is not None:
            options[self.cache_name] = past
        with evaluation_mode(self.model):
            tokens = self.model.generate(
                **{key: value.to(self.model.device) for key, value in batch.items()},
                **options,
                num_beams=beams,
                do_sample=False,
            )
        return self.answer_format.read(self.encoding.decode(tokens[:, prompt:].tolist()))

    def quantiles(self, questions: Texts, levels: Sequence[float], past: Past = None) -> NumberQuantiles:
        """Find quantiles of the number that answers each question, digit by digit."""
        options = {**self.answer_format.quantile_options(), "past_key_values": past}
        batch = self._pad(self.prompts(questions))
        inputs = {key: value.to(self.model.device) for key, value in batch.items()}
        with evaluation_mode(self.model), warnings.catch_warnings():
            # `number_mass` reports it.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            try:
                read = number_quantiles(self.model, inputs, self.vocabulary, levels, **options)
            except (ValueError, TypeError) as error:
                reason = f"quantiles cannot be read from this model: {error}"
                form = self.answer_format.form
                wide = form is not None and not form.log
                scale = " For long numbers, pass model_args.number_scale=log (scale=log)." if wide else ""
                advice = f"{scale} Alternatively, pass evaluation.read=[greedy]."
                raise UserError(f"{reason.rstrip('.')}.{advice}") from error
        ends = ("values", "lower", "upper")
        unscaled: dict[str, Any] = {name: self.answer_format.unscaled(getattr(read, name)) for name in ends}
        return replace(read, **unscaled)

    def _pad(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return pad_questions(rows, self.tokenizer.pad_token_id, self.pads_left)


def number_tokens(tokenizer: PreTrainedTokenizerFast, digits: bool, vocab_size: int) -> NumberVocabulary:
    """Find the number tokens that a tokenizer writes: digits or, if it does not split them, all numbers."""
    try:
        found = NumberVocabulary.from_tokenizer(tokenizer, "digits" if digits else "numbers", vocab_size)
    except ValueError as error:
        raise UserError(f"the tokenizer cannot be used with numbers: {error}") from error
    # A tokenizer that splits digits never writes `▁4`.
    kept = tuple(token for token in found.tokens if not (digits and token.starts_number))
    return replace(found, tokens=kept)
