"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

from ntl.errors import UserError
from ntl.models import IGNORE, PACKED, Row
from ntl.models.language_model import LanguageModel
from ntl.models.source import ModelSource, cache_name, check_lengths, evaluation_mode
from ntloss.reading import NumberQuantiles
from ntloss.writing import STATES, Writer, copy_views, pad_left


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    Its sequences and batches are those of `ntloss.writing.Writer`, its prompts those of `decoder_prompts`.
    """

    model_class = AutoModelForCausalLM

    def __init__(self, source: ModelSource):
        super().__init__(source)
        self.prompts = decoder_prompts(source, self.encoding)
        self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        if head := self.model.get_output_embeddings():
            copy_views(head)

    @property
    def writer(self) -> Writer:
        """What makes sequences and batches, in the format of the answers that `fit` has chosen."""
        spell = partial(self.encoding.encode, special_tokens=False)
        numbers = None if self.answer_format is None else self.answer_format.form.numbers
        return Writer(self.model, self.tokenizer, numbers, self.vocabulary, spell)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end.

        See `AnsweringModel.encode`.
        """
        rows = self.writer.encode(self.prompts(questions), self.write(answers))
        check_lengths([row["input_ids"] for row in rows], self.model)
        return {name: [row[name] for row in rows] for name in ("input_ids", "labels")}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad or pack rows into a batch, whose labels are those of some positions; see `Writer.collate`."""
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
        self,
        questions: Sequence[str],
        beams: int,
        max_new_tokens: int,
        levels: Sequence[float],
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer and find quantiles, if possible with one run of the prompts."""
        past = self._run_prompts(questions) if beams == 1 else None
        answers = self.answer(questions, beams, max_new_tokens, copy.deepcopy(past))
        return answers, self.quantiles(questions, levels, past)

    def _run_prompts(self, questions: Sequence[str]) -> DynamicCache | None:
        """Return the cache of all tokens but the last, if each layer attends to all of them."""
        first = [{"input_ids": prompt[:-1]} for prompt in self.prompts(questions)]
        kinds = {*(getattr(self.model.config, "layer_types", None) or ["full_attention"])}
        accepted = inspect.signature(self.model.forward).parameters
        name = cache_name(self.model)
        attends = bool(name) and kinds == {"full_attention"}
        if not any(row["input_ids"] for row in first) or not attends:
            return None
        inputs = pad_left(self.model, first, self.tokenizer.pad_token_id)
        kept = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        with evaluation_mode(self.model):
            device = self.model.device
            given = {name: value.to(device) for name, value in inputs.items()}
            output = self.model(**given, **kept, use_cache=True)
        past = getattr(output, name)
        known = type(past) is DynamicCache and all(type(layer) is DynamicLayer for layer in past.layers)
        return past if known else None


def decoder_prompts(source: ModelSource, encoding: Any) -> Callable[[Sequence[str]], list[list[int]]]:
    """Make the function that encodes questions for a decoder-only model.

    A prompt is a question or, with a chat template, a conversation up to the assistant's turn; the separator
    follows. Its default is nothing in a chat or after white space, and otherwise a line break or, if the
    tokenizer has none, its end token.
    """
    tokenizer, settings = source.tokenizer, source.settings
    if settings.chat_template and tokenizer.chat_template is None:
        raise UserError(
            "model_args.chat_template=true, but the tokenizer has no chat template; expected that of an "
            "instruct model. Omit it."
        )

    def plain(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = encoding.encode(texts, special_tokens=False)
        return found

    def as_chat(question: str) -> str:
        turns = [{"role": "user", "content": question}]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    given = None if settings.separator is None else settings.separator.replace("\\n", "\n")
    if settings.chat_template:
        return lambda questions: plain([as_chat(question) + (given or "") for question in questions])
    line_break = plain(["\n"])[0]
    if not line_break or tokenizer.unk_token_id in line_break or "\n" not in encoding.decode([line_break])[0]:
        line_break = [tokenizer.eos_token_id]
    separator = line_break if given is None else plain([given])[0]
    first = tokenizer("1")["input_ids"][:1]
    prefix = first if first == [tokenizer.bos_token_id] else []

    def prompts(questions: Sequence[str]) -> list[list[int]]:
        ends = [given is None and question[-1:].isspace() for question in questions]
        rows = zip(plain(questions), ends, strict=True)
        return [[*prefix, *ids, *([] if ends_itself else separator)] for ids, ends_itself in rows]

    return prompts
