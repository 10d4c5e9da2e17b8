"""T5 or a decoder-only model with a regression head, which answers with a number instead of text.

xVal's number head, too, has these initial weights, and predicts numbers that are standardized by the training
answers. Their statistics are stored in `config.ntl`, so that they are saved with the model.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
    T5PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from ntl.data import format_number, single_number
from ntl.encodings.digits import TextEncoding
from ntl.encodings.number_values import LARGEST
from ntl.errors import UserError
from ntl.models.source import (
    AnsweringModel,
    ModelSource,
    Row,
    build_model,
    check_lengths,
    evaluation_mode,
    make_prompts,
)
from ntloss.writing import pad_left

READER = "a regression head", "choose another model"
NO_STATISTICS: dict[str, Any] = {"answer_mean": None, "answer_deviation": None}
"""Entries of `config.ntl` before training."""
HEAD_LOSSES: dict[str, Any] = {"squared": F.mse_loss, "absolute": F.l1_loss}


def init_weights(model: T5PreTrainedModel, module: nn.Module) -> None:
    """Initialize a module of a T5 model with a number head; serves as its `_init_weights`."""
    T5PreTrainedModel._init_weights(model, module)
    if isinstance(module, nn.Linear) and module.bias is not None:  # the head: T5's layers have no bias
        # transformers' default for T5 is far too large for numbers of mean 0 and standard deviation 1.
        init.normal_(module.weight, std=module.in_features**-0.5)


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
        encoding, self.decodes_only = TextEncoding(self.tokenizer), not source.config.is_encoder_decoder
        if self.decodes_only:
            self.prompts = make_prompts(source, encoding)
            source.config.update({"num_labels": 1, "pad_token_id": self.tokenizer.pad_token_id})
            self.model = build_model(AutoModelForSequenceClassification, source, ["score."], **NO_STATISTICS)
            self.head = self.model.score
            if self.model.config.ntl["answer_mean"] is None:  # untrained: it answers with the mean
                nn.init.zeros_(self.head.weight)
        else:
            self.prompts = encoding.encode
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


def fit(config: PreTrainedConfig, answers: Sequence[float]) -> None:
    """Store the statistics of the training answers, if there are any, in `config.ntl`, unless it has some."""
    if config.ntl["answer_mean"] is None:
        values = _scaled(torch.tensor(answers, dtype=torch.float64), config)
        mean = values.mean().item() if len(values) else 0.0
        deviation = values.std(correction=0).item() if len(values) else 1.0
        # A new dictionary, because copies of the configuration share the old one.
        config.ntl = {**config.ntl, "answer_mean": mean, "answer_deviation": deviation or 1.0}


def standardize(values: Tensor, config: PreTrainedConfig) -> Tensor:
    """Standardize numbers of any shape, float64, into float32 targets of the head."""
    mean, deviation = _statistics(config)
    return ((_scaled(values, config) - mean) / deviation).float()


def restore(predicted: Tensor, config: PreTrainedConfig) -> Tensor:
    """Convert predictions of the head, of any shape, NaN as 0, back to float32 numbers, clipped to ±10³⁰."""
    mean, deviation = _statistics(config)
    values = predicted.double().nan_to_num() * deviation + mean
    if config.ntl["log_scale"]:
        values = values.sign() * values.abs().clamp(max=70).expm1()
    return values.clamp(-LARGEST, LARGEST).float()


def _scaled(values: Tensor, config: PreTrainedConfig) -> Tensor:
    values = values.clamp(-LARGEST, LARGEST)
    return values.sign() * values.abs().log1p() if config.ntl["log_scale"] else values


def _statistics(config: PreTrainedConfig) -> tuple[float, float]:
    """Return the mean and the deviation of the training answers; a UserError says if there are none."""
    mean, deviation = config.ntl["answer_mean"], config.ntl["answer_deviation"]
    if mean is None:
        raise UserError(
            "the number head of this model is untrained: it has no statistics of training answers; "
            "expected a model trained with these model_args. Train it first, or choose another one."
        )
    return mean, deviation
