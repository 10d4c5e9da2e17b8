"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

from ntl.models import Row
from ntl.models.batches import check_lengths, evaluation_mode
from ntl.models.language_model import LanguageModel
from ntl.models.prompts import decoder_prompts
from ntl.models.source import ModelSource
from ntloss.reading import NumberQuantiles
from ntloss.writing import Writer, copy_views, pad_left


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    Its sequences and batches are those of `ntloss.writing.Writer`, its prompts those of `ntl.models.prompts`.
    """

    pads_left = True
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
        form = self.answer_format.form
        numbers = None if form is None else form.numbers
        return Writer(self.model, self.tokenizer, numbers, self.vocabulary, spell)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end.

        See `AnsweringModel.encode`.
        """
        rows = self.writer.encode(self.prompts(questions), self.answer_format.write(answers))
        check_lengths([row["input_ids"] for row in rows], self.model)
        return {name: [row[name] for row in rows] for name in ("input_ids", "labels")}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad rows into a batch, whose labels are those of the last positions; see `Writer.collate`."""
        return self.writer.collate(rows)

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
        attends = bool(self.cache_name) and kinds == {"full_attention"}
        if not any(row["input_ids"] for row in first) or not attends:
            return None
        inputs = pad_left(self.model, first, self.tokenizer.pad_token_id)
        kept = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        with evaluation_mode(self.model):
            device = self.model.device
            given = {name: value.to(device) for name, value in inputs.items()}
            output = self.model(**given, **kept, use_cache=True)
        past = getattr(output, self.cache_name)
        known = type(past) is DynamicCache and all(type(layer) is DynamicLayer for layer in past.layers)
        return past if known else None
