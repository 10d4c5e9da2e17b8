"""T5 with a regression head, which answers with a number instead of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration, T5Model, T5PreTrainedModel

from ntl.approaches import Batch, ModelSource, Row, Share
from ntl.approaches.batches import generation_mode, pad_questions
from ntl.approaches.pretrained import build_model
from ntl.approaches.standardize import NO_STATISTICS, fit, init_weights, restore, standardize
from ntl.config.settings import GenerationSettings, LossSettings
from ntl.data import format_number
from ntl.encodings.digits import TextEncoding
from ntl.errors import not_a_number
from ntloss.numbers.parsing import parse_number


class T5ForRegression(T5PreTrainedModel):
    """T5 whose decoder reads only its start token; a linear layer maps its state to the number.

    In transformers' `T5ForSequenceClassification`, the decoder reads the whole question again, which costs as
    much as the encoder and adds no information.
    """

    def __init__(self, config: T5Config):
        super().__init__(config)
        self.transformer = T5Model(config)
        self.head = nn.Linear(config.d_model, 1)
        self.post_init()

    _init_weights = init_weights

    @classmethod
    def from_config(cls, config: T5Config) -> T5ForRegression:
        """Build the model.

        Its encoder and decoder are those of a language model built from the same random state.
        """
        body = T5ForConditionalGeneration(config).state_dict()
        model = cls(config)
        model.transformer.load_state_dict({k: v for k, v in body.items() if k != "lm_head.weight"})
        return model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Predict the standardized answer.

        Args:
            input_ids: Token ids of the questions, `[batch, seq]`.
            attention_mask: Mask with 0 at padding, `[batch, seq]`.

        Returns:
            Standardized answers `[batch]`, float32; see `ntl.approaches.standardize`.
        """
        start = input_ids.new_full((len(input_ids), 1), self.config.decoder_start_token_id)
        states = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=start, use_cache=False
        ).last_hidden_state
        # bfloat16 would keep only three digits of the answer.
        with torch.autocast(states.device.type, enabled=False):
            return self.head(states[:, 0].to(self.head.weight.dtype)).squeeze(-1).float()


class RegressionHead:
    """T5 that reads text and answers with one number; implements `ntl.approaches.Approach`."""

    ill_formed = None
    number_format = None

    def __init__(self, source: ModelSource, loss: LossSettings):
        self.model = build_model(T5ForRegression, source, new=["head."], **NO_STATISTICS)
        self.tokenizer = source.tokenizer
        self.encoding = TextEncoding(self.tokenizer)

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the training answers; see `Approach.fit`.

        Raises:
            UserError: An answer is not a number.
        """
        fit(self.model.config, [_number(answer) for answer in answers])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`, the answers' numbers; see `Approach.encode`."""
        return {
            "input_ids": self.encoding.encode(questions),
            "labels": [_number(answer) for answer in answers],
        }

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows into `input_ids`, `attention_mask` and `labels` `[batch]`; see `Approach.collate`."""
        questions = pad_questions([row["input_ids"] for row in rows], self.tokenizer.pad_token_id)
        return {**questions, "labels": torch.tensor([row["labels"] for row in rows], dtype=torch.float64)}

    def count(self, batch: Batch) -> Tensor:
        """Count answers; see `Approach.count`."""
        labels = batch["labels"]
        return torch.tensor([len(labels)], dtype=torch.float64, device=labels.device)

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute the share of the mean squared error of the standardized answers, the term `number`."""
        predicted = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        target = standardize(batch["labels"], self.model.config)
        error = F.mse_loss(predicted, target, reduction="sum") / counts[0].clamp(min=1).to(predicted.dtype)
        return Share(error, {"number": error.detach()})

    def answer(self, model: nn.Module, questions: Sequence[str], generation: GenerationSettings) -> list[str]:
        """Answer with numbers, formatted as text; see `Approach.answer`.

        Raises:
            UserError: The model has no statistics of training answers.
        """
        if not questions:
            return []
        batch = pad_questions(self.encoding.encode(questions), self.tokenizer.pad_token_id)
        with generation_mode(self.model, model) as unwrapped:
            predicted = unwrapped(**{key: value.to(unwrapped.device) for key, value in batch.items()})
            numbers = restore(predicted, unwrapped.config)
        return [format_number(number) for number in numbers.cpu().numpy()]


def _number(answer: str) -> float:
    """Parse an answer; a UserError quotes one that is not a single number."""
    number = parse_number(answer, "whole")
    if number is None:
        raise not_a_number(answer, "a regression head", "choose another model")
    return number
