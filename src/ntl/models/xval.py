"""xVal: one `[NUM]` token scaled by the value, and a number head, on T5 or a decoder-only model."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    Cache,
    PreTrainedConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils.generic import ModelOutput

from ntl.encodings.digits import TextEncoding
from ntl.encodings.number_values import XvalEncoding, embedding_scale, find_values
from ntl.models import IGNORE, AnsweringModel, Row
from ntl.models.decoder_only import decoder_prompts
from ntl.models.source import (
    ModelSource,
    build_model,
    cache_name,
    check_lengths,
    check_t5,
    evaluation_mode,
    get_shape,
)
from ntl.models.standardize import NO_STATISTICS, fit, init_weights, restore, standardize


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

    def embed(self: Any, input_ids: Tensor | None, numbers: Tensor | None) -> Tensor:
        """Embed token ids and values, `[batch, seq]`, as `[batch, seq, width]`."""
        assert input_ids is not None  # the caller gives them, unless `encoded` or `labels` replaces them
        assert numbers is not None
        embedded: Tensor = self.get_input_embeddings()(input_ids)
        scale = embedding_scale(numbers, self.config.ntl["log_scale"]).to(embedded.dtype)
        is_number = input_ids == self.config.ntl["number_id"]
        return embedded * torch.where(is_number, scale, 1).unsqueeze(-1)

    def predict(self: Any, states: Tensor) -> Tensor:
        """Predict a standardized number with each state, `[batch, seq]`, float32."""
        # bfloat16 would keep only three digits of a number.
        with torch.autocast(states.device.type, enabled=False):
            predicted: Tensor = self.number_head(states.to(self.number_head[0].weight.dtype))
        return predicted.squeeze(-1).float()

    def losses(
        self: Any,
        logits: Tensor,
        predicted: Tensor,
        labels: Tensor,
        values: Tensor | None,
        items: Tensor | None,
        count: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss, and the squared errors of the numbers, `[batch, seq]`.

        It is (cross-entropy + standardized squared error at `[NUM]`) / 2, each a mean over the whole update.

        Args:
            logits, predicted: Predictions of each label, `[batch, seq, vocab]` and `[batch, seq]`.
            labels: Token ids, `[batch, seq]`, -100 where nothing is learned.
            values: Values at `[NUM]`, `[batch, seq]`, float64.
            items, count: Labels and `[NUM]` of the update. None: of this batch.
        """
        assert values is not None  # given with the labels
        is_number = labels == self.config.ntl["number_id"]
        items = (labels != IGNORE).sum() if items is None else items
        count = is_number.sum() if count is None else count
        ce = F.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.label_smoothing if self.training else 0.0,
            reduction="sum",
        )
        errors = torch.where(is_number, (predicted - standardize(values, self.config)).square(), 0)
        return (ce / items + errors.sum() / count.clamp(min=1)) / 2, errors


class T5ForXval(NumberTokens, T5ForConditionalGeneration):
    """T5 that reads and predicts numbers."""

    def __init__(self, config: T5Config):
        super().__init__(config)
        self.cache_name = cache_name(self.decoder)

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
        """Predict tokens and numbers and, with labels, compute the loss, see `NumberTokens.losses`.

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
                inputs_embeds=self.embed(input_ids, numbers), attention_mask=attention_mask
            ).last_hidden_state
        decoded = self.decoder(
            inputs_embeds=self.embed(decoder_input_ids, decoder_numbers),
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            **{self.cache_name: cache},
            use_cache=use_cache,
        )
        states = decoded.last_hidden_state
        scale = self.model_dim**-0.5 if self.config.scale_decoder_outputs else 1.0
        logits, predicted = self.lm_head(states * scale), self.predict(states)
        loss = errors = None
        if labels is not None:
            counts = num_items_in_batch, numbers_in_batch
            loss, errors = self.losses(logits, predicted, labels, label_numbers, *counts)
        return XvalOutput(loss, logits, errors, predicted, encoded, getattr(decoded, self.cache_name))


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
            num_items_in_batch: Tensor | None = None,
            numbers_in_batch: Tensor | None = None,
        ) -> XvalOutput:
            """Predict the next tokens and numbers of `[batch, seq]`; see `NumberTokens.losses`."""
            output = super().forward(
                inputs_embeds=self.embed(input_ids, numbers),
                attention_mask=attention_mask,
                use_cache=False,
                output_hidden_states=True,
            )
            logits, predicted = output.logits, self.predict(output.hidden_states[-1])
            loss = errors = None
            if labels is not None:
                ahead = logits[:, :-1], predicted[:, :-1], labels[:, 1:], numbers[:, 1:]
                loss, errors = self.losses(*ahead, num_items_in_batch, numbers_in_batch)
            return XvalOutput(loss, logits, errors, predicted)

    return CausalForXval


class Xval(AnsweringModel):
    """T5 that reads and writes numbers as values."""

    def __init__(self, source: ModelSource):
        self.tokenizer = source.tokenizer
        self.encoding = XvalEncoding(self.tokenizer)
        self.number_ids = [self.encoding.number_id]
        own = {"number_id": self.encoding.number_id, **NO_STATISTICS}
        self.model = build_model(self._model_class(source), source, new=["number_head."], **own)

    def _model_class(self, source: ModelSource) -> Any:
        check_t5(source)
        return T5ForXval

    def fit(self, answers: Iterable[str]) -> None:
        """Compute the statistics of the numbers in the training answers; see `AnsweringModel.fit`."""
        fit(self.model.config, [value for answer in answers for value in find_values(answer)])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids`, `numbers`, `labels`, `label_numbers`; see `AnsweringModel.encode`."""
        (input_ids, numbers), (labels, label_numbers) = map(self.encoding.encode, (questions, answers))
        return {"input_ids": input_ids, "numbers": numbers, "labels": labels, "label_numbers": label_numbers}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad each column of the rows to `[batch, seq]`; see `AnsweringModel.collate`."""
        batch = self._pad([row["input_ids"] for row in rows], [row["numbers"] for row in rows])
        batch["labels"] = pad_sequence([torch.tensor(row["labels"]) for row in rows], True, IGNORE)
        if "label_numbers" in rows[0]:  # those of a decoder-only model are among its numbers
            batch["label_numbers"] = _pad_values([row["label_numbers"] for row in rows])
        return batch

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer greedily, feeding each predicted number to the next step; see `AnsweringModel.answer`."""
        if not questions:
            return []
        batch = self._pad(*self.encoding.encode(questions))
        with evaluation_mode(self.model):
            rows, values = _generate(self.model, self._on_device(batch), max_new_tokens)
        return self.encoding.decode(rows.tolist(), values.cpu().numpy())

    def _pad(self, ids: list[list[int]], numbers: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        padded = self.tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")
        return {**padded, "numbers": _pad_values(numbers)}

    def _on_device(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {key: value.to(self.model.device) for key, value in batch.items()}


class DecoderXval(Xval):
    """A decoder-only model that reads and writes numbers as values: question and answer in one sequence.

    In a sequence of this class, a token is an integer, and a number stands as its value.
    """

    def __init__(self, source: ModelSource):
        super().__init__(source)
        spelled = SimpleNamespace(encode=self._spell, decode=TextEncoding(self.tokenizer).decode)
        self.prompts = decoder_prompts(source, spelled)

    def _model_class(self, source: ModelSource) -> Any:
        config: Any = source.checkpoint
        if config is None:
            config = AutoConfig.for_model(get_shape(source.settings.config_name)["model_type"])
        return causal_model(config.__class__)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids`, `numbers` and `labels`; see `AnsweringModel.encode`."""
        prompts = self.prompts(questions)
        ends = [[*answer, self.tokenizer.eos_token_id] for answer in self._spell(answers)]
        input_ids, numbers = self._split(map(operator.add, prompts, ends))
        check_lengths(input_ids, self.model)
        asked = [len(prompt) for prompt in prompts]
        labels = [[IGNORE] * n + row[n:] for n, row in zip(asked, input_ids, strict=True)]
        return {"input_ids": input_ids, "numbers": numbers, "labels": labels}

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer greedily, feeding each predicted number to the next step; see `AnsweringModel.answer`.

        Each step reads the whole sequence, padded on the right, so that any causal model can be asked.
        """
        if not questions:
            return []
        prompts, written = self.prompts(questions), [list[Any]() for _ in questions]
        for _ in range(max_new_tokens):
            asked = [i for i, row in enumerate(written) if row[-1:] != [self.tokenizer.eos_token_id]]
            if not asked:
                break
            batch = self._on_device(self._pad(*self._split(prompts[i] + written[i] for i in asked)))
            last = torch.arange(len(asked)), batch["attention_mask"].sum(-1) - 1
            with evaluation_mode(self.model):
                output = self.model(**batch)
            tokens = output.logits[last].argmax(-1).tolist()
            numbers = restore(output.numbers[last], self.model.config).cpu().numpy()
            for i, token, number in zip(asked, tokens, numbers, strict=True):
                written[i].append(number if token == self.encoding.number_id else token)
        return self.encoding.decode(*self._split(written))

    def _spell(self, texts: Sequence[str], special_tokens: bool = False) -> list[list[Any]]:
        rows = zip(*self.encoding.encode(texts, special_tokens), strict=True)
        number_id = self.encoding.number_id
        return [[v if t == number_id else t for t, v in zip(*row, strict=True)] for row in rows]

    def _split(self, rows: Iterable[Sequence[Any]]) -> tuple[list[list[int]], list[list[float]]]:
        """Return the token ids of sequences, and their values, which are 0 beside numbers."""
        rows = [*rows]
        ids = [[x if isinstance(x, int) else self.encoding.number_id for x in row] for row in rows]
        return ids, [[0.0 if isinstance(x, int) else x for x in row] for row in rows]


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
