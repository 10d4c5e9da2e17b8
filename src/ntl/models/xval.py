"""xVal on T5: one `[NUM]` token scaled by the value, and a number head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, T5Config, T5ForConditionalGeneration
from transformers.utils.generic import ModelOutput

from ntl.encodings.number_values import XvalEncoding, embedding_scale, find_values
from ntl.models import IGNORE, Row
from ntl.models.source import ModelSource, build_model, cache_name, evaluation_mode
from ntl.models.standardize import NO_STATISTICS, fit, init_weights, restore, standardize


@dataclass
class XvalOutput(ModelOutput):
    """Output of `T5ForXval`."""

    loss: Tensor | None = None  # with labels
    logits: Tensor | None = None  # [batch, seq, vocab]
    errors: Tensor | None = None  # [batch, seq], squared, of standardized numbers; 0 elsewhere; with labels
    numbers: Tensor | None = None  # [batch, seq], standardized, float32; used at `[NUM]`
    encoded: Tensor | None = None  # [batch, question, width]
    cache: Cache | None = None  # for the next step


class T5ForXval(T5ForConditionalGeneration):
    """T5 that multiplies the embedding of `[NUM]` by a value, and predicts a number with each token.

    The `ntl` of its configuration holds `number_id` and `log_scale`.

    Attributes:
        label_smoothing: Of the cross-entropy, in training.
    """

    accepts_loss_kwargs = True  # so that a Trainer passes `num_items_in_batch`
    label_smoothing = 0.0

    def __init__(self, config: T5Config):
        super().__init__(config)
        self.cache_name = cache_name(self.decoder)
        self.number_head = nn.Sequential(
            nn.Linear(config.d_model, config.d_model), nn.GELU(), nn.Linear(config.d_model, 1)
        )
        self.post_init()

    _init_weights = init_weights

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        numbers: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_numbers: Tensor | None = None,
        encoded: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool = False,
        labels: Tensor | None = None,
        label_numbers: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        numbers_in_batch: Tensor | None = None,
    ) -> XvalOutput:
        """Predict tokens and numbers and, with labels, compute the loss.

        It is (cross-entropy + standardized squared error at `[NUM]`) / 2, each a mean over the whole update.

        Args:
            input_ids: Token ids of the questions, `[batch, question]`; not needed with `encoded`.
            attention_mask: Mask with 0 at padding, `[batch, question]`.
            numbers: Values at `[NUM]`, `[batch, question]`, float64; not needed with `encoded`.
            decoder_input_ids: Token ids of the answers, `[batch, seq]`; their values are `decoder_numbers`.
            encoded: Encoder states from an earlier step, with its `cache`.
            labels: Token ids of the answers, `[batch, seq]`, -100 at padding; with values `label_numbers`.
            num_items_in_batch, numbers_in_batch: Labels and `[NUM]` of the update. Default: of this batch.
        """
        if labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            assert label_numbers is not None  # given with the labels
            decoder_numbers = F.pad(label_numbers[:, :-1], (1, 0))
        if encoded is None:
            encoded = self.encoder(
                inputs_embeds=self._embed(input_ids, numbers), attention_mask=attention_mask
            ).last_hidden_state
        decoded = self.decoder(
            inputs_embeds=self._embed(decoder_input_ids, decoder_numbers),
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            **{self.cache_name: cache},
            use_cache=use_cache,
        )
        states = decoded.last_hidden_state
        scale = self.model_dim**-0.5 if self.config.scale_decoder_outputs else 1.0
        # bfloat16 would keep only three digits of a number.
        with torch.autocast(states.device.type, enabled=False):
            predicted = self.number_head(states.to(self.number_head[0].weight.dtype)).squeeze(-1).float()
        logits = self.lm_head(states * scale)
        loss = errors = None
        if labels is not None:
            assert label_numbers is not None
            is_number = labels == self.config.ntl["number_id"]
            items = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
            count = is_number.sum() if numbers_in_batch is None else numbers_in_batch
            ce = F.cross_entropy(
                logits.flatten(0, 1).float(),
                labels.flatten(),
                ignore_index=IGNORE,
                label_smoothing=self.label_smoothing if self.training else 0.0,
                reduction="sum",
            )
            errors = (predicted - standardize(label_numbers, self.config)).square()
            errors = torch.where(is_number, errors, 0)
            loss = (ce / items + errors.sum() / count.clamp(min=1)) / 2
        return XvalOutput(loss, logits, errors, predicted, encoded, getattr(decoded, self.cache_name))

    def _embed(self, input_ids: Tensor | None, numbers: Tensor | None) -> Tensor:
        assert input_ids is not None  # the caller gives them, unless `encoded` or `labels` replaces them
        assert numbers is not None
        embedded = self.shared(input_ids)
        scale = embedding_scale(numbers, self.config.ntl["log_scale"]).to(embedded.dtype)
        is_number = input_ids == self.config.ntl["number_id"]
        return embedded * torch.where(is_number, scale, 1).unsqueeze(-1)


class Xval:
    """T5 that reads and writes numbers as values; implements `ntl.models.AnsweringModel`."""

    frozen = lora = None

    def __init__(self, source: ModelSource):
        self.tokenizer = source.tokenizer
        self.encoding = XvalEncoding(self.tokenizer)
        self.number_ids = [self.encoding.number_id]
        own = {"number_id": self.encoding.number_id, **NO_STATISTICS}
        self.model = build_model(T5ForXval, source, new=["number_head."], **own)

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the numbers in the training answers; see `AnsweringModel.fit`."""
        fit(self.model.config, [value for answer in answers for value in find_values(answer)])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids`, `numbers`, `labels`, `label_numbers`; see `AnsweringModel.encode`."""
        (input_ids, numbers), (labels, label_numbers) = map(self.encoding.encode, (questions, answers))
        return {"input_ids": input_ids, "numbers": numbers, "labels": labels, "label_numbers": label_numbers}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad each column of the rows to `[batch, seq]`; see `AnsweringModel.collate`."""
        return {
            **self._questions([row["input_ids"] for row in rows], [row["numbers"] for row in rows]),
            "labels": pad_sequence([torch.tensor(row["labels"]) for row in rows], True, IGNORE),
            "label_numbers": _pad_values([row["label_numbers"] for row in rows]),
        }

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer greedily, feeding each predicted number to the next step; see `AnsweringModel.answer`."""
        if not questions:
            return []
        batch = self._questions(*self.encoding.encode(questions))
        with evaluation_mode(self.model):
            rows, values = _generate(
                self.model,
                {key: value.to(self.model.device) for key, value in batch.items()},
                max_new_tokens,
            )
        return self.encoding.decode(rows.tolist(), values.cpu().numpy())

    def _questions(self, ids: list[list[int]], numbers: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        padded = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        return {**padded, "numbers": _pad_values(numbers)}


def _pad_values(rows: Sequence[Sequence[float]]) -> Tensor:
    """Pad rows of values with 0, `[rows, longest]`, float64."""
    return pad_sequence([torch.tensor(row, dtype=torch.float64) for row in rows], True)


def _generate(model: T5ForXval, questions: dict[str, Tensor], max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """Decode greedily, given `input_ids`, `attention_mask` and `numbers` of the questions.

    Returns:
        ids: Token ids `[batch, seq]`, padded after the end token.
        values: Predicted numbers `[batch, seq]`, float32.
    """
    config = model.config
    count = len(questions["input_ids"])
    token = questions["input_ids"].new_full((count, 1), config.decoder_start_token_id)
    value = questions["numbers"].new_zeros(count, 1)
    ended = torch.zeros_like(token, dtype=torch.bool)
    tokens, values = [], []
    inputs: dict[str, Any] = dict(questions)
    for _ in range(max_new_tokens):
        output = model(**inputs, decoder_input_ids=token, decoder_numbers=value, use_cache=True)
        token = output.logits[:, -1:].argmax(-1).masked_fill(ended, config.pad_token_id)
        written = restore(output.numbers[:, -1:], config)
        tokens.append(token)
        values.append(written)
        ended = ended | (token == config.eos_token_id)
        if bool(ended.all()):
            break
        value = written.double()
        inputs = {
            "attention_mask": questions["attention_mask"],
            "encoded": output.encoded,
            "cache": output.cache,
        }
    return torch.cat(tokens, 1), torch.cat(values, 1)
