"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

from ntl.encodings.digits import TextEncoding
from ntl.models import IGNORE, Batch, Row
from ntl.models.batches import check_lengths, decoder_inputs, generation_mode, is_sharded, pad
from ntl.models.frozen_layers import pad_states
from ntl.models.language_model import LanguageModel
from ntl.models.prompts import decoder_prompts
from ntl.models.source import ModelSource
from ntloss.reading import NumberQuantiles
from ntloss.upper_layers import copy_views


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    A sequence consists of the prompt (see `ntl.models.prompts`), the answer and, unless answers have a
    fixed width, the end token. Sequences are padded on the left, so that all answers are at the end and
    logits are computed only there.
    """

    encoding: TextEncoding
    pads_left = True
    model_class = AutoModelForCausalLM

    def __init__(self, source: ModelSource):
        self._prompts = decoder_prompts(source)
        super().__init__(source)
        self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        if head := self.model.get_output_embeddings():
            copy_views(head)
        accepted = inspect.signature(self.model.forward).parameters
        self._keeps_logits, self._keeps_cache = "logits_to_keep" in accepted, "past_key_values" in accepted

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end.

        See `AnsweringModel.encode`.
        """
        written = self.encoding.encode(self.answer_format.write(answers), special_tokens=False)
        # An answer of fixed width ends by itself. A pretrained model does not expect its end token after a
        # digit, and in a short training the large loss of learning that comes at the numbers' cost.
        end = [] if self.answer_format.number_format else [self.tokenizer.eos_token_id]
        labels = [ids + end for ids in written]
        rows = [prompt + answer for prompt, answer in zip(self.prompts(questions), labels, strict=True)]
        check_lengths(rows, self.model)
        return {"input_ids": rows, "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad rows, and the frozen layers' `states` if they were computed; see `AnsweringModel.collate`.

        The labels `[batch, answer + 1]` are those of the last positions, the only ones with logits: each
        predicts the next token, so the one before the answer is needed, too.
        """
        longest = max(len(row["labels"]) for row in rows)
        labels = pad([[IGNORE] * (longest + 1 - len(r["labels"])) + r["labels"] for r in rows], IGNORE)
        options: dict[str, Any] = {"use_cache": False}
        options |= {"logits_to_keep": longest + 1} if self._keeps_logits else {}
        padded = self.inputs(self._pad([row["input_ids"] for row in rows]))
        return {**padded, **pad_states(rows), "labels": labels, **options}

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions as the tokens that precede an answer; see `ntl.models.prompts`."""
        return self._prompts(questions)

    def read(
        self,
        model: nn.Module,
        questions: Sequence[str],
        beams: int,
        max_new_tokens: int,
        levels: Sequence[float],
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer and find quantiles, if possible with one run of the prompts."""
        past = self._run_prompts(model, questions) if beams == 1 else None
        answers = self.answer(model, questions, beams, max_new_tokens, copy.deepcopy(past))
        return answers, self.quantiles(model, questions, levels, past)

    def _run_prompts(self, model: nn.Module, questions: Sequence[str]) -> DynamicCache | None:
        """Return the cache of all tokens but the last, if each layer attends to all of them."""
        batch = self._pad(self.prompts(questions))
        kinds = {*(getattr(self.model.config, "layer_types", None) or ["full_attention"])}
        attends = self._keeps_cache and kinds == {"full_attention"}
        if batch["input_ids"].shape[1] < 2 or is_sharded(self.model) or not attends:
            return None
        first = {key: value[:, :-1].to(self.model.device) for key, value in batch.items()}
        kept = {"logits_to_keep": 1} if self._keeps_logits else {}
        with generation_mode(self.model, model):
            output = self.model(**self.inputs(first), **kept, use_cache=True)
        past = output.past_key_values
        known = type(past) is DynamicCache and all(type(layer) is DynamicLayer for layer in past.layers)
        return past if known else None

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's arguments for a collated batch."""
        return decoder_inputs(self.model, batch)
