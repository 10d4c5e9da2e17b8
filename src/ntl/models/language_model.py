"""Models that read and write text: T5, or a decoder-only model (Llama, Mamba, ...).

Numbers are digits as tokens, those of the unchanged tokenizer, or tokens of digit and place. A decoder-only
model completes questions: question and answer are one sequence, with the loss on the answer.
"""

import copy
import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DynamicCache,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer

from ntl.encodings.digits import TextEncoding
from ntl.encodings.regression_transformer import RegressionTransformerEncoding, numerical_encodings
from ntl.errors import UserError
from ntl.models.answer_format import WrittenAnswers, start_ids
from ntl.models.source import (
    IGNORE,
    PACKED,
    AnsweringModel,
    ModelSource,
    Row,
    build_model,
    check_lengths,
    evaluation_mode,
    make_prompts,
)
from ntl.own import load_own
from ntloss import NumberVocabulary
from ntloss.reading import NumberQuantiles, UnlikelyNumberWarning, number_quantiles
from ntloss.writing import STATES, Writer, copy_views, pad_left

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
    """A model that reads and writes text.

    The sequences and batches of a decoder-only model are those of `ntloss.writing.Writer`.

    Attributes:
        encoding: What turns texts into tokens and back; one that is not the tokenizer's own says in `numbers`
            which tokens write which digits or numbers.
        vocabulary: The number tokens.
        answer_format: What writes padded answers, or None.
        prompts: Encodes questions as the tokens that precede an answer, or that the encoder reads.
    """

    def __init__(self, source: ModelSource):
        self.tokenizer, kind = source.tokenizer, source.settings.encoding
        self.decodes_only = not source.config.is_encoder_decoder
        described = dict[str, Any]()
        if kind in ("digits", "auto"):
            self.encoding: Any = TextEncoding(self.tokenizer)
        elif kind == "rt":
            self.encoding = RegressionTransformerEncoding(self.tokenizer)
            described = {"first_id": self.encoding.first_id}
        else:
            self.encoding = load_own("model_args.number_encoding", kind)(self.tokenizer)
        model_class = AutoModelForCausalLM if self.decodes_only else AutoModelForSeq2SeqLM
        self.model = build_model(model_class, source, **described)
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
        self.prompts = self.encoding.encode
        if self.decodes_only:
            self.prompts = make_prompts(source, self.encoding)
            self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
            if head := self.model.get_output_embeddings():
                copy_views(head)

    @property
    def writer(self) -> Writer:
        """What makes sequences and batches, in the format of the answers that `fit` has chosen."""
        spell = partial(self.encoding.encode, special_tokens=False)
        numbers = None if self.answer_format is None else self.answer_format.form.numbers
        return Writer(self.model, self.tokenizer, numbers, self.vocabulary, spell)

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
        """Encode pairs as `input_ids`, of a question or of the whole sequence, and the answer's `labels`.

        See `AnsweringModel.encode`.
        """
        prompts, written = self.prompts(questions), self.write(answers)
        if not self.decodes_only:
            return {"input_ids": prompts, "labels": self.encoding.encode(written)}
        rows = self.writer.encode(prompts, written)
        check_lengths([row["input_ids"] for row in rows], self.model)
        return {name: [row[name] for row in rows] for name in ("input_ids", "labels")}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad or pack rows into a batch, whose labels are those of some positions; see `Writer.collate`."""
        if not self.decodes_only:
            return {**DataCollatorForSeq2Seq(self.tokenizer)(rows)}
        return self.pack(rows) if PACKED in rows[0] else self.writer.collate(rows)

    def pack(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Put encoded rows one behind another, without padding.

        Where positions start again, attention starts anew. Logits are computed where the labels
        `[1, labels]` stand, which are those of the answers, each behind an ignored one.
        """
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        kept = [
            torch.arange(-1 - len(row["labels"]), 0) + end
            for row, end in zip(rows, lengths.cumsum(0), strict=True)
        ]
        batch: dict[str, Any] = {
            "input_ids": [i for row in rows for i in row["input_ids"]],
            "position_ids": [i for length in lengths for i in range(length)],
            "labels": [i for row in rows for i in (IGNORE, *row["labels"])],
        }
        batch = {name: torch.tensor([tokens]) for name, tokens in batch.items()}
        if STATES in rows[0]:
            batch[STATES] = torch.cat([row[STATES] for row in rows])[None]
        return {**batch, "logits_to_keep": torch.cat(kept), "use_cache": False}

    def check_packing(self, rows: Sequence[Row]) -> None:
        """Raise a UserError unless the model gives packed rows the logits that it gives padded ones."""
        found = []
        try:
            with evaluation_mode(self.model):
                for batch in (self.pack(rows), self.writer.collate(rows)):
                    labels = batch.pop("labels")
                    logits = self.model(**batch).logits[:, -labels.shape[1] : -1]
                    found.append(logits[labels[:, 1:] != IGNORE])
            packed, padded = found
            is_same = torch.allclose(packed, padded, atol=1e-4 * float(padded.abs().max()))
        except (TypeError, ValueError):  # it takes no positions
            is_same = False
        if not is_same:
            raise UserError(
                f"training_args.packed=true: {type(self.model).__name__} does not keep rows apart that stand "
                "one behind another; expected a model of transformers with attention. Omit it."
            )

    def read(
        self, questions: Texts, beams: int, max_new_tokens: int, levels: Sequence[float]
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer and find quantiles, if possible with one run of the prompts."""
        past = self._run_prompts(questions) if beams == 1 else None
        answers = self.answer(questions, beams, max_new_tokens, copy.deepcopy(past))
        return answers, self.quantiles(questions, levels, past)

    def _run_prompts(self, questions: Texts) -> Past:
        """Return the cache of all tokens but the last, if each layer of a decoder attends to all of them."""
        accepted = inspect.signature(self.model.forward).parameters
        kinds = {*(getattr(self.model.config, "layer_types", None) or ["full_attention"])}
        attends = self.decodes_only and "past_key_values" in accepted and kinds == {"full_attention"}
        first = [{"input_ids": prompt[:-1]} for prompt in self.prompts(questions)]
        if not attends or not any(row["input_ids"] for row in first):
            return None
        inputs = pad_left(self.model, first, self.tokenizer.pad_token_id)
        kept = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        with evaluation_mode(self.model):
            given = {name: value.to(self.model.device) for name, value in inputs.items()}
            past = self.model(**given, **kept, use_cache=True).past_key_values
        known = type(past) is DynamicCache and all(type(layer) is DynamicLayer for layer in past.layers)
        return past if known else None

    def answer(self, questions: Texts, beams: int, max_new_tokens: int, past: Past = None) -> list[str]:
        """Answer the questions with beam search; see `AnsweringModel.answer`."""
        batch = self._ask(questions)
        prompt = batch["input_ids"].shape[1] if self.decodes_only else 1
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
        if (form := self.answer_format) is not None:  # such answers end by themselves
            mask = form.mask
            options = {"max_new_tokens": mask.longest}
            options["logits_processor"] = [lambda ids, scores: mask(ids[:, prompt:], scores)]
        if past is not None:
            options["past_key_values"] = past
        with evaluation_mode(self.model):
            tokens = self.model.generate(**batch, **options, num_beams=beams, do_sample=False)
        texts: list[str] = self.encoding.decode(tokens[:, prompt:].tolist())
        return texts if form is None else form.read(texts)

    def quantiles(self, questions: Texts, levels: Sequence[float], past: Past = None) -> NumberQuantiles:
        """Find quantiles of the number that answers each question, digit by digit."""
        form = None if self.answer_format is None else self.answer_format.form
        numbers = None if form is None else form.numbers
        options: dict[str, Any] = {"format": numbers, "past_key_values": past}
        options["prefix_ids"] = start_ids(self.tokenizer, numbers)
        options["generator"] = torch.Generator().manual_seed(0)  # the same walks in every evaluation
        with evaluation_mode(self.model), warnings.catch_warnings():
            # `number_mass` reports it.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            try:
                read = number_quantiles(self.model, self._ask(questions), self.vocabulary, levels, **options)
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"quantiles cannot be read from this model: {str(error).rstrip('.')}. Pass "
                    "evaluation.read=[greedy], or model_args.number_scale=log for long padded numbers."
                ) from error
        if form is None or not form.log:
            return read
        ends = {name: getattr(read, name) for name in ("values", "lower", "upper")}
        unscaled: dict[str, Any] = {
            name: torch.from_numpy(form.unscaled(values.cpu().numpy())).to(values)
            for name, values in ends.items()
        }
        return replace(read, **unscaled)

    def _ask(self, questions: Texts) -> dict[str, Tensor]:
        """Return the padded tokens of questions, on the model's device."""
        side = "left" if self.decodes_only else None
        rows = {"input_ids": self.prompts(questions)}
        found: Any = self.tokenizer.pad(
            rows, padding_side=side, return_attention_mask=True, return_tensors="pt"
        ).to(self.model.device)
        return {name: found[name] for name in ("input_ids", "attention_mask")}
