"""T5 as a language model: digits as tokens, the unchanged tokenizer, or tokens of digit and place."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DynamicCache,
    PreTrainedModel,
)

from ntl.encodings.digits import TextEncoding
from ntl.encodings.regression_transformer import RegressionTransformerEncoding, numerical_encodings
from ntl.errors import UserError
from ntl.models import AnsweringModel, Row
from ntl.models.answer_format import WrittenAnswers, start_ids
from ntl.models.source import ModelSource, build_model, cache_name, evaluation_mode
from ntl.own import load_own
from ntloss import NumberVocabulary
from ntloss.reading import NumberQuantiles, UnlikelyNumberWarning, number_quantiles

ENCODING_KEY = "model_args.number_encoding"
Past = DynamicCache | None
Texts = Sequence[str]


class PlacedEmbedding(nn.Embedding):
    """A model's token embeddings plus `numerical_encodings` of the 320 tokens of digit and place.

    Args:
        model: The model, whose `config.ntl` holds `first_id`, that of the first of these tokens, and
            `log_scale`. Its weights stay where they are.
    """

    encodings: Tensor  # `[321, width]`: a row of zeros for other tokens, then one row per token

    def __init__(self, model: PreTrainedModel):
        weight: Any = model.get_input_embeddings().weight
        size, width = weight.shape
        super().__init__(size, width, _weight=weight)
        self.weight, self.first_id = weight, model.config.ntl["first_id"]
        encodings = numerical_encodings(self.embedding_dim, model.config.ntl["log_scale"])
        self.register_buffer("encodings", F.pad(encodings, (0, 0, 1, 0)), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed token ids `[...]` as `[..., width]`."""
        row = input_ids - (self.first_id - 1)
        row = torch.where((row > 0) & (row < len(self.encodings)), row, 0)
        embedded = super().forward(input_ids)
        return embedded + F.embedding(row, self.encodings).to(embedded.dtype)


class LanguageModel(AnsweringModel):
    """A model that reads and writes text, here T5.

    Attributes:
        encoding: What turns texts into tokens and back; one that is not the tokenizer's own says in `numbers`
            which tokens write which digits or numbers.
        vocabulary: The number tokens.
        answer_format: What writes padded answers, or None.
        prompts: Encodes questions as the tokens that precede an answer, or that the encoder reads.
    """

    model_class: Any = AutoModelForSeq2SeqLM

    def __init__(self, source: ModelSource):
        self.tokenizer, kind = source.tokenizer, source.settings.encoding
        described = dict[str, Any]()
        if kind in ("digits", "auto"):
            self.encoding: Any = TextEncoding(self.tokenizer)
        elif kind == "rt":
            self.encoding = RegressionTransformerEncoding(self.tokenizer)
            described = {"first_id": self.encoding.first_id}
        else:
            self.encoding = load_own(ENCODING_KEY, kind)(self.tokenizer)
        self.model = build_model(self.model_class, source, **described)
        if kind == "rt":
            self.model.set_input_embeddings(PlacedEmbedding(self.model))
        size = self.model.config.vocab_size
        if (numbers := getattr(self.encoding, "numbers", None)) is not None:
            self.vocabulary = NumberVocabulary.from_mapping(numbers, size)
        else:
            named = "digits" if kind == "digits" else "numbers"
            try:
                found = NumberVocabulary.from_tokenizer(self.tokenizer, named, size)
            except ValueError as error:
                raise UserError(f"the tokenizer cannot be used with numbers: {error}") from error
            # A tokenizer that splits digits never writes `▁4`.
            kept = tuple(token for token in found.tokens if not (kind == "digits" and token.starts_number))
            self.vocabulary = replace(found, tokens=kept)
        self.number_ids = self.vocabulary.token_ids
        if source.settings.number_format == "padded":
            self.answer_format = WrittenAnswers(self.model, self.tokenizer, self.vocabulary)
        self.prompts: Callable[[Sequence[str]], list[list[int]]] = self.encoding.encode

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the number format, if answers are padded; see `AnsweringModel.fit`."""
        if self.answer_format is not None:
            self.answer_format.fit([*answers])

    def write(self, answers: Sequence[str]) -> list[str]:
        """Write answers for labels. Those of test sets that do not fit the format are left as they are."""
        if self.answer_format is None:
            return [*answers]
        return [self.answer_format.write(answer) or answer for answer in answers]

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`; see `AnsweringModel.encode`."""
        labels = self.encoding.encode(self.write(answers))
        return {"input_ids": self.encoding.encode(questions), "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad rows into `input_ids`, `attention_mask` and `labels`; see `AnsweringModel.collate`."""
        return {**DataCollatorForSeq2Seq(self.tokenizer)(rows)}

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
        batch = self._ask(questions)
        prompt = 1 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
        if (form := self.answer_format) is not None:  # such answers end by themselves
            mask = form.processor(prompt)
            options = {"max_new_tokens": mask.longest, "logits_processor": [mask]}
        if past is not None:
            options[cache_name(self.model)] = past
        with evaluation_mode(self.model):
            tokens = self.model.generate(**batch, **options, num_beams=beams, do_sample=False)
        texts: list[str] = self.encoding.decode(tokens[:, prompt:].tolist())
        return texts if form is None else form.read(texts)

    def quantiles(self, questions: Texts, levels: Sequence[float], past: Past = None) -> NumberQuantiles:
        """Find quantiles of the number that answers each question, digit by digit."""
        form, inputs = self.answer_format, self._ask(questions)
        numbers = None if form is None else form.form.numbers
        options: dict[str, Any] = {"format": numbers, "past_key_values": past}
        options["prefix_ids"] = start_ids(self.tokenizer, numbers)
        options["generator"] = torch.Generator().manual_seed(0)  # the same walks in every evaluation
        with evaluation_mode(self.model), warnings.catch_warnings():
            # `number_mass` reports it.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            try:
                read = number_quantiles(self.model, inputs, self.vocabulary, levels, **options)
            except (ValueError, TypeError) as error:
                reason = f"quantiles cannot be read from this model: {error}"
                wide = form is not None and not form.form.log
                scale = " For long numbers, pass model_args.number_scale=log (scale=log)." if wide else ""
                advice = f"{scale} Alternatively, pass evaluation.read=[greedy]."
                raise UserError(f"{reason.rstrip('.')}.{advice}") from error
        if form is None:
            return read
        ends = ("values", "lower", "upper")
        unscaled: dict[str, Any] = {name: form.unscaled(getattr(read, name)) for name in ends}
        return replace(read, **unscaled)

    def _ask(self, questions: Texts) -> dict[str, Tensor]:
        """Return the padded tokens of questions, on the model's device."""
        side = None if self.model.config.is_encoder_decoder else "left"
        rows = {"input_ids": self.prompts(questions)}
        found: Any = self.tokenizer.pad(
            rows, padding_side=side, return_attention_mask=True, return_tensors="pt"
        ).to(self.model.device)
        return {name: found[name] for name in ("input_ids", "attention_mask")}
