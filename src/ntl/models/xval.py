"""xVal: one `[NUM]` token scaled by the value, and a number head, on T5 or a decoder-only model."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, Cache, PreTrainedConfig, T5ForConditionalGeneration
from transformers.utils.generic import ModelOutput

from ntl.encodings.number_values import XvalEncoding, embedding_scale, find_values
from ntl.models.regression_head import NO_STATISTICS, fit, init_weights, restore, standardize
from ntl.models.source import (
    IGNORE,
    AnsweringModel,
    ModelSource,
    Row,
    build_model,
    check_lengths,
    evaluation_mode,
    make_prompts,
)


@dataclass
class XvalOutput(ModelOutput):
    """Output of xVal's models."""

    loss: Tensor | None = None  # with labels
    logits: Tensor | None = None  # [batch, seq, vocab]
    errors: Tensor | None = None  # [batch, labels], squared, of standardized numbers; 0 elsewhere
    numbers: Tensor | None = None  # [batch, seq], standardized, float32; used at `[NUM]`
    encoded: Tensor | None = None  # [batch, question, width]
    cache: Cache | None = None  # for the next step


class NumberTokens:
    """What xVal adds to a language model: `[NUM]` is scaled by a value, and each token predicts a number.

    The `ntl` of its configuration holds `number_id` and `log_scale`.

    Attributes:
        label_smoothing: Of the cross-entropy, in training.
    """

    accepts_loss_kwargs = True  # so that a Trainer passes `num_items_in_batch`
    label_smoothing = 0.0

    def __init__(self: Any, config: PreTrainedConfig):
        super().__init__(config)  # type: ignore[call-arg]  # of the language model
        width = config.hidden_size
        self.number_head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        self.post_init()

    def embed(self: Any, input_ids: Any, numbers: Any) -> Tensor:
        """Embed token ids and values, `[batch, seq]`, as `[batch, seq, width]`."""
        embedded: Tensor = self.get_input_embeddings()(input_ids)
        scale = embedding_scale(numbers, self.config.ntl["log_scale"]).to(embedded.dtype)
        is_number = input_ids == self.config.ntl["number_id"]
        return embedded * torch.where(is_number, scale, 1).unsqueeze(-1)

    def finish(
        self: Any,
        logits: Tensor,
        states: Tensor,
        labels: Tensor | None,
        values: Any,
        items: Tensor | None,
        count: Tensor | None,
    ) -> XvalOutput:
        """Predict standardized numbers and, with labels, compute the loss and the numbers' squared errors.

        The loss is (cross-entropy + squared error at `[NUM]`) / 2, each a mean over the whole update.

        Args:
            logits, states: Output of the language model, `[batch, seq, vocab]` and `[batch, seq, width]`. A
                decoder-only model predicts the next labels.
            labels: Token ids, `[batch, seq]`, -100 where nothing is learned.
            values: Values at `[NUM]`, `[batch, seq]`, float64; given with the labels.
            items, count: Labels and `[NUM]` of the update. None: of this batch.
        """
        # bfloat16 would keep only three digits of a number.
        with torch.autocast(states.device.type, enabled=False):
            numbers = self.number_head(states.to(self.number_head[0].weight.dtype)).squeeze(-1).float()
        if labels is None:
            return XvalOutput(logits=logits, numbers=numbers)
        ahead, predicted = logits, numbers
        if not self.config.is_encoder_decoder:
            ahead, predicted, labels, values = logits[:, :-1], numbers[:, :-1], labels[:, 1:], values[:, 1:]
        is_number = labels == self.config.ntl["number_id"]
        items = (labels != IGNORE).sum() if items is None else items
        count = is_number.sum() if count is None else count
        ce = F.cross_entropy(
            ahead.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.label_smoothing if self.training else 0.0,
            reduction="sum",
        )
        errors = torch.where(is_number, (predicted - standardize(values, self.config)).square(), 0)
        return XvalOutput((ce / items + errors.sum() / count.clamp(min=1)) / 2, logits, errors, numbers)


class T5ForXval(NumberTokens, T5ForConditionalGeneration):
    """T5 that reads and predicts numbers."""

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
        label_numbers: Any = None,
        num_items_in_batch: Tensor | None = None,
        numbers_in_batch: Tensor | None = None,
    ) -> XvalOutput:
        """Predict tokens and numbers and, with labels, compute the loss, see `NumberTokens.finish`.

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
            decoder_numbers = F.pad(label_numbers[:, :-1], (1, 0))
        output = super().forward(
            inputs_embeds=self.embed(input_ids, numbers) if encoded is None else None,
            encoder_outputs=None if encoded is None else (encoded,),
            attention_mask=attention_mask,
            decoder_inputs_embeds=self.embed(decoder_input_ids, decoder_numbers),
            past_key_values=cache,
            use_cache=use_cache,
            output_hidden_states=True,
        )
        counts, states = (num_items_in_batch, numbers_in_batch), output.decoder_hidden_states[-1]
        found = self.finish(output.logits, states, labels, label_numbers, *counts)
        found.encoded, found.cache = output.encoder_last_hidden_state, output.past_key_values
        return found


@cache
def causal_model(config_class: Any) -> Any:
    """Make the class of decoder-only models of a kind, such as Llama, that read and predict numbers."""
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]

    class CausalForXval(NumberTokens, kind):
        """A decoder-only model that reads and predicts numbers."""

        def forward(
            self,
            input_ids: Tensor,
            attention_mask: Tensor,
            numbers: Tensor,
            labels: Tensor | None = None,
            label_numbers: Any = None,
            num_items_in_batch: Tensor | None = None,
            numbers_in_batch: Tensor | None = None,
        ) -> XvalOutput:
            """Predict the next tokens and numbers of `[batch, seq]`; see `NumberTokens.finish`."""
            output = super().forward(
                inputs_embeds=self.embed(input_ids, numbers),
                attention_mask=attention_mask,
                use_cache=False,
                output_hidden_states=True,
            )
            counts, states = (num_items_in_batch, numbers_in_batch), output.hidden_states[-1]
            return self.finish(output.logits, states, labels, label_numbers, *counts)

    return CausalForXval


class Xval(AnsweringModel):
    """A language model that reads and writes numbers as values, T5 or decoder-only.

    Its rows are those of `XvalEncoding`: token ids and, for numbers, values. A decoder-only model has
    question and answer in one row.
    """

    def __init__(self, source: ModelSource):
        self.tokenizer, self.decodes_only = source.tokenizer, not source.config.is_encoder_decoder
        self.encoding = XvalEncoding(self.tokenizer)
        self.number_ids = [self.encoding.number_id]
        own = {"number_id": self.encoding.number_id, **NO_STATISTICS}
        kind: Any = type(source.config)
        model_class = causal_model(kind) if self.decodes_only else T5ForXval
        self.model = build_model(model_class, source, new=["number_head."], **own)
        self.prompts = make_prompts(source, self.encoding) if self.decodes_only else self.encoding.encode

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the numbers in the training answers; see `AnsweringModel.fit`."""
        fit(self.model.config, [value for answer in answers for value in find_values(answer)])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`, rows with values; see `AnsweringModel.encode`."""
        prompts = self.prompts(questions)
        if not self.decodes_only:
            return {"input_ids": prompts, "labels": self.encoding.encode(answers)}
        written = self.encoding.encode(answers, special_tokens=False)
        ends = [[*answer, self.tokenizer.eos_token_id] for answer in written]
        rows = [*map(operator.add, prompts, ends)]
        check_lengths(rows, self.model)
        labels = [[IGNORE] * len(prompt) + end for prompt, end in zip(prompts, ends, strict=True)]
        return {"input_ids": rows, "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows into the model's arguments, `[batch, seq]`; see `AnsweringModel.collate`."""
        asked, learned = (self._pad([row[name] for row in rows]) for name in ("input_ids", "labels"))
        labels = learned["input_ids"].masked_fill(learned["attention_mask"] == 0, IGNORE)
        return {**asked, "labels": labels, "label_numbers": learned["numbers"]}

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer greedily, feeding each predicted number to the next step; see `AnsweringModel.answer`.

        A decoder-only model reads the whole row at each step, padded on the right, so that any causal model
        can be asked.
        """
        prompts, written = self.prompts(questions), [list[Any]() for _ in questions]
        config, device, end = self.model.config, self.model.device, self.tokenizer.eos_token_id
        asked = {} if self.decodes_only else self._pad(prompts, device)
        output = XvalOutput()
        for _ in range(max_new_tokens):
            at = rows = [i for i, row in enumerate(written) if row[-1:] != [end]]
            if not rows:
                break
            with evaluation_mode(self.model):
                if self.decodes_only:
                    at = [*range(len(rows))]
                    read = self._pad([prompts[i] + written[i] for i in rows], device)
                    output = self.model(**read)
                else:  # ended rows stay in the cache
                    read = self._pad([row[-1:] or [config.decoder_start_token_id] for row in written], device)
                    output = self.model(
                        **asked,
                        decoder_input_ids=read["input_ids"],
                        decoder_numbers=read["numbers"],
                        encoded=output.encoded,
                        cache=output.cache,
                        use_cache=True,
                    )
            last = at, read["attention_mask"].sum(-1)[at] - 1
            numbers = restore(output.numbers[last], config).cpu().numpy()
            for i, token, number in zip(rows, output.logits[last].argmax(-1).tolist(), numbers, strict=True):
                written[i].append(number if token == self.encoding.number_id else token)
        return self.encoding.decode(written)

    def _pad(self, rows: Sequence[Sequence[Any]], device: Any = "cpu") -> dict[str, Tensor]:
        """Pad rows into `input_ids`, `attention_mask` and `numbers`, float64, which are 0 at other tokens."""
        ids = [[x if isinstance(x, int) else self.encoding.number_id for x in row] for row in rows]
        values = [[0.0 if isinstance(x, int) else x for x in row] for row in rows]
        padded = self.tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")
        numbers = pad_sequence([torch.tensor(row, dtype=torch.float64) for row in values], True)
        return {name: x.to(device) for name, x in {**padded, "numbers": numbers}.items()}
