"""xVal on T5: one `[NUM]` token scaled by the value, and a number head."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import Cache, T5Config, T5ForConditionalGeneration

from ntl.approaches import IGNORE, Batch, ModelSource, Row, Share
from ntl.approaches.batches import generation_mode, pad, pad_questions, plain_cross_entropy
from ntl.approaches.pretrained import build_model
from ntl.approaches.standardize import NO_STATISTICS, fit, init_weights, restore, standardize
from ntl.config import Evaluation, LossSettings
from ntl.encodings.number_values import XvalEncoding, embedding_scale, find_values


class XvalOutput(NamedTuple):
    """Output of `T5ForXval`."""

    logits: Tensor  # [batch, seq, vocab]
    numbers: Tensor  # [batch, seq], standardized, float32; used at `[NUM]`
    encoded: Tensor  # [batch, question, width]
    past_key_values: Cache | None  # for the next step


class T5ForXval(T5ForConditionalGeneration):
    """T5 that multiplies the embedding of `[NUM]` by a value, and predicts a number with each token.

    The `ntl` of its configuration holds `number_id` and `log_scale`.
    """

    def __init__(self, config: T5Config):
        super().__init__(config)
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
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> XvalOutput:
        """Predict tokens and numbers.

        Args:
            input_ids: Token ids of the questions, `[batch, question]`; not needed with `encoded`.
            attention_mask: Mask with 0 at padding, `[batch, question]`.
            numbers: Values at `[NUM]`, `[batch, question]`, float64; not needed with `encoded`.
            decoder_input_ids: Token ids of the answers, `[batch, seq]`; their values are `decoder_numbers`.
            encoded: Encoder states from an earlier step, with its `past_key_values`.
        """
        if encoded is None:
            encoded = self.encoder(
                inputs_embeds=self._embed(input_ids, numbers), attention_mask=attention_mask
            ).last_hidden_state
        decoded = self.decoder(
            inputs_embeds=self._embed(decoder_input_ids, decoder_numbers),
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        states = decoded.last_hidden_state
        scale = self.model_dim**-0.5 if self.config.scale_decoder_outputs else 1.0
        # bfloat16 would keep only three digits of a number.
        with torch.autocast(states.device.type, enabled=False):
            predicted = self.number_head(states.to(self.number_head[0].weight.dtype)).squeeze(-1).float()
        return XvalOutput(self.lm_head(states * scale), predicted, encoded, decoded.past_key_values)

    def _embed(self, input_ids: Tensor, numbers: Tensor) -> Tensor:
        embedded = self.shared(input_ids)
        scale = embedding_scale(numbers, self.config.ntl["log_scale"]).to(embedded.dtype)
        is_number = input_ids == self.config.ntl["number_id"]
        return embedded * torch.where(is_number, scale, 1).unsqueeze(-1)


class Xval:
    """T5 that reads and writes numbers as values; implements `ntl.approaches.Approach`."""

    ill_formed = number_format = head = frozen = lora = None

    def __init__(self, source: ModelSource, loss: LossSettings):
        self.tokenizer = source.tokenizer
        self.encoding = XvalEncoding(self.tokenizer)
        own = {"number_id": self.encoding.number_id, **NO_STATISTICS}
        self.model = build_model(T5ForXval, source, new=["number_head."], **own)
        self.label_smoothing = loss.label_smoothing

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the numbers in the training answers; see `Approach.fit`."""
        fit(self.model.config, [value for answer in answers for value in find_values(answer)])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids`, `numbers`, `labels`, `label_numbers`; see `Approach.encode`."""
        (input_ids, numbers), (labels, label_numbers) = map(self.encoding.encode, (questions, answers))
        return {"input_ids": input_ids, "numbers": numbers, "labels": labels, "label_numbers": label_numbers}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad each column of the rows to `[batch, seq]`; see `Approach.collate`."""
        return {
            **self._questions([row["input_ids"] for row in rows], [row["numbers"] for row in rows]),
            "labels": pad([row["labels"] for row in rows], IGNORE),
            "label_numbers": pad([row["label_numbers"] for row in rows], 0.0, dtype=torch.float64),
        }

    def count(self, batch: Batch) -> Tensor:
        """Count labels and numbers; see `Approach.count`."""
        labels = batch["labels"]
        return torch.stack([(labels != IGNORE).sum(), (labels == self.encoding.number_id).sum()]).double()

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute the share of (ce + number)/2, the mean of cross-entropy and standardized squared error.

        In evaluation, the term `ce` has no label smoothing.
        """
        labels, numbers = batch["labels"], batch["label_numbers"]
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            numbers=batch["numbers"],
            decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(labels),
            decoder_numbers=F.pad(numbers[:, :-1], (1, 0)),
        )
        per_item, per_number = 1 / counts.clamp(min=1).float()
        ce = F.cross_entropy(
            output.logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        error = (output.numbers - standardize(numbers, self.model.config)).square()
        number = torch.where(labels == self.encoding.number_id, error, 0).sum()
        ce, number = ce * per_item, number * per_number
        loss = (ce + number) / 2
        if self.label_smoothing and not torch.is_grad_enabled():
            ce = plain_cross_entropy(output.logits, labels) * per_item
        return Share(loss, {"ce": ce.detach(), "number": number.detach()})

    def answer(self, model: nn.Module, questions: Sequence[str], generation: Evaluation) -> list[str]:
        """Answer greedily, feeding each predicted number to the next step; see `Approach.answer`."""
        if not questions:
            return []
        batch = self._questions(*self.encoding.encode(questions))
        with generation_mode(self.model, model) as unwrapped:
            rows, values = _generate(
                unwrapped,
                {key: value.to(unwrapped.device) for key, value in batch.items()},
                generation.max_new_tokens,
            )
        return self.encoding.decode(rows.tolist(), values.cpu().numpy())

    def _questions(
        self, ids: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]]
    ) -> dict[str, Tensor]:
        padded = pad_questions(ids, self.tokenizer.pad_token_id)
        return {**padded, "numbers": pad(numbers, 0.0, dtype=torch.float64)}


def _generate(model: T5ForXval, questions: dict[str, Tensor], max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """Decode greedily, given `input_ids`, `attention_mask` and `numbers` of the questions.

    Returns:
        ids: Token ids `[batch, seq]`, padded after the end token.
        values: Predicted numbers `[batch, seq]`, float32.
    """
    config = model.config
    # Every forward pass gathers sharded parameters, so all ranks must run the same number of passes.
    may_stop = not isinstance(model, FSDPModule)
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
        if may_stop and bool(ended.all()):
            break
        value = written.double()
        inputs = {
            "attention_mask": questions["attention_mask"],
            "encoded": output.encoded,
            "past_key_values": output.past_key_values,
        }
    return torch.cat(tokens, 1), torch.cat(values, 1)
