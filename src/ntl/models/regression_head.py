"""T5 or a decoder-only model with a regression head, which answers with a number instead of text."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
    T5PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from ntl.data import format_number, single_number
from ntl.encodings.digits import TextEncoding
from ntl.models.source import (
    AnsweringModel,
    ModelSource,
    Row,
    build_model,
    check_lengths,
    evaluation_mode,
    make_prompts,
)
from ntl.models.standardize import NO_STATISTICS, fit, init_weights, restore, standardize
from ntloss.writing import pad_left

READER = "a regression head", "choose another model"
HEAD_LOSSES: dict[str, Any] = {"squared": F.mse_loss, "absolute": F.l1_loss}


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
    def from_config(cls, config: T5Config) -> "T5ForRegression":
        """Build the model with the body of a language model that is built from the same random state."""
        body = T5ForConditionalGeneration(config).state_dict()
        model = cls(config)
        model.transformer.load_state_dict({k: v for k, v in body.items() if k != "lm_head.weight"})
        return model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        """Predict standardized answers, logits `[batch, 1]`, float32, of questions `[batch, seq]`."""
        start = input_ids.new_full((len(input_ids), 1), self.config.decoder_start_token_id)
        states = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=start, use_cache=False
        ).last_hidden_state
        # bfloat16 would keep only three digits of the answer.
        with torch.autocast(states.device.type, enabled=False):
            logits = self.head(states[:, 0].to(self.head.weight.dtype)).float()
        return SequenceClassifierOutput(logits=logits)


class RegressionHead(AnsweringModel):
    """A model that reads text and answers with one number.

    A decoder-only model is transformers' own classifier of sequences, which reads the prompt's last token.
    """

    def __init__(self, source: ModelSource):
        self.tokenizer, self.head_loss = source.tokenizer, HEAD_LOSSES[source.settings.head_loss]
        self.prompts = make_prompts(source, TextEncoding(self.tokenizer))
        self.decodes_only = not source.config.is_encoder_decoder
        if self.decodes_only:
            source.config.update({"num_labels": 1, "pad_token_id": self.tokenizer.pad_token_id})
            self.model = build_model(AutoModelForSequenceClassification, source, ["score."], **NO_STATISTICS)
            self.head = self.model.score
            if self.model.config.ntl["answer_mean"] is None:  # untrained: it answers with the mean
                nn.init.zeros_(self.head.weight)
        else:
            self.model = build_model(T5ForRegression, source, ["head."], **NO_STATISTICS)
            self.head = self.model.head

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the training answers; see `AnsweringModel.fit`."""
        fit(self.model.config, [single_number(answer, *READER) for answer in answers])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`, the answers' numbers; see `AnsweringModel.encode`."""
        rows = self.prompts(questions)
        check_lengths(rows, self.model)
        return {"input_ids": rows, "labels": [single_number(answer, *READER) for answer in answers]}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad rows into the inputs and `labels` `[batch]`, standardized; see `AnsweringModel.collate`."""
        labels = torch.tensor([row["labels"] for row in rows], dtype=torch.float64)
        return {**self._pad(rows), "labels": standardize(labels, self.model.config)}

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        """Compute the mean error of standardized answers, as a Trainer's `compute_loss_func`.

        Args:
            outputs: The model's, with logits `[batch, 1]`.
            labels: Standardized answers, `[batch]`.
            num_items_in_batch: Answers of the whole update. Default: those of this batch.
        """
        error = self.head_loss(outputs.logits.squeeze(-1).float(), labels, reduction="sum")
        return error / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer with numbers, formatted as text; see `AnsweringModel.answer`."""
        if not questions:
            return []
        batch = self._pad([{"input_ids": prompt} for prompt in self.prompts(questions)])
        with evaluation_mode(self.model):
            inputs = {name: x.to(self.model.device) for name, x in batch.items()}
            numbers = restore(self.model(**inputs).logits.squeeze(-1).float(), self.model.config)
        return [format_number(number) for number in numbers.cpu().numpy()]

    def _pad(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return the model's arguments."""
        if self.decodes_only:
            return pad_left(self.model, rows, self.tokenizer.pad_token_id)
        return {**self.tokenizer.pad({"input_ids": [row["input_ids"] for row in rows]}, return_tensors="pt")}
