"""T5 as a language model: digits as tokens, the unchanged tokenizer, or tokens of digit and place."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import (
    AutoModelForSeq2SeqLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from ntl.approaches import IGNORE, Batch, Levels, ModelSource, Row, Share, Texts
from ntl.approaches.answer_format import AnswerFormat
from ntl.approaches.batches import generation_mode, is_sharded, pad, pad_questions, plain_cross_entropy
from ntl.approaches.pretrained import build_model
from ntl.config import Evaluation, LossSettings, Mode
from ntl.criteria import in_any_unit
from ntl.encodings.digits import TextEncoding
from ntl.encodings.regression_transformer import RegressionTransformerEncoding, numerical_encodings
from ntl.errors import UserError
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import make_criterion
from ntloss.numbers import NumberFormat
from ntloss.numbers.parsing import parse_number
from ntloss.reading import NumberQuantiles, UnlikelyNumberWarning, number_quantiles

Past = DynamicCache | None
AUTO = "auto"  # value of loss.options.sigma that leaves it to the training answers
CACHED = 2**15  # tokens whose keys and values a pass of quantiles holds: 1.5 GB of SmolLM2-135M's, and copies
MOST_ROWS = 1024  # of a pass of quantiles
SIGMA = "sigma"  # entry of `config.ntl` that then holds its first and last value


class PlacedEmbedding(nn.Embedding):
    """Token embeddings plus `numerical_encodings` of the 320 tokens of digit and place, from `first_id`."""

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

    def set_input_embeddings(self, new_embeddings: nn.Embedding) -> None:
        """Replace the embeddings, whose size may differ."""
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

    The loss is cross-entropy plus a weighted number token loss, both computed in one pass over the logits.
    Without a criterion, NTL-WAS is reported but not minimized (its weight is 0).
    """

    frozen = lora = head = None
    pads_left = False
    model_class: Any = AutoModelForSeq2SeqLM

    def __init__(self, source: ModelSource, loss: LossSettings):
        self.tokenizer = source.tokenizer
        self.encoding: TextEncoding | RegressionTransformerEncoding
        if source.settings.encoding == "rt":
            self.encoding = placed = RegressionTransformerEncoding(self.tokenizer)
            self.model = build_model(T5WithPlaces, source, first_id=placed.first_id)
            size = self.model.config.vocab_size
            self.vocabulary = NumberVocabulary.from_mapping(placed.digits_of_ids, size)
        else:
            self.encoding = TextEncoding(self.tokenizer)
            self.model = build_model(self.model_class, source)
            digits = source.settings.encoding == "digits"
            self.vocabulary = number_tokens(self.tokenizer, digits, self.model.config.vocab_size)
        self._loss = loss
        self.objective = _objective(self.vocabulary, loss, self.model.config.ntl)
        self._weight = self.objective.weight
        self._by_numbers = loss.normalize_by == "numbers" and loss.mode == "add"
        self._number_ids = torch.tensor(self.vocabulary.token_ids)
        self.answer_format = AnswerFormat(self.model, self.tokenizer, self.vocabulary)

    @property
    def number_format(self) -> NumberFormat | None:
        """See `Approach.number_format`."""
        return self.answer_format.number_format

    @property
    def ill_formed(self) -> int | None:
        """See `Approach.ill_formed`."""
        return getattr(self.encoding, "ill_formed", None)

    def fit(self, answers: Iterable[str]) -> None:
        """Choose the number format, if answers are padded, and the targets' sigma; see `Approach.fit`."""
        answers = list(answers)
        self.answer_format.fit(answers)
        if self._loss.options.get("sigma") == AUTO:
            written = self.answer_format.write(answers)
            numbers = [parse_number(answer.strip(), "whole") for answer in written]
            try:
                if None in numbers:
                    raise ValueError(f"{answers[numbers.index(None)]!r} is not a number")
                first, last = HLGauss.for_answers(numbers).schedule
            except ValueError as error:
                reason = f"loss.options={{sigma: auto}} does not fit the training answers: {error}"
                raise UserError(
                    f"{reason.rstrip('.')}. Pass for example loss.options={{sigma: 1.0}}."
                ) from None
            self.model.config.ntl = {**self.model.config.ntl, SIGMA: [first, last]}
            self.objective = _objective(self.vocabulary, self._loss, self.model.config.ntl)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` and `labels`; see `Approach.encode`."""
        labels = self.encoding.encode(self.answer_format.write(answers))
        return {"input_ids": self.prompts(questions), "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows into `input_ids`, `attention_mask` and `labels`; see `Approach.collate`."""
        labels = pad([row["labels"] for row in rows], IGNORE, left=self.pads_left)
        return {**self._pad([row["input_ids"] for row in rows]), "labels": labels}

    def count(self, batch: Batch) -> Tensor:
        """Count the labels, the items that the number term is averaged over, and the number tokens."""
        counts = *self.objective.normalizers(batch["labels"]), self._is_number(batch["labels"]).sum()
        return torch.stack(counts).double()

    def _is_number(self, labels: Tensor) -> Tensor:
        return torch.isin(labels, self._number_ids.to(labels.device))

    def loss(self, model: nn.Module, batch: Batch, counts: Tensor) -> Share:
        """Compute the share, with the terms `ce` and `ntl` (unweighted); see `Approach.loss`.

        In evaluation, `ce` is the plain cross-entropy of all labels, without smoothing or replacement;
        `ce_numbers` is that of number tokens, and `ce_text` that of all others.
        """
        logits, labels, (items, numbers, tokens) = self.logits(model, batch), batch["labels"], counts.unbind()
        # Divided by the items, and weighted with items / numbers, the term is a mean over the step's numbers.
        scale = items / numbers.clamp(min=1) if self._by_numbers else items.new_ones(())
        self.objective.weight = self._weight * scale
        loss, ce, ntl, _ = self.objective(logits, labels, num_items_in_batch=items)
        ntl = ntl * scale.to(ntl)
        if torch.is_grad_enabled():
            return Share(loss, {"ce": ce, "ntl": ntl})
        is_number = self._is_number(labels)
        on_numbers = plain_cross_entropy(logits, labels.where(is_number, IGNORE))
        on_text = plain_cross_entropy(logits, labels.where(~is_number, IGNORE))
        ce = (on_numbers + on_text) / items.clamp(min=1)
        # The other two are NaN without such tokens.
        parts = {"ce_numbers": on_numbers / tokens, "ce_text": on_text / (items - tokens)}
        return Share(loss, {"ce": ce, **parts, "ntl": ntl})

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute teacher-forced logits at the positions of `labels`, `[batch, seq, vocab]`."""
        # Without labels, the model skips its own loss, which would cost a pass over the logits.
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        shifted = self.model.prepare_decoder_input_ids_from_labels(batch["labels"])
        return model(**inputs, decoder_input_ids=shifted, use_cache=False).logits

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions as the tokens that precede an answer, or that the encoder reads."""
        return self.encoding.encode(questions)

    def read(
        self, model: nn.Module, questions: Texts, generation: Evaluation, levels: Levels
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer the questions, and find quantiles; see `Approach.read`."""
        return self.answer(model, questions, generation), self.quantiles(model, questions, levels)

    def answer(
        self, model: nn.Module, questions: Texts, generation: Evaluation, past: Past = None
    ) -> list[str]:
        """Answer the questions with beam search; see `Approach.answer`."""
        if not questions:
            return []
        batch = self._pad(self.prompts(questions))
        # Every forward pass gathers sharded parameters, so all ranks must run the same number of passes.
        sharded = is_sharded(self.model)
        if sharded and "generate" not in vars(self.model):
            # `generate` calls the encoder directly, bypassing the hook that gathers the embeddings.
            register_fsdp_forward_method(self.model, "generate")
        prompt = 1 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        options: dict[str, Any] = {"max_new_tokens": generation.max_new_tokens}
        if (mask := self.answer_format.processor(prompt)) is not None:  # such answers end by themselves
            options = {"max_new_tokens": mask.longest, "logits_processor": [mask]}
        if past is not None:
            options["past_key_values"] = past
        with generation_mode(self.model, model):
            tokens = self.model.generate(
                **{key: value.to(self.model.device) for key, value in batch.items()},
                **options,
                num_beams=generation.beams,
                do_sample=False,
                synced_gpus=sharded,
            )
        return self.answer_format.read(self.encoding.decode(tokens[:, prompt:].tolist()))

    def quantiles(
        self, model: nn.Module, questions: Texts, levels: Levels, past: Past = None
    ) -> NumberQuantiles:
        """Find the quantiles digit by digit; see `Approach.quantiles`."""
        options = {**self.answer_format.quantile_options(), "past_key_values": past}
        batch = self._pad(self.prompts(questions))
        inputs = {key: value.to(self.model.device) for key, value in batch.items()}
        if not is_sharded(self.model):  # whose ranks need the same number of passes
            options["rows_per_pass"] = min(MOST_ROWS, 1 + CACHED // batch["input_ids"].shape[1])
        with generation_mode(self.model, model), warnings.catch_warnings():
            # `number_mass` reports it.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            try:
                read = number_quantiles(self.model, inputs, self.vocabulary, levels, **options)
            except (ValueError, TypeError) as error:
                reason = f"quantiles cannot be read from this model: {error}"
                wide = self.number_format is not None and not self.answer_format.is_log
                scale = " For long numbers, pass model_args.number_scale=log (scale=log)." if wide else ""
                advice = f"{scale} Alternatively, pass evaluation.read=[greedy]."
                raise UserError(f"{reason.rstrip('.')}.{advice}") from error
        ends = ("values", "lower", "upper")
        return replace(read, **{name: self.answer_format.unscaled(getattr(read, name)) for name in ends})

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


def _objective(
    vocabulary: NumberVocabulary, loss: LossSettings, ntl: Mapping[str, Any]
) -> NTLCrossEntropyLoss:
    """Make the loss, given the model's `config.ntl`; a UserError says which of its settings is invalid."""
    if loss.criterion is None:
        loss = replace(loss, criterion="ntl_was", options={}, weight=0.0, mode=Mode.add)
    options = dict(loss.options)
    if loss.criterion == "hl_gauss":
        if options.get("sigma") == AUTO:
            options["sigma"] = ntl.get(SIGMA, 1.0)  # the training answers, which decide, are not known yet
        options.setdefault("leading_zeros", ntl["number_format"] == "padded")
    try:
        return NTLCrossEntropyLoss(
            vocabulary,
            in_any_unit(make_criterion({"name": loss.criterion, **options})),
            loss.weight,
            mode=str(loss.mode),
            ignore_index=IGNORE,
            label_smoothing=loss.label_smoothing,
            return_terms=True,
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"the loss settings are invalid: {error}") from error
